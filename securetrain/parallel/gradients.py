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
   its own axes, and the stages of a pipeline are added up last;
5. the device is given few things to do: gradients of one mesh share one sum of squares, and pending
   sums of one mesh travel together.
"""

from collections.abc import Iterable, Sequence
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
    total: torch.Tensor | None = None
    for square, mesh, axes in _squares(parameters):
        for axis in axes:
            assert mesh is not None
            dist.all_reduce(square, group=mesh.get_group(axis))
        total = square if total is None else total + square
    assert total is not None
    if stages is not None:
        dist.all_reduce(total, group=stages)
    return total.sqrt()


@torch.no_grad()
def squared_norm_share(parameters: Iterable[nn.Parameter], ranks: int) -> torch.Tensor:
    """This rank's share of the square of `grad_norm`: those of all ranks of the job add up to it,
    so one sum over all ranks, which may carry other numbers, too, takes the place of one for each
    axis. A float64 scalar.

    Args:
        parameters: This rank's.
        ranks: How many ranks there are for each stage of a pipeline.
    """
    # Copies of a gradient are equal, so each gives its part.
    shares = []
    for square, mesh, axes in _squares(parameters):
        pieces = 1
        for axis in axes:
            assert mesh is not None
            pieces *= mesh.size(axis)
        shares.append(square * (pieces / ranks))
    return torch.stack(shares).sum()


def _squares(
    parameters: Iterable[nn.Parameter],
) -> list[tuple[torch.Tensor, DeviceMesh | None, tuple[int, ...]]]:
    """Squares of the norms of what is here: of gradients with the same mesh, over which axes of it
    they are cut.
    """
    with_grads = [parameter for parameter in parameters if parameter.grad is not None]
    if not with_grads:
        raise ValueError("no parameter has a gradient")
    _finish_sums(with_grads)
    shared: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[torch.Tensor]] = {}
    for parameter in with_grads:
        local, mesh, axes = _local_grad(parameter)
        shared.setdefault((mesh, axes), []).append(local)
    found = []
    for (mesh, axes), tensors in shared.items():
        norms = torch.stack(torch._foreach_norm(tensors)).double()  # noqa: SLF001
        found.append((norms.square().sum(), mesh, axes))
    return found


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


def _finish_sums(parameters: Sequence[nn.Parameter]) -> None:
    """Add up what is pending (Partial), with one message for each mesh, axis and dtype."""
    pending: dict[
        tuple[DeviceMesh, tuple[int, ...], torch.dtype], list[tuple[nn.Parameter, DTensor]]
    ] = {}
    for parameter in parameters:
        grad = parameter.grad
        if not isinstance(grad, DTensor):
            continue
        axes = tuple(n for n, p in enumerate(grad.placements) if isinstance(p, Partial))
        if any(p.reduce_op != "sum" for p in grad.placements if isinstance(p, Partial)):
            raise ValueError("a gradient is pending, and not as a sum")
        if axes:
            key = grad.device_mesh, axes, grad.dtype
            pending.setdefault(key, []).append((parameter, grad))
    for (mesh, axes, _), found in pending.items():
        flat = torch.cat([grad.to_local().flatten() for _, grad in found])
        for axis in axes:
            dist.all_reduce(flat, group=mesh.get_group(axis))
        pieces = flat.split([grad.to_local().numel() for _, grad in found])
        for (parameter, grad), piece in zip(found, pieces, strict=True):
            whole = [Replicate() if n in axes else p for n, p in enumerate(grad.placements)]
            parameter.grad = DTensor.from_local(
                piece.view(grad.to_local().shape),
                mesh,
                whole,
                run_check=False,
                shape=grad.shape,
                stride=grad.stride(),
            )


def _local_grad(
    parameter: nn.Parameter,
) -> tuple[torch.Tensor, DeviceMesh | None, tuple[int, ...]]:
    """This rank's part of a gradient, its mesh, and the mesh axes over which it is cut."""
    grad = parameter.grad
    assert grad is not None
    if not isinstance(grad, DTensor):
        return grad, None, ()
    axes = tuple(n for n, p in enumerate(grad.placements) if not isinstance(p, Replicate))
    return grad.to_local(), grad.device_mesh, axes
