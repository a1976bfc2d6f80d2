# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The self-check sees what each rule prevents: every rule is taken away once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from unittest.mock import patch

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from securetrain.core.errors import SecureTrainError
from securetrain.parallel import Degrees, Description, Recompute, Settings, initialize, make_mesh
from securetrain.parallel import build as building
from securetrain.parallel import recompute as recomputing
from securetrain.parallel.plan import Compression, Precision
from securetrain.parallel.selfcheck import comparable, self_check
from securetrain.testing.processes import run_ranks
from tests.parallel.foreign import (
    GEMMA2,
    GPT2,
    MIXTRAL,
    NANO,
    QWEN3,
    ForeignPlan,
    Variant,
    describe,
    draw,
)

CPU = torch.device("cpu")
DDP, TP, CP = Degrees(dp_replicate=2), Degrees(tp=2), Degrees(cp=2)
FULL = Settings(recompute=Recompute.FULL)
CALM = replace(GPT2, dropout=0.0, tied=False)


def said(model: Description, degrees: Degrees, settings: Settings | None = None) -> str:
    try:
        found = self_check(model, make_mesh(degrees, "cpu"), settings or Settings(), CPU)
    except SecureTrainError as error:
        return f"{error.code} {error.what}"
    assert found.steps == 2
    assert max(found.loss, found.norm) < 1e-5
    return ""


def forgetful(variant: Variant) -> Description:
    """A user who has not read that buffers need values."""
    model = describe(variant)
    return replace(model, materialize=lambda part: initialize(part, 0, draw))


def without_rng(forward: Callable[..., object], again: Callable[..., object]) -> object:
    @wraps(forward)
    def recomputed(*inputs: object) -> object:
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False)

    return recomputed


def nothing(*_args: object, **_named: object) -> None:
    """Instead of a rule."""


@contextmanager
def without(owner: object, name: str, instead: object = nothing) -> Iterator[None]:
    with patch.object(owner, name, instead):
        yield


def unfilled(part: torch.nn.Module, fill: Callable[[torch.nn.Module], None]) -> None:
    """As memory may be: nothing says what it held before."""
    for buffer in part.buffers():
        buffer.fill_(7)
    fill(part)


def rules() -> dict[str, str]:
    """What is said with every rule in place."""
    return {
        "random numbers": said(describe(NANO), DDP, FULL),
        "copies": said(describe(QWEN3), TP),
        "ties and fsdp": said(describe(GEMMA2), Degrees(dp_shard=2)),
        "experts": said(describe(MIXTRAL), Degrees(dp_shard=2, ep=2)),
        "a norm of heads that the plan forgot": said(
            describe(QWEN3, ForeignPlan(QWEN3, head_norms=False)), TP
        ),
        "buffers": said(forgetful(QWEN3), DDP),
        "boolean buffers": said(forgetful(CALM), DDP),
        "no attention": said(describe(QWEN3, ForeignPlan(QWEN3, attentions=False)), CP),
        "dropout": said(describe(GPT2), TP),
    }


def mutations() -> dict[str, str]:
    """What the self-check says without each of them, and of what no rule sees."""
    found = {}
    with without(recomputing, "_recomputing", without_rng):
        found["random numbers"] = said(describe(NANO), DDP, FULL)
    with without(building, "keep_ties"):
        found["ties"] = said(describe(NANO), DDP)
    with without(building, "fill_values", unfilled):
        found["buffers"] = said(forgetful(QWEN3), DDP)
    with without(building, "check_fitness"), without(building, "apply_context"):
        found["attentions"] = said(describe(QWEN3), CP)
    with without(building, "plain_copies", lambda *_: {}):
        found["copies"] = said(describe(QWEN3, ForeignPlan(QWEN3, head_norms=False)), TP)
    found["one matrix for three, cut through"] = said(describe(CALM), TP)
    return found


def both() -> tuple[dict[str, str], dict[str, str]]:
    return rules(), mutations()


@pytest.mark.dist
def test_every_rule_that_is_taken_away_is_seen():
    for kept, lost in run_ranks(both, 2, timeout=180):
        for equal in ("random numbers", "copies", "ties and fsdp", "experts"):
            assert kept[equal] == "", equal
        assert kept["a norm of heads that the plan forgot"].startswith("ST-RUNT-012 step 1")
        assert "attention.k_norm.weight differ by" in kept["a norm of heads that the plan forgot"]
        assert kept["buffers"].startswith("ST-RUNT-011")
        assert "layers.0.attention.inv_freq" in kept["buffers"]
        assert kept["boolean buffers"].startswith("ST-RUNT-011")
        assert "layers.0.attention.causal" in kept["boolean buffers"]
        assert kept["no attention"].startswith("ST-RUNT-010 attentions() finds none in layers.0")
        assert kept["dropout"].startswith("ST-RUNT-010 layers.0.attention.drop drops 10%")
        assert all(text.startswith("ST-RUNT-013") for text in lost.values()), lost
        assert "step 1 of the self-check: the gradient of layers.1" in lost["random numbers"]
        assert "head.weight" in lost["ties"]
        assert "the first value of layers.0.attention.inv_freq" in lost["buffers"]
        assert "the output of layers.0 differs" in lost["attentions"]
        assert "the gradient of layers.1.attention.k_norm" in lost["copies"]
        assert "the output of layers.0 differs" in lost["one matrix for three, cut through"]


def test_what_is_not_compared_is_told():
    asked = Settings(
        precision=Precision.BF16, compile=True, compression=Compression.FP16, microbatches=2
    )
    exact, left_out = comparable(asked)
    assert exact == Settings(microbatches=2)
    assert left_out == ("precision", "compile", "compression")
    assert comparable(exact) == (exact, ())
