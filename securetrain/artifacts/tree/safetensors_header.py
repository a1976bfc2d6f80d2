# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file, written and read strictly (no torch, no safetensors library).

Format (https://huggingface.co/docs/safetensors): eight bytes little-endian length, that many bytes
of JSON, then the tensors' bytes. Rules for reading, in order:

1. the length is bounded and inside the file before anything is read;
2. JSON without duplicate keys, starting with ``{``; dtypes of a closed table; only strings in
   ``__metadata__``;
3. each tensor has exactly the bytes of its shape and dtype; together they cover what follows the
   header, without a gap and without an overlap.

What the header says must be what the signed index says (`differences`), so that other readers of
the same files cannot be told another story.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.tree.foreign import DTYPES
from securetrain.artifacts.tree.index import (
    MAX_BYTES,
    MAX_DIMS,
    Chunk,
    Index,
    Size,
    TensorEntry,
)
from securetrain.artifacts.tree.layout import MAX_NAME, Problem
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, reason

SUFFIX: Final = ".safetensors"
INDEX_JSON: Final = "model.safetensors.index.json"
LIMIT: Final = 100_000_000
PREFIX: Final = 8
METADATA: Final = "__metadata__"
PADDING: Final = 64

_NAMES: Final[Mapping[str, str]] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
_CODES: Final = {name: code for code, name in _NAMES.items()}


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One tensor."""

    dtype: str
    shape: Annotated[tuple[Size, ...], Meta(max_length=MAX_DIMS)]
    data_offsets: tuple[Size, Size]
    """First byte and the one after the last, counted from the end of the header."""


def dtype_code(dtype: str) -> str | None:
    """The format's name of a dtype; None when it has none."""
    return _CODES.get(dtype)


def encode_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """The header (with its length) of tensors that follow in this order: name to dtype and shape.

    The bytes after it start at a multiple of 64.
    """
    said: dict[str, object] = {METADATA: {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + math.prod(shape) * DTYPES[dtype]
        said[name] = {
            "dtype": _CODES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    body = msgspec.json.encode(said)
    body += b" " * (-(PREFIX + len(body)) % PADDING)
    return len(body).to_bytes(PREFIX, "little") + body


def header_size(start: bytes, file_size: int, name: str) -> int:
    """The number of bytes of the header, its length included, from the first eight bytes.

    Raises:
        IntegrityError: ST-CKPT-191.
    """
    if len(start) != PREFIX or file_size < PREFIX:
        raise _lie("shorter than the length of a header", name)
    size = int.from_bytes(start, "little")
    if not 2 <= size <= LIMIT or PREFIX + size > file_size:
        raise _lie(f"a header of {size} bytes in a file of {file_size}", name)
    return PREFIX + size


def parse(header: bytes, file_size: int, name: str) -> dict[str, Entry]:
    """Read a header whose bytes are complete and verified.

    Raises:
        IntegrityError: ST-CKPT-191, naming the tensor.
    """
    if header_size(header[:PREFIX], file_size, name) != len(header):
        raise _lie("a header of another length", name)
    body = header[PREFIX:]
    if body[:1] != b"{":
        raise _lie("a header that does not start with {", name)
    try:
        said = canonical.loads(body, limit=LIMIT)
        metadata = said.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise _lie("metadata that is more than strings", name)
        entries = msgspec.convert(said, dict[str, Entry], strict=True)
    except (SecureTrainError, msgspec.ValidationError) as error:
        if isinstance(error, IntegrityError):
            raise
        raise _lie(reason(error), name) from error
    _check(entries, file_size - len(header), name)
    return entries


def _check(entries: Mapping[str, Entry], room: int, name: str) -> None:
    """Rule 3."""
    expected = 0
    for fqn, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if len(fqn) > MAX_NAME:
            raise _lie(f"a tensor's name of {len(fqn)} characters", name)
        dtype = _NAMES.get(entry.dtype)
        if dtype is None:
            raise _lie(f"dtype {entry.dtype[:40]!r}", name, fqn)
        begin, end = entry.data_offsets
        length = math.prod(entry.shape) * DTYPES[dtype]
        if length > MAX_BYTES or end - begin != length:
            raise _lie(f"bytes {begin}..{end} for shape {list(entry.shape)[:8]}", name, fqn)
        if begin != expected:
            raise _lie("bytes that overlap or leave a gap", name, fqn)
        expected = end
    if expected != room:
        raise _lie(f"{room} bytes of tensors, {expected} are named", name)


def tensors_of(files: Mapping[str, tuple[bytes, int]]) -> tuple[TensorEntry, ...]:
    """The index's entries of whole files: name to header and size.

    Raises:
        IntegrityError: ST-CKPT-191 also when two files hold tensors of one name.
    """
    found: dict[str, TensorEntry] = {}
    for name, (header, size) in files.items():
        for fqn, entry in parse(header, size, name).items():
            if fqn in found:
                raise _lie("a tensor that another file holds, too", name, fqn)
            begin, end = entry.data_offsets
            chunk = Chunk(
                offsets=(0,) * len(entry.shape),
                sizes=entry.shape,
                file=name,
                offset=len(header) + begin,
                length=end - begin,
            )
            found[fqn] = TensorEntry(
                fqn=fqn,
                dtype=_NAMES[entry.dtype],
                shape=entry.shape,
                chunks=(chunk,) if end > begin else (),
            )
    return tuple(found[fqn] for fqn in sorted(found))


def differences(
    indexed: Mapping[str, TensorEntry], name: str, header: bytes, size: int
) -> list[Problem]:
    """Compare a file's own header with the tensors that the signed index places in the file.

    Args:
        indexed: the tensors that a checked index has there, by name.
        name: the file.
        header: its header, verified.
        size: its bytes in all.
    """
    if _is_same(indexed, header, size):
        return []
    try:
        said = tensors_of({name: (header, size)})
    except IntegrityError as error:
        return [Problem(error.code, error.what, name)]
    told = {tensor.fqn: tensor for tensor in said if tensor.chunks}
    wrong = sorted(fqn for fqn in indexed.keys() | told.keys() if indexed.get(fqn) != told.get(fqn))
    return [
        Problem(
            "ST-CKPT-191",
            "the file's own header says something else of it than the signed index",
            name,
            tensor=fqn,
        )
        for fqn in wrong[:8]
    ]


def _is_same(indexed: Mapping[str, TensorEntry], header: bytes, size: int) -> bool:
    """Tell whether a header surely says what the index says; in doubt it is read, strictly.

    It does when, from its last metadata on, it is byte for byte what the format's own library would
    have written of the index: nothing of it is taken apart.
    """
    body = _spelled(indexed, len(header), size)
    if body is None or int.from_bytes(header[:PREFIX], "little") != len(header) - PREFIX:
        return False
    said = header[PREFIX:].rstrip(b" ")
    if said == b"{" + body:
        return True
    if not said.startswith(b"{") or not said.endswith(b"," + body):
        return False
    # What stands before the tensors has to be a member by itself: the metadata, once.
    try:
        member = canonical.loads(said[: -len(body) - 1] + b"}", limit=LIMIT)
    except SecureTrainError:
        return False
    if not isinstance(member, dict) or list(member) != [METADATA]:
        return False
    metadata = member[METADATA]
    return isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())


def _spelled(indexed: Mapping[str, TensorEntry], start: int, size: int) -> bytes | None:
    """The header of whole tensors without its metadata, from the first name on.

    None when the index places them so that no header can say it.
    """
    said, expected = {}, start
    for fqn, tensor in sorted(indexed.items(), key=_offset):
        chunk, dtype = tensor.chunks[0], _CODES.get(tensor.dtype)
        if len(tensor.chunks) != 1 or chunk.offset != expected or chunk.sizes != tensor.shape:
            return None
        if dtype is None or len(fqn) > MAX_NAME:
            return None
        expected += chunk.length
        place = (chunk.offset - start, expected - start)
        said[fqn] = Entry(dtype=dtype, shape=tensor.shape, data_offsets=place)
    if expected != size or not said or METADATA in said:
        return None
    return msgspec.json.encode(said)[1:]


def _offset(named: tuple[str, TensorEntry]) -> int:
    return named[1].chunks[0].offset


def weight_map(index: Index) -> bytes:
    """``model.safetensors.index.json``, for other readers than ours."""
    total = sum(chunk.length for tensor in index.tensors for chunk in tensor.chunks)
    where = {tensor.fqn: tensor.chunks[0].file for tensor in index.tensors if tensor.chunks}
    said = {"metadata": {"total_size": total}, "weight_map": where}
    return msgspec.json.format(msgspec.json.encode(said, order="sorted"), indent=2) + b"\n"


def _lie(what: str, name: str, tensor: str = "") -> IntegrityError:
    return Problem("ST-CKPT-191", f"the safetensors header: {what}", name, tensor=tensor).error()
