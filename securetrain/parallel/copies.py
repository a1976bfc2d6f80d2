# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Copies of a parameter on tensor-parallel ranks must get equal gradients.

What no style of the plan names stays whole on every tensor-parallel rank. Where it meets
activations that are whole as well, all ranks compute its whole gradient; where it meets heads that
were cut (a norm of each head), each rank has a part of it, and the copies drift apart without a
word. Nobody can tell the two apart from the plan, so gradients are compared: after the first steps,
and then every `EVERY` steps. Parameters that are cut, or whole in a style of the plan, are summed
by torch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel.degrees import Axis
from securetrain.parallel.mesh import EFSDP, Mesh
from securetrain.parallel.plan import Precision

FIRST: Final = 2
"""Steps at the start that are all compared."""
EVERY: Final = 100
"""Steps between comparisons afterwards."""
TOLERANCE: Final = {Precision.FP32: 1e-4, Precision.BF16: 3e-2}
"""Relative to the gradient's length; ranks may add in another order."""
_NOTHING: Final = 1e-12


def plain_copies(parts: tuple[nn.Module, ...], mesh: Mesh) -> dict[str, nn.Parameter]:
    """The parameters of which each tensor-parallel rank has a whole copy that torch does not sum.

    Args:
        parts: This rank's modules, without the wrapper of DDP.
        mesh: The ranks.
    """
    if mesh.degrees.tp == 1:
        return {}
    return {
        name: parameter
        for part in parts
        for name, parameter in part.named_parameters()
        if not {Axis.TP.value, Axis.EP.value, EFSDP} & set(_axes(parameter))
    }


@dataclass(slots=True)
class CopyCheck:
    """Compares the gradients of copies.

    Args:
        copies: See `plain_copies`; the same names on all tensor-parallel ranks.
        mesh: The ranks.
        precision: Of the backward pass.
    """

    copies: dict[str, nn.Parameter]
    mesh: Mesh
    precision: Precision
    steps: int = 0
    """Steps that were seen."""

    def after_backward(self) -> None:
        """Compare, if this step is one of those (collective over tensor-parallel ranks).

        Raises:
            RuntimeRefusal: ST-RUNT-012 naming the parameter.
        """
        self.steps += 1
        if self.copies and (self.steps <= FIRST or self.steps % EVERY == 0):
            self._compare()

    @torch.no_grad()
    def _compare(self) -> None:
        group = self.mesh.tp.get_group()
        numbers = []
        for grad in self._grads():
            mean = grad.clone()
            dist.all_reduce(mean, group=group)
            mean /= group.size()
            numbers.append(torch.stack([(grad - mean).norm(), grad.norm()]))
        # The farthest copy against the longest one, over all ranks of the group.
        worst = torch.stack(numbers)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group)
        # What is not finite is for others to judge.
        apart = [
            (difference / (length + _NOTHING), name)
            for name, (difference, length) in zip(self.copies, worst.tolist(), strict=True)
            if math.isfinite(difference) and math.isfinite(length)
        ]
        share, name = max(apart, default=(0.0, ""))
        if share > TOLERANCE[self.precision]:
            raise RuntimeRefusal(
                "ST-RUNT-012",
                f"step {self.steps}: the gradients of {name} differ by {share:.2%} between its"
                f" {group.size()} copies: no tensor-parallel style of the plan names it, and it is"
                " applied to something that is cut",
                name,
                "give the module that has it a style in tensor_styles (SequenceParallel with its"
                " sequence_dim set to the cut dimension sums its gradient), or tp: 1",
            )

    def _grads(self) -> Iterator[torch.Tensor]:
        for parameter in self.copies.values():
            grad = parameter.grad
            if grad is None:
                grad = torch.zeros_like(parameter)
            yield (grad.to_local() if isinstance(grad, DTensor) else grad).float()


def _axes(parameter: nn.Parameter) -> tuple[str, ...]:
    if not isinstance(parameter, DTensor):
        return ()
    return parameter.device_mesh.mesh_dim_names or ()
