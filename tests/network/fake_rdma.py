# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""RDMA devices and IPsec state of a machine that only exists as files and bytes.

The tree is the part of ``/sys/class`` that ConnectX drivers fill (Documentation/ABI/stable/
sysfs-class-infiniband); the messages are laid out as linux/xfrm.h says.
"""

import json
import socket
import struct
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from securetrain.network.xfrm import Kind

OWN = ip_address("192.0.2.1")
PEER = ip_address("192.0.2.2")
INDEX = 7
"""Of the interface."""


@dataclass
class FakeRdma:
    """A machine with one RoCE card and one InfiniBand card; every fact can be changed."""

    sys: Path
    mode: str = "shared"
    links: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        for device, layer in (("mlx5_0", "Ethernet"), ("mlx5_1", "InfiniBand")):
            self.write(f"infiniband/{device}/ports/1/link_layer", layer)
            self.write(f"infiniband/{device}/ports/1/state", "4: ACTIVE")
        for index, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
            self.gid(index, "fe80:0000:0000:0000:0000:0000:0000:0001", kind)
            self.gid(index + 2, "0000:0000:0000:0000:0000:ffff:c000:0201", kind)
        self.write("infiniband/mlx5_1/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0002")
        self.write("infiniband/mlx5_1/ports/1/pkeys/0", "0xffff")
        self.write("infiniband/mlx5_1/ports/1/pkeys/1", "0x8001")
        (self.sys / "pci1").mkdir()
        self.write("net/ib0/dev_port", "0")
        self.write("net/ib0/pkey", "0x8001")
        (self.sys / "net/ib0/device").symlink_to(self.sys / "pci1")
        (self.sys / "infiniband/mlx5_1/device").symlink_to(self.sys / "pci1")
        self.link("eth0", "192.0.2.1")
        self.link("ib0", "198.51.100.1")

    def write(self, path: str, text: str) -> None:
        place = self.sys / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")

    def gid(self, index: int, address: str, kind: str, interface: str = "eth0") -> None:
        port = "infiniband/mlx5_0/ports/1"
        self.write(f"{port}/gids/{index}", address)
        self.write(f"{port}/gid_attrs/types/{index}", kind)
        self.write(f"{port}/gid_attrs/ndevs/{index}", interface)

    def link(self, name: str, address: str, **more: Any) -> None:
        self.links.append({"ifname": name, "addr_info": [{"local": address}], **more})

    def run(self, argv: list[str], *, data: bytes = b"") -> bytes:
        match argv:
            case ["ip", "-json", "-details", "address", "show"]:
                return json.dumps(self.links).encode()
            case ["rdma", "-j", "system", "show"]:
                return json.dumps([{"netns": self.mode, "copy-on-fork": True}]).encode()
            case _:
                raise AssertionError(argv)


def message(kind: int, body: bytes, flags: int = 2) -> bytes:
    """A netlink message, padded."""
    data = struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body
    return data + bytes(-len(data) % 4)


def attribute(kind: int, data: bytes) -> bytes:
    """A netlink attribute, padded."""
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def offload(index: int = INDEX, *, inbound: bool, full: bool = True) -> bytes:
    """XFRMA_OFFLOAD_DEV."""
    flags = (2 if inbound else 0) | (4 if full else 0)
    return attribute(28, struct.pack("=iB3x", index, flags))


def raw(address: Any) -> bytes:
    return address.packed.ljust(16, b"\0")  # type: ignore[no-any-return]


def family(address: Any) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


GCM = "rfc4106(gcm(aes))"


def state(source, destination, *attributes, protocol=50, cipher=GCM, reqid=1) -> bytes:
    """XFRM_MSG_NEWSA. The key of the AEAD is in it, as the kernel gives it to root."""
    body = bytearray(224)
    body[56:72] = raw(destination)
    body[76] = protocol
    body[80:96] = raw(source)
    body[208:212] = struct.pack("=I", reqid)
    body[212:214] = struct.pack("=H", family(source))
    key = cipher.encode().ljust(64, b"\0") + b"KEY-OF-THE-STATE"
    more = [attribute(18, key)] if cipher else []
    return message(16, bytes(body) + b"".join([*more, *attributes]))


def template(protocol=50, *, optional=False, source=None, destination=None, reqid=0) -> bytes:
    """struct xfrm_user_tmpl."""
    body = bytearray(64)
    body[0:16] = raw(destination) if destination else bytes(16)
    body[20] = protocol
    body[28:44] = raw(source) if source else bytes(16)
    body[44:48] = struct.pack("=I", reqid)
    body[50] = optional
    return bytes(body)


def policy(source, destination, direction, *attributes, protocol=0, action=0, templates=None):
    """XFRM_MSG_NEWPOLICY; with one template for ESP unless others are given."""
    to, origin = ip_network(destination), ip_network(source)
    body = bytearray(168)
    body[0:32] = raw(to.network_address) + raw(origin.network_address)
    body[40:42] = struct.pack("=H", family(to.network_address))
    body[42:45] = bytes([to.prefixlen, origin.prefixlen, protocol])
    body[160:162] = bytes([direction, action])
    wanted = b"".join([template()] if templates is None else templates)
    return message(19, bytes(body) + b"".join([attribute(5, wanted), *attributes]))


DONE = message(3, b"\0\0\0\0")


def protected(own=OWN, peer=PEER):
    """The states and policies that protect all between two nodes."""
    into, out = offload(inbound=True), offload(inbound=False)
    return (
        [state(own, peer, out), state(peer, own, into)],
        [policy(f"{own}", f"{peer}", 1, out), policy(f"{peer}", f"{own}", 0, into)],
    )


def dump_of(states, policies):
    """A `xfrm.Dump` of these messages."""

    def dump(kind: Kind) -> bytes:
        return b"".join(states if kind is Kind.STATES else policies) + DONE

    return dump
