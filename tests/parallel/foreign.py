# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Models that are not ours, written by hand in the shape of well-known ones, and their plan.

They differ from the built-in one where a runtime can go wrong without a word: dropout, weights
under two names, buffers that a constructor computes, norms of each head, attention that is not
plain.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from securetrain.parallel import (
    Description,
    Dispatch,
    dispatch_local,
    initialize,
    local_weight,
    restore_buffers,
)

WIDTH, HEADS, VOCABULARY, LONGEST, CLASSES, PATCH = 32, 4, 64, 64, 10, 12
HEAD = WIDTH // HEADS


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model's peculiarities."""

    name: str
    layer_norm: bool = False
    """LayerNorm with biases, learned positions and GELU; else RMSNorm, rotary and SwiGLU."""
    bias: bool = False
    fused: bool = False
    """One matrix for queries, keys and values."""
    mask: bool = False
    """A boolean mask in a buffer."""
    keys: int = HEADS
    head_norms: bool = False
    window: int = 0
    soft_cap: float = 0.0
    scaled: bool = False
    """Embeddings times the root of the width."""
    tied: bool = False
    dropout: float = 0.0
    experts: int = 0
    image: bool = False
    layers: int = 2


GPT2 = Variant(
    name="gpt2", layer_norm=True, bias=True, fused=True, mask=True, tied=True, dropout=0.1
)
NANO = Variant(name="nanogpt", layer_norm=True, tied=True, dropout=0.2)
QWEN3 = Variant(name="qwen3", keys=2, head_norms=True)
MISTRAL = Variant(name="mistral", keys=2, window=6)
GEMMA2 = Variant(name="gemma2", keys=2, window=6, soft_cap=5.0, scaled=True, tied=True)
MIXTRAL = Variant(name="mixtral", keys=2, experts=4)
VIT = Variant(name="vit", layer_norm=True, bias=True, image=True)
VARIANTS = (GPT2, NANO, QWEN3, MISTRAL, GEMMA2, MIXTRAL, VIT)


def norm(variant: Variant, width: int = WIDTH) -> nn.Module:
    return nn.LayerNorm(width, bias=variant.bias) if variant.layer_norm else nn.RMSNorm(width)


class Attention(nn.Module):
    inv_freq: torch.Tensor
    causal: torch.Tensor

    def __init__(self, v: Variant) -> None:
        super().__init__()
        self.variant = v
        keys = v.keys * HEAD
        if v.fused:
            self.qkv = nn.Linear(WIDTH, WIDTH + 2 * keys, bias=v.bias)
        else:
            self.q = nn.Linear(WIDTH, WIDTH, bias=v.bias)
            self.k = nn.Linear(WIDTH, keys, bias=v.bias)
            self.v = nn.Linear(WIDTH, keys, bias=v.bias)
        self.out = nn.Linear(WIDTH, WIDTH, bias=v.bias)
        if v.head_norms:
            self.q_norm, self.k_norm = nn.RMSNorm(HEAD), nn.RMSNorm(HEAD)
        if not v.layer_norm:
            rates = 10_000.0 ** (-torch.arange(0, HEAD, 2).float() / HEAD)
            self.register_buffer("inv_freq", rates, persistent=False)
        if v.mask:
            mask = torch.ones(LONGEST, LONGEST, dtype=torch.bool).tril()
            self.register_buffer("causal", mask, persistent=False)
        self.drop = nn.Dropout(v.dropout)
        self.attend: Callable[..., torch.Tensor] = self._attend

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        if self.variant.fused:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (one.view(rows, length, -1, HEAD) for one in (q, k, v))
        if self.variant.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        if not self.variant.layer_norm:
            angles = positions.float()[:, None] * self.inv_freq
            q, k = turn(q, angles), turn(k, angles)
        attended = self.attend(*(one.transpose(1, 2) for one in (q, k, v)), positions)
        out: torch.Tensor = self.drop(self.out(attended.transpose(1, 2).reshape(rows, length, -1)))
        return out

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        own, length = self.variant, len(positions)
        k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], dim=1) for one in (k, v))
        if not (own.window or own.soft_cap or own.mask):
            return F.scaled_dot_product_attention(q, k, v, is_causal=not own.image)
        seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        if own.mask:
            seen = self.causal[:length, :length]
        if own.window:
            seen = seen & ~torch.ones_like(seen).tril(-own.window)
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
        if own.soft_cap:
            scores = own.soft_cap * torch.tanh(scores / own.soft_cap)
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


