# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The format of Hugging Face: config.json, and safetensors under the names of Llama. Free of torch.

Rules for reading, in order:

1. the directory is signed (`artifacts.model.signed_model`), and nothing of it is parsed before that
   was verified;
2. config.json must be of an architecture in `ARCHITECTURES` and ask for nothing that the built-in
   model does not compute: what would be another model is refused by name, never approximated;
3. the tensors must be exactly those of the configuration, of its shapes, in a floating type; only
   what such a model recomputes or does not use may be there besides;
4. each rank reads its own part of each tensor, whatever the mesh, and verifies what it reads
   (`hf_weights`).

Names: `hf_name`. Matrices need no permutation: the format stores queries and keys for rotating
element i with element i + K/2 of a head, which is what our `rotate` does (Meta's own files, which
rotate neighbours, differ).
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.model import SignedModel
from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.train.models.shape import ModelShape, RopeScaling

CONFIG: Final = "config.json"
ARCHITECTURES: Final = ("LlamaForCausalLM",)
ROPE_THETA: Final = 10_000.0
FLOATS: Final = frozenset({"float32", "bfloat16", "float16"})
HEAD: Final = "lm_head.weight"
UNUSED: Final = ".rotary_emb.inv_freq"
"""Tensors that older files store and everybody recomputes."""
CONFIG_LIMIT: Final = 1 << 20

_OUTER: Final = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
_INNER: Final = {
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}

_SCALING: Final = {
    "factor": "factor",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
    "length": "original_max_position_embeddings",
}

Size = Annotated[int, Meta(ge=1, le=1 << 24)]
Positive = Annotated[float, Meta(gt=0.0, le=1e12)]


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that decide the computation. Others are about generating, or about files."""

    architectures: list[str]
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1024)]
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    quantization_config: dict[str, Any] | None = None


def hf_name(name: str) -> str:
    """Return the Hugging Face name of one of our parameters."""
    if name in _OUTER:
        return _OUTER[name]
    _, number, inner = name.split(".", 2)
    return f"model.layers.{number}.{_INNER[inner]}"


def shape_of(config: bytes, where: str) -> ModelShape:
    """The sizes in a verified config.json.

    Raises:
        UsageError: ST-USAG-016 naming what is not supported.
    """
    try:
        value = canonical.loads(config, limit=CONFIG_LIMIT, where=where)
        said = msgspec.convert(value, _Config, strict=False)
    except msgspec.ValidationError as error:
        raise _unsupported(str(error), where) from error
    except UsageError as error:
        raise _unsupported(error.what, where) from error
    if len(said.architectures) != 1 or said.architectures[0] not in ARCHITECTURES:
        names = ", ".join(said.architectures)[:200] or "none"
        raise _unsupported(f"architecture {names}", where)
    for field, found, wanted in (
        ("hidden_act", said.hidden_act, "silu"),
        ("attention_bias", said.attention_bias, False),
        ("mlp_bias", said.mlp_bias, False),
        ("quantization_config", said.quantization_config, None),
    ):
        if found != wanted:
            raise _unsupported(f"{field}: {str(found)[:100]}", where)
    return _sized(said, where)


def _sized(said: _Config, where: str) -> ModelShape:
    heads, keys = said.num_attention_heads, said.num_key_value_heads
    if heads % (keys or heads) or (said.head_dim is None and said.hidden_size % heads):
        raise _unsupported(f"{heads} heads over {keys} of keys, {said.hidden_size} wide", where)
    head = said.head_dim or said.hidden_size // heads
    if head % 2:
        raise _unsupported(f"heads of {head} elements", where)
    theta, scaling = _rope(said, where)
    return ModelShape(
        dim=said.hidden_size,
        layers=said.num_hidden_layers,
        heads=heads,
        kv_heads=keys or heads,
        head_size=head,
        ffn=said.intermediate_size,
        vocab=said.vocab_size,
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=said.rms_norm_eps,
        tied=said.tie_word_embeddings,
    )


def _rope(said: _Config, where: str) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary positions, from either place where the format has them."""
    theta, scaling = said.rope_theta, None
    for field, rope in (
        ("rope_scaling", said.rope_scaling),
        ("rope_parameters", said.rope_parameters),
    ):
        if rope is None:
            continue
        kind = rope.get("rope_type", rope.get("type", "default"))
        inner = rope.get("rope_theta")
        known = isinstance(kind, str) and kind in {"default", "llama3"}
        if not known or not isinstance(inner, int | float | None):
            raise _unsupported(f"{field} of type {str(kind)[:40]!r}", where)
        if kind == "llama3":
            scaling = _scaling(rope, where)
        if inner is not None and theta not in {None, float(inner)}:
            raise _unsupported(f"two values of rope_theta: {theta} and {inner}", where)
        theta = theta if inner is None else float(inner)
    return ROPE_THETA if theta is None else theta, scaling


