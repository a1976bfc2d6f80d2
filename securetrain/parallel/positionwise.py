# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel styles for modules that know nothing of meshes.

torch's own styles give a module distributed tensors to compute with, and what it does with them has
to be what they can do. These two leave a module ordinary tensors: `Copies` for whatever looks at
one position (or one head) at a time, `Gather` for what needs all positions of a row.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.func import functional_call

from securetrain.core.errors import UsageError


class Copies(ParallelStyle):
    """Each rank has a whole copy of the module's parameters and its own positions, or its own
    heads: gradients of the copies are parts of a sum, which torch adds up.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for owner in list(module.modules()):
            for name, parameter in list(owner.named_parameters(recurse=False)):
                # On the meta device: no bytes travel.
                copy = distribute_tensor(
                    parameter.detach(), device_mesh, [Replicate()], src_data_rank=None
                )
                setattr(owner, name, nn.Parameter(copy, requires_grad=parameter.requires_grad))
        plain = _Plain(module)

        def forward(*inputs: Any, **named: Any) -> Any:
            here = {name: _pending(one) for name, one in plain.named_parameters()}
            return functional_call(plain, here, inputs, named)

        module.forward = forward
        return module


class Gather(ParallelStyle):
    """The module's first input comes with this rank's positions, and it sees all of them.

    Args:
        heads: Numbers that the ranks have to divide, by name.
    """

    def __init__(self, heads: dict[str, int]) -> None:
        super().__init__()
        self._heads = heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, count in self._heads.items():
            if count % device_mesh.size():
                raise UsageError(
                    "ST-USAG-007",
                    f"tp {device_mesh.size()} does not divide {name} {count}",
                    "parallel.tp",
                    f"a tp that divides {count}",
                )

        def gather(
            _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if inputs:
                return (_gathered(inputs[0], device_mesh), *inputs[1:]), named
            first = next(name for name, value in named.items() if torch.is_tensor(value))
            return inputs, named | {first: _gathered(named[first], device_mesh)}

        module.register_forward_pre_hook(gather, with_kwargs=True)
        return module


class _Plain(nn.Module):
    """A module's own forward pass, and its parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self._forward = module, module.forward

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._forward(*inputs, **named)


def _pending(parameter: nn.Parameter) -> torch.Tensor:
    if not isinstance(parameter, DTensor):
        return parameter
    return parameter.to_local(grad_placements=[Partial()])


def _gathered(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    whole = DTensor.from_local(x, mesh, [Shard(1)], run_check=False)
    return whole.redistribute(placements=[Replicate()])
