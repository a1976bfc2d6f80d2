# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A machine that only exists in memory, and WireGuard engines on it, for tests without root."""

import json
import secrets
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from securetrain.core.errors import NetworkError
from securetrain.network import namespace
from securetrain.network.epoch import OverlayMember
from securetrain.network.overlay import Plan
from securetrain.network.system_tools import command_failed
from securetrain.network.wireguard import (
    DeviceState,
    Endpoint,
    PeerState,
    WireGuardKey,
    pairwise_psk,
)

UNDERLAY = IPv4Address("192.0.2.1")


@dataclass
class Link:
    is_up: bool = False
    mtu: int = 1500
    addresses: list[str] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)


class FakeSystem:
    """Stands in for the tools that `run_command` runs; remembers every command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spaces = {"": {"lo": Link(True), "eth0": Link(True, 1500, [str(UNDERLAY)])}}
        self.tables: dict[str, dict[str, str]] = {"": {}}
        self.processes: dict[str, list[int]] = {}
        self.commands: list[list[str]] = []
        self.lines: list[str] = []
        """The same as text, each line of a batch by itself."""
        self.fail_at: int | None = None
        """The number of the command that fails, before it has any effect."""
        self.fail_after: int | None = None
        """The number of the command that fails after it had its effect."""
        self.extra: dict[str, Link] = {}
        """What appears by itself in every new namespace."""

    def __call__(self, argv, *, data=b""):
        number = len(self.commands)
        self.commands.append(list(argv))
        self.lines += [" ".join(argv), *(data.decode().splitlines() if argv[0] == "ip" else [])]
        if number == self.fail_at:
            raise command_failed(" ".join(argv), "failed on purpose")
        result = self._run(list(argv), data.decode())
        if number == self.fail_after:
            raise command_failed(" ".join(argv), "failed on purpose, afterwards")
        return result

    def add(self, name):
        (self.folder / name).touch()
        self.spaces[name] = {"lo": Link(), **self.extra}
        self.tables[name] = {}

    @property
    def is_clean(self):
        return (
            set(self.spaces) == {""}
            and set(self.spaces[""]) == {"lo", "eth0"}
            and not self.tables[""]
            and not list(self.folder.iterdir())
        )

    def _run(self, argv, data):
        match argv:
            case ["ip", "netns", "add", name]:
                if name in self.spaces:
                    raise command_failed(" ".join(argv), "File exists")
                self.add(name)
            case ["ip", "netns", "delete", name]:
                del self.spaces[name], self.tables[name]
                (self.folder / name).unlink()
            case ["ip", "netns", "pids", name]:
                assert name in self.spaces
                return "".join(f"{pid}\n" for pid in self.processes.pop(name, [])).encode()
            case ["ip", "-n", name, *rest]:
                return self._ip(name, rest, data)
            case ["ip", *rest]:
                return self._ip("", rest, data)
            case ["nsenter", option, "--", "nft", "-f", "-"]:
                self._nft(option.rpartition("/")[2], data)
            case ["nft", "-f", "-"]:
                self._nft("", data)
            case _:
                raise AssertionError(f"unexpected command {argv}")
        return b""

    def _ip(self, name, rest, data):  # noqa: C901, PLR0912 - one case for each command
        links = self.spaces[name]
        match rest:
            case ["-json", "-batch", "-"]:
                return b"\n".join(self._ip(name, self._line(x), "") for x in data.splitlines())
            case ["-json", "link", "show"]:
                found = [
                    {"ifname": n, "flags": ["UP"] if x.is_up else []} for n, x in links.items()
                ]
                return json.dumps(found).encode()
            case ["-json", "address", "show"]:
                shown = [
                    {"ifname": n, "mtu": x.mtu, "addr_info": [{"local": a} for a in x.addresses]}
                    for n, x in links.items()
                ]
                return json.dumps(shown).encode()
            case ["-json", "route", "show", "table", "all"]:
                routes = [{"dev": n} for n, x in links.items() if x.addresses or x.routes]
                return json.dumps(routes).encode()
            case ["link", "set", "lo", "up"]:
                links["lo"].is_up = True
            case ["link", "set", "dev", device, "mtu", mtu, "addrgenmode", "none"]:
                links[device].mtu = int(mtu)
            case ["link", "set", "dev", device, "netns", target]:
                self.spaces[target][device] = links.pop(device)
            case ["link", "set", "dev", device, "name", new]:
                links[new] = links.pop(device)
            case ["link", "set", "dev", device, "up"]:
                links[device].is_up = True
            case ["link", "delete", "dev", device]:
                del links[device]
            case ["address", "flush", "dev", device]:
                links[device].addresses.clear()
            case ["address", "add", text, "dev", device]:
                links[device].addresses.append(text)
            case _:
                raise AssertionError(f"unexpected ip {rest}")
        return b""

    @staticmethod
    def _line(text):
        return [*(["-json"] if "show" in text else []), *text.split()]

    def _nft(self, name, data):
        first, *rest = [line.strip() for line in data.splitlines()]
        tables = self.tables[name]
        match first.split():
            case ["create", "table", "inet", table]:
                if table in tables:
                    raise command_failed("nft", "File exists")
                tables[table] = data
            case ["table", "inet", table, "{}"]:
                assert rest == [f"delete table inet {table}"]
                tables.pop(table, None)
            case ["flush", "set", "inet", table, _]:
                rules, *_ = tables[table].partition("flush")
                tables[table] = rules + data
            case _:
                raise AssertionError(f"unexpected rules {data}")


@dataclass
class FakeDevice:
    system: FakeSystem
    place: namespace.Namespace
    name: str
    state: DeviceState = field(default_factory=DeviceState)
    how: str = ""
    closed: bool = False
    lies: bool = False
    """Whether it forgets the pre-shared keys that it is told."""
    port: int = 51820
    broken: bool = False

    def set_key(self, key, port):
        self.port = port or self.port
        self.state = DeviceState(private_key=key.secret(), port=port)

    def set_peers(self, peers):
        self.state = DeviceState(
            private_key=self.state.private_key,
            port=self.state.port,
            peers=tuple(
                PeerState(
                    public_key=peer.public_key,
                    preshared_key=bytes(32) if self.lies else peer.preshared_key,
                    endpoint=peer.endpoint,
                    allowed=(IPv4Network(peer.address),),
                )
                for peer in peers
            ),
        )

    def wait_ready(self):
        if self.broken:
            raise NetworkError("ST-NETW-013", "it does not start")
        assert self.name in self.system.spaces[self.place.name]

    def read(self):
        return self.state

    def moved(self, place, name):
        assert name in self.system.spaces[place.name]
        self.place, self.name = place, name

    def wait_port(self):
        assert self.system.spaces[self.place.name][self.name].is_up
        return self.port

    def failure_reason(self):
        return self.how

    def process(self):
        return None

    def close(self):
        self.closed = True
        for links in self.system.spaces.values():
            links.pop(self.name, None)


@dataclass
class FakeEngine:
    system: FakeSystem
    name: str = "fake"
    devices: list[FakeDevice] = field(default_factory=list)
    broken: bool = False

    def missing(self):
        return []

    def start(self, host, name, folder):
        self.system.spaces[host.name][name] = Link()
        device = FakeDevice(self.system, host, name, broken=self.broken)
        self.devices.append(device)
        return device

    @property
    def device(self):
        return self.devices[-1]


class Job:
    """The nodes of a job and what they share, as a coordinator would hand it out."""

    def __init__(self, endpoints: dict[str, Endpoint]) -> None:
        self.keys = {node: WireGuardKey.generate() for node in endpoints}
        self.endpoints = endpoints
        self.secret = secrets.token_bytes(32)

    def members(self, own: str, nodes=None) -> list[OverlayMember]:
        """An epoch of `nodes` (all when not given) as the node `own` is told it."""
        return [
            OverlayMember(
                node=node,
                public_key=self.keys[node].public,
                endpoint=self.endpoints[node],
                slot=list(self.endpoints).index(node),
                preshared_key=b""
                if node == own
                else pairwise_psk(self.secret, self.keys[own].public, self.keys[node].public),
            )
            for node in (nodes or self.endpoints)
        ]

    def new_epoch(self) -> None:
        self.secret = secrets.token_bytes(32)


def plan_on(host: Any, job: str, *, node: str = "node-0", **given: Any) -> Plan:
    """A node's job network on a host of a cluster."""
    return Plan(job=job, node=node, endpoint=host.address, host=host.name, **given)