class Mlp(nn.Module):
    def __init__(self, v: Variant) -> None:
        super().__init__()
        self.gated = not v.layer_norm
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=v.bias)
        if self.gated:
            self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=v.bias)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=v.bias)
        self.drop = nn.Dropout(v.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.silu(self.gate(x)) * self.up(x) if self.gated else F.gelu(self.up(x))
        out: torch.Tensor = self.drop(self.down(wide))
        return out


class Experts(nn.Module):
    def __init__(self, v: Variant) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(v.experts, 2 * WIDTH, WIDTH))
        self.w2 = nn.Parameter(torch.empty(v.experts, WIDTH, 2 * WIDTH))
        self.dispatch: Dispatch = dispatch_local

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return self.dispatch(self.compute, rows, counts)

    def compute(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        w1, w2 = local_weight(self.w1), local_weight(self.w2)
        pieces = rows.split(counts.tolist())
        return torch.cat([F.silu(x @ a.T) @ b.T for x, a, b in zip(pieces, w1, w2, strict=True)])


class Mixture(nn.Module):
    def __init__(self, v: Variant) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, v.experts, bias=False)
        self.experts = Experts(v)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        scores, choice = self.router(tokens).softmax(-1).topk(2)
        scores = scores / scores.sum(-1, keepdim=True)
        order = choice.flatten().argsort(stable=True)
        counts = torch.bincount(choice.flatten(), minlength=self.router.weight.shape[0])
        found = self.experts(tokens.repeat_interleave(2, 0)[order], counts)[order.argsort()]
        out: torch.Tensor = (found.unflatten(0, (-1, 2)) * scores[..., None]).sum(1).view_as(x)
        return out


class Layer(nn.Module):
    def __init__(self, v: Variant) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(v), norm(v)
        self.attention = Attention(v)
        self.mlp: nn.Module = Mixture(v) if v.experts else Mlp(v)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), positions)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class Foreign(nn.Module):
    """Tokens to logits; or an image's patches to the logits of its class."""

    def __init__(self, v: Variant) -> None:
        super().__init__()
        self.variant = v
        if v.image:
            self.embed: nn.Module | None = nn.Linear(PATCH, WIDTH)
        else:
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places: nn.Module | None = nn.Embedding(LONGEST, WIDTH) if v.layer_norm else None
        self.layers = nn.ModuleDict({str(n): Layer(v) for n in range(v.layers)})
        self.norm: nn.Module | None = norm(v)
        outputs = CLASSES if v.image else VOCABULARY
        self.head: nn.Module | None = nn.Linear(WIDTH, outputs, bias=False)
        if v.tied:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            x = self.embed(x)
            if self.variant.scaled:
                x = x * math.sqrt(WIDTH)
        if self.places is not None:
            x = x + self.places(positions)
        for layer in self.layers.values():
            x = layer(x, positions)
        if self.norm is None or self.head is None:
            return x
        x = self.norm(x)
        if self.variant.image:
            x = x.mean(1, keepdim=True)
        logits: torch.Tensor = self.head(x)
        return logits


