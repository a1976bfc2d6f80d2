# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from ipaddress import ip_address

from securetrain.testing.frames import Kind, Traffic, packet_of
from tests.tables import items

A, B, C = (ip_address(f"198.18.0.{n}") for n in (1, 2, 3))
A6, B6 = ip_address("fd00::1"), ip_address("fd00::2")
TRAFFIC = Traffic(tunnels={(A, 500), (B, 600), (A6, 500), (B6, 600)}, control=(A, 29400))
DATA = b"\4\0\0\0" + bytes(28)


def ipv4(source, target, protocol, body, flags=0):
    total = (20 + len(body)).to_bytes(2, "big")
    head = b"\x45\0" + total + b"\0\0" + flags.to_bytes(2, "big") + bytes((64, protocol, 0, 0))
    return bytes(12) + b"\x08\x00" + head + source.packed + target.packed + body


def ipv6(source, target, protocol, body):
    head = b"\x60\0\0\0" + len(body).to_bytes(2, "big") + bytes((protocol, 64))
    return bytes(12) + b"\x86\xdd" + head + source.packed + target.packed + body


def udp(here, there, payload, flags=0):
    (source, sport), (target, dport) = here, there
    body = sport.to_bytes(2, "big") + dport.to_bytes(2, "big") + bytes(4) + payload
    made = ipv4(source, target, 17, body, flags) if source.version == 4 else None
    return made or ipv6(source, target, 17, body)


def tcp(source, sport, target, dport, payload=b""):
    ports = sport.to_bytes(2, "big") + dport.to_bytes(2, "big")
    return ipv4(source, target, 6, ports + bytes(8) + b"\x60" + bytes(11) + payload)


@items(
    "frame, kind",
    (bytes(12) + b"\x08\x06" + bytes(28), Kind.NEIGHBOURHOOD),
    (ipv4(A, ip_address("224.0.0.22"), 2, b"\x22" + bytes(15)), Kind.NEIGHBOURHOOD),
    (ipv6(A6, B6, 58, b"\x87" + bytes(23)), Kind.NEIGHBOURHOOD),
    (ipv6(A6, B6, 0, b"\x3a\0\5\2\0\0\1\0" + b"\x8f" + bytes(19)), Kind.NEIGHBOURHOOD),
    (udp((A, 500), (B, 600), DATA), Kind.WIREGUARD),
    (udp((B6, 600), (A6, 500), b"\1\0\0\0" + bytes(144)), Kind.WIREGUARD),
    (tcp(B, 40000, A, 29400), Kind.CONTROL),
    (tcp(A, 29400, B, 40000), Kind.CONTROL),
    (ipv4(B, A, 1, b"\3\3" + bytes(6) + udp((A, 500), (B, 600), DATA)[14:]), Kind.WIREGUARD),
    # ... and what only looks like them.
    (ipv4(B, A, 1, b"\5\3" + bytes(6) + udp((A, 500), (B, 600), DATA)[14:]), Kind.STRANGER),
    (ipv4(B, A, 1, b"\3\3" + bytes(6) + udp((A, 500), (B, 601), DATA)[14:]), Kind.STRANGER),
    (ipv4(B, A, 1, b"\3\3" + bytes(6)), Kind.STRANGER),
    (ipv4(B, A, 1, b"\3\3" + bytes(6) + tcp(A, 1, B, 2, b"CANARY")[14:]), Kind.STRANGER),
    (ipv4(A, B, 1, b"\x08" + bytes(7)), Kind.STRANGER),
    (ipv4(A, B, 58, b"\x87" + bytes(7)), Kind.STRANGER),
    (ipv6(A6, B6, 58, b"\x80" + bytes(7)), Kind.STRANGER),
    (ipv6(A6, B6, 58, b""), Kind.STRANGER),
    (ipv6(A6, B6, 2, b"\x22" + bytes(15)), Kind.STRANGER),
    (ipv6(A6, B6, 6, bytes(20)), Kind.STRANGER),
    (udp((A, 500), (B, 600), b"CANARY"), Kind.STRANGER),
    (udp((A, 500), (B, 600), b"\5\0\0\0"), Kind.STRANGER),
    (udp((A, 500), (B, 600), b"\4\0\0\1"), Kind.STRANGER),
    (udp((A, 500), (B, 601), DATA), Kind.STRANGER),
    (udp((A, 500), (C, 600), DATA), Kind.STRANGER),
    (udp((A, 500), (A, 500), DATA), Kind.STRANGER),
    (udp((A, 500), (B, 600), DATA, flags=0x2000), Kind.STRANGER),
    (udp((A, 500), (B, 600), DATA, flags=0x0001), Kind.STRANGER),
    (udp((B, 40000), (A, 29400), DATA), Kind.STRANGER),
    (tcp(B, 40000, A, 29401), Kind.STRANGER),
    (tcp(A, 40000, B, 29400), Kind.STRANGER),
    (tcp(A, 500, B, 600, DATA), Kind.STRANGER),
    (bytes(12) + b"\x88\xcc" + bytes(20), Kind.STRANGER),
    (bytes(12) + b"\x08\x00" + bytes(19), Kind.STRANGER),
    (b"", Kind.STRANGER),
)
def test_kinds(frame, kind):
    assert TRAFFIC.kind(frame) is kind


def test_strangers_are_named_once():
    frames = [tcp(A, 1, B, 2), tcp(A, 1, B, 2, b"x"), udp((A, 500), (B, 600), DATA), bytes(14)]
    frames.append(udp((A, 500), (B, 600), DATA, flags=0x2000))
    assert TRAFFIC.strangers(frames) == [
        "Ethernet type 0000",
        "TCP 198.18.0.1 port 1 to 198.18.0.2 port 2",
        "a fragment of UDP 198.18.0.1 port 0 to 198.18.0.2 port 0",
    ]


def test_what_a_control_connection_begins_with():
    hello, answer = b"\x16\3\1\2\0" + bytes(9), b"\x16\3\3\0\x7a" + bytes(9)
    frames = [tcp(B, 9, A, 29400), tcp(B, 9, A, 29400, hello), tcp(A, 29400, B, 9, answer)]
    frames += [tcp(B, 9, A, 29400, b"\x17\3\3\0\1"), tcp(C, 9, A, 29400, b"GET / HTTP")]
    frames.append(tcp(A, 1, B, 2, b"another conversation"))
    assert TRAFFIC.openings(frames) == [hello[:5], answer[:5], b"GET /"]


def test_padding_of_a_short_frame_is_no_payload():
    packet = packet_of(tcp(B, 9, A, 29400) + bytes(6))
    assert packet is not None
    assert packet.payload == b""
