# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The compiled half of the sketch, where securetrain was installed with one.

`libsketch.so` is made from `sketch_kernel.c` when a wheel is built or the package is installed
(tools/kernel.py), never here. Rules:

1. one file is loaded: the one beside this module, by its absolute path. No search path, working
   directory, cache or variable has a say;
2. it must have been made from the very source that lies beside it (it carries the digest), or it
   is not used: an old build and a new `sketch.py` would not agree;
3. the loops for AVX-512 or AVX2 run where the processor has them, the portable ones elsewhere.
   Without a library `sketch.py` computes the same numbers in torch, slower. `sketch_backend` says
   which it is;
4. nothing is called with a size or an index that Python has not checked (`sketch.py`).
"""

import ctypes
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FOLDER: Final = Path(__file__).parent
LIBRARY: Final = _FOLDER / "libsketch.so"
SOURCE: Final = _FOLDER / "sketch_kernel.c"
PATHS: Final = ("portable", "AVX2", "AVX-512")


class Kernel:
    """A loaded library.

    Args:
        library: with the symbols of sketch_kernel.c.
        path: which of its loops; the best that the processor has unless given.
    """

    def __init__(self, library: ctypes.CDLL, path: int | None = None) -> None:
        self.library = library
        self.path: int = library.securetrain_sketch_best_path() if path is None else path
        self._add = library.securetrain_sketch
        self._add.restype = ctypes.c_int
        self._add.argtypes = [
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64),
            *(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
        ]

    def add(
        self, runs: NDArray[np.int64], keys: NDArray[np.int64], out: NDArray[np.float64]
    ) -> None:
        """Add the sketches of `runs` to `out`.

        Args:
            runs: (runs, 5): address, kind, first number, count, row of `out`; all checked.
            keys: (keys, 3): addresses of the three tables.
            out: (rows, keys, 256).
        """
        assert runs.flags.c_contiguous, "rows of the C structure"
        assert keys.flags.c_contiguous, "rows of the C structure"
        assert out.flags.c_contiguous, "added to in place"
        failed = self._add(
            *(self.path, runs.ctypes.data, len(runs)),
            *(keys.ctypes.data, len(keys), out.ctypes.data),
        )
        assert not failed, f"{len(keys)} keys, path {self.path}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The kernel of an installation, or the reason why it has none."""

    kernel: Kernel | None
    reason: str
    """Empty, or why there is no kernel."""


@cache
def load() -> Loaded:
    """The kernel of this installation; looked for once in a process."""
    if not LIBRARY.is_file() or LIBRARY.is_symlink():
        return Loaded(None, "securetrain was installed without a compiler")
    try:
        library = ctypes.CDLL(str(LIBRARY.absolute()))
        library.securetrain_sketch_source.restype = ctypes.c_char_p
        made_from = library.securetrain_sketch_source().decode()
    except (OSError, AttributeError) as error:
        return Loaded(None, f"libsketch.so cannot be loaded: {error}")
    if made_from != hashlib.sha256(SOURCE.read_bytes()).hexdigest():
        return Loaded(None, "libsketch.so was made from another source: install securetrain again")
    return Loaded(Kernel(library), "")


def sketch_backend() -> str:
    """Name what sketches gradients in main memory, for records and for people."""
    found = load()
    if found.kernel is None:
        return f"torch ({found.reason})"
    return f"native ({PATHS[found.kernel.path]})"
