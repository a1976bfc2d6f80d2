# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's messages: laid out as its headers say, and as a real kernel writes policies."""

import contextlib
import os
import random
import socket
from ipaddress import ip_address, ip_network
from struct import pack

import pytest

from securetrain.core.errors import NetworkError
from securetrain.network import xfrm
from securetrain.network.namespace import Namespace
from securetrain.network.xfrm import Direction, Kind, Offload, Template
from securetrain.testing.cluster import missing
from tests.network.fake_rdma import (
    DONE,
    OWN,
    PEER,
    dump_of,
    message,
    offload,
    policy,
    raw,
    state,
    template,
)
from tests.vocabulary import needs, refused


def test_a_state():
    (found,) = xfrm.states(dump_of([state(OWN, PEER, offload(inbound=True))], []))
    assert (found.source, found.destination, found.protocol) == (OWN, PEER, 50)
    assert (found.cipher, found.reqid, found.is_plain) == ("rfc4106(gcm(aes))", 1, True)
    assert found.offload == Offload(interface=7, is_inbound=True, is_full=True)
    assert "KEY-OF" not in repr(found)


def test_addresses_of_ipv6():
    one, two = ip_address("2001:db8::1"), ip_address("2001:db8::2")
    (found,) = xfrm.states(dump_of([state(one, two)], []))
    assert (found.source, found.destination, found.offload) == (one, two, None)


def test_a_policy():
    wanted = template(optional=True, source=OWN, destination=PEER, reqid=9)
    given = policy("192.0.2.0/24", "198.51.100.1", 1, offload(inbound=False), templates=[wanted])
    (found,) = xfrm.policies(dump_of([], [given]))
    assert found.source == ip_network("192.0.2.0/24")
    assert found.destination == ip_network("198.51.100.1")
    assert (found.direction, found.is_block, found.is_whole) == (Direction.OUT, False, True)
    assert found.templates == (
        Template(protocol=50, is_optional=True, source=raw(OWN), destination=raw(PEER), reqid=9),
    )
    assert found.offload == Offload(interface=7, is_inbound=False, is_full=True)


def test_a_policy_of_ipv6():
    (found,) = xfrm.policies(dump_of([], [policy("2001:db8::/32", "2001:db8::2", 0)]))
    assert found.source == ip_network("2001:db8::/32")
    assert found.destination == ip_network("2001:db8::2")


def test_policies_of_sockets_are_left_out():
    assert xfrm.policies(dump_of([], [policy("192.0.2.1", "192.0.2.2", 4)])) == ()


BAD = [
    pytest.param(b"", "no end", id="nothing"),
    pytest.param(state(OWN, PEER), "no end", id="no end"),
    pytest.param(message(16, b"short") + DONE, "cut off", id="a short state"),
    pytest.param(message(19, bytes(224)) + DONE, "not what was asked", id="another answer"),
    pytest.param(message(16, bytes(224)) + DONE, "family", id="no family"),
    pytest.param(state(OWN, PEER)[:-2], "message of the kernel has a wrong", id="a cut message"),
    pytest.param(state(OWN, PEER) + b"\0\0\0", "cut off", id="a cut header"),
    pytest.param(
        pack("=I", 4) + state(OWN, PEER)[4:], "message of the kernel has a", id="a small length"
    ),
    pytest.param(bytes(16) + DONE, "message of the kernel has a wrong length", id="no length"),
    pytest.param(state(OWN, PEER, b"\1\0\0\0") + DONE, "attribute", id="a bad attribute"),
    pytest.param(
        state(OWN, PEER, b"\5\0\x1c\0\0\0\0\0") + DONE, "offload is cut", id="a bad offload"
    ),
    pytest.param(message(2, b"\xff\xff\xff\xff"), "not permitted", id="refused"),
    pytest.param(message(2, b""), "refuses", id="refused without a number"),
]


@pytest.mark.parametrize(("data", "word"), BAD)
def test_what_is_not_understood_is_no_evidence(data, word):
    refused(NetworkError, "ST-NETW-033", xfrm.states, lambda _: data, says=word)


def test_bad_policies():
    whole = bytearray(policy("192.0.2.1", "192.0.2.2", 1))
    whole[16 + 42] = 99
    refused(NetworkError, "longer than its address", xfrm.policies, dump_of([], [bytes(whole)]))
    with pytest.raises(NetworkError, match="a policy is cut off"):
        xfrm.policies(dump_of([], [message(19, bytes(167))]))
    whole = bytearray(policy("0.0.0.0/0", "0.0.0.0/0", 1))
    whole[16 + 40 : 16 + 42] = pack("=H", socket.AF_UNSPEC)
    refused(NetworkError, "an address of family 0", xfrm.policies, dump_of([], [bytes(whole)]))
    body = policy("192.0.2.1", "192.0.2.2", 1, templates=[])[16:]
    with pytest.raises(NetworkError, match="a template is cut off"):
        xfrm.policies(dump_of([], [message(19, body[:168] + b"\x08\0\5\0abcd")]))


