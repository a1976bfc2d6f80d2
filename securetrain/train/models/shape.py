# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sizes of a model, and what follows from them. Free of torch."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0.0, le=1e9)]


class RopeScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rotary positions stretched for longer texts, as Llama 3.1 does ("llama3").

    Pairs that turn slowly (less than `low` turns within the length of before) turn `factor` times
    slower, those that turn fast (more than `high`) stay, and between them it is interpolated.
    """

    factor: Annotated[float, Meta(ge=1.0, le=1e6)]
    low: Positive = 1.0
    high: Positive = 4.0
    length: Annotated[int, Meta(ge=1, le=1 << 30)] = 8192
    """Of the texts that the model had learned from before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model of the Llama family, dense or with experts."""

    dim: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int | None = None
    """Heads of keys and values, each shared by heads / kv_heads queries; None: as many as heads."""
    head_size: int | None = None
    """None: dim / heads."""
    ffn: int = 512
    """Width of the feed-forward network; of each expert, with experts."""
    vocab: int = 256
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied: bool = False
    """Whether the head is the embedding's matrix."""
    experts: int = 0
    """Experts of each layer; 0 is a dense model."""
    experts_per_token: int = 2
    expert_balance: float = 1e-3
    """How far a step moves the bias that evens out the load of experts; 0: not at all."""

    @property
    def keys(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.dim // self.heads if self.head_size is None else self.head_size


def num_parameters(shape: ModelShape) -> int:
    """Count the parameters of a model of this shape."""
    heads = shape.vocab * shape.dim * (1 if shape.tied else 2)
    return heads + shape.layers * block_parameters(shape) + shape.dim


def block_parameters(shape: ModelShape) -> int:
    """Parameters of one layer."""
    attention = 2 * shape.dim * shape.head * (shape.heads + shape.keys)
    network = 3 * shape.dim * shape.ffn
    if shape.experts:
        network = network * shape.experts + shape.dim * shape.experts
    return attention + network + 2 * shape.dim


def active_parameters(shape: ModelShape) -> int:
    """Parameters that one token meets in a matrix product: not the embedding, and of the experts
    only those that are chosen.
    """
    unused = 3 * shape.dim * shape.ffn * max(0, shape.experts - shape.experts_per_token)
    embedding = 0 if shape.tied else shape.vocab * shape.dim
    layers = unused * shape.layers if shape.experts else 0
    return num_parameters(shape) - embedding - layers


def flops_per_token(shape: ModelShape, seq_len: int) -> int:
    """Model FLOPs of forward and backward for one token (Chowdhery et al. 2022, appendix B).

    Six for every parameter in a matrix product, and the attention matrix; recomputation is not
    counted, so that the figure compares between runs.
    """
    attention = 12 * shape.layers * shape.heads * shape.head * seq_len
    return 6 * active_parameters(shape) + attention
