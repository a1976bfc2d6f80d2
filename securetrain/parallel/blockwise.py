# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attention to some of the keys, to be merged with attention to others.

Softmax over all keys is softmax over each part, weighted by the parts' sums of exponentials; their
logarithms (LSE, float32) are kept (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
arXiv:2205.14135). The gradient of a part needs the LSE and the result of the whole only.

Kernels that return the LSE: torch's flash attention on the CPU, and on CUDA in half precision.
Elsewhere matrix products do it, for `ROWS` queries at a time, so that no whole matrix of scores is
ever there.

Shapes: queries and results (B, H, S, K), keys and values (B, G, S', K), LSE (B, H, S); G divides H.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

ROWS: Final = 512
_HALF: Final = frozenset({torch.float16, torch.bfloat16})
_aten: Final[Any] = torch.ops.aten


@dataclass(slots=True)
class PartialAttention:
    """The result and LSE of attention to the parts seen so far, in float32."""

    out: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def empty(cls, q: torch.Tensor) -> "PartialAttention":
        """Before the first part."""
        out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        lse = torch.full(q.shape[:-1], -torch.inf, dtype=torch.float32, device=q.device)
        return cls(out, lse)

    def merge(self, rows: slice, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Add what queries `rows` saw in another part."""
        before = self.lse[:, :, rows]
        both = torch.logaddexp(before, lse)
        old, new = (before - both).exp()[..., None], (lse - both).exp()[..., None]
        self.out[:, :, rows] = self.out[:, :, rows] * old + out.float() * new
        self.lse[:, :, rows] = both


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result and LSE; `causal`: query i sees keys up to i, of as many."""
    k, v = _for_each_query(k, q), _for_each_query(v, q)
    if q.device.type == "cpu":
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
            q, k, v, is_causal=causal
        )
        return out, lse
    if q.device.type == "cuda" and q.dtype in _HALF:
        found = _aten._scaled_dot_product_flash_attention(q, k, v, is_causal=causal)  # noqa: SLF001
        return found[0], found[1]
    return _attend_by_products(q, k, v, causal=causal)


def gradients(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    whole: tuple[torch.Tensor, torch.Tensor],
    *,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute this part's share of the gradients of queries, keys and values.

    Args:
        grad: The gradient of the whole result.
        q: Queries.
        k: Keys of this part.
        v: Values of this part.
        whole: Result and LSE of all parts together.
        causal: As in `attend`.
    """
    heads, (out, lse) = k.shape[1], whole
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    k, v = _for_each_query(k, q), _for_each_query(v, q)
    if q.device.type == "cpu":
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(  # noqa: SLF001
            grad, q, k, v, out, lse, 0.0, causal
        )
    elif q.device.type == "cuda" and q.dtype in _HALF:
        # Without dropout the state of random numbers is not read.
        seed = torch.empty(2, dtype=torch.uint64, device=q.device)
        unused = torch.empty((), dtype=torch.uint64, device=q.device)
        found = _aten._scaled_dot_product_flash_attention_backward(  # noqa: SLF001
            grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, seed, unused
        )
    else:
        found = _gradients_by_products(grad, q, k, v, (out, lse), causal=causal)
    dq, dk, dv = found
    return dq, _for_each_key(dk, heads), _for_each_key(dv, heads)


def _for_each_query(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Repeat the heads of keys or values for the queries that share them."""
    return x if x.shape[1] == q.shape[1] else x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _for_each_key(grad: torch.Tensor, heads: int) -> torch.Tensor:
    """The sum over the queries that share a head, in float32."""
    if grad.shape[1] == heads:
        return grad
    summed: torch.Tensor = grad.unflatten(1, (heads, -1)).float().sum(2)
    return summed


def _attend_by_products(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    outs, lses = [], []
    for rows in _rows(q):
        scores = _scores(q, k, rows, causal=causal)
        lse = scores.logsumexp(-1)
        outs.append(((scores - lse[..., None]).exp() @ v.float()).to(q.dtype))
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def _gradients_by_products(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    whole: tuple[torch.Tensor, torch.Tensor],
    *,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out, lse = whole
    scale, keys, values = q.shape[-1] ** -0.5, k.float(), v.float()
    dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
    dqs = []
    for rows in _rows(q):
        seen = (_scores(q, k, rows, causal=causal) - lse[:, :, rows, None]).exp()
        upstream = grad[:, :, rows].float()
        dv += seen.transpose(-1, -2) @ upstream
        rest = (upstream * out[:, :, rows].float()).sum(-1, keepdim=True)
        dscores = seen * (upstream @ values.transpose(-1, -2) - rest) * scale
        dqs.append(dscores @ keys)
        dk += dscores.transpose(-1, -2) @ q[:, :, rows].float()
    return torch.cat(dqs, 2), dk, dv


def _rows(q: torch.Tensor) -> Iterator[slice]:
    return (slice(n, n + ROWS) for n in range(0, q.shape[2], ROWS))


def _scores(q: torch.Tensor, k: torch.Tensor, rows: slice, *, causal: bool) -> torch.Tensor:
    some = q[:, :, rows].float()
    scores: torch.Tensor = some @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    if not causal:
        return scores
    mine = torch.arange(rows.start, rows.start + some.shape[2], device=q.device)
    hidden = mine[:, None] < torch.arange(k.shape[2], device=q.device)
    return scores.masked_fill(hidden, -torch.inf)
