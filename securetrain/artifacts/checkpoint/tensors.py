# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tensors as bytes: which ones the native format holds, and their memory without a copy."""

import sys
from typing import Any, Final

import torch
from torch import Tensor

from securetrain.artifacts.tree.foreign import DTYPES
from securetrain.core.errors import UsageError

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
