# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""State that hooks and judge share about one step: whose gradient counts, and how to do it again.

Rules:

1. `Weights` says before a step how much each rank's gradient counts; it changes between steps only,
   and on all ranks alike. A rank that counts zero sends zeros: never zero times what may be NaN;
2. `Keeper` holds what a step reduced until it is judged, so that a refused step can be reduced
   again without whoever spoiled it. A step in which a piece was reduced twice, or whose pieces are
   more than the budget allows, cannot (`complete`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from securetrain.guard.moments import Slices

WIDE: Final = frozenset({torch.float32, torch.bfloat16})
"""Dtypes that torch reduces without dividing before."""


class Weights:
    """The weight of each rank of a group in the reductions of this step."""

    def __init__(self, ranks: int) -> None:
        self.values: tuple[float, ...] = (1.0,) * ranks

    @property
    def live(self) -> int:
        """Ranks that count."""
        return sum(1 for value in self.values if value)

    @property
    def even(self) -> bool:
        """Nobody is excluded."""
        return all(value == 1.0 for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One reduction that can be done again."""

    chunk: str
    local: Tensor
    """This rank's flat gradient, unweighted; nobody changes it before the verdict."""
    parts: int
    """Equal parts of it, each of which belongs to one rank or, with copies, to several; 1: all of
    it belongs to all."""
    replace: Callable[[Tensor], None] | None
    """Puts another mean into the model's gradients: of the whole, or of this rank's part. None: it
    cannot be done again."""
    moment: Callable[[], Slices] = tuple
    """The optimizer's first moment of this rank's part."""


class Keeper:
    """The reductions of one step.

    Args:
        budget: bytes that are held only for the sake of this (`Kept` with `extra`).
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.clear()

    def clear(self) -> None:
        """A step is over."""
        self._kept: dict[str, Kept] = {}
        self._bytes = 0
        self._complete = True

    @property
    def complete(self) -> bool:
        """True when all that was reduced in this step is here, once."""
        return self._complete and bool(self._kept)

    @property
    def kept(self) -> Sequence[Kept]:
        """In the order of reduction."""
        return list(self._kept.values())

    def add(self, one: Kept, *, extra: bool) -> None:
        """Hold a reduction.

        Args:
            one: the reduction.
            extra: whether its memory would be free by now otherwise.
        """
        self._bytes += one.local.numel() * one.local.element_size() if extra else 0
        if one.chunk in self._kept or self._bytes > self._budget or one.replace is None:
            self.give_up()
        if self._complete:
            self._kept[one.chunk] = one

    def replace(self, means: Sequence[Tensor]) -> None:
        """Put other means into the model's gradients, one for each reduction."""
        for one, mean in zip(self.kept, means, strict=True):
            assert one.replace is not None
            one.replace(mean)

    def give_up(self) -> None:
        """This step cannot be reduced again."""
        self._complete = False
        self._kept.clear()


def bucket_again(chunk: str, bucket: Any) -> Kept:
    """A bucket of DDP's, to be reduced again after DDP has written its result."""
    local = bucket.buffer()
    parameters, views = list(bucket.parameters()), list(bucket.gradients())
    start = local.storage_offset()
    places = [(v.size(), v.stride(), v.storage_offset() - start) for v in views]
    storage = local.untyped_storage().data_ptr()
    if any(
        p.grad is not None and p.grad.untyped_storage().data_ptr() == storage for p in parameters
    ):
        local = local.clone()  # gradients are views of the bucket: the result will be there

    def replace(mean: Tensor) -> None:
        for parameter, (size, stride, offset) in zip(parameters, places, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(torch.as_strided(mean, size, stride, offset))

    return Kept(chunk=chunk, local=local, parts=1, replace=replace)


def shard_again(
    chunk: str,
    local: Tensor,
    result: Tensor,
    params: Sequence[Any],
    factor: float,
    *,
    part: int | None = None,
) -> Kept:
    """A reduce-scatter of FSDP2's, to be done again.

    Args:
        chunk: its name.
        local: the unreduced gradient, [rank][shard].
        result: this rank's shard, of which torch makes views that are the gradients.
        params: torch's records of the parameters in it.
        factor: makes a gradient the mean over the ranks.
        part: this rank's, where shards have copies, so that all ranks get the whole.
    """
    parts = local.numel() // result.numel()
    fresh = all(p.sharded_param.grad is None for p in params)

    def replace(mean: Tensor) -> None:
        own = mean if part is None else mean.view(parts, -1)[part]
        offset, flat = 0, own / factor
        for parameter in params:
            grad = parameter.sharded_param.grad
            if grad is None:
                continue
            size, stride = parameter.sharded_size, parameter.contiguous_sharded_stride
            grad.to_local().copy_(torch.as_strided(flat, size, stride, offset))
            offset += parameter.padded_sharded_param_size.numel()

    # Otherwise it is added to an older gradient, or was divided before.
    can = fresh and result.dtype in WIDE
    return Kept(chunk=chunk, local=local, parts=parts, replace=replace if can else None)
