# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ring attention: keys and values pass from rank to rank while each attends to what it holds.

Source: Liu et al. 2023, arXiv:2310.01889; balanced by head and tail (Brandon et al. 2023,
arXiv:2311.09431, and Llama 3, arXiv:2407.21783, 3.3.2). Rules:

1. of n ranks, rank r has chunks r and 2n-1-r of the sequence, so in every hop but its own each rank
   has the same work: all its queries and half the keys, or half its queries and all the keys. No
   mask is needed for either;
2. a rank holds its own and one other rank's keys and values, and never a matrix of scores;
3. the next keys travel while these are attended to;
4. going back, keys pass round once more, and their gradients with them, in float32; after the last
   hop each gradient is with the rank whose keys they are.
"""

from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from securetrain.parallel.blockwise import PartialAttention, attend, gradients
from securetrain.parallel.collectives import Peers, group_of, shift

_Part: TypeAlias = tuple[slice, slice, bool]
"""Which queries see which keys, and whether causally."""


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, peers: Peers) -> torch.Tensor:
    """Causal attention (B, H, S, K) to the whole sequence, of which each rank holds two chunks."""
    out: torch.Tensor = _ring(q, k, v, peers.name)[0]
    return out


def ring_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and for each query the logarithm of its sum."""
    ranks, rank = group.size(), group.rank()
    so_far, moving = PartialAttention.empty(q), torch.stack((k, v))
    for hop in range(ranks):
        coming = shift(moving, group) if hop < ranks - 1 else None
        rows, columns, causal = _visible(rank, (rank - hop) % ranks, q.shape[2])
        keys, values = moving[:, :, :, columns]
        so_far.merge(rows, *attend(q[:, :, rows], keys, values, causal=causal))
        moving = moving if coming is None else coming()
    return so_far.out.to(q.dtype), so_far.lse


def ring_backward(
    upstream: torch.Tensor,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    found: tuple[torch.Tensor, torch.Tensor],
    group: dist.ProcessGroup,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of queries, keys and values; `found` is what `ring_forward` gave."""
    (q, k, v), (out, lse) = qkv, found
    ranks, rank, grad = group.size(), group.rank(), upstream.contiguous()
    moving = torch.stack((k, v))
    dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    # Gradients of the keys that are here; they came with the keys from the rank before.
    arriving = None
    for hop in range(ranks):
        coming = shift(moving, group) if hop < ranks - 1 else None
        rows, columns, causal = _visible(rank, (rank - hop) % ranks, q.shape[2])
        keys, values = moving[:, :, :, columns]
        some, queries, seen, sums = (x[:, :, rows].contiguous() for x in (grad, q, out, lse))
        dq_part, dk, dv = gradients(some, queries, keys, values, (seen, sums), causal=causal)
        dq[:, :, rows] += dq_part
        here = torch.zeros(moving.shape, dtype=torch.float32, device=q.device)
        if arriving is not None:
            here = arriving()
        here[0, :, :, columns] += dk
        here[1, :, :, columns] += dv
        moving = moving if coming is None else coming()
        arriving = shift(here, group)
    assert arriving is not None
    dk, dv = arriving()
    # An operator's results share no memory.
    return dq.to(q.dtype), dk.to(k.dtype, copy=True), dv.to(v.dtype, copy=True)


def _visible(rank: int, source: int, length: int) -> _Part:
    """The part of rank `source`'s keys that this rank's queries see."""
    every, half = slice(None), length // 2
    if source == rank:
        # Positions are in order within a rank.
        return every, every, True
    if source < rank:
        return every, slice(None, half), False
    return slice(half, None), every, False


@torch.library.custom_op("securetrain::ring_attention", mutates_args=())
def _ring(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return ring_forward(q, k, v, group_of(group))


@_ring.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    del k, v, group
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("securetrain::ring_attention_backward", mutates_args=())
def _ring_backward(  # noqa: PLR0917 - operators take tensors one by one
    upstream: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return ring_backward(upstream, (q, k, v), (out, lse), group_of(group))


@_ring_backward.register_fake
def _(  # noqa: PLR0917
    upstream: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    group: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del upstream, out, lse, group
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, ctx.group = inputs
    ctx.save_for_backward(q, k, v, *output)


def _back(
    ctx: Any, upstream: torch.Tensor, _lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
    dq, dk, dv = _ring_backward(upstream, *ctx.saved_tensors, ctx.group)
    return dq, dk, dv, None


_ring.register_autograd(_back, setup_context=_keep)
