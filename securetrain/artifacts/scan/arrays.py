# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Arrays that joblib writes into the middle of a pickle: how many bytes they are.

A ``NumpyArrayWrapper`` with its state stands in the pickle, and right behind the opcode that sets
the state lie the array's bytes, which an unpickler that does not know joblib takes for opcodes. An
array of objects is a pickle of its own at that place.

Source: joblib/numpy_pickle.py (NumpyArrayWrapper.read_array).
"""

import math
import re
from typing import Final

from securetrain.artifacts.scan.window import Window

WRAPPERS: Final = frozenset(
    {
        "joblib.numpy_pickle.NumpyArrayWrapper",
        "sklearn.externals.joblib.numpy_pickle.NumpyArrayWrapper",
    }
)
DTYPE: Final = "numpy.dtype"
_CODE: Final = re.compile(r"[<>=|]?([biufcSUVmMO])(\d{1,9})")
_ITEM_REFCOUNT: Final = 0x1
"""The flag of a type with objects in it (numpy/ndarraytypes.h)."""


class Named:
    """A class that counts here."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Dtype:
    """A numpy dtype: the bytes of an item, and whether it holds objects."""

    __slots__ = ("is_object", "size")

    def __init__(self, size: int, *, is_object: bool) -> None:
        self.size = size
        self.is_object = is_object

    def state(self, state: object) -> None:
        """Apply the state that a pickle sets."""
        flags = state[-1] if isinstance(state, tuple) and state else 0
        if isinstance(flags, int) and flags & _ITEM_REFCOUNT:
            self.is_object = True


class Wrapper:
    """An array that follows."""

    __slots__ = ()


class UnknownArrayError(ValueError):
    """The bytes of an array cannot be told."""


def dtype_of(arguments: object) -> Dtype | None:
    """The dtype that ``numpy.dtype(*arguments)`` is."""
    code = arguments[0] if isinstance(arguments, tuple) and arguments else None
    found = _CODE.fullmatch(code) if isinstance(code, str) else None
    if found is None:
        return None
    size = int(found[2]) * (4 if found[1] == "U" else 1)
    return Dtype(size, is_object=found[1] == "O")


def array_end(window: Window, at: int, state: object) -> int | None:
    """One past the array's bytes, which begin at `at`; None when it is a pickle.

    Raises:
        UnknownArrayError: the state does not say it, or they do not lie inside the window.
    """
    if not isinstance(state, dict):
        raise UnknownArrayError("an array of joblib whose state cannot be followed")
    dtype, shape = state.get("dtype"), state.get("shape")
    if not isinstance(dtype, Dtype) or not isinstance(shape, tuple):
        raise UnknownArrayError("an array of joblib whose type or shape cannot be followed")
    if dtype.is_object:
        return None
    if not all(type(length) is int and length >= 0 for length in shape):
        raise UnknownArrayError("an array of joblib whose shape cannot be followed")
    if "numpy_array_alignment_bytes" in state:
        at += 1 + int.from_bytes(window.peek(at, 1), "little")
    end = at + math.prod(shape) * dtype.size
    if end > window.size:
        raise UnknownArrayError(f"an array of joblib that ends at {end} of {window.size}")
    return end
