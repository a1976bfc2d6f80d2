# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attention of the last queries to all keys, causally, as one operator to the compiler.

Torch has a name for this mask (`causal_lower_right`), which picks a kernel without a mask, but
torch 2.13 cannot compile what makes one. Here the last keys, as many as there are queries, are
one part, seen causally, and those before them another, seen whole (see `blockwise`).
"""

from typing import Any

import torch

from securetrain.parallel.blockwise import PartialAttention, attend, gradients


def attend_lower_right(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Query i of n sees all keys but the last n-1-i."""
    out: torch.Tensor = _attend(q, k, v)[0]
    return out


def _parts(queries: int, keys: int) -> list[tuple[slice, bool]]:
    before = keys - queries
    last = (slice(before, keys), True)
    return [(slice(0, before), False), last] if before else [last]


@torch.library.custom_op("securetrain::attend_lower_right", mutates_args=())
def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    so_far = PartialAttention.empty(q)
    for part, causal in _parts(q.shape[2], k.shape[2]):
        found = attend(q, k[:, :, part], v[:, :, part], causal=causal)
        so_far.merge(slice(None), *found)
    return so_far.out.to(q.dtype), so_far.lse


@_attend.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    del k, v
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("securetrain::attend_lower_right_backward", mutates_args=())
def _backward(  # noqa: PLR0917 - operators take tensors one by one
    upstream: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    upstream = upstream.contiguous()
    dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for part, causal in _parts(q.shape[2], k.shape[2]):
        found = gradients(upstream, q, k[:, :, part], v[:, :, part], (out, lse), causal=causal)
        dq += found[0]
        dk[:, :, part], dv[:, :, part] = found[1], found[2]
    return dq.to(q.dtype), dk, dv


@_backward.register_fake
def _(  # noqa: PLR0917
    upstream: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del upstream, out, lse
    return q.new_empty(q.shape), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _back(
    ctx: Any, upstream: torch.Tensor, _lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _backward(upstream, *ctx.saved_tensors)
    return found


_attend.register_autograd(_back, setup_context=_keep)