class ForeignPlan:
    """Of all variants.

    Args:
        variant: Which one.
        head_norms: Whether the plan remembers norms of each head.
        attentions: Whether it remembers attention.
    """

    def __init__(
        self, variant: Variant, *, head_norms: bool = True, attentions: bool = True
    ) -> None:
        self.variant = variant
        self.head_norms = head_norms
        self.knows_attentions = attentions

    def blocks(self, model: nn.Module) -> Mapping[str, nn.Module]:
        return {f"layers.{n}": layer for n, layer in foreign(model).layers.items()}

    def split_stage(self, model: nn.Module, layers: range, *, first: bool, last: bool) -> None:
        own = foreign(model)
        for name in [name for name in own.layers if int(name) not in layers]:
            del own.layers[name]
        own.embed, own.places = (own.embed, own.places) if first else (None, None)
        own.norm, own.head = (own.norm, own.head) if last else (None, None)

    def hidden_size(self, _model: nn.Module) -> int:
        return WIDTH

    def vocabulary(self, _model: nn.Module) -> int:
        return CLASSES if self.variant.image else VOCABULARY

    def tensor_styles(self, model: nn.Module) -> Mapping[str, ParallelStyle]:
        own, styles = foreign(model), dict[str, ParallelStyle]()
        whole = self.variant.image
        between = Replicate() if whole else Shard(1)
        if own.embed is not None and not whole:
            styles["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        if own.places is not None and not whole:
            styles["places"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
        for name in self.blocks(model):
            inner = self._attention(whole=whole) | self._network(whole=whole)
            styles |= {f"{name}.{module}": style for module, style in inner.items()}
        if own.head is not None and not whole:
            styles["norm"] = SequenceParallel()
            styles["head"] = ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            )
        return styles

    def _attention(self, *, whole: bool) -> dict[str, ParallelStyle]:
        between = Replicate() if whole else Shard(1)
        matrices = ("qkv",) if self.variant.fused else ("q", "k", "v")
        styles: dict[str, ParallelStyle] = {
            **{f"attention.{one}": ColwiseParallel() for one in matrices},
            "attention.out": RowwiseParallel(output_layouts=between),
        }
        if not whole:
            styles["norm1"] = SequenceParallel()
            styles["attention"] = PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
            )
        if self.variant.head_norms and self.head_norms:
            each = SequenceParallel(sequence_dim=2, use_local_output=True)
            styles |= {"attention.q_norm": each, "attention.k_norm": each}
        return styles

    def _network(self, *, whole: bool) -> dict[str, ParallelStyle]:
        styles: dict[str, ParallelStyle] = {} if whole else {"norm2": SequenceParallel()}
        if self.variant.experts:
            styles["mlp"] = PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),), use_local_output=True
            )
            styles["mlp.router"] = SequenceParallel(sequence_dim=0, use_local_output=True)
            return styles
        if not whole:
            styles["mlp"] = PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            )
        for name in ("up",) if self.variant.layer_norm else ("up", "gate"):
            styles[f"mlp.{name}"] = ColwiseParallel()
        styles["mlp.down"] = RowwiseParallel(output_layouts=Replicate() if whole else Shard(1))
        return styles

    def attentions(self, block: nn.Module) -> Iterable[nn.Module]:
        plain = self.knows_attentions and not self.variant.image
        return (block.get_submodule("attention"),) if plain else ()

    def experts(self, block: nn.Module) -> Iterable[nn.Module]:
        return (module for module in block.modules() if isinstance(module, Experts))


def foreign(model: nn.Module) -> Foreign:
    assert isinstance(model, Foreign)
    return model


def turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def draw(name: str, size: torch.Size, generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(size, generator=generator)
    return 1 + 0.3 * values if "norm" in name and "weight" in name else 0.2 * values


def describe(variant: Variant, plan: ForeignPlan | None = None) -> Description:
    """The model as its user would describe it."""

    def build() -> nn.Module:
        return Foreign(variant)

    def materialize(part: nn.Module) -> None:
        initialize(part, 0, draw)
        restore_buffers(part, build)

    return Description(build=build, materialize=materialize, plan=plan or ForeignPlan(variant))


def rows_of(variant: Variant, step: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows of a step: inputs and targets, as views that are not contiguous."""
    generator = torch.Generator().manual_seed(step)
    if variant.image:
        images = torch.randn(rows, PATCH, 16, generator=generator).transpose(1, 2)
        return images, torch.randint(CLASSES, (rows, 1), generator=generator)
    tokens = torch.randint(VOCABULARY, (rows, 17), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]