def _scaling(rope: dict[str, Any], where: str) -> RopeScaling:
    """Llama 3.1's."""
    named = {ours: rope.get(name) for ours, name in _SCALING.items()}
    try:
        scaling = msgspec.convert(named, RopeScaling, strict=True)
    except msgspec.ValidationError as error:
        raise _unsupported(str(error), where) from error
    if scaling.high <= scaling.low:
        raise _unsupported(f"high_freq_factor {scaling.high}, low {scaling.low}", where)
    return scaling


def config_of(shape: ModelShape) -> bytes:
    """A config.json that says `shape`.

    Raises:
        UsageError: ST-USAG-016 when the format has no such model.
    """
    scaling = None
    if shape.rope_scaling is not None:
        scaling = {name: getattr(shape.rope_scaling, ours) for ours, name in _SCALING.items()}
        scaling["rope_type"] = "llama3"
    said = {
        "architectures": [ARCHITECTURES[0]],
        "attention_bias": False,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "hidden_size": shape.dim,
        "intermediate_size": shape.ffn,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.keys,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": scaling,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "vocab_size": shape.vocab,
    }
    return msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n"


def check_tensors(model: SignedModel, shape: ModelShape) -> None:
    """Rule 3.

    Raises:
        UsageError: ST-USAG-016 naming the first tensor that is missing, too many or of another
            shape.
    """
    wanted = {hf_name(name): size for name, size in sizes(shape).items()}
    found = {tensor.fqn: tensor for tensor in model.index.tensors}
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise _unsupported(f"there is no tensor {name}", model.storage.name)
        if name not in wanted:
            if name.endswith(UNUSED) or (shape.tied and name == HEAD):
                continue
            raise _unsupported(f"tensor {name[:200]} has no place", model.storage.name)
        if found[name].shape != wanted[name]:
            raise _unsupported(
                f"tensor {name} of shape {list(found[name].shape)}, {CONFIG} asks for"
                f" {list(wanted[name])}",
                model.storage.name,
            )
        if found[name].dtype not in FLOATS:
            raise _unsupported(f"tensor {name} of {found[name].dtype}", model.storage.name)


def sizes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Our names of all parameters of a dense model, and their shapes."""
    queries, keys, dim = shape.heads * shape.head, shape.keys * shape.head, shape.dim
    inner: dict[str, tuple[int, ...]] = {
        "attention.wq.weight": (queries, dim),
        "attention.wk.weight": (keys, dim),
        "attention.wv.weight": (keys, dim),
        "attention.wo.weight": (dim, queries),
        "feed_forward.w1.weight": (shape.ffn, dim),
        "feed_forward.w3.weight": (shape.ffn, dim),
        "feed_forward.w2.weight": (dim, shape.ffn),
        "attention_norm.weight": (dim,),
        "ffn_norm.weight": (dim,),
    }
    found: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (shape.vocab, dim)}
    for layer in range(shape.layers):
        found |= {f"layers.{layer}.{name}": size for name, size in inner.items()}
    found["norm.weight"] = (dim,)
    if not shape.tied:
        found["output.weight"] = (shape.vocab, dim)
    return found


def _unsupported(what: str, where: str) -> UsageError:
    return UsageError(
        "ST-USAG-016",
        what,
        where,
        f"use a model of {' or '.join(ARCHITECTURES)} without biases and quantisation, whose"
        " positions are plain or Llama 3.1's",
    )
