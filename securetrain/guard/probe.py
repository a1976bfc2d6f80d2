# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Have the weights changed since gradients were reduced that nobody has judged?

Torch tells of the steps of its own optimizers only. One that is written from nothing, or weights
that a script changes by itself, show in the weights: a few numbers of some parameters are kept from
each reduction to the next, or to the verdict. A step that changes none of these is not seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from securetrain.guard.flat import flat_shards, has_flat

_PARAMETERS: Final = 32
_NUMBERS: Final = 16
"""Of each parameter."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Some weights at one time."""

    task: int
    """The backward pass."""
    weights: tuple[Tensor, ...]
    """This rank's, where they are."""
    values: tuple[Tensor, ...]

    @classmethod
    def of(cls, model: nn.Module, task: int) -> "Probe":
        """Take a probe of a model, also in the middle of a backward pass."""
        found = [weight for weight in _local(model) if weight.numel()]
        weights = tuple(found[:: max(1, len(found) // _PARAMETERS)])
        return cls(task, weights, _numbers(weights))

    def has_changed(self) -> bool:
        """True when a weight is another now."""
        now = _numbers(self.weights)
        return any(not _equal(a, b) for a, b in zip(self.values, now, strict=True))


def _local(model: nn.Module) -> Iterator[Tensor]:
    """This rank's own weights; while a module computes it holds gathered ones beside."""
    if has_flat(model):
        yield from flat_shards(model)
        return
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        yield from (p.detach() for p in model.parameters() if p.requires_grad)
    for module in modules:
        for group in module._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001
            for parameter in group.fsdp_params:
                local: Tensor = parameter.sharded_param.to_local()  # type: ignore[attr-defined]
                yield local.detach()


@torch.no_grad()
def _numbers(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(weight.reshape(-1)[:_NUMBERS].clone() for weight in weights)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, but for the sign of zero: NaN is what it was."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
