# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What to do to a model, as data; `parallelize` does it. Importing this does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn


class Precision(StrEnum):
    """What the forward and backward passes compute in; parameters and sums stay in float32."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a model is made parallel, apart from the mesh."""

    blocks: Callable[[nn.Module], Iterable[nn.Module]]
    """The modules that repeat: units of sharding (and later of checkpointing and compiling)."""
    precision: Precision = Precision.FP32
    reshard_after_forward: bool = True
    """Free gathered parameters after the forward pass (ZeRO-3); false keeps them (ZeRO-2)."""
