# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files: ours, and every kind of wrong one."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.artifacts.tree import safetensors_header as headers
from securetrain.artifacts.tree.index import VERSION, Index
from securetrain.core.errors import IntegrityError
from tests import vocabulary


def of(said, *, size=None) -> bytes:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    return (len(body) if size is None else size).to_bytes(8, "little") + body


def entry(begin=0, end=8, *, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def refused(header: bytes, room: int) -> str:
    error = vocabulary.refused(
        IntegrityError,
        "ST-CKPT-191",
        lambda: headers.parse(header, len(header) + room, "m.safetensors"),
    )
    return error.what


def test_what_is_written_is_read():
    header = headers.encode_header(
        {"b": ("float32", (2, 3)), "a": ("bfloat16", (0,)), "c": ("bool", ())}
    )
    assert len(header) % 64 == 0
    found = headers.parse(header, len(header) + 25, "m.safetensors")
    assert {name: e.data_offsets for name, e in found.items()} == {
        "b": (0, 24),
        "a": (24, 24),
        "c": (24, 25),
    }


def test_a_plain_header_of_another_writer_is_read():
    header = of({"__metadata__": {"x": "y"}, "w": entry()})
    assert headers.parse(header, len(header) + 8, "m")["w"].shape == (2,)


@pytest.mark.parametrize(
    ("said", "room"),
    [
        ({"w": entry()}, 7),
        ({"w": entry()}, 9),
        ({}, 1),
        ({"w": entry(0, 7)}, 7),
        ({"w": entry(1, 9)}, 9),
        ({"w": entry(8, 0)}, 8),
        ({"w": entry(), "v": entry()}, 8),
        ({"w": entry(), "v": entry(4, 12)}, 12),
        ({"w": entry(), "v": entry(12, 20)}, 20),
        ({"w": entry(dtype="PICKLE")}, 8),
        ({"w": entry(shape=(-2,))}, 8),
        ({"w": entry(shape=(2**63, 2**63))}, 8),
        ({"w": entry(shape=[1] * 65)}, 8),
        ({"w": entry(shape=(2.0,))}, 8),
        ({"w": {**entry(), "extra": 1}}, 8),
        ({"w": [1]}, 8),
        ({"__metadata__": {"x": 1}, "w": entry()}, 8),
        ({"__metadata__": []}, 0),
        ({"w" * 2000: entry()}, 8),
        (b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":1}', 8),
        (b" {}", 0),
        (b"[]", 0),
        (b"{}trailing", 0),
        (b"\xff\xff", 0),
        (b'{"w":NaN}', 0),
    ],
)
def test_lies_are_refused(said, room):
    assert refused(of(said), room)


@pytest.mark.parametrize("size", [0, 1, 3, 2**32, 2**63, 2**64 - 1, headers.LIMIT + 1])
def test_the_length_is_bounded_before_anything_is_read(size):
    assert refused(of(b"{}", size=size), 0)
    with pytest.raises(IntegrityError):
        headers.header_size(size.to_bytes(8, "little"), 10, "m")


def test_two_files_with_one_tensor():
    header = of({"w": entry()})
    with pytest.raises(IntegrityError, match="another file"):
        headers.tensors_of({"a": (header, len(header) + 8), "b": (header, len(header) + 8)})


def test_a_header_that_tells_another_story_than_the_index():
    good = of({"v": entry(), "w": entry(8, 16)})
    size = len(good) + 16
    index = Index(version=VERSION, tensors=headers.tensors_of({"m": (good, size)}), values=())
    assert headers.against(index, "m", good, size) == []
    swapped = of({"v": entry(8, 16), "w": entry()})
    assert len(swapped) == len(good)
    assert [p.tensor for p in headers.against(index, "m", swapped, size)] == ["v", "w"]
    assert headers.against(index, "m", swapped, size + 1)[0].code == "ST-CKPT-191"


@given(st.binary(max_size=200))
def test_no_bytes_escape_the_error_tree(data):
    with suppress(IntegrityError):
        headers.parse(data, len(data) + 8, "m")
