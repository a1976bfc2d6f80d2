# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hmac
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securetrain.core.errors import NetworkError
from securetrain.network.wireguard import (
    DeviceState,
    Endpoint,
    Peer,
    PeerState,
    WireGuardKey,
    decode_key,
    encode_key,
    pairwise_psk,
    require_key,
    require_state,
)
from tests import vocabulary
from tests.tables import each

KEY = WireGuardKey.generate()
A, B, SECRET = bytes([1] * 32), bytes([2] * 32), bytes([3] * 32)


def refused(code, call, *arguments, **how):
    return vocabulary.refused(NetworkError, code, call, *arguments, **how)


def test_a_key_of_rfc_7748():
    # Section 6.1, Alice's keys.
    private = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df6ab5e0a1bbb7f0d9ca8f5e0b2d2a3c")
    key = WireGuardKey(X25519PrivateKey.from_private_bytes(private))
    secret = key.secret()
    assert secret[0] & 7 == 0
    assert secret[31] & 0b11000000 == 0b01000000
    assert secret[1:31] == private[1:31]
    # Clamping is part of the function: both spellings have one public key.
    assert WireGuardKey(X25519PrivateKey.from_private_bytes(secret)).public == key.public
    assert (
        key.public == X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    )


def test_keys_are_new_and_never_shown():
    assert WireGuardKey.generate().public != KEY.public
    secret = KEY.secret()
    peer = Peer(
        public_key=A,
        preshared_key=SECRET,
        endpoint=Endpoint.parse("192.0.2.1:1"),
        address=IPv4Address("100.64.0.1"),
    )
    shown = repr(
        [KEY, peer, DeviceState(private_key=secret), PeerState(public_key=A, preshared_key=SECRET)]
    )
    assert repr(secret) not in shown
    assert repr(SECRET) not in shown
    assert secret.hex() not in shown


def test_base64_round_trip():
    text = encode_key(KEY.public)
    assert len(text) == 44
    assert decode_key(text) == KEY.public


@each(
    "id, text",
    ("empty", ""),
    ("short", "x"),
    ("cut", encode_key(A)[:-1]),
    ("long", encode_key(A) + "="),
    ("newline", encode_key(A) + "\n"),
    ("31", encode_key(A[:31])),
    ("33", encode_key(A + b"\0")),
    ("stray-bits", encode_key(A)[:-2] + "F="),  # bits that no byte stands for
    ("zero", encode_key(bytes(32))),
    ("url", "-" * 43 + "="),
    ("utf", "\u00e9" * 44),
)
def test_what_is_no_key(text):
    refused("ST-NETW-017", decode_key, text, "public key of node-1", names="public key of node-1")


@each("key", b"", bytes(32), A[:31], A + b"x")
def test_required_keys(key):
    refused("ST-NETW-017", require_key, key)
    assert require_key(A) == A


def test_both_ends_derive_one_key():
    assert pairwise_psk(SECRET, A, B) == pairwise_psk(SECRET, B, A)
    # RFC 5869, section 2, by hand: one block, no salt.
    extracted = hmac.digest(bytes(32), SECRET, "sha256")
    assert pairwise_psk(SECRET, B, A) == hmac.digest(extracted, b"wg" + A + B + b"\x01", "sha256")


def test_every_pair_and_epoch_has_its_own():
    other = bytes([4] * 32)
    keys = [
        pairwise_psk(SECRET, A, B),
        pairwise_psk(SECRET, A, other),
        pairwise_psk(SECRET, B, other),
        pairwise_psk(other, A, B),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)


@each(
    "arguments, where",
    ((b"short", A, B), "epoch secret"),
    ((bytes(32), A, B), "epoch secret"),
    ((SECRET, A[:31], B), "public key"),
    ((SECRET, A, bytes(32)), "public key"),
    ((SECRET, A, A), "public key"),
)
def test_no_pre_shared_key_from_what_is_none(arguments, where):
    assert refused("ST-NETW-017", pairwise_psk, *arguments).where == where


@each("text", "192.0.2.1:51820", "[2001:db8::1]:1", "10.0.0.1:65535")
def test_endpoints(text):
    assert str(Endpoint.parse(text)) == text


def test_what_is_no_endpoint():
    for text in (
        "",
        ":",
        "192.0.2.1",
        "192.0.2.1:",
        "192.0.2.1:0",
        "192.0.2.1:65536",
        "192.0.2.1:-1",
        "192.0.2.1:+1",
        "192.0.2.1: 1",
        "192.0.2.1:1\n",
        "192.0.2.1:000001",
        "192.0.2.1:\u0661",
        "192.0.2.1:" + "9" * 5000,
        "[192.0.2.1]:1",
        "2001:db8::1:1",
        "[2001:db8::1:1",
        "2001:db8::1]:1",
        "[fe80::1%eth0]:1",
        "[fe80::1%; flush ruleset]:1",
        "0.0.0.0:1",
        "[::]:1",
        "224.0.0.1:1",
        "[ff02::1]:1",
        "node-1:51820",
        "1:1",
    ):
        refused("ST-NETW-017", Endpoint.parse, text, "HELLO")


def test_an_endpoint_that_is_made_is_checked_too():
    refused("ST-NETW-017", Endpoint, IPv6Address("fe80::1%x"), 1)
    refused("ST-NETW-017", Endpoint, IPv4Address("192.0.2.1"), 0)
    refused("ST-NETW-017", Endpoint, IPv4Address("192.0.2.1"), 1 << 16)


PEER = Peer(
    public_key=A,
    preshared_key=SECRET,
    endpoint=Endpoint.parse("192.0.2.1:1"),
    address=IPv4Address("100.64.0.2"),
)
HELD = PeerState(
    public_key=A,
    preshared_key=SECRET,
    endpoint=Endpoint.parse("192.0.2.9:9"),  # it roamed
    allowed=(IPv4Network("100.64.0.2/32"),),
)
STATE = DeviceState(private_key=KEY.secret(), port=1, peers=(HELD,))


def test_a_device_that_holds_what_it_was_told():
    require_state(STATE, KEY, [PEER])
    require_state(replace(STATE, peers=()), KEY, [])


@each(
    "state, says",
    (replace(STATE, private_key=WireGuardKey.generate().secret()), "another private key"),
    (DeviceState(peers=(HELD,)), "another private key"),
    (replace(STATE, peers=()), "0 peers"),
    (replace(STATE, peers=(HELD, replace(HELD, public_key=B))), "2 peers"),
    (replace(STATE, peers=(HELD, HELD)), "2 peers"),
    (replace(STATE, peers=(replace(HELD, public_key=B),)), "1 peers"),
    (replace(STATE, peers=(replace(HELD, preshared_key=B),)), "pre-shared"),
    (replace(STATE, peers=(replace(HELD, preshared_key=bytes(32)),)), "pre-shared"),
    (replace(STATE, peers=(replace(HELD, allowed=()),)), "no address"),
    (
        replace(STATE, peers=(replace(HELD, allowed=(IPv4Network("100.64.0.0/20"),)),)),
        "may use 100.64.0.0/20, not only 100.64.0.2",
    ),
    (
        replace(STATE, peers=(replace(HELD, allowed=(*HELD.allowed, IPv4Network("0.0.0.0/0"))),)),
        "0.0.0.0/0",
    ),
)
def test_a_device_that_holds_something_else(state, says):
    assert says in refused("ST-NETW-016", require_state, state, KEY, [PEER]).what
