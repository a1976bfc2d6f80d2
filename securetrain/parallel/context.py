# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: ranks share the positions of a row.

Rules:

1. a row is cut in 2n chunks and rank r of n has chunks r and 2n-1-r: with a causal mask every rank
   has the same work (`head_tail`). The caller gives the model the inputs at these positions;
2. everything but attention looks at one position at a time and needs nothing; attention is replaced
   by one of three that see the keys of all ranks:

   ==========  ===========================================  ======================================
   kind        messages of a layer                          memory of a rank
   ==========  ===========================================  ======================================
   all-gather  all keys and values, once                    keys and values of the whole row
   ring        the neighbour's keys and values, n-1 times,  those of two ranks
               behind the products
   ulysses     queries, keys, values and results, each      1/n of the heads, whole rows
               rank's share once
   ==========  ===========================================  ======================================

3. weights are sharded over these ranks as over those of dp_shard: they see other tokens of the same
   batch, and their gradients add up.

torch's own `context_parallel` has no kernels for the CPU, and needs attention to be called under a
context manager; this is the one implementation, on CUDA as well, where torch's kernels compute each
part. Messages are operators of their own, so that a compiled block stays one graph.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.utils._mode_utils import no_dispatch

from securetrain.parallel.collectives import Peers, gather_ranks, swap_ranks
from securetrain.parallel.lower_right import attend_lower_right
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import ContextKind, ParallelPlan
from securetrain.parallel.ring import ring_attention

Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Queries (B, H, S, K), keys and values (B, G, S, K), positions (S,) to results (B, H, S, K)."""
ATTEND: Final = "attend"
"""The attribute of a module that computes attention."""


def head_tail(length: int, ranks: int, rank: int) -> torch.Tensor:
    """The positions of one of `ranks` ranks, in order: (length / ranks,) int64."""
    chunks = torch.arange(length).view(2 * ranks, -1)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]))


def apply_context(model: nn.Module, mesh: Mesh, plan: ParallelPlan, kind: ContextKind) -> None:
    """Replace the attention of every block."""
    attend = make_attention(kind, mesh.cp.get_group())
    for block in plan.blocks(model).values():
        for module in plan.attentions(block):
            if not hasattr(module, ATTEND):
                raise TypeError(f"{type(module).__name__} computes attention without {ATTEND}")
            setattr(module, ATTEND, attend)


def make_attention(kind: ContextKind, group: dist.ProcessGroup) -> Attend:
    """Attention over the ranks of a group."""
    match kind:
        case ContextKind.ALL_GATHER:
            over_ranks = _all_gather_attention
        case ContextKind.RING:
            over_ranks = ring_attention
        case ContextKind.ULYSSES:
            over_ranks = _ulysses
        case _:
            raise ValueError(f"unknown context parallelism {kind!r}")

    peers = Peers.of(group)

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        del positions  # rule 1 says which they are
        return over_ranks(q, k, v, peers)

    return attend


def _all_gather_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, peers: Peers
) -> torch.Tensor:
    k, v = _merge_positions(gather_ranks(torch.stack((k, v)), peers)).unbind()
    ranks, rank, half = peers.size, peers.rank, q.shape[2] // 2
    head, tail = q.chunk(2, dim=2)
    return torch.cat(
        (
            _attend_up_to(head, k, v, (rank + 1) * half),
            _attend_up_to(tail, k, v, (2 * ranks - rank) * half),
        ),
        dim=2,
    )


def _attend_up_to(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, end: int) -> torch.Tensor:
    """Attention of the queries of the last positions before `end`."""
    if torch.compiler.is_compiling():
        return attend_lower_right(q, k[:, :, :end], v[:, :, :end])
    return F.scaled_dot_product_attention(
        q,
        k[:, :, :end],
        v[:, :, :end],
        attn_mask=_causal_mask(q.shape[2], end),
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _causal_mask(queries: int, keys: int) -> torch.Tensor:
    """A mask that is only a name for a kernel. Torch 2.13 cannot make one while a mode looks on, as
    that of selective recomputing does, and a compiler cannot make one at all.
    """
    with no_dispatch():
        return causal_lower_right(queries, keys)


def _ulysses(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, peers: Peers) -> torch.Tensor:
    ranks = peers.size

    def rows(x: torch.Tensor) -> torch.Tensor:
        """All positions, in order, of this rank's share of the heads."""
        shares = x.unflatten(1, (ranks, -1)).movedim(1, 0)
        return _merge_positions(swap_ranks(shares, peers))

    attended = F.scaled_dot_product_attention(
        rows(q), rows(k), rows(v), is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    )
    shares = swap_ranks(_split_positions(attended, ranks), peers)
    return shares.movedim(0, 1).flatten(1, 2)


def _merge_positions(parts: torch.Tensor) -> torch.Tensor:
    """Ranks' positions (n, ..., S/n, K) as the whole row (..., S, K)."""
    heads, tails = parts.chunk(2, dim=-2)
    chunks = torch.cat((heads, tails.flip(0)))
    return chunks.movedim(0, -3).flatten(-3, -2)


def _split_positions(row: torch.Tensor, ranks: int) -> torch.Tensor:
    """A whole row (..., S, K) as ranks' positions (n, ..., S/n, K)."""
    chunks = row.unflatten(-2, (2 * ranks, -1)).movedim(-3, 0)
    return torch.cat((chunks[:ranks], chunks[ranks:].flip(0)), dim=-2)
