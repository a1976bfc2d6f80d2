# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A model of an unmodified script, as its guard keeps it (unmodified.py)."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from securetrain.core.errors import GuardError
from securetrain.guard.guard import GradientGuard
from securetrain.guard.probe import Probe
from securetrain.guard.suspicions import OnSuspicion
from securetrain.guard.verdict import StepRecord
from securetrain.guard.witness import WordSigner


@dataclass(slots=True, kw_only=True)
class Listener:
    """Hears what happens. Called on every rank."""

    watched: Callable[[str], None]
    """A guard has moved into a model; its description."""
    unwatched: Callable[[str], None]
    """A step was made on gradients that nobody judged; the reason, each once."""
    judged: Callable[[StepRecord], None]
    """A step was judged."""
    refused: Callable[[GuardError], None] = lambda _error: None
    """No step can be made under this policy; why."""
    suspected: OnSuspicion | None = None
    """A rank is to be reported to the rendezvous."""
    signer: WordSigner | None = None
    """Signs this rank's words in disputes, and keeps them."""


@dataclass(slots=True, kw_only=True)
class Watched:
    """A model and its guard."""

    model: weakref.ref[nn.Module]
    guard: GradientGuard
    parameters: frozenset[int]
    reductions: list[tuple[Any, Any]]
    """What reduces it, if it is sharded."""
    is_flat: bool = False
    """FSDP1 shards it: its gradients are plain tensors, of this rank's shard."""
    optimizer: weakref.ref[Optimizer] | None = None
    """The first that stepped on it: the guard reads its first moment."""
    step: int = 0
    refused: bool = False
    """Whether the gradients that are there now are to be dropped."""
    stepped: set[int] = field(default_factory=set)
    """The optimizers that have used the gradients that are there now."""
    probe: Probe | None = None
    """The weights when gradients that nobody has judged yet were reduced."""


def no_rollback() -> GuardError:
    """The refusal of a response that a script cannot follow."""
    return GuardError(
        "ST-GRAD-021",
        "the script keeps its own checkpoints, and a run can go back only to those of the built-in"
        " trainer",
        "gradients.response",
        "use exclude-rank, which goes on without the rank; or train with securetrain train",
    )


@torch.no_grad()
def zero(grads: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Put zeros into gradients that the script holds."""
    for parameter, grad in grads:
        parameter.grad = grad.zero_()
