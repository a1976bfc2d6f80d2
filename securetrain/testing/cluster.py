# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces joined by a bridge. Needs root.

::

    with NamespaceCluster.up(3) as cluster:
        a, b, attacker = cluster.hosts
        with cluster.capture() as capture:       # everything that crosses the bridge
            a.python("import socket; ...", str(b.address))
        assert capture.lost == 0
        assert not any(CANARY in frame for frame in capture.read())

The bridge is a hub, unless the cluster is `switched`: every host sees every frame. Each host has
one device, ``eth0``, with an address of 198.18.0.0/24 (RFC 2544, for tests of networks). Nothing of
it reaches the machine's own network. Everything is removed at the end, with every process that
still runs in a host.
"""

import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, Self

from securetrain.network import Namespace

UNDERLAY: Final = IPv4Network("198.18.0.0/24")
DEVICE: Final = "eth0"
_BRIDGE: Final = "br0"
_TIMEOUT_SECONDS: Final = 60.0
_READY: Final = b"ready\n"

# Writes every frame that a device of the bridge sees, each once, after its length. When its input
# ends it writes what is left, and prints how many frames the kernel had no room for (packet(7)).
_CAPTURE: Final = """
import select, socket, struct, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
tap.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE, before the first frame
tap.bind((sys.argv[1], 3))  # ETH_P_ALL
out = open(sys.argv[2], "wb")
sys.stdout.write("ready\\n"); sys.stdout.flush()
while True:
    ready = select.select([tap, sys.stdin], [], [])[0]
    if tap not in ready:
        break
    frame = tap.recv(1 << 17)
    out.write(len(frame).to_bytes(4, "big") + frame); out.flush()
print(struct.unpack("=II", tap.getsockopt(263, 6, 8))[1])  # SOL_PACKET, PACKET_STATISTICS
"""


def missing() -> list[str]:
    """List what a cluster needs and this machine lacks; empty when one can be made."""
    from securetrain.network import missing_here  # noqa: PLC0415 - a test asks once

    return missing_here()


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a cluster."""

    namespace: Namespace
    address: IPv4Address

    @property
    def name(self) -> str:
        """The name of its namespace."""
        return self.namespace.name

    def command(self, *argv: str) -> list[str]:
        """The command that runs a program on it."""
        return [*self.namespace.enter_command(), *argv]

    def python(self, code: str, *arguments: str, check: bool = True) -> str:
        """Run Python code on it; returns what it printed."""
        done = subprocess.run(
            self.command(sys.executable, "-I", "-c", code, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if not check else None,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=check,
        )
        return done.stdout

    def udp_ports(self) -> set[int]:
        """UDP ports that are open on it."""
        table = self.namespace.execute("cat", "/proc/self/net/udp").decode()
        return {int(line.split()[1].rpartition(":")[2], 16) for line in table.splitlines()[1:]}

    def tables(self) -> set[str]:
        """The nftables tables that it has."""
        listed = json.loads(self.namespace.execute("nft", "--json", "list", "tables"))
        return {entry["table"]["name"] for entry in listed["nftables"] if "table" in entry}


@dataclass(slots=True)
class Capture:
    """The packets that crossed the bridge."""

    path: Path
    lost: int | None = None
    """Frames that could not be recorded; known at the end of the block."""
    _data: bytes = b""

    def read(self) -> list[bytes]:
        """The Ethernet frames so far, each once; after the block, all of them."""
        data, frames, at = self._data if self.lost is not None else self.path.read_bytes(), [], 0
        while at + 4 <= len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            frames.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        return [frame for frame in frames if frame]

    def ended(self, lost: int) -> None:
        """Keep what was recorded: the file goes."""
        self._data, self.lost = self.path.read_bytes(), lost


class NamespaceCluster:
    """Hosts on a bridge. Made by `up`."""

    def __init__(self) -> None:
        self.name = f"stc{secrets.token_hex(3)}"
        self.hosts: tuple[Host, ...] = ()
        self._bridge = Namespace(f"{self.name}-bridge")
        self._made = ExitStack()

    @classmethod
    def up(cls, num_hosts: int, *, mtu: int = 1500, switched: bool = False) -> Self:
        """Make a cluster.

        Args:
            num_hosts: How many hosts.
            mtu: Of their devices and the bridge.
            switched: A frame goes to its receiver only: for measuring, with many hosts.

        Raises:
            NetworkError: ST-NETW-010 or ST-NETW-011 when that cannot be done here.
        """
        cluster = cls()
        try:
            cluster._build(num_hosts, mtu, switched=switched)
        except BaseException:
            cluster.down()
            raise
        return cluster

    def _build(self, num_hosts: int, mtu: int, *, switched: bool) -> None:
        bridge = self._make(self._bridge)
        # A hub: it remembers no addresses (ageing_time 0), so that everybody sees every frame and
        # nobody takes another's by a forged one. Promiscuous, so that it sees what it passes on.
        how = ["mtu", str(mtu), "type", "bridge"]
        how += [] if switched else ["ageing_time", "0"]
        bridge.ip("link", "add", "dev", _BRIDGE, *how)
        bridge.ip("link", "set", "dev", _BRIDGE, "promisc", "on", "up")
        for number in range(num_hosts):
            host = self._make(Namespace(f"{self.name}-{number}"))
            port, address = f"port{number}", UNDERLAY[number + 1]
            here = ["dev", port, "mtu", str(mtu), "type", "veth"]
            there = ["name", DEVICE, "mtu", str(mtu), "netns", host.name]
            bridge.ip("link", "add", *here, "peer", *there)
            bridge.ip("link", "set", "dev", port, "master", _BRIDGE, "up")
            host.ip("address", "add", f"{address}/{UNDERLAY.prefixlen}", "dev", DEVICE)
            host.ip("link", "set", "dev", DEVICE, "up")
            self.hosts += (Host(host, address),)

    def _make(self, namespace: Namespace) -> Namespace:
        self._made.callback(namespace.remove)
        namespace.create()
        return namespace

    @contextmanager
    def capture(self, host: Host | None = None) -> Iterator[Capture]:
        """Record every frame that crosses the bridge, or the part of it that one host sees."""
        place = self._bridge if host is None else host.namespace
        device = _BRIDGE if host is None else DEVICE
        with tempfile.TemporaryDirectory(prefix="capture-") as folder:
            made = Capture(Path(folder, "frames"))
            command = [sys.executable, "-I", "-c", _CAPTURE, device, str(made.path)]
            with subprocess.Popen(
                [*place.enter_command(), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as process:
                try:
                    assert process.stdout is not None
                    if process.stdout.readline() != _READY:
                        raise RuntimeError("the capture did not start")
                    yield made
                    made.ended(int(process.communicate(timeout=_TIMEOUT_SECONDS)[0]))
                finally:
                    process.kill()

    def down(self) -> None:
        """Remove everything."""
        self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