def test_there_is_a_limit(monkeypatch):
    monkeypatch.setattr(xfrm, "MAX_MESSAGES", 2)
    with pytest.raises(NetworkError):
        xfrm.states(dump_of([state(OWN, PEER)] * 3, []))


def given(data):
    """A dump of exactly these bytes."""
    return lambda _kind: data


def test_mutated_dumps_never_do_worse_than_refuse():
    whole = state(OWN, PEER, offload(inbound=True)) + DONE
    rules = policy("192.0.2.1", "192.0.2.2", 1, offload(inbound=False)) + DONE
    source = random.Random(1)
    for number in range(2000):
        data = bytearray(whole if number % 2 else rules)
        for _ in range(source.randrange(1, 5)):
            data[source.randrange(len(data))] = source.randrange(256)
        del data[source.randrange(1, len(data) + 1) :]
        with contextlib.suppress(NetworkError):
            (xfrm.states if number % 2 else xfrm.policies)(given(bytes(data)))


def test_a_kernel_that_does_not_answer(monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("socket.socket", refuse)
    refused(NetworkError, "ST-NETW-033", xfrm.dump, Kind.STATES, says="Operation not permitted")


class Netlink:
    """Instead of a socket: answers a dump with the parts that it is made with."""

    def __init__(self, *parts) -> None:
        self.parts = parts
        self.asked: list[bytes] = []
        self.left: list[bytes] = []

    def __call__(self, *_):
        self.left = list(self.parts)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def settimeout(self, _):
        pass

    def bind(self, _):
        pass

    def send(self, data):
        self.asked.append(data)

    def recv(self, _):
        return self.left.pop(0)


def test_a_dump_comes_in_parts(monkeypatch):
    netlink = Netlink(state(OWN, PEER), state(PEER, OWN), DONE)
    monkeypatch.setattr("socket.socket", netlink)
    assert len(xfrm.states(xfrm.dump)) == 2
    assert len(netlink.asked) == 1
    assert netlink.asked[0][4:8] == b"\x12\0\1\3"


def test_a_dump_that_was_disturbed_is_asked_for_again_and_not_for_ever(monkeypatch):
    netlink = Netlink(state(OWN, PEER), message(3, bytes(4), flags=0x12))
    monkeypatch.setattr("socket.socket", netlink)
    refused(NetworkError, "never stands still", xfrm.dump, Kind.STATES)
    assert len(netlink.asked) == 5


def test_a_dump_has_a_size(monkeypatch):
    monkeypatch.setattr(xfrm, "MAX_BYTES", 500)
    monkeypatch.setattr("socket.socket", Netlink(*[state(OWN, PEER)] * 3, DONE))
    refused(NetworkError, "longer than 500 bytes", xfrm.dump, Kind.STATES)


@pytest.mark.parametrize("at", [34, 38, 48], ids=["to a port", "from a port", "an interface"])
def test_a_policy_for_some_packets_is_not_whole(at):
    data = bytearray(policy("192.0.2.1", "192.0.2.2", 1))
    assert [p.is_whole for p in xfrm.policies(dump_of([], [bytes(data)]))] == [True]
    data[16 + at] = 0xFF
    assert [p.is_whole for p in xfrm.policies(dump_of([], [bytes(data)]))] == [False]


@pytest.mark.netns
@needs(missing)
def test_policies_of_a_real_kernel():
    """States need ESP in the kernel; policies do not."""
    place = Namespace(f"st-xfrm-{os.getpid()}")
    place.create()
    try:
        tmpl = ["tmpl", "src", "10.0.0.1", "dst", "10.0.1.2", "proto", "esp", "reqid", "5"]
        between = ["src", "10.0.0.0/24", "dst", "10.0.1.2/32"]
        place.ip("xfrm", "policy", "add", *between, "dir", "out", *tmpl)
        udp = ["src", "10.0.1.2", "dst", "10.0.0.1", "proto", "udp", "dport", "4791", "dir", "in"]
        place.ip("xfrm", "policy", "add", *udp, *tmpl[:1], *tmpl[5:], "level", "use")
        place.ip("xfrm", "policy", "add", "src", "::/0", "dst", "::/0", "dir", "fwd", "action",
                 "block")  # fmt: skip
        with place.entered():
            found = {policy.direction: policy for policy in xfrm.policies(xfrm.dump)}
            assert xfrm.states(xfrm.dump) == ()
    finally:
        place.remove()
    out, into, forward = (found[d] for d in (Direction.OUT, Direction.IN, Direction.FORWARD))
    assert out.source == ip_network("10.0.0.0/24")
    assert out.is_whole
    (demand,) = out.templates
    assert (demand.protocol, demand.is_optional, demand.reqid) == (50, False, 5)
    assert (demand.source[:4], demand.destination[:4]) == (
        bytes([10, 0, 0, 1]),
        bytes([10, 0, 1, 2]),
    )
    assert not into.is_whole
    assert [(found.protocol, found.is_optional) for found in into.templates] == [(50, True)]
    assert forward.is_block
    assert forward.templates == ()
