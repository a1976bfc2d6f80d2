# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The reader against structures that lie; `test_a_structure` is the control."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AttestationError
from securetrain.evidence.reader import Reader
from tests.tables import forgeries

CODE = "ST-ATTS-101"


def reader(data, order="big"):
    return Reader(data, CODE, "structure", order)


def refused(read, *said):
    with pytest.raises(AttestationError) as caught:
        read()
    error = caught.value
    assert (error.code, error.where) == (CODE, "structure")
    assert error.fix
    assert all(part in error.what for part in said), error.what
    return error


def test_a_structure():
    made = reader(bytes.fromhex("01 0002 00000003 0000000000000004 0002 aabb ccdd"))
    assert (made.u8(), made.u16(), made.u32(), made.u64()) == (1, 2, 3, 4)
    assert (made.position, made.left) == (15, 6)
    assert made.sized(2, 2) == b"\xaa\xbb"
    assert made.rest() == b"\xcc\xdd"
    assert (made.position, made.left) == (21, 0)
    made.end()
    assert made.rest() == b""
    assert made.take(0) == b""


def test_the_other_order_of_bytes():
    made = reader(bytes.fromhex("0200 03000000 0400000000000000"), "little")
    assert (made.u16(), made.u32(), made.u64()) == (2, 3, 4)
    assert reader(b"\x02\x00\xaa\xbb", "little").sized(2, 2) == b"\xaa\xbb"


@forgeries("size", 4, 5, 1 << 32, 1 << 64)
def test_more_than_there_is(size):
    made = reader(bytes(4))
    assert made.u8() == 0
    refused(lambda: made.take(size), f"{size} bytes wanted at offset 1", "3 are left")
    assert made.position == 1, "a refused read takes nothing"
    assert made.take(3) == bytes(3)


@forgeries("size", -1, -4, -(1 << 40))
def test_less_than_nothing(size):
    """A negative size would go back and read what was read before, or all but the end."""
    made = reader(bytes(8))
    made.take(2)
    refused(lambda: made.take(size), f"{size} bytes wanted")
    assert made.position == 2


@forgeries("name", "u8", "u16", "u32", "u64")
def test_a_number_that_is_cut_off(name):
    size = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}[name]
    assert getattr(reader(b"\xff" * size), name)() == 256**size - 1
    refused(getattr(reader(b"\xff" * (size - 1)), name), f"{size} bytes wanted")


@pytest.mark.forgery
def test_a_length_over_its_limit():
    """Before anything is taken: a limit is what bounds the memory."""
    made = reader(b"\x00\x05" + bytes(5))
    refused(lambda: made.sized(2, 4), "a length of 5 at offset 2", "the limit is 4")
    assert reader(b"\x00\x05" + bytes(5)).sized(2, 5) == bytes(5)


@forgeries("width", 1, 2, 4)
def test_a_length_that_lies(width):
    data = (3).to_bytes(width, "big") + bytes(2)
    refused(lambda: reader(data).sized(width, 100), "3 bytes wanted")


@pytest.mark.forgery
def test_what_follows_a_structure():
    made = reader(b"\x01\x02\x03")
    made.u8()
    refused(made.end, "2 bytes follow", "offset 1")


def test_several_numbers_at_once():
    layout = struct.Struct("<HI")
    made = reader(bytes.fromhex("0200 03000000 ff"))
    assert made.unpack(layout) == (2, 3)
    assert made.left == 1
    refused(lambda: made.unpack(layout), "6 bytes wanted", "1 are left")


def test_a_refusal_of_the_callers_own():
    error = reader(b"").bad("an unknown tag")
    assert (error.code, error.what, error.where) == (CODE, "an unknown tag", "structure")


@given(st.binary(max_size=64), st.lists(st.integers(-2, 70), max_size=12))
def test_never_outside_and_never_back(data, sizes):
    made, expected = reader(data), 0
    for size in sizes:
        if 0 <= size <= len(data) - expected:
            assert made.take(size) == data[expected : expected + size]
            expected += size
        else:
            refused(lambda made=made, size=size: made.take(size))
        assert made.position == expected
        assert made.position + made.left == len(data)
