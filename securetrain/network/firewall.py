# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Packet filters (nftables) around a job network: the text of the rules, and loading them.

Two tables, each replaced as a whole in one transaction, so that no moment is without a filter:

* in the **job namespace**, where the tunnel is the only device besides loopback, everything is
  dropped but loopback and packets of the job's own subnet through the tunnel. It says the same as
  the routes do, a second time, and holds when somebody adds a device;
* in the **host's namespace**, in a table of our own, the tunnel's UDP port hears members only:
  other packets to it are dropped before WireGuard spends anything on them. Nothing else of the
  host's traffic is judged. Source addresses can be forged: this saves work, it does not
  authenticate.

Reference: nft(8). Nothing but addresses, numbers and names that we derived is put into the text.
"""

from collections.abc import Collection
from ipaddress import IPv4Network
from typing import Final

from securetrain.network.addresses import DEVICE
from securetrain.network.namespace import Namespace
from securetrain.network.wireguard import Endpoint

JOB_TABLE: Final = "securetrain"


def job_rules(subnet: IPv4Network) -> str:
    """The filter of a job namespace: default drop."""
    return _replacing(
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


def host_rules(table: str, port: int, members: Collection[Endpoint]) -> str:
    """The filter of the host: the tunnel's port hears `members` and nobody else."""
    accept = []
    for family, version in (("ip", 4), ("ip6", 6)):
        elements = sorted(
            f"{member.address} . {member.port}"
            for member in members
            if member.address.version == version
        )
        if elements:
            chosen = ", ".join(elements)
            accept.append(f"    udp dport {port} {family} saddr . udp sport {{ {chosen} }} accept")
    return _replacing(
        table,
        [
            "chain input {",
            # Before the host's own filters; what is accepted here they still judge.
            "    type filter hook input priority -10; policy accept;",
            *accept,
            f"    udp dport {port} drop",
            "}",
        ],
    )


def no_table(table: str) -> str:
    """Remove a table, whether or not it is there."""
    return f"table inet {table} {{}}\ndelete table inet {table}\n"


def load(namespace: Namespace, rules: str) -> None:
    """Load rules into a namespace, all or none.

    Raises:
        NetworkError: ST-NETW-011.
    """
    namespace.execute("nft", "-f", "-", data=rules.encode())


def _replacing(table: str, chains: Collection[str]) -> str:
    body = "\n".join(f"    {line}" for line in chains)
    return f"{no_table(table)}table inet {table} {{\n{body}\n}}\n"
