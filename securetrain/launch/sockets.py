# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Which addresses this process listens on, from what the kernel says.

A profile is a promise about where bytes go; this is the check. A listening socket of the process
must be bound inside the job network; for the profile ``loopback`` that means a loopback address.
Connections that the process opens are not judged: a script may upload its metrics.
"""

import ipaddress
from pathlib import Path

import msgspec

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.rendezvous.listeners import own_listeners


class Listener(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """A listening TCP socket."""

    address: str
    port: int


class SocketCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The outcome of one check."""

    profile: NetworkProfile
    listeners: tuple[Listener, ...]
    outside: tuple[Listener, ...]
    """The listeners that are not inside the job network."""

    @property
    def ok(self) -> bool:
        """Whether every listener is inside the job network."""
        return not self.outside


def check_sockets(profile: NetworkProfile, proc: Path = Path("/proc")) -> SocketCheck:
    """Check the listening sockets of this process.

    Raises:
        NetworkError: ST-NETW-002 when the kernel's tables cannot be read: not knowing is no pass.
    """
    found = tuple(sorted({Listener(own.address, own.port) for own in own_listeners(proc)}))
    outside = tuple(entry for entry in found if not _inside(entry, profile))
    return SocketCheck(profile=profile, listeners=found, outside=outside)


def violation(check: SocketCheck) -> NetworkError:
    """The refusal for a check that found listeners outside the job network."""
    names = ", ".join(f"{entry.address} port {entry.port}" for entry in check.outside)
    return NetworkError(
        "ST-NETW-002",
        f"this worker listens on {names}, outside the job network ({check.profile})",
        "torch.distributed, or a server that the script started",
        "initialise with init_method='env://' and bind servers to 127.0.0.1",
    )


def _inside(entry: Listener, profile: NetworkProfile) -> bool:
    match profile:
        case NetworkProfile.LOOPBACK:
            address = ipaddress.ip_address(entry.address)
            mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
            return (mapped or address).is_loopback
        case _:
            raise ValueError(f"no rule for sockets under the profile {profile!r}")
