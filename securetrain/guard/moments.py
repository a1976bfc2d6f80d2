# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The optimizer's first moment, laid out like a piece of the reduced gradient.

A liar that repeats itself lies into the moment: the direction of what was averaged so far is the
one memory that needs no seed. `exp_avg` (Adam and its kin, Lion) or `momentum_buffer` (SGD, Muon)
is read where the optimizer is known and keeps one; the collector keeps a running mean of its own
where not (collect.py).
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Slots: TypeAlias = Sequence[tuple[Tensor, int]]
"""Parameters in the order of a flat piece, and how many numbers of it each takes up."""
Slices: TypeAlias = Sequence[tuple[int, Tensor]]
"""Numbers, and where in a piece the first of each is; in order, without overlap."""
_SKETCHED: Final = frozenset({torch.float32, torch.bfloat16})
"""Dtypes of which a sketch is one pass."""
_NAMES: Final = ("exp_avg", "momentum_buffer")


class Moments:
    """Reads first moments out of an optimizer, once there is one."""

    def __init__(self) -> None:
        self._optimizer: torch.optim.Optimizer | None = None

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        """Read this optimizer from now on."""
        self._optimizer = optimizer

    @torch.no_grad()
    def slices(self, slots: Slots, numel: int) -> Slices:
        """The moment of a piece, one slice for each parameter that has one; none where none has."""
        if self._optimizer is None or sum(size for _, size in slots) != numel:
            return ()
        found: list[tuple[int, Tensor]] = []
        start, states = 0, self._optimizer.state
        for parameter, size in slots:
            moment = _moment_of(states.get(parameter))
            if moment is not None and moment.numel() <= size:  # what is left over is padding
                flat = moment if moment.is_contiguous() else moment.reshape(-1)
                found.append((start, flat if flat.dtype in _SKETCHED else flat.float()))
            start += size
        return found


def _moment_of(state: Any) -> Tensor | None:
    """This rank's part of the moment in an optimizer's state of one parameter."""
    for name in _NAMES if state else ():
        moment = state.get(name)
        if isinstance(moment, DTensor):
            return moment.to_local()
        if isinstance(moment, Tensor):
            return moment
    return None
