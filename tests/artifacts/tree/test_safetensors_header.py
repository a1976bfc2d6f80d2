# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files: ours, and every kind of wrong one."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from securetrain.artifacts.tree import safetensors_header as headers
from securetrain.artifacts.tree.index import VERSION, Index, by_file
from securetrain.core.errors import IntegrityError
from tests import vocabulary
from tests.tables import each, items


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


@each(
    "said, room",
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
)
def test_lies_are_refused(said, room):
    assert refused(of(said), room)


@each("size", 0, 1, 3, 2**32, 2**63, 2**64 - 1, headers.LIMIT + 1)
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
    indexed = by_file(index)["m"]
    assert headers.differences(indexed, "m", good, size) == []
    swapped = of({"v": entry(8, 16), "w": entry()})
    assert len(swapped) == len(good)
    assert [p.tensor for p in headers.differences(indexed, "m", swapped, size)] == ["v", "w"]
    assert headers.differences(indexed, "m", swapped, size + 1)[0].code == "ST-CKPT-191"


@given(st.binary(max_size=200))
def test_no_bytes_escape_the_error_tree(data):
    with suppress(IntegrityError):
        headers.parse(data, len(data) + 8, "m")


def compact(said) -> bytes:
    """A header as the format's own library spells it."""
    return of(json.dumps(said, separators=(",", ":")).encode())


TIGHT = compact({"__metadata__": {"format": "pt"}, "v": entry(), "w": entry(8, 16)})
TIGHT_LIES = [
    compact({"__metadata__": {"format": 1}, "v": entry(), "w": entry(8, 16)}),
    compact({"__metadata__": ["format"], "v": entry(), "w": entry(8, 16)}),
    compact({"__metadata__": {"format": "pt"}, "u": entry(), "v": entry(), "w": entry(8, 16)}),
    compact({"u": entry(), "v": entry(), "w": entry(8, 16)}),
    compact({"v": entry(0, 8), "w": entry(16, 24)}),
    compact({"w": entry(8, 16), "v": entry()}),
    of(TIGHT[8:].replace(b'{"format":"pt"}', b'{"format":"pt","format":"x"}')),
    of(TIGHT[8:].replace(b'{"format":"pt"}', b'{},"__metadata__":{}')),
    of(TIGHT[8:].replace(b'{"format":"pt"}', b'{"format":"pt"},"v":1')),
    of(TIGHT[8:].replace(b'{"format":"pt"}', b'{"format":"pt"')),
    of(TIGHT[8:].replace(b'{"format":"pt"}', b'{"format":"\xff"}')),
    of(TIGHT[8:].replace(b'"__metadata__"', b'"__other__"')),
    of(TIGHT[8:].replace(b'{"__metadata__":', b'[{"__metadata__":')),
    of(TIGHT[8:].replace(b'{"__metadata__":{"format":"pt"},', b"{,")),
    of(TIGHT[8:].replace(b'{"__metadata__":{"format":"pt"},', b"{")),
    of(TIGHT[8:].replace(b'{"__metadata__":{"format":"pt"},', b"[")),
    of(TIGHT[8:].replace(b'{"__metadata__":{"format":"pt"},', b"")),
    of(TIGHT[8:].replace(b'"F32"', b'"F64"', 1)),
    of(TIGHT[8:].replace(b"[8,16]", b"[0,8]")),
    of(TIGHT[8:] + b"   "),
    of(TIGHT[8:] + b"\n"),
    of(TIGHT[8:] + b"}"),
    TIGHT[:8] + b" " + TIGHT[9:],
    bytes([TIGHT[0] + 1]) + TIGHT[1:],
    TIGHT + b" ",
    TIGHT,
]
TWO = of({"__metadata__": {"format": "pt"}, "v": entry(), "w": entry(8, 16)})
LIES = [
    *TIGHT_LIES,
    of({"__metadata__": {"format": 1}, "v": entry(), "w": entry(8, 16)}),
    of(TWO[8:].replace(b'"w"', b'"v"')),
    of(TWO[8:].replace(b'"w"', b'"\\u0077"')),
    of(TWO[8:].replace(b'"shape": [2], ', b'"shape": [9], "shape": [2], ', 1)),
    of(TWO[8:].replace(b'{"format": "pt"}', b'{"format": "pt", "format": "x"}')),
    of(TWO[8:].replace(b'{"format": "pt"}', b'{}, "__metadata__": {}')),
    of(TWO[8:].replace(b'"format": "pt"', b'"shape": "shape"')),
    of(TWO[8:].replace(b"[8, 16]", b"[0, 8]")),
    of(TWO[8:].replace(b"[8, 16]", b"[16, 24]")),
    of(TWO[8:].replace(b"F32", b"I32", 1)),
    of(TWO[8:].replace(b'"v"', b'"v", ', 1)),
    of(TWO[8:].replace(b'"w": {', b'"w": {"x": 1, ')),
    of({"v": entry(), "w": entry(8, 16), "empty": entry(16, 16, shape=(0,))}),
    of({"v": entry()}),
    TWO[:8] + b" " + TWO[9:],
    TWO + b" ",
    of(TWO[8:] + b"   "),
    TWO,
]


