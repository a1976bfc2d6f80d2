# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The kernel's lists, asked for and taken apart by netlink(7): bounded, and whole or an error.

Rules:

1. lengths are checked before anything is taken apart; a message that is cut off, or an attribute of
   a wrong length, is an error, never a shorter list;
2. a dump has an end and a size. One during which something changed is asked for again, a few times;
3. the kernel's own refusal is an `OSError` with its number, so that "may not" stays apart from "is
   not understood".
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

MAX_BYTES: Final = 16 << 20

_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_INT: Final = struct.Struct("=i")
_NOOP, _ERROR, _DONE = 1, 2, 3
_REQUEST_DUMP: Final = 0x301
_INTERRUPTED: Final = 0x10  # NLM_F_DUMP_INTR: something changed while it was written
_KIND_OF_ATTRIBUTE: Final = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_TRIES: Final = 5
_SECONDS: Final = 3.0


class NetlinkError(ValueError):
    """An answer that is not what was asked for."""


def dump(family: int, kind: int, body: bytes = b"", *, limit: int = MAX_BYTES) -> bytes:
    """Ask the kernel for everything of a kind, in the calling thread's network namespace.

    Args:
        family: The netlink family, as ``socket.NETLINK_ROUTE``.
        kind: The kind of request.
        body: What follows the header.
        limit: The longest answer that is read, in bytes.

    Raises:
        OSError: when it does not answer.
        NetlinkError: when there is more, or the list never stands still.
    """
    ask = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST_DUMP, 1, 0) + body
    for _ in range(_TRIES):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as netlink:
            netlink.settimeout(_SECONDS)
            netlink.bind((0, 0))
            netlink.send(ask)
            data = b"".join(_received(netlink, limit))
        if not any(flags & _INTERRUPTED for _, flags, _ in _messages(data)):
            return data
    raise NetlinkError("the kernel's list never stands still")


def _received(netlink: socket.socket, limit: int) -> Iterator[bytes]:
    left = limit
    while True:
        data = netlink.recv(1 << 18)
        left -= len(data)
        if left < 0 or not data:
            raise NetlinkError(f"the kernel's list is longer than {limit} bytes, or has no end")
        yield data
        if any(kind in {_ERROR, _DONE} for kind, *_ in _messages(data)):
            return


def answers(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and body of each message of a whole dump.

    Raises:
        OSError: when the kernel refused.
        NetlinkError: when it is malformed or has no end.
    """
    for kind, _, body in _messages(data):
        if kind == _DONE:
            return
        if kind == _ERROR:
            (code,) = _INT.unpack_from(body) if len(body) >= _INT.size else (0,)
            number = -code if code < 0 else errno.EPROTO
            raise OSError(number, f"the kernel refuses to say: {os.strerror(number)}")
        if kind != _NOOP:
            yield kind, body
    raise NetlinkError("the kernel's answer has no end")


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and body of each message."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise NetlinkError("a message of the kernel is cut off")
        length, kind, flags, *_ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise NetlinkError("a message of the kernel has a wrong length")
        yield kind, flags, data[at + _HEADER.size : at + length]
        at += -(-length // 4) * 4


def attributes(data: bytes) -> dict[int, bytes]:
    """The attributes by their kind; of several of one kind the last.

    Raises:
        NetlinkError: when one has a wrong length.
    """
    return dict(listed_attributes(data))


def listed_attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each attribute in its order, as lists have several of one kind.

    Raises:
        NetlinkError: when one has a wrong length.
    """
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if not _ATTRIBUTE.size <= length <= len(data) - at:
            raise NetlinkError("an attribute has a wrong length")
        yield kind & _KIND_OF_ATTRIBUTE, data[at + _ATTRIBUTE.size : at + length]
        at += -(-length // 4) * 4


def text(data: bytes) -> str:
    """A name of the kernel, without the zero that ends it."""
    return data.rstrip(b"\0").decode("utf-8", "backslashreplace")
