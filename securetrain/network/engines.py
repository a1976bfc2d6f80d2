# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The engines that encrypt: WireGuard in the kernel, or wireguard-go in a process. Which is here?

Rules:

1. the kernel comes first, because it is faster; then wireguard-go; then a refusal that names
   everything that is missing (ST-NETW-010). There is no engine that does not encrypt;
2. a device is born in the host's namespace, where its UDP socket stays, and moved into the job's,
   where its packets come from and go to: the job then has no socket on the underlay at all
   (https://www.wireguard.com/netns/);
3. inside a user namespace, root is root over that namespace only. The network that can be built
   there is called overlay-rootless, and nothing else: for the machine's own root it is none.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

from securetrain.core.errors import NetworkError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.network import rootless
from securetrain.network.namespace import Namespace
from securetrain.network.system_tools import missing_programs
from securetrain.network.wireguard import DeviceState, Peer, WireGuardKey
from securetrain.network.wireguard_go import WireGuardGo
from securetrain.network.wireguard_kernel import KernelWireGuard

PROGRAMS: Final = ("ip", "nft", "nsenter", "unshare", "setpriv", "mount")
"""The programs that every job network is built with."""

CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}
"""Needed: to configure networks, to reach the engine in its mounts, to enter namespaces. Numbers
from linux/capability.h."""


class Device(Protocol):
    """A WireGuard device, and what runs it."""

    def wait_ready(self) -> None:
        """Wait until it is there and can be configured."""
        ...

    def set_key(self, key: WireGuardKey, port: int) -> None:
        """Set the private key and the UDP port (0: any)."""
        ...

    def set_peers(self, peers: Collection[Peer]) -> None:
        """Make these its only peers; sessions of those that stay are kept."""
        ...

    def read(self) -> DeviceState:
        """Read the state of the device."""
        ...

    def moved(self, place: Namespace, name: str) -> None:
        """Know that the device is in another namespace, under another name."""
        ...

    def wait_port(self) -> int:
        """Wait until the UDP port is open, once the device is up; returns its number."""
        ...

    def failure_reason(self) -> str:
        """Explain why the device is gone; empty while it is there."""
        ...

    def process(self) -> int | None:
        """The pid of the engine, when it is a process."""
        ...

    def close(self) -> None:
        """End the engine; the device goes with it. Without effect when it has ended."""
        ...


class Engine(Protocol):
    """Something that makes devices."""

    @property
    def name(self) -> str:
        """For people and records."""
        ...

    def missing(self) -> list[str]:
        """List what it lacks on this machine; empty when it can be used."""
        ...

    def start(self, host: Namespace, name: str, folder: Path) -> Device:
        """Begin to make a device in the host's namespace, down and without keys."""
        ...


ENGINES: Final[Sequence[Engine]] = (KernelWireGuard(), WireGuardGo())


def choose(engines: Sequence[Engine] = ENGINES) -> Engine:
    """The first engine that can be used here.

    Raises:
        NetworkError: ST-NETW-010 with what is missing for each.
    """
    here = missing_here()
    reasons = list(here)
    for engine in engines:
        lacking = engine.missing()
        if not lacking and not here:
            return engine
        reasons += [f"for {engine.name}: {thing}" for thing in lacking]
    raise NetworkError(
        "ST-NETW-010",
        f"missing: {'; '.join(reasons)}",
        "job network",
        "install what is missing; on Debian 12, wireguard-go comes from bookworm-backports",
    )


def probe(profile: NetworkProfile) -> str:
    """Explain why this machine cannot give a job an overlay profile; empty when it can.

    Raises:
        ValueError: For another profile.
    """
    match profile:
        case NetworkProfile.OVERLAY if rootless.is_inside():
            return "this process is root of a user namespace only: that is overlay-rootless"
        case NetworkProfile.OVERLAY_ROOTLESS if not rootless.is_inside():
            if os.geteuid() == 0:
                return "this process is root and gets overlay; this is for ordinary users"
            return "; ".join([*rootless.missing(), *WireGuardGo().missing()])
        case NetworkProfile.OVERLAY | NetworkProfile.OVERLAY_ROOTLESS:
            try:
                choose()
            except NetworkError as error:
                return error.what
            return ""
        case _:
            raise ValueError(f"{profile!r} is not an overlay")


def missing_here(status: Path = Path("/proc/self/status")) -> list[str]:
    """List what every engine needs and this machine or process lacks."""
    held = 0
    for line in status.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            held = int(value, 16)
    lacking = [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]
    return [*missing_programs(PROGRAMS), *lacking, *([] if os.geteuid() == 0 else ["user id 0"])]
