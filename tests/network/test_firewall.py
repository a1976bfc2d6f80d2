# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from ipaddress import IPv4Network

from securetrain.network.firewall import delete_table, host_members, host_rules, job_rules, load
from securetrain.network.namespace import Namespace
from securetrain.network.wireguard import Endpoint

NET = IPv4Network("100.64.16.0/20")


def test_a_job_drops_what_is_not_its_own():
    assert job_rules(NET) == (
        "create table inet securetrain\n"
        "table inet securetrain {\n"
        "    chain input {\n"
        "        type filter hook input priority 0; policy drop;\n"
        '        iifname "lo" accept\n'
        '        iifname "st0" ip saddr 100.64.16.0/20 ip daddr 100.64.16.0/20 accept\n'
        "    }\n"
        "    chain output {\n"
        "        type filter hook output priority 0; policy drop;\n"
        '        oifname "lo" accept\n'
        '        oifname "st0" ip saddr 100.64.16.0/20 ip daddr 100.64.16.0/20 accept\n'
        "    }\n"
        "    chain forward {\n"
        "        type filter hook forward priority 0; policy drop;\n"
        "    }\n"
        "}\n"
    )


def test_a_host_hears_members_only():
    members = [Endpoint.parse(t) for t in ("192.0.2.2:7", "[2001:db8::2]:8", "192.0.2.1:9")]
    assert host_members("securetrain_x", members) == (
        "flush set inet securetrain_x members4\n"
        "add element inet securetrain_x members4 { 192.0.2.1 . 9, 192.0.2.2 . 7 }\n"
        "flush set inet securetrain_x members6\n"
        "add element inet securetrain_x members6 { 2001:db8::2 . 8 }\n"
    )
    text = host_rules("securetrain_x", 51820)
    lines = [line.strip() for line in text.splitlines()]
    accepts = [line for line in lines if line.endswith(" accept")]
    assert accepts == [
        "udp dport 51820 ip saddr . udp sport @members4 accept",
        "udp dport 51820 ip6 saddr . udp sport @members6 accept",
    ]
    # After them, everybody else is dropped; nothing else of the host's traffic is judged.
    assert lines.index("udp dport 51820 drop") > max(map(lines.index, accepts))
    assert "policy accept" in text
    assert "policy drop" not in text


def test_without_members_nobody_is_heard():
    assert "element" not in host_rules("securetrain_x", 51820)
    assert host_members("securetrain_x", ()) == (
        "flush set inet securetrain_x members4\nflush set inet securetrain_x members6\n"
    )


def test_a_table_that_is_there_is_refused():
    assert host_rules("t", 1).startswith("create table inet t\n")
    assert delete_table("t") == "table inet t {}\ndelete table inet t\n"


def test_rules_go_through_a_pipe(system):
    system.add("st-x")
    load(Namespace("st-x", system), job_rules(NET))
    assert system.commands[-1][-3:] == ["nft", "-f", "-"]
    assert "policy drop" in system.tables["st-x"]["securetrain"]
    assert not system.tables[""]
