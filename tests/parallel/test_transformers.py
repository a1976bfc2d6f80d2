# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The models of transformers, tiny and random, where that is installed (it is no dependency): as
they are on copies and shards, and as decoders on every mesh, against a loop of the library's own.
"""

import importlib
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from securetrain.core.errors import SecureTrainError
from securetrain.parallel import (
    Degrees,
    Description,
    Objective,
    PlainPlan,
    Recompute,
    Settings,
    call_plainly,
    initialize_as_built,
    make_mesh,
    self_check,
)
from securetrain.testing.processes import run_ranks
from tests.parallel.test_decoder import Case, compare

DECODER = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "use_cache": False,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("LMHeadModel", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "Qwen3": ("ForCausalLM", DECODER | {"head_dim": 8}),
    "Mistral": ("ForCausalLM", DECODER | {"sliding_window": 6}),
    "Gemma2": (
        "ForCausalLM",
        DECODER | {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},
    ),
    "Mixtral": ("ForCausalLM", DECODER | {"num_local_experts": 4}),
    "ViT": (
        "ForImageClassification",
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "image_size": 16, "patch_size": 4, "num_labels": 10},
    ),
}  # fmt: skip
MESHES = (Degrees(dp_replicate=2), Degrees(dp_shard=2))

CALM = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": False}
DECODERS = {name: changed for name, (_, changed) in MODELS.items() if name != "ViT"} | {
    "GPT2": MODELS["GPT2"][1] | CALM,
    "Llama": DECODER,
}
TWO = Settings(microbatches=2)
ALL = {
    2: (Degrees(dp_shard=2), Degrees(tp=2), Degrees(cp=2), Degrees(pp=2)),
    4: (
        Degrees(pp=2, tp=2), Degrees(dp_shard=2, tp=2), Degrees(dp_shard=2, cp=2),
        Degrees(pp=2, dp_shard=2),
    ),
}  # fmt: skip
REFUSED = {
    (
        "GPT2",
        "tp",
    ): "ST-USAG-007 GPT2LMHeadModel does not say how tp cuts inner.transformer.h",
    ("Mistral", "cp"): "ST-RUNT-010 the attention of MistralAttention has another mask",
    ("Gemma2", "cp"): "ST-RUNT-010 the attention of Gemma2Attention has another mask",
    ("Gemma2", "pp"): "ST-RUNT-010 inner.model.embed_tokens.weight of pipeline stage 0 and",
}
"""One matrix for three and no plan of its own; windows; a tie across stages."""


def made(name: str, attention: str | None = None) -> nn.Module:
    library = importlib.import_module("transformers")
    config = getattr(library, f"{name}Config")(**DECODERS[name])
    if attention:
        config._attn_implementation = attention
    kind = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    model: nn.Module = getattr(library, name + kind)(config)
    return model


def all_decoders(ranks: int) -> dict[str, str | float]:
    cases: list[Case] = []
    for name in DECODERS:
        for degrees in ALL[ranks]:
            settings = TWO if degrees.pp > 1 else Settings()
            plain = partial(made, name, "eager")
            cases.append((name, partial(made, name), plain, degrees, settings))
    return compare(cases)


class Logits(nn.Module):
    """A model that returns logits and nothing else."""

    def __init__(self, name: str) -> None:
        super().__init__()
        kind, sizes = MODELS[name]
        library = importlib.import_module("transformers")
        self.inner = getattr(library, name + kind)(getattr(library, f"{name}Config")(**sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(x).logits
        return logits


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="sum")


def rows(name: str, step: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    if name == "ViT":
        images = torch.randn(count, 3, 16, 16, generator=generator)
        return images, torch.randint(10, (count,), generator=generator)
    tokens = torch.randint(64, (count, 17), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def all_models() -> dict[str, str | float]:
    found: dict[str, str | float] = {}
    for name in MODELS:
        build = partial(Logits, name)
        model = Description(
            build=build,
            materialize=initialize_as_built(build, 3),
            plan=PlainPlan(),
            objective=Objective(loss=loss, call=call_plainly),
        )
        for degrees in MESHES:
            for recompute in (Recompute.NONE, Recompute.FULL):
                case, mesh = f"{name}, {degrees}, {recompute}", make_mesh(degrees, "cpu")
                settings = Settings(recompute=recompute)
                batch = partial(rows, name)
                try:
                    said = self_check(model, mesh, settings, torch.device("cpu"), batch=batch)
                except SecureTrainError as error:
                    found[case] = f"{error.code} {error.what}"
                else:
                    found[case] = max(said.loss, said.norm)
    return found


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
def test_copies_and_shards_equal_one_process():
    pytest.importorskip("transformers")
    for found in run_ranks(all_models, 2, timeout=300):
        assert len(found) == 4 * len(MODELS)
        for case, result in found.items():
            assert isinstance(result, float), (case, result)
            assert result < 1e-5, case


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize("ranks", [2, 4])
def test_decoders_equal_a_loop_of_the_library_or_are_refused_by_name(ranks):
    pytest.importorskip("transformers")
    (found, *_) = run_ranks(all_decoders, ranks, ranks, timeout=300)
    assert len(found) == 4 * len(DECODERS)
    for case, result in found.items():
        name, _, mesh = case.partition(" on ")
        said = next(
            (REFUSED[who, axis] for who, axis in REFUSED if who == name and axis in mesh), ""
        )
        if said:
            assert str(result).startswith(said), case
        else:
            assert isinstance(result, float), (case, result)
            assert result < 1e-5, case
