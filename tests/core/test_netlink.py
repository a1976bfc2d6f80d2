# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's lists: whole, or an error that says which."""

import socket
from struct import pack

import pytest

from securetrain.core import netlink
from tests.vocabulary import refused


def message(kind, body, flags=2):
    whole = pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body
    return whole + b"\0" * (-len(whole) % 4)


DONE = message(3, bytes(4))


def test_the_kernels_own_list_of_interfaces_is_read():
    data = netlink.dump(socket.NETLINK_ROUTE, 18, bytes(16))
    names = [netlink.text(netlink.attributes(body[16:])[3]) for _, body in netlink.answers(data)]
    assert "lo" in names


def test_a_list_that_is_longer_than_its_limit_is_no_shorter_list():
    with pytest.raises(netlink.NetlinkError, match="longer than 40 bytes"):
        netlink.dump(socket.NETLINK_ROUTE, 18, bytes(16), limit=40)


def test_a_refusal_keeps_its_number():
    refused(PermissionError, "refuses to say", list, netlink.answers(message(2, pack("=i", -1))))
    refused(OSError, "refuses to say", lambda: list(netlink.answers(message(2, b""))))


@pytest.mark.parametrize("data", [b"", message(16, b""), b"\1" * 17, message(16, b"") + DONE[:-9]])
def test_what_has_no_end_is_an_error(data):
    with pytest.raises(netlink.NetlinkError):
        list(netlink.answers(data))


def test_nothing_is_asked_for_and_nothing_comes():
    assert list(netlink.answers(message(1, b"") + DONE)) == []
    assert list(netlink.answers(message(16, b"abcd") + DONE)) == [(16, b"abcd")]


def test_attributes_in_their_order_and_by_kind():
    data = pack("=HH4s", 8, 0x8001, b"aaaa") + pack("=HH4s", 8, 1, b"bbbb")
    assert list(netlink.listed_attributes(data)) == [(1, b"aaaa"), (1, b"bbbb")]
    assert netlink.attributes(data) == {1: b"bbbb"}
    refused(netlink.NetlinkError, "wrong length", netlink.attributes, pack("=HH", 3, 1))
