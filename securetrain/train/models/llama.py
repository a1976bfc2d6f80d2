# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A language model of the Llama family.

RMSNorm, rotary positions, grouped queries, SwiGLU, no biases (Touvron et al. 2023, arXiv:2302.13971
and 2307.09288; Su et al. 2021, arXiv:2104.09864; Ainslie et al. 2023, arXiv:2305.13245; Shazeer
2020, arXiv:2002.05202). Rules:

1. layers are named in a ModuleDict, and embedding and head may be absent: a pipeline stage is this
   class with parts taken out, under the same names;
2. positions are an input: a rank that holds part of a sequence says which part;
3. attention is a callable in an attribute, which context parallelism replaces;
4. cosines and sines of the positions are computed once for all layers.

Shapes: B rows, S sequence, D model, H heads, K head size, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from securetrain.train.models.moe import MoE
from securetrain.train.models.shape import ModelShape, RopeScaling

Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Queries (B, H, S, K), keys and values (B, G, S, K), positions (S,) to results (B, H, S, K); G
divides H.
"""


Angles: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, (S, 1, K/2) float32."""


def rotary(
    positions: torch.Tensor, size: int, theta: float, scaling: RopeScaling | None = None
) -> Angles:
    """Cosines and sines of the positions, for heads of `size`."""
    half = size // 2
    rates = theta ** (-torch.arange(half, dtype=torch.float32, device=positions.device) / half)
    if scaling is not None:
        turns = rates * (scaling.length / (2 * math.pi))
        kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
        rates = rates * (kept + (1 - kept) / scaling.factor)
    angles = positions.float()[:, None, None] * rates
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Turn each pair (i, i + K/2) of every head of `x` (B, S, H, K) by its position's angle."""
    cos, sin = angles
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


def attend_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Attention within one rank, which holds all positions in order."""
    del positions
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    )


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_size = shape.head
        queries, keys = shape.heads * shape.head, shape.keys * shape.head
        self.wq = nn.Linear(shape.dim, queries, bias=False)
        self.wk = nn.Linear(shape.dim, keys, bias=False)
        self.wv = nn.Linear(shape.dim, keys, bias=False)
        self.wo = nn.Linear(queries, shape.dim, bias=False)
        self.attend: Attend = attend_causal

    def forward(self, x: torch.Tensor, positions: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Attend to this and earlier positions; `x` and the result are (B, S, D)."""
        rows, length, _ = x.shape
        # -1 heads: under tensor parallelism a rank holds only its share of them.
        q, k, v = (
            weight(x).view(rows, length, -1, self.head_size)
            for weight in (self.wq, self.wk, self.wv)
        )
        q, k = rotate(q, angles), rotate(k, angles)
        attended = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), positions)
        out: torch.Tensor = self.wo(attended.transpose(1, 2).reshape(rows, length, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.ffn, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.ffn, bias=False)
        self.w2 = nn.Linear(shape.ffn, shape.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gate, widen, narrow."""
        out: torch.Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """One layer: attention and a feed-forward network, or a mixture of experts, each behind a norm
    and around a residual.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.sparse = shape.experts > 0
        self.attention_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        if shape.experts:
            self.moe = MoE(shape)
        else:
            self.feed_forward = FeedForward(shape)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Add what attention and feed-forward make of `x`."""
        x = x + self.attention(self.attention_norm(x), positions, angles)
        network = self.moe if self.sparse else self.feed_forward
        out: torch.Tensor = x + network(self.ffn_norm(x))
        return out


class Llama(nn.Module):
    """Tokens in, logits of the next token out; or hidden states, for a stage of a pipeline."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.tok_embeddings: nn.Module | None = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleDict({str(n): Block(shape) for n in range(shape.layers)})
        self.norm: nn.Module | None = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.output: nn.Module | None = None
        if not shape.tied:
            self.output = nn.Linear(shape.dim, shape.vocab, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits (B, S, V) of tokens (B, S) int64 at `positions` (S,) int64.

        A stage without an embedding takes hidden states (B, S, D), and one without a head returns
        them.
        """
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        shape = self.shape
        angles = rotary(positions, shape.head, shape.rope_theta, shape.rope_scaling)
        for layer in self.layers.values():
            x = layer(x, positions, angles)
        if self.norm is not None:
            x = self.norm(x)
        if self.shape.tied:
            assert self.tok_embeddings is not None
            return F.linear(x, self.tok_embeddings.get_parameter("weight"))
        return self.output(x) if self.output is not None else x
