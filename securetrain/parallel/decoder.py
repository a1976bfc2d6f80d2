# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The causal decoders of `transformers` behind the interface of a model here.

A `Decoder` takes tokens and positions, (B, S) and (S,), and returns logits. Rules:

1. the mask of a layer is the library's own function of two positions, evaluated for whole rows: a
   rank that holds a part of the positions could not make it from what it holds;
2. attention is computed here, so that context parallelism can replace it. What it is asked for
   besides (a soft cap, a window, a scale) it does; an argument that it does not know is refused by
   name and never dropped;
3. a stage of a pipeline keeps the names of its modules. What enters its first block is what the
   stage before returned, whatever the model does to embeddings before its blocks.

`transformers` is imported by the caller's own model only; nothing of it is a dependency.
"""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from securetrain.core.errors import RuntimeRefusal, UsageError

NAME: Final = "securetrain"
"""Of the attention and of the masks, in the registers of the library."""
ATTEND: Final = "attend"
KNOWN: Final = frozenset(
    {"position_ids", "use_cache", "cache_position", "output_attentions", "sliding_window"}
)
"""Arguments of an attention that say nothing, or say what the mask says."""


def decoder(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Make what builds a causal decoder of `transformers` build a `Decoder`."""
    return lambda: Decoder(build())


class Decoder(nn.Module):
    """Tokens and positions to logits; hidden states instead, for a stage of a pipeline.

    Args:
        inner: A model for causal language modelling.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        if not getattr(inner, "_supports_attention_backend", False):
            raise UsageError(
                "ST-USAG-007",
                f"{type(inner).__name__} is no decoder of transformers whose attention can be"
                " replaced",
                "decoder",
                "describe it with a plan of your own, or train it as it is with PlainPlan",
            )
        self.inner = inner
        self.first = self.last = True
        """Whether embeddings and head are here."""
        self.entering: torch.Tensor | None = None
        """What enters the first block of a later stage."""
        _register()
        inner.set_attn_implementation(NAME)  # type: ignore[operator]
        for module in attentions_of(inner):
            setattr(module, ATTEND, attend_here)

    @property
    def base(self) -> nn.Module:
        """The model without its head."""
        found = self.inner.base_model
        assert isinstance(found, nn.Module)
        return found

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """See the class."""
        self.entering = None if self.first else x
        model = self.inner if self.last else self.base
        named = {"input_ids" if self.first else "inputs_embeds": x}
        # All are attended to. Without this, rows cut in pieces would be taken for packed ones.
        every = torch.ones(x.shape[0], len(positions), dtype=torch.bool, device=x.device)
        found = model(**named, attention_mask=every, position_ids=positions[None], use_cache=False)
        out: torch.Tensor = found.logits if self.last else found.last_hidden_state
        return out


def attentions_of(module: nn.Module) -> list[nn.Module]:
    """The modules of causal self-attention in it."""
    return [one for one in module.modules() if getattr(one, "is_causal", False)]


def attend_here(*_inputs: torch.Tensor) -> torch.Tensor:
    """Stands for attention on this rank alone; context parallelism puts another in its place."""
    raise AssertionError("only looked at, never called")


def _register() -> None:
    library = import_module("transformers")
    library.AttentionInterface.register(NAME, _attention)
    library.AttentionMaskInterface.register(NAME, _mask)


def _mask(
    *, kv_length: int, mask_function: Callable[..., torch.Tensor], device: Any, **_: Any
) -> torch.Tensor | None:
    """True where a query sees a key, (1, 1, S, S) or (B, 1, S, S); None for plain causal."""
    if mask_function is import_module("transformers.masking_utils").causal_mask_function:
        return None
    place = torch.arange(kv_length, device=device)
    zero = place.new_zeros((1, 1, 1, 1))
    return mask_function(zero, zero, place[None, None, :, None], place[None, None, None, :])


def _attention(
    module: nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as the library calls it: (B, H, S, K) to (B, S, H, K)."""
    name = type(module).__name__
    asked = sorted(n for n, value in others.items() if n not in KNOWN and _says(value))
    if asked or not getattr(module, "is_causal", False):
        raise _refused(
            f"the attention of {name} takes {', '.join(asked) or 'no causal mask'}, and what that"
            " is to do is not known here",
            "dp_replicate and dp_shard without decoder(), or a plan and a model of your own",
        )
    usual = 1 / math.sqrt(q.shape[-1])
    scale = usual if scaling is None else scaling
    attend = getattr(module, ATTEND)
    if attend is not attend_here:
        odd = {"another mask than the causal one": mask, "a soft cap": softcap, "dropout": dropout}
        if found := [what for what, value in odd.items() if _says(value)]:
            raise _refused(
                f"the attention of {name} has {' and '.join(found)}, and ranks that share"
                " positions attend plainly",
                "cp: 1",
            )
        out = attend(q * (scale / usual), k, v, torch.empty(0, dtype=torch.int64))
    elif softcap:
        out = _capped(q, k, v, mask, scale=scale, cap=softcap, dropout=dropout)
    else:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=dropout, scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def _capped(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    scale: float,
    cap: float,
    dropout: float,
) -> torch.Tensor:
    """Attention whose scores are bent towards a largest one; no kernel of torch has that."""
    groups = q.shape[1] // k.shape[1]
    k, v = (one.repeat_interleave(groups, dim=1) for one in (k, v))
    scores = cap * torch.tanh(q @ k.transpose(-1, -2) * (scale / cap))
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, dropout) @ v


def _says(value: Any) -> bool:
    """True when an argument asks for anything."""
    return value is not None and not (isinstance(value, bool | int | float) and not value)


def _refused(what: str, fix: str) -> RuntimeRefusal:
    return RuntimeRefusal("ST-RUNT-010", what, "parallel", fix)
