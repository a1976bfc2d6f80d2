# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Values of numpy and torch: described for the index, and made from what it says.

Rules:

1. arrays and scalars of numbers have a place, by exact type: objects, records, text and subclasses
   are refused by name. What comes back owns its memory;
2. a sparse tensor, and an array of `LARGE` bytes or more that has a name of its own, are stored as
   tensors, signed and read like others: ``NAME.securetrain:indices``, ``NAME.securetrain:data``;
3. a sparse tensor is made only of parts that fit together: torch checks every index.

Tensors as bytes: which ones the native format holds, and their memory without a copy.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from securetrain.artifacts.tree.foreign import (
    DTYPES,
    SPARSE,
    Array,
    Dtype,
    Foreign,
    Parts,
    Size,
    check_booleans,
    numpy_size,
    part_name,
)
from securetrain.core.errors import IntegrityError, UsageError

BY_NAME: Final[dict[str, torch.dtype]] = {
    name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)
}
_NAMES: Final = {dtype: name for name, dtype in BY_NAME.items()}


def check_host() -> None:
    """Refuse a host whose memory is not what the files hold.

    Raises:
        UsageError: ST-USAG-013 on a big-endian machine.
    """
    if sys.byteorder != "little":
        raise UsageError(
            "ST-USAG-013",
            "tensors are stored little-endian, and this machine is not",
            fix="save and load on a little-endian machine",
        )


def dtype_name(dtype: torch.dtype, fqn: str) -> str:
    """The name of a dtype in the index.

    Raises:
        UsageError: ST-USAG-013 when the format has no place for it.
    """
    name = _NAMES.get(dtype)
    if name is None:
        raise _unsupported(f"dtype {dtype}", fqn)
    return name


def is_plain(tensor: Tensor) -> bool:
    """Tell an ordinary strided tensor from a subclass with a storage of its own."""
    return type(tensor) in {Tensor, torch.nn.Parameter} and tensor.layout is torch.strided


def to_host(tensor: Tensor, fqn: str) -> Tensor:
    """A contiguous tensor in CPU memory with the same content; itself when it is one already.

    Raises:
        UsageError: ST-USAG-013 for layouts, subclasses and devices that hold no plain bytes.
    """
    wait = getattr(tensor, "trigger_wait", None)
    if callable(wait):
        # The result of a collective that may still be running.
        tensor = wait()
    tensor = tensor.detach()
    if not is_plain(tensor) or tensor.is_quantized or tensor.is_meta:
        raise _unsupported(f"a {tensor.layout} tensor of type {type(tensor).__name__}", fqn)
    dtype_name(tensor.dtype, fqn)
    return tensor.resolve_conj().resolve_neg().cpu().contiguous()


def memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor: the same memory, writable."""
    if tensor.numel() == 0:
        return memoryview(bytearray())
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def can_fill(target: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether stored bytes of `dtype` may be read straight into the memory of `target`."""
    return (
        is_plain(target)
        and target.device.type == "cpu"
        and target.dtype is dtype
        and target.is_contiguous()
        and not target.is_conj()
        and not target.is_neg()
    )


def _unsupported(what: str, fqn: str) -> UsageError:
    return UsageError("ST-USAG-013", what, fqn)


LARGE: Final = 64 << 10
_LAYOUTS: Final[dict[torch.layout, str]] = {getattr(torch, name): name for name in SPARSE}


def describe(value: object, name: str) -> Foreign | None:
    """Say what a value of numpy or torch is (rule 1); None for every other value.

    Raises:
        UsageError: ST-USAG-013 an array or tensor that has no place in the format.
    """
    if isinstance(value, Parts):
        return value
    if isinstance(value, torch.dtype):
        return Dtype(dtype_name(value, name))
    if type(value) is torch.Size:
        return Size(tuple(value))
    if isinstance(value, Tensor):
        if not is_plain(value):
            raise _refused(f"a tensor of type {type(value).__name__} inside of a value", name)
        host = to_host(value, name)
        data = bytes(memory(host))
        return Array("tensor", dtype_name(host.dtype, name), tuple(host.shape), data)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic | numpy.ndarray):
        return None
    return _array(value, numpy, name)


def _array(value: Any, numpy: Any, name: str) -> Array:
    kind, dtype = type(value), value.dtype.str
    what = f"a {kind.__module__}.{kind.__qualname__} of dtype {value.dtype}"
    is_array = kind is numpy.ndarray
    if not is_array and kind is not value.dtype.type:
        raise _refused(what, name)
    try:
        numpy_size(dtype)
    except ValueError as error:
        raise UsageError(
            "ST-USAG-013", what, name, "save its .tolist(), or an array of plain numbers"
        ) from error
    shape = value.shape if is_array else ()
    return Array("ndarray" if is_array else "numpy", dtype, shape, value.tobytes())


