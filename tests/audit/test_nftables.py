# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Packet filters: what nft(8) loads into a kernel, and answers that no kernel gives."""

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.audit.subjects.node.collect.network import nftables
from securetrain.audit.subjects.node.facts.network import Ending
from securetrain.core import netlink
from securetrain.testing.cluster import missing
from tests.audit.hardened.machine import (
    ACCEPT,
    DONE,
    DROP,
    chain,
    expression,
    iifname,
    in_chain,
    rule,
    verdict,
)
from tests.vocabulary import needs

RULES = """\
table inet site {
  chain input {
    type filter hook input priority 0; policy drop;
    iifname "lo" accept
    meta iif lo accept
    ct state established,related accept
    tcp dport 22 accept
    iifname "wg*" accept
    ip saddr 10.0.0.0/8 counter accept comment "the site"
    ip daddr 192.0.2.1 accept
    jump rest
  }
  chain rest { reject; }
  chain output {
    type filter hook output priority 0;
    ip daddr 169.254.169.254 drop
    ip6 daddr fd00:ec2::254 reject
    ip daddr 169.254.0.0/16 tcp dport 80 drop
  }
}
table ip other {
  chain in {
    type filter hook input priority 5;
    iifname "eth0" jump every
    tcp dport vmap { 22 : accept, 23 : drop }
    counter
  }
  chain every { accept; }
  chain nat { type nat hook output priority 0; }
}
"""


@needs(missing)
def test_the_kernels_own_answers():
    script = (
        "import subprocess, sys;"
        "subprocess.run(['nft', '-f', '-'], input=sys.argv[1].encode(), check=True);"
        "from securetrain.audit.subjects.node.collect.network import nftables as n;"
        "print([(f.label, f.hook, f.ending.value, f.opens, f.allows, f.denies, f.conditional)"
        " for f in n.filters(n.dump(n.CHAINS), n.dump(n.RULES))])"
    )
    command = ["unshare", "-n", sys.executable, "-c", script, RULES]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == str([
        ("inet site input", "input", "drop", ("192.0.2.1/32", "wg*"), ("10.0.0.0/8",), (), False),
        ("ip other in", "input", "accept", ("eth0",), (), (), True),
        (
            *("inet site output", "output", "accept", (), ()),
            ("169.254.169.254/32", "fd00:ec2::254/128"),
            True,
        ),
    ])  # fmt: skip


def ending(*rules: bytes, policy: int = DROP, more: bytes = b"") -> Ending:
    listed = b"".join(in_chain("c", one) for one in rules) + more + DONE
    (found,) = nftables.filters(chain("c", 1, policy) + DONE, listed)
    return found.ending


def test_a_rule_without_a_condition_decides_and_those_behind_it_do_not():
    assert ending() is Ending.DROP
    assert ending(rule(verdict(ACCEPT)), rule(verdict(DROP))) is Ending.ACCEPT
    assert ending(rule(*iifname("eth0"), verdict(ACCEPT))) is Ending.DROP
    assert ending(rule(expression("counter"))) is Ending.DROP
    assert ending(rule(verdict(-5)), rule(verdict(ACCEPT))) is Ending.DROP  # return


def test_what_is_not_understood_leaves_the_end_open():
    assert ending(rule(verdict(3))) is Ending.NOT_UNDERSTOOD  # to a queue of some program
    named = expression("target", b"\x0b\x00\x01\x00TPROXY\x00\x00")
    assert ending(rule(named)) is Ending.NOT_UNDERSTOOD


def test_chains_that_call_each_other_end():
    call = rule(verdict(-3, "d"))
    back = in_chain("d", rule(verdict(-3, "c")))
    assert ending(call, policy=ACCEPT, more=back) is Ending.NOT_UNDERSTOOD


@given(data=st.binary(max_size=200), at=st.integers(0, 200))
@settings(deadline=None, max_examples=200)
def test_any_answer_is_filters_or_an_error(data, at):
    chains = chain("c", 1, DROP) + DONE
    rules = in_chain("c", rule(*iifname("eth0"), verdict(ACCEPT))) + DONE
    for one, two in (
        (data, rules),
        (chains, data),
        (chains, rules[:at] + data[:3] + rules[at + len(data[:3]) :]),
    ):
        try:
            nftables.filters(one, two)
        except (netlink.NetlinkError, OSError):
            continue
