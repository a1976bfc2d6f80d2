# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What listens, and how packets reach the machine."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.audit.hardened.faults import Bad, all_of, interface, setting, text
from tests.audit.hardened.machine import (
    ACCEPT,
    DONE,
    ETH0,
    HEADER,
    LO,
    WG0,
    Machine,
    address,
    expression,
    iifname,
    link,
    route,
    row,
    rule,
    sysctl,
    verdict,
)

BAD: Mapping[str, Bad] = {
    "rp-filter": Bad(
        "ST-NET-001",
        all_of(
            lambda m: m.write(sysctl("net.ipv4.conf.all.rp_filter"), "0\n"),
            lambda m: setattr(m, "links", LO + ETH0 + WG0 + link("eth1") + DONE),
        ),
        sysctl("net.ipv4.conf.all.rp_filter"),
    ),
    "router-advertisements": interface("ST-NET-002", link("eth1", four={7: 1}, six={3: 1})),
    "redirects": interface("ST-NET-004", link("eth1", four={7: 1, 3: 1}, six={})),
    "forwarding": setting("ST-NET-005", "net.ipv4.ip_forward", 1),
    "tcp-service": text("ST-NET-011", "/proc/self/net/tcp6", HEADER + row("0" * 32, 8888)),
    "udp-service": text(
        "ST-NET-011", "/proc/self/net/udp", HEADER + row("00000000", 5353, state="07", uid=5)
    ),
    "udp6-service": text(
        "ST-NET-011", "/proc/self/net/udp6", HEADER + row("0" * 32, 111, state="07", uid=5)
    ),
    "store-in-a-file": Bad(
        "ST-RDZ-010",
        all_of(
            lambda m: m.folder("/tmp", 0o1777),
            lambda m: m.environ.update(INIT_METHOD="file:///tmp/store?rank=0"),
        ),
    ),
    "store-in-a-file-by-argument": Bad(
        "ST-RDZ-010",
        all_of(
            lambda m: m.folder("/tmp", 0o1777),
            lambda m: m.write(
                "/proc/12/cmdline", "python\0train.py\0--dist-url\0file:///tmp/store\0"
            ),
        ),
        "/proc/12/cmdline",
        is_subject=True,
    ),
    "slurmd-without-a-filter": Bad(
        "ST-SLM-022",
        all_of(
            lambda m: m.write("/proc/self/net/tcp", HEADER + row("00000000", 6818)),
            lambda m: m.filters.chains.update(input=ACCEPT),
        ),
        "/proc/self/net/tcp",
        is_subject=True,
        also=frozenset({"ST-NET-006", "ST-NET-011"}),
    ),
    "nothing-dropped": Bad("ST-NET-006", lambda m: m.filters.chains.update(input=ACCEPT)),
    "dropped-after-everything-is-accepted": Bad(
        "ST-NET-006", lambda m: m.filters.rules["input"].append(rule(verdict(ACCEPT)))
    ),
    "accepts-by-a-jump": Bad(
        "ST-NET-006",
        all_of(
            lambda m: m.filters.rules["input"].append(rule(verdict(-3, "site"))),
            lambda m: m.filters.rules.update(site=[rule(verdict(ACCEPT))]),
        ),
    ),
    "open-to-an-interface": Bad(
        "ST-NET-006",
        lambda m: m.filters.rules["input"].append(rule(*iifname("eth", b""), verdict(ACCEPT))),
    ),
    "open-by-a-jump-from-an-interface": Bad(
        "ST-NET-006",
        all_of(
            lambda m: m.filters.rules["input"].append(rule(*iifname("eth0"), verdict(-4, "site"))),
            lambda m: m.filters.rules.update(site=[rule(verdict(ACCEPT))]),
        ),
    ),
    "egress": Bad(
        "ST-NET-009",
        all_of(
            lambda m: m.append("/proc/self/net/route", route("0.0.0.0/0", "eth0", flags=3)),
            lambda m: m.filters.chains.update(output=ACCEPT),
        ),
        "/proc/self/net/route",
    ),
    "metadata": Bad(
        "ST-NET-008",
        all_of(
            lambda m: m.append("/proc/self/net/route", route("0.0.0.0/0", "eth0", flags=3)),
            lambda m: m.filters.chains.update(output=ACCEPT),
            lambda m: m.write("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
        ),
        "/proc/self/net/route",
        also=frozenset({"ST-NET-009"}),
    ),
    "management": Bad(
        "ST-NET-007",
        all_of(
            lambda m: m.append("/proc/self/net/route", route("169.254.1.0/24", "idrac")),
            lambda m: m.filters.chains.update(output=ACCEPT),
        ),
        "/proc/self/net/route",
    ),
    "store": text(
        "ST-RDZ-002", "/proc/self/net/tcp", HEADER + row("00000000", 29500), also=["ST-NET-011"]
    ),
    "debug-server": Bad(
        "ST-DBG-004",
        all_of(
            lambda m: m.write("/proc/self/net/tcp", HEADER + row("0100007F", 25999)),
            lambda m: m.write("/proc/12/comm", "python\n"),
            lambda m: m.write("/proc/12/maps", "7f-80 r-xp 0 0:0 1 /x/libtorch_cpu.so\n"),
            lambda m: m.folder("/proc/12/fd"),
            lambda m: (m.root / "proc/12/fd/3").symlink_to("socket:[77]"),
        ),
        "/proc/self/net/tcp",
    ),
}

GOOD: Mapping[str, tuple[str, Callable[[Machine], Any]]] = {
    "udp-answer-to-a-peer": (
        "ST-NET-011",
        lambda m: m.write("/proc/self/net/udp", HEADER + row("00000000", 40000, state="01", uid=5)),
    ),
    "data-in-a-file": (
        "ST-RDZ-010",
        all_of(
            lambda m: m.folder("/tmp", 0o1777),
            lambda m: m.write("/proc/12/cmdline", "python\0--data\0file:///tmp/data\0"),
        ),
    ),
    "dropped-by-a-jump": (
        "ST-NET-006",
        all_of(
            lambda m: m.filters.chains.update(input=ACCEPT),
            lambda m: m.filters.rules["input"].append(rule(verdict(-3, "site"))),
            lambda m: m.filters.rules.update(site=[rule(expression("reject"))]),
        ),
    ),
    "open-to-the-tunnel": (
        "ST-NET-006",
        lambda m: m.filters.rules["input"].append(rule(*iifname("wg", b""), verdict(ACCEPT))),
    ),
    "metadata-dropped": (
        "ST-NET-008",
        all_of(
            lambda m: m.append("/proc/self/net/route", route("0.0.0.0/0", "eth0", flags=3)),
            lambda m: m.filters.chains.update(output=ACCEPT),
            lambda m: m.filters.rules.update(
                output=[rule(*address(16, "169.254.169.254"), verdict(0))]
            ),
            lambda m: m.write("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
        ),
    ),
    "link-local-route": (
        "ST-NET-007",
        lambda m: m.append("/proc/self/net/route", route("169.254.0.0/16", "eth0")),
    ),
}