def make(value: Foreign) -> Any:
    """The value that a description is of.

    Raises:
        UsageError: ST-USAG-004 numpy is not installed, ST-USAG-012 this torch lacks a dtype.
    """
    match value:
        case Dtype():
            return _dtype(value.name)
        case Size():
            return torch.Size(value.sizes)
        case Array("tensor"):
            raw = torch.frombuffer(bytearray(value.data), dtype=torch.uint8) if value.data else None
            if raw is None:
                return torch.empty(value.shape, dtype=_dtype(value.dtype))
            return raw.view(_dtype(value.dtype)).reshape(value.shape)
        case Array():
            found = _numpy().frombuffer(bytearray(value.data), dtype=value.dtype)
            return found[0] if value.tag == "numpy" else found.reshape(value.shape)
        case _:
            raise ValueError(f"unknown form {value!r}")


def split(value: object, name: str) -> tuple[Parts, dict[str, Tensor]] | None:
    """Split a value into a description and tensors (rule 2); None when it is stored whole.

    Raises:
        UsageError: ST-USAG-013 a part that has no place in the format.
    """
    if isinstance(value, Tensor):
        form = _LAYOUTS.get(value.layout)
        if form is None or type(value) not in {Tensor, torch.nn.Parameter}:
            return None
        value = value.detach()
        coalesced = form == "sparse_coo" and value.is_coalesced()
        # What is not coalesced keeps its order; the accessors without an underscore refuse it.
        names = [f"_{part}" if form == "sparse_coo" else part for part in SPARSE[form]]
        parts = Parts(form, tuple(value.shape), coalesced=coalesced)
        found = [getattr(value, part)() for part in names]
        pairs = zip(parts.names, found, strict=True)
        tensors = {part_name(name, part): tensor for part, tensor in pairs}
        _check_fit(parts, tensors, name)
        return parts, tensors
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return None
    array: Any = value
    if array.nbytes < LARGE:
        return None
    described = _array(array, numpy, name)
    data = torch.frombuffer(bytearray(described.data), dtype=torch.uint8)
    parts = Parts("ndarray", described.shape, described.dtype)
    if described.dtype == "|b1":  # of any other dtype, all bytes are numbers
        _check_fit(parts, {part_name(name, "data"): data}, name)
    return parts, {part_name(name, "data"): data}


def _check_fit(parts: Parts, found: Mapping[str, Tensor], name: str) -> None:
    """Refuse what `join` would: torch makes sparse tensors unchecked, and numpy any boolean."""
    try:
        join(parts, found, name)
    except IntegrityError as error:
        raise _refused(error.what, name) from error


def join(parts: Parts, found: Mapping[str, Tensor], name: str) -> Any:
    """The value that verified tensors make up (rule 3).

    Args:
        parts: its description.
        found: its tensors, by the names that `split` gives.
        name: its own name, for the refusal.

    Raises:
        IntegrityError: ST-CKPT-191 when they do not fit together.
        UsageError: ST-USAG-004 numpy is not installed.
    """
    tensors = [found[part_name(name, part)] for part in parts.names]
    try:
        if parts.form == "ndarray":
            return _joined_array(parts, tensors[0])
        if any(tensor.dtype not in {torch.int32, torch.int64} for tensor in tensors[:-1]):
            raise ValueError("indices that are no whole numbers")
        match parts.form:
            case "sparse_coo":
                indices, inside = tensors
                return torch.sparse_coo_tensor(
                    indices,
                    inside,
                    size=parts.shape,
                    is_coalesced=parts.coalesced,
                    check_invariants=True,
                )
            case "sparse_csr":
                rows, columns, inside = tensors
                return torch.sparse_csr_tensor(
                    rows, columns, inside, size=parts.shape, check_invariants=True
                )
            case "sparse_csc":
                columns, rows, inside = tensors
                return torch.sparse_csc_tensor(
                    columns, rows, inside, size=parts.shape, check_invariants=True
                )
            case _:
                raise ValueError(f"unknown form {parts.form!r}")
    except (ValueError, RuntimeError, TypeError) as error:
        what = f"its parts do not fit together: {error}"
        raise IntegrityError("ST-CKPT-191", what, name) from error


def _joined_array(parts: Parts, data: Tensor) -> Any:
    raw = bytearray(memory(data))
    if data.dtype is not torch.uint8:
        raise ValueError(f"{data.dtype} where bytes belong")
    if parts.dtype == "|b1":
        check_booleans(raw)
    return _numpy().frombuffer(raw, dtype=parts.dtype).reshape(parts.shape)


def _dtype(name: str) -> torch.dtype:
    dtype = BY_NAME.get(name)
    if dtype is None:
        raise UsageError(
            "ST-USAG-012", f"this torch has no dtype {name}", fix="load it with a newer torch"
        )
    return dtype


def _numpy() -> Any:
    try:
        import numpy as np  # noqa: PLC0415 - an extra's package
    except ImportError as error:
        raise UsageError("ST-USAG-004", str(error), "numpy") from error
    return np


def _refused(what: str, name: str) -> UsageError:
    return UsageError("ST-USAG-013", what, name)
