# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.artifacts.tree import index as index_file
from securetrain.artifacts.tree.index import Chunk, Index, TensorEntry, TensorMap, ValueEntry
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError
from tests.tables import each
from tests.vocabulary import refused

FILES = {"rank-00000.bin": 4096, "rank-00001.bin": 4096}


def chunk(offsets, sizes, offset=0, *, item=4, file="rank-00000.bin", **other: Any) -> Chunk:
    length = item
    for size in sizes:
        length *= size
    fields = {"offsets": offsets, "sizes": sizes, "file": file, "offset": offset, "length": length}
    return Chunk(**{**fields, **other})


def tensor(*chunks: Chunk, shape=(4, 4), fqn="w", dtype="float32") -> TensorEntry:
    return TensorEntry(fqn=fqn, dtype=dtype, shape=shape, chunks=chunks)


def index(*tensors: TensorEntry, values: tuple[ValueEntry, ...] = (), version: int = 1) -> Index:
    return Index(version=version, tensors=tensors, values=values)


GOOD = index(
    tensor(chunk((0, 0), (2, 4)), chunk((2, 0), (2, 4), 0, file="rank-00001.bin")),
    tensor(shape=(0, 3), fqn="w2"),
    tensor(chunk((), (), 64), shape=(), fqn="w3"),
    values=(ValueEntry(fqn="step", value=7),),
)


def test_a_good_index_is_read_back():
    data = index_file.encode(GOOD)
    assert data == canonical.encode(GOOD)
    assert index_file.parse(data, FILES) == GOOD


WHOLE = chunk((0, 0), (4, 4))
LIES: dict[str, Index] = {
    "version": index(tensor(WHOLE), version=2),
    "dtype": index(tensor(WHOLE, dtype="object")),
    "dtype-with-a-dot": index(tensor(WHOLE, dtype="os.system")),
    "name-twice": index(tensor(WHOLE), tensor(chunk((0, 0), (4, 4), 64))),
    "names-unsorted": index(tensor(WHOLE, fqn="z"), tensor(chunk((0, 0), (4, 4), 64), fqn="a")),
    "tensor-and-value": index(tensor(WHOLE), values=(ValueEntry(fqn="w", value=1),)),
    "unknown-file": index(tensor(chunk((0, 0), (4, 4), file="rank-00009.bin"))),
    "escape": index(tensor(chunk((0, 0), (4, 4), file="../../etc/passwd"))),
    "past-the-end": index(tensor(chunk((0, 0), (4, 4), 4096))),
    "not-aligned": index(tensor(chunk((0, 0), (4, 4), 32))),
    "length": index(tensor(chunk((0, 0), (4, 4), length=60))),
    "dtype-and-length": index(tensor(WHOLE, dtype="float64")),
    "shape-larger": index(tensor(WHOLE, shape=(8, 4))),
    "shape-huge": index(tensor(shape=((1 << 53) - 1, 4096))),
    "outside": index(tensor(chunk((2, 0), (4, 4)), shape=(4, 4))),
    "dimensions": index(tensor(chunk((0,), (16,)))),
    "too-many-dimensions": index(tensor(chunk((0,) * 65, (1,) * 65), shape=(1,) * 65)),
    "overlap": index(tensor(chunk((0, 0), (3, 4)), chunk((2, 0), (1, 4), 64))),
    "overlap-in-2d": index(
        tensor(
            chunk((0, 0), (2, 2)),
            chunk((0, 2), (2, 2), 64),
            chunk((2, 0), (2, 2), 128),
            chunk((1, 1), (2, 2), 192),
        )
    ),
    "gap": index(tensor(chunk((0, 0), (2, 4)))),
    "scalar-twice": index(tensor(chunk((), ()), chunk((), (), 64), shape=())),
    "shared-bytes": index(tensor(WHOLE), tensor(WHOLE, fqn="x")),
    "empty-chunk": index(tensor(WHOLE, chunk((0, 0), (0, 4), 64))),
    "value": index(tensor(WHOLE), values=(ValueEntry(fqn="v", value={"object": []}),)),
}


def test_lies_are_refused():
    for lie in LIES.values():
        refused(IntegrityError, "ST-CKPT-191", index_file.parse, index_file.encode(lie), FILES)


@each(
    "edit",
    lambda d: d.replace(b'"offset":0', b'"offset":-64'),
    lambda d: d.replace(b'"offset":0', b'"offset":9223372036854775808'),
    lambda d: d.replace(b'"shape":[4,4]', b'"shape":[4,4.0]'),
    lambda d: d.replace(b'"version":1', b'"version":1,"version":1'),
    lambda d: d.replace(b'"version":1', b'"version":1,"extra":1'),
    lambda d: d.replace(b'"version":1', b'"version": 1'),
    lambda d: d + b" ",
    lambda d: d[:-1],
    lambda d: b"\x80\x04.",
    lambda d: b"[" * 100_000,
    lambda d: b"",
)
def test_other_spellings_and_garbage_are_refused(edit):
    data = edit(index_file.encode(index(tensor(WHOLE))))
    refused(IntegrityError, "ST-CKPT-191", index_file.parse, data, FILES)


@given(st.binary(max_size=200))
def test_no_bytes_escape_the_error_tree(data):
    with pytest.raises(IntegrityError):
        index_file.parse(data, FILES)


@given(st.text(max_size=20))
def test_any_name_has_one_spelling(name):
    entry = index(tensor(WHOLE, fqn=name))
    try:
        data = index_file.encode(entry)
    except UnicodeEncodeError:
        return
    assert data == canonical.dumps(msgspec.to_builtins(entry))
    assert index_file.parse(data, FILES) == entry


def test_the_map_names_the_tensors_of_a_stretch():
    tensors = TensorMap.of(
        index(tensor(WHOLE, fqn="a"), tensor(chunk((0, 0), (4, 4), 128), fqn="b"))
    )
    assert tensors.names("rank-00000.bin", 0, 1) == ["a"]
    assert tensors.names("rank-00000.bin", 64, 64) == []
    assert tensors.names("rank-00000.bin", 63, 66) == ["a", "b"]
    assert tensors.names("rank-00000.bin", 128, 4096) == ["b"]
    assert tensors.names("rank-00007.bin", 0, 4096) == []
