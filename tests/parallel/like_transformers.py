# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A decoder that is written as those of `transformers` are, and as much of that library as it asks
for: it is no dependency, and its interface is what is relied on.
"""

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

ATTENTIONS: dict[str, Callable[..., Any]] = {}
MASKS: dict[str, Callable[..., Any]] = {}
HEAD = 8
PLAN = {
    "model.layers.*.self_attn.[qkv]_proj": "colwise",
    "model.layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.up_proj": "colwise",
    "model.layers.*.mlp.down_proj": "rowwise",
}


@contextmanager
def library():
    """Have `import transformers` find it."""
    outer, masks = ModuleType("transformers"), ModuleType("transformers.masking_utils")
    outer.AttentionInterface = SimpleNamespace(register=ATTENTIONS.__setitem__)  # type: ignore[attr-defined]
    outer.AttentionMaskInterface = SimpleNamespace(register=MASKS.__setitem__)  # type: ignore[attr-defined]
    masks.causal_mask_function = causal  # type: ignore[attr-defined]
    with patch.dict(sys.modules, {outer.__name__: outer, masks.__name__: masks}):
        yield


@dataclass(frozen=True)
class Config:
    hidden_size: int = 32
    vocab_size: int = 64
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    attention_dropout: float = 0.0
    window: int = 0
    scale: float = 1.0
    """What embeddings are multiplied by, behind the embedding."""
    sinks: bool = False
    """Attention takes an argument that nobody here knows."""
    soft_cap: float | None = None
    named: bool = True
    """Whether the model has a plan for its matrices."""

    def get_text_config(self) -> "Config":
        return self


def causal(_row: Any, _head: Any, query: Any, key: Any) -> Any:
    return key <= query


def windowed(window: int) -> Callable[..., Any]:
    return lambda row, head, query, key: causal(row, head, query, key) & (key > query - window)


def eager(
    _module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: Any, softcap: Any, **_named: Any
) -> Any:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * scaling
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v).transpose(1, 2), None


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    def __init__(self, config: Config, owner: Any) -> None:
        super().__init__()
        self.config, self.is_causal = config, True
        self.owner = [owner]
        width, keys = config.num_attention_heads * HEAD, config.num_key_value_heads * HEAD
        self.q_proj = nn.Linear(config.hidden_size, width, bias=True)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=True)
        self.q_norm = Norm(HEAD)

    def forward(
        self, hidden_states: torch.Tensor, angles: torch.Tensor, attention_mask: Any, **named: Any
    ) -> torch.Tensor:
        size = (*hidden_states.shape[:-1], -1, HEAD)
        q = self.q_norm(self.q_proj(hidden_states).view(size)).transpose(1, 2)
        k = self.k_proj(hidden_states).view(size).transpose(1, 2)
        v = self.v_proj(hidden_states).view(size).transpose(1, 2)
        q, k = (x * angles.cos() + x.flip(-1) * angles.sin() for x in (q, k))
        name, more = self.owner[0].attention, {"sinks": torch.ones(1)} if self.config.sinks else {}
        attend = eager if name == "eager" else ATTENTIONS[name]
        out, _ = attend(
            self, q, k, v, attention_mask, scaling=0.5, dropout=self.config.attention_dropout,
            softcap=self.config.soft_cap, use_cache=False, **more, **named,
        )  # fmt: skip
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.down_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.gelu(self.up_proj(x)))
        return out


class LikeLayer(nn.Module):
    def __init__(self, config: Config, owner: Any) -> None:
        super().__init__()
        self.kind = "full"
        self.self_attn, self.mlp = Attention(config, owner), Mlp(config)
        self.norm1, self.norm2 = Norm(config.hidden_size), Norm(config.hidden_size)

    def forward(self, hidden_states: torch.Tensor, **named: Any) -> torch.Tensor:
        x = hidden_states + self.self_attn(hidden_states=self.norm1(hidden_states), **named)
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class Base(nn.Module):
    def __init__(self, config: Config, owner: Any) -> None:
        super().__init__()
        self.config, self.owner = config, [owner]
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LikeLayer(config, owner) for _ in range(2))
        self.norm = Norm(config.hidden_size)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **named: Any,
    ) -> Any:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        x = x * self.config.scale
        assert attention_mask is not None
        assert position_ids is not None
        function = windowed(self.config.window) if self.config.window else causal
        name, length = self.owner[0].attention, attention_mask.shape[-1]
        if name == "eager":
            place = torch.arange(length)
            mask = function(0, 0, place[:, None], place[None, :])
        else:
            mask = MASKS[name](
                batch_size=len(x), q_length=x.shape[1], kv_length=length, q_offset=0,
                mask_function=function, device=x.device, config=self.config,
            )  # fmt: skip
        angles = position_ids[0].float()[:, None] / torch.arange(1, HEAD + 1)
        for layer in self.layers:
            assert layer.kind == "full"
            x = layer(x, angles=angles, attention_mask=mask)
        return SimpleNamespace(last_hidden_state=self.norm(x))


class LikeForCausalLM(nn.Module):
    base_model_prefix = "model"
    _supports_attention_backend = True
    _no_split_modules = ("LikeLayer",)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = "eager"
        self.config = config
        self.model = Base(config, self)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._tp_plan = PLAN if config.named else {}

    @property
    def base_model(self) -> nn.Module:
        return self.model

    def set_attn_implementation(self, name: str) -> None:
        self.attention = name

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, head: Any) -> None:
        self.lm_head = head

    def forward(self, **named: Any) -> Any:
        return SimpleNamespace(logits=self.lm_head(self.model(**named).last_hidden_state))


def like(**changed: Any) -> LikeForCausalLM:
    return LikeForCausalLM(replace(Config(), **changed))
