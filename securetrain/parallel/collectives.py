# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collectives that autograd goes back through, in the opposite direction.

Results are ordinary tensors that have arrived: torch's functional collectives return a subclass
that waits later, and a compiled region that takes one loses the gradient behind it (torch 2.13).

`gather_ranks` and `swap_ranks` are operators to the compiler, which keeps them as they are in the
middle of what it compiles. Operators take no objects, so groups go by name (`Peers`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

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


@dataclass(frozen=True, slots=True)
class Peers:
    """A process group, as operators know it."""

    name: str
    size: int
    rank: int

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Self:
        """Remember a group under its name."""
        name = str(group.group_name)
        _GROUPS[name] = group
        return cls(name, group.size(), group.rank())

    @property
    def group(self) -> dist.ProcessGroup:
        """The group itself."""
        return group_of(self.name)


_GROUPS: Final[dict[str, dist.ProcessGroup]] = {}


def group_of(name: str) -> dist.ProcessGroup:
    """The group of `Peers.name`."""
    return _GROUPS[name]


def gather_ranks(x: torch.Tensor, peers: Peers) -> torch.Tensor:
    """All ranks' tensors along a new first dimension; gradients are summed over ranks."""
    out: torch.Tensor = _gather(x, peers.name, peers.size)
    return out


def swap_ranks(x: torch.Tensor, peers: Peers) -> torch.Tensor:
    """An equal piece of the first dimension to each rank; theirs come back in rank order."""
    out: torch.Tensor = _swap(x, peers.name)
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


@torch.library.custom_op("securetrain::gather_ranks", mutates_args=())
def _gather(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    out = x.new_empty((ranks, *x.shape))
    _all_gather(out.flatten(0, 1), x.contiguous(), group=group_of(group))
    return out


@_gather.register_fake
def _(x: torch.Tensor, group: str, ranks: int) -> torch.Tensor:
    del group
    return x.new_empty((ranks, *x.shape))


@torch.library.custom_op("securetrain::sum_scatter_ranks", mutates_args=())
def _sum_scatter(grad: torch.Tensor, group: str) -> torch.Tensor:
    grad = grad.contiguous()
    out = torch.empty_like(grad[0])
    _reduce_scatter(out, grad.flatten(0, 1), group=group_of(group))
    return out


@_sum_scatter.register_fake
def _(grad: torch.Tensor, group: str) -> torch.Tensor:
    del group
    return grad.new_empty(grad.shape[1:])


@torch.library.custom_op("securetrain::swap_ranks", mutates_args=())
def _swap(x: torch.Tensor, group: str) -> torch.Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(out, x.contiguous(), group=group_of(group))
    return out


@_swap.register_fake
def _(x: torch.Tensor, group: str) -> torch.Tensor:
    del group
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _remember_group(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    del output
    ctx.group = inputs[1]


def _gather_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return _sum_scatter(grad, ctx.group), None, None


def _swap_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return _swap(grad, ctx.group), None


_gather.register_autograd(_gather_backward, setup_context=_remember_group)
_swap.register_autograd(_swap_backward, setup_context=_remember_group)
