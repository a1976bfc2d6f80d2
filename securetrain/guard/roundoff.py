# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rounding of the types in which gradients are reduced."""

import math
from typing import Final

import torch

_UNIT_ROUNDOFF: Final = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
_SPACING: Final = {torch.float16: 2.0**-24}
"""Of numbers near zero, where that matters."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number.

    Raises:
        ValueError: the dtype is not one that gradients are reduced in.
    """
    if dtype not in _UNIT_ROUNDOFF:
        raise ValueError(f"gradients reduced in {dtype} cannot be checked")
    return _UNIT_ROUNDOFF[dtype]


def near_zero(dtype: torch.dtype, numel: int) -> float:
    """The norm of what rounding can change in so many numbers, each by half of the distance from
    zero to the next number.
    """
    return _SPACING.get(dtype, 0.0) / 2 * math.sqrt(numel)
