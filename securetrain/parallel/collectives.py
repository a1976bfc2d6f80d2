# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collectives that autograd goes back through, in the opposite direction.

Results are ordinary tensors that have arrived: torch's functional collectives return a subclass
that waits later, and a compiled region that takes one loses the gradient behind it (torch 2.13).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

# Their names changed in torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_to_all(
    x: torch.Tensor,
    group: dist.ProcessGroup,
    *,
    received: Sequence[int] | None = None,
    sent: Sequence[int] | None = None,
) -> torch.Tensor:
    """Send a piece of the first dimension to each rank; their pieces come back in rank order.

    Args:
        x: The tensor to send.
        group: The ranks.
        received: Rows that come from each; None: equal pieces.
        sent: Rows that go to each; None: equal pieces.
    """
    out: torch.Tensor = _AllToAll.apply(x, group, received, sent)
    return out


def all_gather(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All ranks' tensors along a new first dimension; gradients are summed over ranks."""
    out: torch.Tensor = _AllGather.apply(x, group)
    return out


def shift(x: torch.Tensor, group: dist.ProcessGroup) -> Callable[[], torch.Tensor]:
    """Start to send `x` to the next rank of the group's ring and to receive from the one before;
    calling the result waits for it. Not differentiable.
    """
    ranks, rank = group.size(), group.rank()
    sent, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % ranks),
        ]
    )

    def arrived(sent: torch.Tensor = sent) -> torch.Tensor:
        del sent  # kept until now: it is being read
        for work in works:
            work.wait()
        return received

    return arrived


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        group: dist.ProcessGroup,
        received: Sequence[int] | None,
        sent: Sequence[int] | None,
    ) -> torch.Tensor:
        ctx.group, ctx.received, ctx.sent = group, received, sent
        rows = len(x) if received is None else sum(received)
        out = x.new_empty((rows, *x.shape[1:]))
        dist.all_to_all_single(
            out,
            x.contiguous(),
            None if received is None else list(received),
            None if sent is None else list(sent),
            group=group,
        )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        back = all_to_all(grads[0], ctx.group, received=ctx.sent, sent=ctx.received)
        return back, None, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        out = x.new_empty((group.size(), *x.shape))
        _all_gather(out.flatten(0, 1), x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grads[0].contiguous()
        out = torch.empty_like(grad[0])
        _reduce_scatter(out, grad.flatten(0, 1), group=ctx.group)
        return out, None
