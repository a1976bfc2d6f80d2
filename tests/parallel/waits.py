# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Find where a program would make the host wait for a GPU, on a machine that has none.

Torch's operations that read a tensor's numbers on the host are seen where they are dispatched,
methods that read memory without an operation where they are called. Both are counted by the
innermost place in the package that led to them. Only this thread is looked at.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import securetrain

if TYPE_CHECKING:
    from types import FrameType

PACKAGE = str(Path(securetrain.__file__).parent)
READING = {
    # How large a result is, or what the host does next, depends on the numbers.
    "_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "is_nonzero",
    "_unique2", "unique_consecutive", "unique_dim", "allclose", "histc",
}  # fmt: skip
METHODS = ("item", "tolist", "cpu", "numpy")


class Waits(TorchDispatchMode):
    """What made the host wait, and which collectives were started."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()
        self.collectives: Counter[str] = Counter()
        self.casts = 0
        """Casts of single numbers."""
        self.angles = 0
        """Tables of cosines."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")
        if name[1] in READING or _sized_by_numbers(name[1], args, kwargs):
            self.places[f"{place()}: {name[1]}"] += 1
        if name[0] in {"c10d", "_c10d_functional"} and name[1] != "wait_tensor":
            self.collectives[name[1]] += 1
        self.angles += name[1] == "cos"
        if name[1] == "_to_copy" and args[0].ndim == 0:
            self.casts += 1
        return func(*args, **kwargs)


def _sized_by_numbers(name: str, args: Any, kwargs: Any) -> bool:
    if name == "repeat_interleave":
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        return bool(tensors) and kwargs.get("output_size") is None
    if name == "index_put_" and args[2].numel() == 1:
        return False  # torch fills by the mask
    if name in {"index", "index_put_"}:
        return any(i is not None and i.dtype in {torch.bool, torch.uint8} for i in args[1])
    return False


def place() -> str:
    """The innermost function of the package on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            file = frame.f_code.co_filename.removeprefix(f"{PACKAGE}/")
            return f"{file}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


@contextmanager
def watching() -> Iterator[Waits]:
    """Watch what this thread does."""
    waits, thread = Waits(), threading.get_ident()
    synchronized = torch.cuda.synchronize

    def spied(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return original(*args, **kwargs)
            where = f"{place()}: {name}"
            before = waits.places.copy()
            result = original(*args, **kwargs)
            waits.places = before  # what it is made of counts once
            waits.places[where] += 1
            return result

        return spy

    originals = {name: getattr(torch.Tensor, name) for name in METHODS}
    for name, original in originals.items():
        setattr(torch.Tensor, name, spied(name, original))
    torch.cuda.synchronize = spied("synchronize", lambda *_: None)
    try:
        with waits:
            yield waits
    finally:
        torch.cuda.synchronize = synchronized
        for name in METHODS:
            delattr(torch.Tensor, name)  # they are those of the class below
