# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The engine in the kernel: a device of type ``wireguard``, configured with ``wg`` (wg(8)).

``wg`` speaks the kernel's netlink protocol. Rules:

1. configurations go through its standard input, so that no key stands in an argument list;
2. ``wg syncconf`` changes what differs and keeps sessions; what a file has no peers for, has none
   afterwards. Anything left as it was is found by `wireguard.require_state`;
3. a device remembers the namespace it was born in, and opens its UDP socket there. Moved away, it
   goes with the namespace that it is in;
4. whether the kernel has it is tried, because it may load its module for it; why it has not is said
   as precisely as the kernel lets us (`missing`).
"""

import json
import re
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from securetrain.core.errors import NetworkError
from securetrain.network.namespace import Namespace
from securetrain.network.system_tools import missing_programs
from securetrain.network.wireguard import (
    DeviceState,
    Endpoint,
    Peer,
    PeerState,
    WireGuardKey,
    decode_key,
    encode_key,
)

LIMIT: Final = 4 << 20
_MAX_DIGITS: Final = 20
"""Of a 64-bit counter."""
_NO_SUCH_TYPE: Final = re.compile("Unknown device type|not supported")
FIPS: Final = Path("/proc/sys/crypto/fips_enabled")
_PATIENCE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class KernelWireGuard:
    """The engine."""

    name: str = "kernel"

    def missing(self) -> list[str]:
        """List what it lacks: the program ``wg``, a kernel that makes such devices."""
        reasons = missing_programs(["wg"])
        return reasons or _kernel_problem(Namespace())

    def start(self, host: Namespace, name: str, folder: Path) -> "KernelDevice":  # noqa: ARG002
        """Make a device in the host's namespace.

        Raises:
            NetworkError: ST-NETW-011.
        """
        host.ip("link", "add", "dev", name, "type", "wireguard")
        return KernelDevice(host, name)


@dataclass(slots=True)
class KernelDevice:
    """A device of the kernel."""

    place: Namespace
    name: str
    _key: WireGuardKey | None = field(default=None, repr=False)
    _port: int = 0

    def wait_ready(self) -> None:
        """It is there since it was made."""

    def set_key(self, key: WireGuardKey, port: int) -> None:
        """Set the private key and the UDP port (0: any); it then has no peers.

        Raises:
            NetworkError: ST-NETW-011.
        """
        self._key, self._port = key, port
        self._sync(())

    def set_peers(self, peers: Collection[Peer]) -> None:
        """Make these its only peers.

        Raises:
            NetworkError: ST-NETW-011, ST-NETW-015.
        """
        if not self._port:
            self._port = self.read().port  # or else the kernel would choose another one
        self._sync(peers)

    def read(self) -> DeviceState:
        """Read the state of the device.

        Raises:
            NetworkError: ST-NETW-011, ST-NETW-015.
        """
        return parse_dump(self.place.execute("wg", "show", self.name, "dump"))

    def moved(self, place: Namespace, name: str) -> None:
        """Find it there from now on."""
        self.place, self.name = place, name

    def wait_port(self) -> int:
        """The kernel opens the port when the device goes up.

        Raises:
            NetworkError: ST-NETW-013 when it did not.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if port := self.read().port:
                return port
            time.sleep(_PAUSE_SECONDS)
        raise NetworkError(
            "ST-NETW-013",
            "the kernel did not open the device's UDP port",
            f"device {self.name}",
            "choose another port",
        )

    def failure_reason(self) -> str:
        """Say whether somebody removed the device."""
        try:
            # ip lists what is of another type as empty objects.
            links = json.loads(self.place.ip("-json", "link", "show", "type", "wireguard"))
            names = {link.get("ifname") for link in links}
        except NetworkError as error:
            return error.what
        except (ValueError, AttributeError, TypeError):
            return "ip does not say whether the device is there"
        return "" if self.name in names else "somebody removed the device"

    def process(self) -> int | None:
        """The kernel is no process."""
        return None

    def close(self) -> None:
        """Remove the device, if it is still there."""
        with suppress(NetworkError):
            self.place.ip("link", "delete", "dev", self.name)

    def _sync(self, peers: Collection[Peer]) -> None:
        assert self._key is not None
        text = configuration(self._key, self._port, peers)
        self.place.execute("wg", "syncconf", self.name, "/dev/stdin", data=text.encode())


def configuration(key: WireGuardKey, port: int, peers: Collection[Peer]) -> str:
    """The input of ``wg syncconf`` (wg(8), "Configuration File Format")."""
    lines = ["[Interface]", f"PrivateKey = {encode_key(key.secret())}", f"ListenPort = {port}"]
    for peer in peers:
        lines += [
            "[Peer]",
            f"PublicKey = {encode_key(peer.public_key)}",
            f"PresharedKey = {encode_key(peer.preshared_key)}",
            f"Endpoint = {peer.endpoint}",
            f"AllowedIPs = {peer.address}/32",
        ]
    return "\n".join([*lines, ""])


def parse_dump(data: bytes) -> DeviceState:
    """Read what ``wg show DEVICE dump`` prints: a line of the device, then one for each peer.

    Raises:
        NetworkError: ST-NETW-015.
    """
    try:
        text = data.decode("ascii") if len(data) <= LIMIT else ""
        first, *rows = [line.split("\t") for line in text.splitlines()]
        private, _public, port, _mark = first
        peers = tuple(_peer(row) for row in rows)
        if len({peer.public_key for peer in peers}) != len(peers):
            raise ValueError("a peer stands twice")
        key = bytes(32) if private == "(none)" else decode_key(private)
        return DeviceState(private_key=key, port=_number(port), peers=peers)
    except (ValueError, NetworkError) as error:
        what = error.what if isinstance(error, NetworkError) else str(error)
        raise NetworkError("ST-NETW-015", what, "wg show dump") from error


def _peer(row: list[str]) -> PeerState:
    public, shared, endpoint, allowed, handshake, received, sent, _keepalive = row
    networks = () if allowed == "(none)" else tuple(map(ip_network, allowed.split(",")))
    return PeerState(
        public_key=decode_key(public),
        preshared_key=bytes(32) if shared == "(none)" else decode_key(shared),
        endpoint=None if endpoint == "(none)" else Endpoint.parse(endpoint),
        allowed=networks,
        last_handshake=_number(handshake),
        received=_number(received),
        sent=_number(sent),
    )


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:20]!r} is not a number")
    return int(text)


def _kernel_problem(place: Namespace, fips: Path = FIPS) -> list[str]:
    """Make a device and remove it: the kernel may load its module for it."""
    name = f"stp{secrets.token_hex(5)}"
    try:
        place.ip("link", "add", "dev", name, "type", "wireguard")
        place.ip("link", "delete", "dev", name)
    except NetworkError as error:
        if fips.exists() and fips.read_text().strip() == "1":
            why = "FIPS mode is on, which leaves out its ciphers"
        elif _NO_SUCH_TYPE.search(error.what):
            why = "it was built without CONFIG_WIREGUARD, or cannot load it: modprobe wireguard"
        elif "not permitted" in error.what:
            why = "making a device takes CAP_NET_ADMIN"
        else:
            why = "a device could not be made and removed"
        return [f"WireGuard in the kernel ({why}; ip says: {error.what})"]
    return []
