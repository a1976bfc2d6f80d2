# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The addresses that this process listens on, according to the kernel.

A profile is a promise about where bytes go; this is the check. A listening socket of the process
must be bound inside the job network:

- for ``loopback`` that means a loopback address;
- for the overlays, that the process is in a job's namespace: every route that it has, over IPv4 and
  IPv6, goes through the tunnel or loopback. Every address is inside then, "all interfaces" too,
  because only members of the job reach it.

A socket that was made in another network namespace leads there, whoever holds it: in an overlay a
process may hold none (`foreign_sockets`).

RDMA goes past every interface and filter, so a process may have an RDMA device open only under a
profile that says so (ST-NETW-035).

Connections that the process opens are not judged: a script may upload its metrics.
"""

import ipaddress
import os
from pathlib import Path

import msgspec

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.process.foreign_sockets import foreign_sockets
from securetrain.network import DEVICE, TUNNELLED, VERBS, own_listeners
from securetrain.network.rdma import RDMA_DEVICES


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

    ways_out: tuple[str, ...] = ()
    """Devices that lead out of the job network, which an overlay must not have."""

    rdma: tuple[str, ...] = ()
    """RDMA devices that the process has open under a profile that keeps it off them."""

    foreign: tuple[str, ...] = ()
    """Where the sockets of other networks are bound that the process holds in an overlay."""

    @property
    def ok(self) -> bool:
        """True when every listener, and the process itself, is inside the job network."""
        return not (self.outside or self.ways_out or self.rdma or self.foreign)


def check_sockets(profile: NetworkProfile, proc: Path = Path("/proc")) -> SocketCheck:
    """Check the listening sockets of this process.

    Raises:
        NetworkError: ST-NETW-002 when the kernel's tables cannot be read: not knowing is no pass.
    """
    found = tuple(sorted({Listener(own.address, own.port) for own in own_listeners(proc)}))
    rdma = () if profile in VERBS else _open_rdma(proc)
    foreign = _foreign(proc) if profile in TUNNELLED else ()
    match profile:
        case NetworkProfile.LOOPBACK:
            others: tuple[str, ...] = ()
            outside = tuple(entry for entry in found if not _is_loopback(entry))
        case NetworkProfile.STORE_TLS:
            # Libraries listen at the node's own address; nothing may listen at all of them.
            others = ()
            outside = tuple(entry for entry in found if _is_everywhere(entry))
        case _ if profile in TUNNELLED:
            others = _ways_out(proc)
            outside = found if others else ()
        case _:
            raise ValueError(f"no rule for sockets under the profile {profile!r}")
    return SocketCheck(
        profile=profile,
        listeners=found,
        outside=outside,
        ways_out=others,
        rdma=rdma,
        foreign=foreign,
    )


def violation(check: SocketCheck) -> NetworkError:
    """The refusal for a check that found something outside the job network."""
    if check.rdma:
        return NetworkError(
            "ST-NETW-035",
            f"this worker has {', '.join(check.rdma)} open, and under {check.profile} its bytes"
            " stay in the job network",
            "RDMA devices of this worker",
        )
    if check.ways_out:
        return NetworkError(
            "ST-NETW-002",
            f"this worker has routes through {', '.join(check.ways_out)}, out of the job network"
            f" ({check.profile})",
            "network namespace of this worker",
            "start workers with securetrain run only",
        )
    if check.foreign:
        return NetworkError(
            "ST-NETW-002",
            f"this worker holds sockets of another network: {', '.join(check.foreign)[:1000]}",
            "sockets of this worker",
            "open sockets in the worker itself, and hand it none",
        )
    names = ", ".join(f"{entry.address} port {entry.port}" for entry in check.outside)
    return NetworkError(
        "ST-NETW-002",
        f"this worker listens on {names}, outside the job network ({check.profile})",
        "torch.distributed, or a server that the script started",
    )


def _is_everywhere(entry: Listener) -> bool:
    return ipaddress.ip_address(entry.address).is_unspecified


def _is_loopback(entry: Listener) -> bool:
    address = ipaddress.ip_address(entry.address)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _open_rdma(proc: Path) -> tuple[str, ...]:
    """The RDMA devices that this process has open."""
    try:
        targets = [_target(entry) for entry in (proc / "self" / "fd").iterdir()]
    except OSError as error:
        raise NetworkError(
            "ST-NETW-002",
            f"cannot tell which devices this process has open: {error.strerror}",
            str(error.filename),
            "mount /proc",
        ) from error
    return tuple(sorted({target for target in targets if target.startswith(f"{RDMA_DEVICES}/")}))


def _foreign(proc: Path) -> tuple[str, ...]:
    try:
        return foreign_sockets(proc)
    except OSError as error:
        raise NetworkError(
            "ST-NETW-002",
            f"cannot tell whose sockets this process holds: {error.strerror}",
            str(error.filename),
            "mount /proc",
        ) from error


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)  # noqa: PTH115 - it need not be a path
    except FileNotFoundError:
        return ""  # the descriptor of this very listing


def _ways_out(proc: Path) -> tuple[str, ...]:
    """Devices other than the tunnel and loopback that routes of this process use."""
    net = proc / "self" / "net"
    try:
        ipv4 = (net / "route").read_text("ascii").splitlines()[1:]
        path = net / "ipv6_route"  # not there when the kernel has no IPv6
        ipv6 = path.read_text("ascii").splitlines() if path.exists() else []
    except OSError as error:
        raise NetworkError(
            "ST-NETW-002",
            f"cannot tell which routes this process has: {error.strerror}",
            str(error.filename),
            "mount /proc",
        ) from error
    used = {line.split()[0] for line in ipv4} | {line.split()[-1] for line in ipv6}
    return tuple(sorted(used - {"lo", DEVICE}))
