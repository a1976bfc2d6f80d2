# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Packet filters (nftables) around a job network: the text of the rules, and loading them.

Two tables, each made in one transaction before there is something to filter, so that no moment is
without a filter:

* in the **job namespace**, where the tunnel is the only device besides loopback, everything is
  dropped but loopback and packets of the job's own subnet through the tunnel. It says the same as
  the routes do, a second time, and holds when somebody adds a device;
* in the **host's namespace**, in a table of our own, the tunnel's UDP port hears members only:
  other packets to it are dropped before WireGuard spends anything on them. Nothing else of the
  host's traffic is judged. Source addresses can be forged: this saves work, it does not
  authenticate. The members are two sets, which an epoch replaces in one transaction. They are no
  part of a rule, because nft(8) does not end before the kernel has let go of what was removed, and
  a first epoch then removes nothing.

A table that is there already is refused by the kernel: it is nobody's that we know of.

Reference: nft(8). Nothing but addresses, numbers and names that we derived is put into the text.
"""

from collections.abc import Collection
from ipaddress import IPv4Network
from typing import Final

from securetrain.network.addresses import DEVICE
from securetrain.network.namespace import Namespace
from securetrain.network.wireguard import Endpoint

JOB_TABLE: Final = "securetrain"

_SETS: Final = {4: ("members4", "ipv4_addr"), 6: ("members6", "ipv6_addr")}
"""Name and type of the members' addresses, by the version of IP."""


def job_rules(subnet: IPv4Network) -> str:
    """The filter of a job namespace: default drop."""
    return _creating(
        JOB_TABLE,
        [
            "chain input {",
            "    type filter hook input priority 0; policy drop;",
            '    iifname "lo" accept',
            f'    iifname "{DEVICE}" ip saddr {subnet} ip daddr {subnet} accept',
            "}",
            "chain output {",
            "    type filter hook output priority 0; policy drop;",
            '    oifname "lo" accept',
            f'    oifname "{DEVICE}" ip saddr {subnet} ip daddr {subnet} accept',
            "}",
            "chain forward {",
            "    type filter hook forward priority 0; policy drop;",
            "}",
        ],
    )


def host_rules(table: str, port: int) -> str:
    """The filter of the host: the tunnel's port hears members, of whom there are none yet."""
    return _creating(
        table,
        [
            *(f"set {name} {{ type {kind} . inet_service; }}" for name, kind in _SETS.values()),
            "chain input {",
            # Before the host's own filters; what is accepted here they still judge.
            "    type filter hook input priority -10; policy accept;",
            f"    udp dport {port} ip saddr . udp sport @{_SETS[4][0]} accept",
            f"    udp dport {port} ip6 saddr . udp sport @{_SETS[6][0]} accept",
            f"    udp dport {port} drop",
            "}",
        ],
    )


def host_members(table: str, members: Collection[Endpoint]) -> str:
    """Have the tunnel's port hear `members` and nobody else."""
    lines = []
    for version, (name, _) in _SETS.items():
        lines.append(f"flush set inet {table} {name}")
        elements = sorted(
            f"{member.address} . {member.port}"
            for member in members
            if member.address.version == version
        )
        if elements:
            lines.append(f"add element inet {table} {name} {{ {', '.join(elements)} }}")
    return "\n".join([*lines, ""])


def delete_table(table: str) -> str:
    """Remove a table, whether or not it is there."""
    return f"table inet {table} {{}}\ndelete table inet {table}\n"


def load(namespace: Namespace, rules: str) -> None:
    """Load rules into a namespace, all or none.

    Raises:
        NetworkError: ST-NETW-011.
    """
    namespace.execute("nft", "-f", "-", data=rules.encode())


def _creating(table: str, lines: Collection[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"create table inet {table}\ntable inet {table} {{\n{body}\n}}\n"
