# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what a job network reads: answers of WireGuard engines, keys, endpoints, records."""

import struct
import sys
from pathlib import Path

from securetrain.core import canonical
from securetrain.core.errors import NetworkError
from securetrain.network import record, uapi, wireguard_kernel, xfrm
from securetrain.network.elf import ElfError, constants
from securetrain.network.process_identity import Owner
from securetrain.network.wireguard import Endpoint, decode_key, encode_key
from securetrain.network.wireguard_go import version_problem
from tests.network.fake_rdma import DONE, OWN, PEER, offload, policy, state, template
from tools.fuzz.engine import Parser

_ONE, _OTHER = bytes(range(1, 33)), bytes(range(2, 34))


def network(folder: Path) -> list[Parser]:
    """The parsers.

    Args:
        folder: A directory for those that read files; it is made.
    """

    def text(data: bytes) -> str:
        return data.decode("utf-8", "replace")

    return [
        Parser("wireguard-uapi", _answers, uapi.parse_state),
        Parser("wireguard-dump", _dumps, wireguard_kernel.parse_dump),
        Parser(
            "wireguard-endpoint",
            lambda: [b"192.0.2.1:51820", b"[2001:db8::1]:1"],
            lambda data: Endpoint.parse(text(data)),
        ),
        Parser(
            "wireguard-key",
            lambda: [encode_key(_ONE).encode()],
            lambda data: decode_key(text(data)),
        ),
        *_ipsec(),
        _library(folder),
        Parser("wireguard-version", lambda: [b"wireguard-go v0.0.20231211\n"], _version),
        _record(folder),
    ]


def _version(data: bytes) -> None:
    if why := version_problem(data):
        raise NetworkError("ST-NETW-012", why[0])


def _answers() -> list[bytes]:
    peer = (
        "public_key={key}\npreshared_key={key}\nprotocol_version=1\nendpoint={endpoint}\n"
        "last_handshake_time_sec=1700000000\nlast_handshake_time_nsec=5\ntx_bytes=92\n"
        "rx_bytes=228\npersistent_keepalive_interval=0\nallowed_ip=100.64.0.2/32\n"
    )
    peers = [
        peer.format(key=key.hex(), endpoint=endpoint)
        for key, endpoint in ((_ONE, "192.0.2.2:51820"), (_OTHER, "[2001:db8::2]:1"))
    ]
    head = f"private_key={_ONE.hex()}\nlisten_port=51820\nfwmark=1\n"
    return ["".join([head, *peers[:count], "errno=0\n\n"]).encode() for count in range(3)]


def _dumps() -> list[bytes]:
    key, other = encode_key(_ONE), encode_key(_OTHER)
    rows = [
        [key, other, "51820", "off"],
        [other, key, "192.0.2.2:51820", "100.64.0.2/32", "1700000000", "228", "92", "off"],
        [key, "(none)", "(none)", "(none)", "0", "0", "0", "25"],
    ]
    lines = ["\t".join(row) + "\n" for row in rows]
    return ["".join(lines[:count]).encode() for count in (1, 2, 3)]


def _record(folder: Path) -> Parser:
    owner = Owner(pid=7, started=8, boot="boot", pid_namespace="pid:[1]")
    made = record.Record(job="job-1", node="node-0", owner=owner)
    place = folder / made.names.namespace
    place.mkdir(parents=True)

    def parse(data: bytes) -> object:
        (place / record.RECORD).write_bytes(data)
        entry = record.read_entry(place)
        if entry.record is None:
            raise NetworkError("ST-NETW-022", entry.problem)
        return entry.record

    return Parser("job-network-record", lambda: [canonical.encode(made)], parse)


def _ipsec() -> list[Parser]:
    """What the kernel says of IPsec, and somebody else has configured."""
    way = offload(inbound=False)
    rule = policy("192.0.2.0/24", "198.51.100.1", 1, way, templates=[template(optional=True)])  # type: ignore[no-untyped-call]
    return [
        Parser(
            "ipsec-states",
            lambda: [state(OWN, PEER) + state(PEER, OWN, offload(inbound=True)) + DONE, DONE],
            lambda data: xfrm.states(lambda _kind: data),
        ),
        Parser(
            "ipsec-policies",
            lambda: [rule + rule + DONE],
            lambda data: xfrm.policies(lambda _kind: data),
        ),
    ]


def _library(folder: Path) -> Parser:
    """A library that says whether it can encrypt: ELF-64 with a constant and a name table."""
    names, data = b"\0.rodata\0.shstrtab\0", b"libssl.so.3\0"
    ident = b"\x7fELF" + bytes([2, 1 if sys.byteorder == "little" else 2, 1]) + bytes(9)
    places = 64, 64 + len(data), 64 + len(data) + len(names)
    header = struct.pack(
        "=16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 0, places[2], 0, 64, 0, 0, 64, 3, 2
    )
    sections = [
        struct.pack("=IIQQQQIIQQ", name, kind, 0, 0, place, size, 0, 0, 1, 0)
        for name, kind, place, size in (
            (0, 0, 0, 0),
            (1, 1, places[0], len(data)),
            (9, 3, places[1], len(names)),
        )
    ]
    whole = header + data + names + b"".join(sections)
    folder.mkdir(exist_ok=True)
    path = folder / "library.so"

    def parse(content: bytes) -> object:
        path.write_bytes(content)
        try:
            return constants(path)
        except ElfError as error:  # as `nccl.tls_problem` says it
            raise NetworkError("ST-NETW-030", str(error)) from error

    return Parser("nccl-library", lambda: [whole], parse, share=0.3)