@pytest.mark.parametrize("header", LIES)
@pytest.mark.parametrize("more", [0, 8])
def test_the_quick_comparison_never_says_the_same_of_another_story(header, more, monkeypatch):
    """It may only save time: what it accepts, the strict reader accepts with the same meaning."""
    tensors = headers.tensors_of({"m": (TWO, len(TWO) + 16)})
    # The index that a signer would have made of the file, had it been honest.
    shift = len(header) - len(TWO)
    told = {
        tensor.fqn: replace(
            tensor,
            chunks=tuple(replace(c, offset=c.offset + shift) for c in tensor.chunks),
        )
        for tensor in tensors
    }
    size = len(header) + 16 + more
    found = headers.differences(told, "m", header, size)
    monkeypatch.setattr(headers, "_is_same", lambda *_: False)
    assert found == headers.differences(told, "m", header, size)


def test_the_quick_comparison_is_taken_for_an_honest_file(monkeypatch):
    plain = compact({"v": entry(), "w": entry(8, 16)})
    ours = headers.encode_header({"v": ("float32", (2,)), "w": ("float32", (2,))})
    told = [
        {one.fqn: one for one in headers.tensors_of({"m": (header, len(header) + 16)})}
        for header in (TIGHT, plain, ours)
    ]
    monkeypatch.setattr(headers, "tensors_of", None)
    for header, tensors in zip((TIGHT, plain, ours), told, strict=True):
        assert headers.differences(tensors, "m", header, len(header) + 16) == []


@items(
    "change",
    {"dtype": "complex128"},
    {"dtype": "int32"},
    {"shape": (1,)},
    {"chunks": "twice"},
    {"chunks": "elsewhere"},
    {"chunks": "narrow"},
)
def test_the_quick_comparison_doubts_what_no_header_can_say(change):
    """An index that places tensors otherwise than the file says is never taken for the same."""
    told = {one.fqn: one for one in headers.tensors_of({"m": (TIGHT, len(TIGHT) + 16)})}
    (chunk,) = told["w"].chunks
    chunks = {
        "twice": (chunk, replace(chunk, offset=chunk.offset + 8)),
        "elsewhere": (replace(chunk, offset=chunk.offset - 4),),
        "narrow": (replace(chunk, sizes=(1,)),),
    }
    if "chunks" in change:
        change = {"chunks": chunks[change["chunks"]]}
    told["w"] = replace(told["w"], **change)
    assert [p.tensor for p in headers.differences(told, "m", TIGHT, len(TIGHT) + 16)] == ["w"]


def test_a_tensor_of_the_metadatas_name_or_a_long_one_is_none():
    told = {one.fqn: one for one in headers.tensors_of({"m": (TIGHT, len(TIGHT) + 16)})}
    for name in ("__metadata__", "z" * 2000):
        wrong = {"v": told["v"], name: replace(told["w"], fqn=name)}
        header = compact({"v": entry(), name: entry(8, 16)})
        moved = {
            fqn: replace(one, chunks=(replace(one.chunks[0], offset=len(header) + number * 8),))
            for number, (fqn, one) in enumerate(wrong.items())
        }
        assert headers.differences(moved, "m", header, len(header) + 16)
