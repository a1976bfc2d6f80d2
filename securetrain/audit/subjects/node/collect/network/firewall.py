# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about what filters packets: nftables, and whether the older iptables has tables."""

from securetrain.audit.subjects.node.collect.host import Host, reading
from securetrain.audit.subjects.node.collect.network import nftables
from securetrain.audit.subjects.node.facts.network import Firewall

_LEGACY: tuple[str, ...] = ("ip_tables_names", "ip6_tables_names")


def firewall(host: Host) -> Firewall:
    """The filters of this network namespace."""
    return Firewall(
        filters=reading(
            lambda: nftables.filters(host.nft(nftables.CHAINS), host.nft(nftables.RULES))
        ),
        legacy=reading(lambda: _legacy(host)),
    )


def _legacy(host: Host) -> tuple[str, ...]:
    """Names of tables that iptables-legacy filled; a kernel without it has no list of them."""
    found: set[str] = set()
    for name in _LEGACY:
        try:
            found |= set(host.text(f"/proc/self/net/{name}", 4096).split())
        except FileNotFoundError:
            continue
    return tuple(sorted(found))
