# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Addresses and names of a job network, all derived, so that nobody hands them out.

Addresses are IPv4, because NCCL and Gloo are most at home there, and come from 100.64.0.0/10, the
shared address space of RFC 6598, which no other network of a machine should route. A job has a /20
of it, chosen by its id, and each node one address in it, chosen by its slot. Two jobs that share a
/20 do not meet: each has its own namespace, keys and port.

Names of kernel objects are derived from job and node, so that whoever cleans up after a dead owner
computes them again instead of believing a file.
"""

import hashlib
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from securetrain.core.errors import NetworkError

SHARED_SPACE: Final = IPv4Network("100.64.0.0/10")
PREFIX: Final = 20
MAX_MEMBERS: Final = (1 << (32 - PREFIX)) - 2
"""Addresses of a /20 without its first and its last."""

DEVICE: Final = "st0"
"""The tunnel's name inside every job namespace."""

_SUBNET_LABEL: Final = b"securetrain overlay subnet v1\0"
_NAME_LABEL: Final = b"securetrain overlay name v1\0"
_SLUG: Final = 12


def subnet(job: str) -> IPv4Network:
    """The job's /20."""
    digest = hashlib.sha256(_SUBNET_LABEL + job.encode()).digest()
    index = int.from_bytes(digest[:4], "big") >> (32 - (PREFIX - SHARED_SPACE.prefixlen))
    start = int(SHARED_SPACE.network_address) + (index << (32 - PREFIX))
    return IPv4Network((start, PREFIX))


def address(job: str, slot: int) -> IPv4Address:
    """The address of a node, given its slot: 0, 1, 2 and so on.

    Raises:
        NetworkError: ST-NETW-018 when the job's subnet has no such slot.
    """
    if not 0 <= slot < MAX_MEMBERS:
        raise NetworkError(
            "ST-NETW-018",
            f"slot {slot} is not one of the {MAX_MEMBERS} of a job network",
            "membership",
            f"run the job on at most {MAX_MEMBERS} nodes",
        )
    return subnet(job)[slot + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The kernel's names for a node's part of a job network."""

    namespace: str
    """The job namespace: ``st-``, what people know of the job, and a digest."""
    device: str
    """The tunnel's name while it is still in the host's namespace; at most 15 characters."""
    table: str
    """The host's nftables table."""

    @classmethod
    def of(cls, job: str, node: str) -> "Names":
        """The names for one node of one job."""
        digest = hashlib.sha256(_NAME_LABEL + f"{len(job)}:{job}{node}".encode()).hexdigest()
        slug = re.sub(r"[^a-z0-9]+", "-", job.lower())[:_SLUG].strip("-") or "job"
        return cls(
            namespace=f"st-{slug}-{digest[:8]}",
            device=f"st{digest[:12]}",
            table=f"securetrain_{digest[:12]}",
        )
