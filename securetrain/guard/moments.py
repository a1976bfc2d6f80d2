# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The optimizer's first moment, laid out like a piece of the reduced gradient.

A liar that repeats itself lies into the moment: the direction of what was averaged so far is the
one memory that needs no seed. `exp_avg` (Adam and its kin, Lion) or `momentum_buffer` (SGD, Muon)
is read where the optimizer is known and keeps one; the collector keeps a running mean of its own
where not (collect.py).
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Slots: TypeAlias = Sequence[tuple[Tensor, int]]
"""Parameters in the order of a flat piece, and how many numbers of it each takes up."""
_NAMES: Final = ("exp_avg", "momentum_buffer")


class Moments:
    """Reads first moments out of an optimizer, once there is one."""

    def __init__(self) -> None:
        self._optimizer: torch.optim.Optimizer | None = None
        self._flat: dict[str, Tensor] = {}

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        """Read this optimizer from now on."""
        self._optimizer = optimizer

    def flat(self, chunk: str, slots: Slots, numel: int) -> Tensor | None:
        """The moment of a piece, fp32; valid until the next call for the same piece. None where it
        has none.
        """
        if self._optimizer is None or sum(size for _, size in slots) != numel:
            return None
        found = [self._of(parameter) for parameter, _ in slots]
        if all(moment is None for moment in found):
            return None
        device = next(moment.device for moment in found if moment is not None)
        flat = self._flat.get(chunk)
        if flat is None or flat.numel() != numel or flat.device != device:
            flat = self._flat[chunk] = torch.zeros(numel, device=device)
        views, values, start = [], [], 0
        for (_, size), moment in zip(slots, found, strict=True):
            if moment is not None and moment.numel() <= size:  # what is left over is padding
                views.append(flat[start : start + moment.numel()])
                values.append(moment.detach().reshape(-1))
            else:
                flat[start : start + size].zero_()
            start += size
        torch._foreach_copy_(views, values)
        return flat

    def _of(self, parameter: Tensor) -> Tensor | None:
        assert self._optimizer is not None
        state = self._optimizer.state.get(parameter)
        for name in _NAMES:
            moment = state.get(name) if state else None
            if isinstance(moment, Tensor):
                return moment.to_local() if isinstance(moment, DTensor) else moment
        return None
