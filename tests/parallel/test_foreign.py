# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A model that is not ours trains as in one process, or is refused by name."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

from securetrain.core.errors import SecureTrainError
from securetrain.parallel import (
    ContextKind,
    Degrees,
    ParallelModel,
    Recompute,
    Settings,
    grad_norm,
    initialize,
    make_mesh,
    parallelize,
)
from securetrain.parallel.loss import cross_entropy_sum
from securetrain.parallel.selfcheck import self_check
from securetrain.testing.processes import run_ranks
from tests.parallel.foreign import (
    GEMMA2,
    GPT2,
    MISTRAL,
    MIXTRAL,
    NANO,
    QWEN3,
    VARIANTS,
    VIT,
    Foreign,
    Variant,
    describe,
    draw,
    rows_of,
)

CPU = torch.device("cpu")
STEPS, ROWS = 3, 4
TOLERANCE = 1e-5
RATE = 0.05


@dataclass(frozen=True)
class Case:
    """A model on a mesh, and the code by which it is refused there if it is."""

    variant: Variant
    degrees: Degrees
    settings: Settings = field(default_factory=Settings)
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.variant.name} on {self.degrees}, {self.settings.recompute}"


DDP, FSDP = Degrees(dp_replicate=2), Degrees(dp_shard=2)
TP, CP, PP, EP = Degrees(tp=2), Degrees(cp=2), Degrees(pp=2), Degrees(dp_shard=2, ep=2)
FULL, SELECTIVE = Settings(recompute=Recompute.FULL), Settings(recompute=Recompute.SELECTIVE)
RING = Settings(context=ContextKind.RING)
TWO = Settings(microbatches=2)
CHECKED, UNFIT = "ST-RUNT-013", "ST-RUNT-010"

CASES = (
    *(Case(variant, mesh) for variant in VARIANTS for mesh in (DDP, FSDP)),
    *(Case(variant, DDP, again) for variant in (GPT2, NANO) for again in (FULL, SELECTIVE)),
    *(Case(variant, FSDP, FULL) for variant in (GPT2, NANO, GEMMA2, MIXTRAL, VIT)),
    Case(GPT2, TP, refused=UNFIT),
    Case(NANO, TP, refused=UNFIT),
    *(Case(variant, TP) for variant in (QWEN3, MISTRAL, GEMMA2, MIXTRAL, VIT)),
    *(Case(variant, CP, refused=UNFIT) for variant in (GPT2, NANO, VIT)),
    *(Case(QWEN3, CP, context) for context in (Settings(), RING)),
    Case(MIXTRAL, CP),
    *(Case(variant, CP, refused=CHECKED) for variant in (MISTRAL, GEMMA2)),
    *(Case(variant, PP, refused=UNFIT) for variant in (GPT2, NANO, GEMMA2)),
    *(Case(variant, PP, TWO) for variant in (QWEN3, MISTRAL, MIXTRAL)),
    Case(MIXTRAL, EP),
)


def seed(step: int, rank: int) -> None:
    torch.manual_seed(1000 * step + rank)


def alone(case: Case) -> list[tuple[float, float]]:
    """The curve of a plain loop in one process, which knows nothing of ours but first values."""
    torch.manual_seed(5)
    model = Foreign(case.variant)
    initialize(model, 0, draw)
    if case.degrees.pp > 1:
        model.eval()
    curve = []
    for step in range(1, STEPS + 1):
        inputs, targets = rows_of(case.variant, step, ROWS)
        model.zero_grad()
        total = 0.0
        ranks, pieces = case.degrees.dp, case.settings.microbatches
        for rank in range(ranks):
            seed(step, rank)
            mine = inputs.chunk(ranks)[rank], targets.chunk(ranks)[rank]
            for x, y in zip(*(one.chunk(pieces) for one in mine), strict=True):
                loss = cross_entropy_sum(model(x, torch.arange(x.shape[1])), y) / targets.numel()
                loss.backward()
                total += loss.item()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.stack([g.double().square().sum() for g in grads]).sum().sqrt().item()
        curve.append((total, norm))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(RATE * parameter.grad)
    return curve


def on_mesh(case: Case) -> list[tuple[float, float]]:
    mesh = make_mesh(case.degrees, "cpu")
    model = parallelize(describe(case.variant), mesh, case.settings, CPU)
    return curve(case, model)


def curve(case: Case, model: ParallelModel) -> list[tuple[float, float]]:
    mesh = model.mesh
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, foreach=False)
    found = []
    for step in range(1, STEPS + 1):
        inputs, targets = rows_of(case.variant, step, ROWS)
        ranks = mesh.degrees.dp
        mine = inputs.chunk(ranks)[mesh.dp_rank], targets.chunk(ranks)[mesh.dp_rank]
        seed(step, mesh.dp_rank)
        loss = model.forward_backward(*mine, targets.numel()).double()
        dist.all_reduce(loss)
        stages = mesh.pp.get_group() if mesh.degrees.pp > 1 else None
        found.append((loss.item() / mesh.degrees.tp, grad_norm(model.parameters(), stages).item()))
        optimizer.step()
        optimizer.zero_grad()
    return found


def checked(case: Case) -> str:
    """What the self-check says: nothing, or its code."""
    mesh = make_mesh(case.degrees, "cpu")
    rows = (lambda step, count: rows_of(case.variant, step, count)) if case.variant.image else None
    try:
        self_check(describe(case.variant), mesh, case.settings, CPU, batch=rows)
    except SecureTrainError as error:
        return f"{error.code} {error.what}"
    return ""


def all_cases(
    cases: Sequence[Case],
) -> list[tuple[str, list[tuple[float, float]], list[tuple[float, float]]]]:
    found = []
    for case in cases:
        try:
            said = checked(case)
            found.append((said, [] if said else on_mesh(case), [] if said else alone(case)))
        except Exception:  # noqa: BLE001 - shown by the test
            found.append((traceback.format_exc(), [], []))
            break
    return found


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.many
def test_equal_to_one_process_or_refused_by_name():
    for results in run_ranks(all_cases, 2, CASES, timeout=300):
        for case, (said, got, want) in zip(CASES, results, strict=True):
            assert said.startswith(case.refused), f"{case}: {said}"
            assert bool(said) == bool(case.refused), f"{case}: {said}"
            for (loss, norm), (loss_alone, norm_alone) in zip(got, want, strict=True):
                assert abs(loss / loss_alone - 1) < TOLERANCE, str(case)
                assert abs(norm / norm_alone - 1) < TOLERANCE, str(case)
