# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Values of numpy and torch in a checkpoint's index, without numpy and torch.

A form says a dtype from a closed table, a shape and bytes, and the three agree, or it is refused
before anything is made. Larger values, and sparse tensors, are `Parts`: their bytes are in tensors
of their own.
"""

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

MAX_ARRAY: Final = 64 << 20
"""Bytes of an array inside of a value. A larger one is stored as data, like a tensor."""
MAX_DIMS: Final = 32
MAX_TEXT: Final = 4096
"""Characters of a path or a time."""
SAFE_INT: Final = (1 << 53) - 1

NUMPY: Final = re.compile(
    r"(?P<bool>\|b1)|\|[iu](?P<byte>1)|[<>](?:[iu](?P<int>[248])|f(?P<float>[248])|c(?P<complex>8|16)"
    r"|[mM](?P<time>8)\[[1-9]?[0-9]{0,5}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])"
)
"""The dtypes of numpy that hold plain numbers, as numpy spells them."""
DTYPES: Final[Mapping[str, int]] = {
    "bfloat16": 2,
    "bool": 1,
    "complex128": 16,
    "complex32": 4,
    "complex64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "uint8": 1,
}
"""The dtypes of torch that the format holds, with the size of an element in bytes.

Tensors are stored little-endian, row by row."""
SPARSE: Final[dict[str, tuple[str, ...]]] = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
}
"""The layouts of sparse tensors, and the dense tensors that make them up."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array of numpy, a scalar of numpy, or a small tensor."""

    tag: str
    """``ndarray``, ``numpy`` (a scalar) or ``tensor``."""
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Dtype:
    """A dtype of torch."""

    name: str


@dataclass(frozen=True, slots=True)
class Size:
    """A `torch.Size`."""

    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """A value whose bytes are in tensors of their own, named after it."""

    form: str
    """``ndarray``, or a layout of `SPARSE`."""
    shape: tuple[int, ...]
    dtype: str = ""
    """Of an array; a sparse tensor has its values'."""
    coalesced: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return SPARSE.get(self.form, ("data",))


MARK: Final = ".securetrain:"
"""In the name of a tensor that is part of a value."""


def part_name(name: str, part: str) -> str:
    """The name of a tensor that is part of the value `name`."""
    return f"{name}{MARK}{part}"


Foreign: TypeAlias = Array | Dtype | Size | Parts
Describe: TypeAlias = Callable[[object, str], Foreign | None]
"""Says what a value of numpy or torch is; None for what it does not know."""
Make: TypeAlias = Callable[[Foreign], Any]


def a_list(body: Any, length: int | None = None) -> list[Any]:
    """Take a list; ValueError when it is none, or of another length."""
    if not isinstance(body, list) or length not in {None, len(body)}:
        raise ValueError("not the list that belongs here")
    return body


def a_string(body: Any, limit: int = MAX_TEXT) -> str:
    """Take a string; ValueError when it is none, or longer."""
    if not isinstance(body, str) or len(body) > limit:
        raise ValueError(f"not a string of at most {limit} characters")
    return body


def an_int(body: Any, limit: int = SAFE_INT) -> int:
    """Take a number from 0 on; ValueError when it is none, or larger."""
    if type(body) is not int or not 0 <= body <= limit:
        raise ValueError(f"not an integer from 0 to {limit}")
    return body


def a_bytes(body: Any) -> bytes:
    """Take bytes in base64; ValueError in any other spelling."""
    data = base64.b64decode(a_string(body, MAX_ARRAY * 64), validate=True)
    same(base64.b64encode(data).decode(), body)
    return data


def same(spelled: object, body: object) -> None:
    """Refuse, by ValueError, another spelling than the one that is written."""
    if spelled != body:
        raise ValueError("in another spelling than it is written in")


def read_foreign(tag: str, body: Any) -> Foreign:
    """Read a form whose tag no plain value has; ValueError when it is not one."""
    match tag, body:
        case (("ndarray" | "tensor"), [dtype, shape, data]):
            return _array(tag, dtype, shape, data)
        case "numpy", [dtype, data]:
            return _array(tag, dtype, [], data)
        case "dtype", str(name) if name in DTYPES:
            return Dtype(name)
        case "size", list(sizes):
            return Size(_shape(sizes))
        case "parts", [str(form), shape, str(dtype), bool(coalesced)]:
            if (form == "ndarray") is not bool(dtype) or form not in {"ndarray", *SPARSE}:
                raise ValueError("not a form that a value of several tensors has")
            if form == "ndarray":
                numpy_size(dtype)
            if coalesced and form != "sparse_coo":
                raise ValueError(f"a {form} that is coalesced")
            return Parts(form, _shape(shape), dtype, coalesced)
        case _:
            raise ValueError("an unknown type, or not the form of this one")


def _array(tag: str, dtype: Any, shape: Any, data: Any) -> Array:
    sizes, name = _shape(shape), a_string(dtype, 32)
    check_array(tag, name, sizes)
    content = a_bytes(data)
    check_content(tag, name, sizes, content)
    return Array(tag, name, sizes, content)


def check_array(tag: str, dtype: str, shape: Sequence[int]) -> int:
    """Check what is said of an array, on both sides: the bytes that it has.

    Raises:
        ValueError: the format has no place for it.
    """
    if tag == "tensor" and dtype not in DTYPES:
        raise ValueError(f"no dtype of torch that the format holds: {dtype}")
    check_shape(shape)
    size = math.prod(shape) * (DTYPES[dtype] if tag == "tensor" else numpy_size(dtype))
    if size > MAX_ARRAY:
        raise ValueError(f"{size} bytes, the limit is {MAX_ARRAY}")
    return size


def check_content(tag: str, dtype: str, shape: Sequence[int], data: bytes) -> None:
    """Check an array's bytes, on both sides.

    Raises:
        ValueError: they are not of its shape, or not of its dtype.
    """
    if len(data) != (size := check_array(tag, dtype, shape)):
        raise ValueError(f"{len(data)} bytes where its shape has {size}")
    if dtype in {"|b1", "bool"}:
        check_booleans(data)


def check_booleans(data: bytes | bytearray | memoryview) -> None:
    """Refuse bytes other than 0 and 1, of which no boolean consists.

    Raises:
        ValueError: there is another one.
    """
    if bytes(data).translate(None, b"\0\1"):
        raise ValueError("a boolean that is neither 0 nor 1")


def numpy_size(dtype: str) -> int:
    """The bytes of an element.

    Raises:
        ValueError: not a dtype of plain numbers.
    """
    match = NUMPY.fullmatch(dtype)
    if match is None:
        raise ValueError(f"no dtype of plain numbers: {dtype:.40}")
    found = next(size for size in match.groups() if size is not None)
    return 1 if found == "|b1" else int(found)


def check_shape(shape: Sequence[Any]) -> None:
    """Check a shape, on both sides.

    Raises:
        ValueError: it has too many dimensions, or one is no size.
    """
    if len(shape) > MAX_DIMS:
        raise ValueError(f"not a shape of at most {MAX_DIMS} dimensions")
    for size in shape:
        an_int(size)


def _shape(shape: Any) -> tuple[int, ...]:
    check_shape(a_list(shape))
    return tuple(shape)
