# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The usual norm of each tensor's gradient, for the response `clip`.

A running mean (weight 0.1) of the norm of each gradient that this rank holds, over accepted steps.
A refused step's gradient is scaled down to twice that. Copies (DDP) are clipped alike on all ranks;
of a sharded tensor each rank clips the part that it has. A tensor without a past is dropped.
Nothing of this is in a checkpoint: a resumed run learns it anew.
"""

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_WEIGHT: Final = 0.1
_ROOM: Final = 2.0


class TensorNorms:
    """Norms by parameter, in the order of the model."""

    def __init__(self) -> None:
        self._usual: dict[int, float] = {}

    @torch.no_grad()
    def learn(self, parameters: Iterable[nn.Parameter]) -> None:
        """An accepted step."""
        for index, parameter in enumerate(parameters):
            norm = _norm(parameter)
            if norm is not None:
                usual = self._usual.get(index, norm)
                self._usual[index] = usual + _WEIGHT * (norm - usual)

    @torch.no_grad()
    def clip(self, parameters: Iterable[nn.Parameter]) -> None:
        """A refused one."""
        for index, parameter in enumerate(parameters):
            norm, usual = _norm(parameter), self._usual.get(index)
            if norm is None or parameter.grad is None:
                continue
            if usual is None:
                parameter.grad = None
            elif norm > _ROOM * usual:
                parameter.grad.mul_(_ROOM * usual / norm)


def _norm(parameter: nn.Parameter) -> float | None:
    grad = parameter.grad
    if grad is None:
        return None
    return float(torch.linalg.vector_norm(local_of(grad), dtype=torch.float64))


@torch.no_grad()
def norm_of(tensors: Iterable[Tensor], order: float) -> float:
    """The norm of several tensors together; some may be empty."""
    held = [tensor for tensor in tensors if tensor.numel()]
    if not held:
        return 0.0
    norms = [norm.double() for norm in torch._foreach_norm(held, order)]  # noqa: SLF001
    return float(torch.linalg.vector_norm(torch.stack(norms), order))


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
