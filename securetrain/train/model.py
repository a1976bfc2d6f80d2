# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A small byte-level language model of the Llama family.

RMSNorm, rotary positions, SwiGLU, no biases (Touvron et al. 2023, arXiv:2302.13971; Su et al. 2021,
arXiv:2104.09864; Shazeer 2020, arXiv:2002.05202). Rules:

1. every parameter starts from (seed, its own name) and from nothing else, so that any mesh, any
   order and any number of processes begin with the same weights;
2. layers are named in a ModuleDict, and embedding and head may be absent: a pipeline stage is this
   class with parts taken out, under the same names;
3. positions are an input: a rank that holds part of a sequence says which part.

Shapes: B rows, S sequence, D model, H heads, K head size, V vocabulary.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

EPSILON: Final = 1e-5
EMBEDDING_STD: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model."""

    dim: int = 192
    layers: int = 4
    heads: int = 6
    ffn: int = 512
    vocab: int = 256
    rope_theta: float = 10_000.0


def rotary(positions: torch.Tensor, size: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of shape (S, 1, K/2), float32, for heads of `size`."""
    half = size // 2
    rates = theta ** (-torch.arange(half, dtype=torch.float32, device=positions.device) / half)
    angles = positions.float()[:, None, None] * rates
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn each pair (i, i + K/2) of every head of `x` (B, S, H, K) by its position's angle."""
    cos, sin = angles
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_size = shape.dim // shape.heads
        self.wq = nn.Linear(shape.dim, shape.dim, bias=False)
        self.wk = nn.Linear(shape.dim, shape.dim, bias=False)
        self.wv = nn.Linear(shape.dim, shape.dim, bias=False)
        self.wo = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Attend to this and earlier positions; `x` and the result are (B, S, D)."""
        rows, length, _ = x.shape
        # -1 heads: under tensor parallelism a rank holds only its share of them.
        q, k, v = (
            weight(x).view(rows, length, -1, self.head_size)
            for weight in (self.wq, self.wk, self.wv)
        )
        q, k = rotate(q, angles), rotate(k, angles)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
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
    """One layer: attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=EPSILON)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.dim, eps=EPSILON)
        self.mlp = FeedForward(shape)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Add what attention and feed-forward make of `x`."""
        x = x + self.attention(self.attention_norm(x), angles)
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class ByteModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.tok_embeddings: nn.Module | None = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleDict({str(n): Block(shape) for n in range(shape.layers)})
        self.norm: nn.Module | None = nn.RMSNorm(shape.dim, eps=EPSILON)
        self.output: nn.Module | None = nn.Linear(shape.dim, shape.vocab, bias=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits of shape (B, S, V) from bytes (B, S) int64 at `positions` (S,) int64."""
        shape = self.shape
        angles = rotary(positions, shape.dim // shape.heads, shape.rope_theta)
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers.values():
            x = layer(x, angles)
        if self.norm is not None:
            x = self.norm(x)
        return self.output(x) if self.output is not None else x


@torch.no_grad()
def init_weights(model: nn.Module, seed: int, shape: ModelShape) -> None:
    """Set every parameter from (seed, name), before or after the model was sharded.

    Norms start at one, the embedding at a standard deviation of 0.5, matrices at 1/sqrt(inputs);
    those that write into the residual stream are smaller by sqrt(2 * layers) (Radford et al. 2019).
    """
    for name, parameter in model.named_parameters():
        value = _initial(name, parameter.shape, seed, shape).to(parameter.dtype)
        if isinstance(parameter, DTensor):
            # Every rank makes the same tensor and keeps its own part: no bytes travel.
            sharded = distribute_tensor(
                value.to(parameter.device),
                parameter.device_mesh,
                parameter.placements,
                src_data_rank=None,
            )
            parameter.copy_(sharded)
        else:
            parameter.copy_(value)


def _initial(name: str, size: torch.Size, seed: int, shape: ModelShape) -> torch.Tensor:
    if "norm" in name:
        return torch.ones(size)
    generator = torch.Generator().manual_seed(seed_of(seed, name))
    value = torch.randn(size, generator=generator)
    if name == "tok_embeddings.weight":
        return value * EMBEDDING_STD
    std = 1 / math.sqrt(size[-1])
    if name.endswith(("wo.weight", "w2.weight")):
        std /= math.sqrt(2 * shape.layers)
    return value * std


def seed_of(seed: int, name: str) -> int:
    """A 56-bit seed of its own for each name."""
    digest = hashlib.blake2b(f"securetrain/init/1:{seed}:{name}".encode(), digest_size=7)
    return int.from_bytes(digest.digest(), "big")


def num_parameters(shape: ModelShape) -> int:
    """How many parameters a model of this shape has."""
    block = 4 * shape.dim**2 + 3 * shape.dim * shape.ffn + 2 * shape.dim
    return 2 * shape.vocab * shape.dim + shape.layers * block + shape.dim


def flops_per_token(shape: ModelShape, seq_len: int) -> int:
    """Model FLOPs of forward and backward for one token (Chowdhery et al. 2022, appendix B).

    Six for every parameter but the embedding's, and the attention matrix; recomputation is not
    counted, so that the figure compares between runs.
    """
    matrices = num_parameters(shape) - shape.vocab * shape.dim
    return 6 * matrices + 12 * shape.layers * shape.dim * seq_len
