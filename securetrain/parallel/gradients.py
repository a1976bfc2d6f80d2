# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The norm of a gradient that is spread over a mesh, and clipping by it.

Rules:

1. what a rank holds is decided by the gradient's placements, never assumed: pending sums (Partial)
   are finished first, shards are added up over exactly the axes that shard them, replicas count
   once;
2. the norm is computed once and shared by clipping, metrics and the finite check;
3. every rank gets the same number, because the last operation is an all-reduce: decisions taken on
   it agree without asking again;
4. parameters of one model may lie on several meshes (experts have their own): each is summed over
   its own axes, and the stages of a pipeline are added up last.
"""

from collections.abc import Iterable
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

TINY: Final = 1e-6


@torch.no_grad()
def grad_norm(
    parameters: Iterable[nn.Parameter], stages: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """The L2 norm of all gradients together: a float64 scalar, equal on every rank.

    Args:
        parameters: This rank's.
        stages: The ranks that hold the other stages of a pipeline.
    """
    # Gradients with the same mesh and the same sharded axes are summed in one all-reduce.
    shared: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is None:
            continue
        local, mesh, axes = _local_grad(parameter)
        shared.setdefault((mesh, axes), []).append(local)
    total: torch.Tensor | None = None
    for (mesh, axes), tensors in shared.items():
        norms = torch.stack([norm.double() for norm in torch._foreach_norm(tensors)])  # noqa: SLF001
        square = norms.square().sum()
        for axis in axes:
            assert mesh is not None
            dist.all_reduce(square, group=mesh.get_group(axis))
        total = square if total is None else total + square
    if total is None:
        raise ValueError("no parameter has a gradient")
    if stages is not None:
        dist.all_reduce(total, group=stages)
    return total.sqrt()


@torch.no_grad()
def clip_grads(
    parameters: Iterable[nn.Parameter], norm: torch.Tensor, max_norm: float
) -> torch.Tensor:
    """Scale all gradients so that their norm is at most `max_norm`; returns the factor."""
    factor = (max_norm / (norm + TINY)).clamp(max=1.0)
    grads = [
        p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        for p in parameters
        if p.grad is not None
    ]
    if grads:  # those of a rank whose own were dropped are not there
        torch._foreach_mul_(grads, factor.float())
    return factor


def are_finite(*values: torch.Tensor) -> torch.Tensor:
    """Return whether all of some scalars are finite: a bool scalar, left on their device."""
    return torch.stack([torch.isfinite(value) for value in values]).all()


def _local_grad(
    parameter: nn.Parameter,
) -> tuple[torch.Tensor, DeviceMesh | None, tuple[int, ...]]:
    """This rank's part of a gradient, its mesh, and the mesh axes over which it is cut."""
    grad = parameter.grad
    assert grad is not None
    if not isinstance(grad, DTensor):
        return grad, None, ()
    if any(isinstance(placement, Partial) for placement in grad.placements):
        whole = [Replicate() if isinstance(p, Partial) else p for p in grad.placements]
        grad = grad.redistribute(placements=whole)
        parameter.grad = grad
    axes = tuple(n for n, p in enumerate(grad.placements) if not isinstance(p, Replicate))
    return grad.to_local(), grad.device_mesh, axes
