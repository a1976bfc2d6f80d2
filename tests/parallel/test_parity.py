# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Loss and gradient norm of every mesh equal those of one process; and the gate can see."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from securetrain.parallel.engine import ParallelModel
from securetrain.parallel.gradients import grad_norm
from securetrain.testing.processes import run_ranks
from tests.parallel.curves import (
    Case,
    Curve,
    curve,
    curves,
    differences,
    make_trainer,
    passes,
)
from tests.parallel.matrix import EVERY_DAY, MANY, MATRIX

MODELS = tuple(dict.fromkeys(case.model for case in MATRIX))


@pytest.fixture(scope="module")
def references() -> dict[str, Curve]:
    """One process's curve for each model of the matrix."""
    alone = run_ranks(curves, 1, [Case(model, 1, "{}", model) for model in MODELS])[0]
    checked: dict[str, Curve] = {}
    for model, found in alone.items():
        assert not isinstance(found, str), found
        assert found[0][0] > found[-2][0], "the reference must learn"
        assert all(math.isfinite(v) for pair in found for v in pair)
        checked[model] = found
    return checked


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "daily"),
    [
        # Four ranks show every pair of dimensions; eight show three at once.
        pytest.param(ranks, daily, marks=[] if daily else [pytest.mark.many])
        for ranks, daily in sorted({(case.ranks, case.name in EVERY_DAY) for case in MATRIX})
    ],
)
def test_every_mesh_equals_one_process(ranks, daily, references):
    rows = [case for case in MATRIX if (case.ranks, case.name in EVERY_DAY) == (ranks, daily)]
    compare(rows, references)


def test_what_runs_every_day_are_rows():
    assert {case.name for case in MATRIX} >= EVERY_DAY


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize("ranks", sorted({case.ranks for case in MANY}))
def test_and_so_do_large_and_compiled_ones(ranks, references):
    compare([case for case in MANY if case.ranks == ranks], references)


def compare(cases: list[Case], references: dict[str, Curve]) -> None:
    ranks = cases[0].ranks
    found = run_ranks(curves, ranks, cases, timeout=60 + 20 * len(cases))
    assert all(rank == found[0] for rank in found), "ranks must agree to the last bit"
    for case in cases:
        got = found[0].get(case.name, "not reached")
        assert not isinstance(got, str), (case, got)
        want = references[case.model]
        assert passes(got, want), (case, differences(got, want))


def half_the_gradients(model: ParallelModel) -> None:
    for module in model.parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(2.0)


def forget_the_head(model: ParallelModel) -> None:
    output = model.parts[0].get_submodule("output")
    assert isinstance(output, nn.Linear)
    output.weight.register_hook(torch.zeros_like)


BF16 = "precision: bf16"


def one_rank() -> dict[str, Curve]:
    return {
        "reference": curve(Case("", 1, "{}")),
        "no-head": curve(Case("", 1, "{}"), forget_the_head),
        "bf16": curve(Case("", 1, "{}", extra=BF16)),
    }


def two_ranks() -> dict[str, Curve]:
    return {
        "ddp": curve(Case("", 2, "{dp_replicate: 2}")),
        "ddp, guarded": curve(Case("", 2, "{dp_replicate: 2}", guard=True)),
        "fsdp": curve(Case("", 2, "{dp_shard: 2}")),
        "fsdp, guarded": curve(Case("", 2, "{dp_shard: 2}", guard=True)),
        "zero-2": curve(Case("", 2, "{dp_shard: 2, zero: 2}")),
        "half": curve(Case("", 2, "{dp_shard: 2}"), half_the_gradients),
        "fsdp bf16": curve(Case("", 2, "{dp_shard: 2}", extra=BF16)),
        "ddp bf16": curve(Case("", 2, "{dp_replicate: 2}", extra=BF16)),
        "tp bf16": curve(Case("", 2, "{tp: 2}", extra=BF16)),
        "pp bf16": curve(Case("", 2, "{pp: 2}", extra=BF16)),
    }


@pytest.mark.dist
def test_the_gate_sees_what_is_wrong():
    alone, two = run_ranks(one_rank, 1)[0], run_ranks(two_ranks, 2, timeout=120)
    reference, got = alone["reference"], two[0]
    # The guard looks and does not touch.
    assert got["ddp, guarded"] == got["ddp"]
    assert got["fsdp, guarded"] == got["fsdp"]
    assert got["zero-2"] == got["fsdp"]
    # bfloat16 is another number format: close, and not equal.
    for name in ("fsdp bf16", "ddp bf16", "tp bf16", "pp bf16"):
        loss, norm = differences(got[name], alone["bf16"])
        assert loss < 0.02, name
        assert norm < 0.05, name
    assert not passes(alone["bf16"], reference)

    # Negative controls. Halved gradients: a loss curve hardly shows it, because AdamW and clipping
    # do not notice a constant factor. The norm does.
    loss, norm = differences(got["half"], reference)
    assert not passes(got["half"], reference)
    assert norm == pytest.approx(0.5, abs=0.01)
    assert loss < 0.02, "if the loss shows it, this control proves nothing about the norm"
    assert not passes(alone["no-head"], reference)


def sharded_norms() -> list[float]:
    """The norm over a mesh, the same from whole tensors, and with a pending sum in between."""
    from torch.distributed.tensor import DTensor, Partial, Shard

    trainer = make_trainer(Case("", 2, "{dp_shard: 2}"))
    trainer._forward_backward(1)
    parameters = list(trainer.model.parameters())
    whole = [p.grad.full_tensor() for p in parameters if isinstance(p.grad, DTensor)]
    assert len(whole) == len(parameters)
    square = sum(float(g.double().square().sum()) for g in whole)
    found = [float(grad_norm(parameters)), math.sqrt(square)]
    # The same gradient as a pending sum: each rank holds half of it everywhere.
    first = parameters[0]
    assert isinstance(first.grad, DTensor)
    mesh = first.grad.device_mesh
    first.grad = DTensor.from_local(whole[0] / 2, mesh, [Partial()]).redistribute(
        placements=[Partial()]
    )
    found.append(float(grad_norm(parameters)))
    assert not isinstance(first.grad.placements[0], Partial | Shard)
    return found


@pytest.mark.dist
def test_the_norm_follows_placements():
    for sharded, whole, pending in run_ranks(sharded_norms, 2):
        assert sharded == pytest.approx(whole, rel=1e-6)
        assert pending == pytest.approx(whole, rel=1e-6)
