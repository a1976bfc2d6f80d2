# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Plans and settings for `parallelize`, as data. Importing this does not import torch.

Two halves: a `ParallelPlan` is what a *model* says about itself (which modules repeat, which
matrices are cut how), once for every mesh; `Settings` is what a *job* asks for.

To train a model of your own, write the methods of `ParallelPlan` that its meshes need; the built-in
one is `securetrain.train.models.llama.LlamaPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Protocol

from securetrain.parallel.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn
    from torch.distributed.tensor.parallel import ParallelStyle


class Precision(StrEnum):
    """The dtype of forward and backward passes; parameters and sums stay in float32."""

    FP32 = "fp32"
    BF16 = "bf16"


class Zero(IntEnum):
    """The state that dp_shard ranks share (Rajbhandari et al. 2019, arXiv:1910.02054).

    FSDP2 keeps whole gradients between microbatches at level 1, whole parameters between forward
    and backward at level 2, and neither at level 3.
    """

    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


class ContextKind(StrEnum):
    """The way in which ranks that share positions attend to each other's."""

    ALL_GATHER = "all-gather"
    """Gather all keys and values (Llama 3, arXiv:2407.21783, 3.3.2)."""
    RING = "ring"
    """Pass them around (Liu et al. 2023, arXiv:2310.01889)."""
    ULYSSES = "ulysses"
    """Swap positions for heads (Jacobs et al. 2023, arXiv:2309.14509)."""


class Recompute(StrEnum):
    """The activations that the backward pass computes again instead of keeping them."""

    NONE = "none"
    SELECTIVE = "selective"
    """All but the results of matrix products and attention."""
    ALTERNATE = "alternate"
    """As selective, and every second matrix product, too."""
    FULL = "full"
    """Everything inside a block."""


class Compression(StrEnum):
    """The compression of DDP's gradients on their way."""

    NONE = "none"
    FP16 = "fp16"
    BF16 = "bf16"
    POWERSGD = "powersgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A job's choices for making a model parallel, apart from the degrees of its mesh."""

    precision: Precision = Precision.FP32
    zero: Zero = Zero.PARAMETERS
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory."""
    microbatches: int = 1
    """Pieces of a rank's rows: they fill a pipeline, or else accumulate gradients."""
    schedule: Schedule = Schedule.ONE_F_ONE_B
    reduce_each_microbatch: bool = False
    """In a pipeline: share gradients after each microbatch instead of keeping them whole."""
    context: ContextKind = ContextKind.ALL_GATHER
    recompute: Recompute = Recompute.NONE
    compile: bool = False
    """Compile each block."""
    async_tp: bool = False
    """Overlap tensor-parallel messages with matrix products (CUDA, compiled)."""
    float8: bool = False
    """Matrix products of the blocks in float8 (CUDA of capability 8.9 and more)."""
    compression: Compression = Compression.NONE


class ParallelPlan(Protocol):
    """The description of a model that `parallelize` works from."""

    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """The modules that repeat, by name, in order: the units of sharding, recomputing and
        compiling.
        """

    def split_stage(self, model: nn.Module, layers: range, *, first: bool, last: bool) -> None:
        """Make `model` one pipeline stage: take everything out but some of the blocks, and what
        comes before the first and after the last. Names of what stays do not change.
        """

    def hidden_size(self, model: nn.Module) -> int:
        """The last dimension of what blocks pass on."""

    def vocabulary(self, model: nn.Module) -> int:
        """The last dimension of the logits."""

    def tensor_styles(self, model: nn.Module) -> Mapping[str, ParallelStyle]:
        """Tensor and sequence parallelism: how each named module is cut. Between blocks, positions
        are cut; logits come out cut along the vocabulary.
        """

    def attentions(self, block: nn.Module) -> Iterable[nn.Module]:
        """The modules whose attribute `attend` computes attention:
        ``attend(q, k, v, positions)`` of shapes (B, H, S, K) and (S,) int64, causally. Context
        parallelism replaces it.
        """

    def experts(self, block: nn.Module) -> Iterable[nn.Module]:
        """The modules whose parameters count experts in their first dimension, and are cut along
        their second one by FSDP. Their attribute `dispatch` is called with what computes the
        experts that are here, rows (T, D) sorted by expert and how many each expert has (see
        `securetrain.parallel.experts`); expert parallelism replaces it. Empty for a dense block.
        """
