# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a step does when the guard, a number or a person says no."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from securetrain.artifacts.statement.statements import GradientVerdict
from securetrain.core.rundir import RunDir
from securetrain.guard.bound_numbers import Aftermath
from securetrain.guard.verdict import Verdict
from securetrain.parallel.mesh import make_mesh
from securetrain.policy.schema import Gradients, GuardMode, GuardResponse
from securetrain.train.composition import check_world
from securetrain.train.config import parse_job
from securetrain.train.saved_state import gradient_record
from securetrain.train.setup import Worker, build
from securetrain.train.trainer import Progress, Trainer
from tests.train.conftest import now
from tests.train.jobs import JOB, byte_rows

pytestmark = pytest.mark.usefixtures("one_rank")


class Flag:
    requested = False


class ScriptedGuard:
    """Says what it is told to, step by step."""

    judged: None = None

    def __init__(self, script: dict[int, GuardResponse]) -> None:
        self.script = script

    def follow(self, seeds: object) -> None:
        raise AssertionError

    def judge(self, step: int) -> Verdict:
        response = self.script.get(step)
        if response is None:
            return Verdict(step=step, ok=True, response=GuardResponse.OBSERVE)
        return Verdict(
            step=step, ok=False, response=response, codes=("ST-GRAD-002",), outliers=(1,),
            reason="rank 1's gradient is an outlier",
        )  # fmt: skip

    def bind_norm(self, total: torch.Tensor, grads: object) -> Aftermath:
        return Aftermath(value=total)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def make(script: dict[int, GuardResponse] | None) -> Trainer:
    job = parse_job(JOB, "job.yaml")
    worker = Worker(
        run=RunDir(Path("unused")),
        device=torch.device("cpu"),
        clock=now,
        stop=Flag(),
        console=None,
    )
    mesh = make_mesh(check_world(job, 1, "job.yaml"), "cpu")
    trainer = build(job, worker, mesh, Gradients(mode=GuardMode.OFF), byte_rows(job))
    trainer.guard = None if script is None else ScriptedGuard(script)
    return trainer


def snapshot(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def unchanged(trainer: Trainer, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(snapshot(trainer), before, strict=True))


def test_a_refused_step_changes_nothing_and_the_next_one_reads_other_rows():
    trainer = make({2: GuardResponse.SKIP_STEP})
    assert trainer.train_step().verdict == "clean"
    before = snapshot(trainer)
    state = {n: s["step"].clone() for n, s in enumerate(trainer.optimizer.state.values())}
    result = trainer.train_step()
    assert result.verdict == "refused"
    assert result.refusal is not None
    assert result.refusal.code == "ST-GRAD-002"
    assert "rank 1" in result.refusal.what
    assert result.halt is None
    assert math.isnan(result.grad_norm)
    assert unchanged(trainer, before)
    assert all(p.grad is None for p in trainer.model.parameters())
    assert all(
        torch.equal(s["step"], state[n]) for n, s in enumerate(trainer.optimizer.state.values())
    )
    assert trainer.progress == Progress(step=2, refused=1, refused_in_a_row=1)
    assert trainer.train_step().verdict == "clean"
    assert not unchanged(trainer, before)
    assert trainer.progress == Progress(step=3, refused=1, clean_steps=1)
    record = gradient_record(trainer.progress, watched=True)
    assert (record.verdict, record.judged, record.refused) == (GradientVerdict.CLEAN, 3, 1)


def test_without_the_guard_the_same_step_is_applied():
    """Positive control: the step of the test above does change the weights."""
    trainer = make({})
    trainer.train_step()
    before = snapshot(trainer)
    trainer.train_step()
    assert not unchanged(trainer, before)


def test_observe_applies_the_step_and_the_checkpoint_says_so():
    trainer = make({1: GuardResponse.OBSERVE})
    before = snapshot(trainer)
    result = trainer.train_step()
    assert (result.verdict, result.refusal, result.halt) == ("observed", None, None)
    assert not unchanged(trainer, before)
    record = gradient_record(trainer.progress, watched=True)
    assert (record.verdict, record.refused) == (GradientVerdict.REFUSED, 1)


def test_halt_is_handed_up():
    trainer = make({1: GuardResponse.HALT})
    before = snapshot(trainer)
    result = trainer.train_step()
    assert result.halt is not None
    assert result.halt.code == "ST-GRAD-005"
    assert unchanged(trainer, before)


def poison(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.parts[0].get_parameter("norm.weight").fill_(math.nan)


def test_numbers_that_are_not_finite_never_reach_the_weights():
    trainer = make(None)
    trainer.train_step()
    poison(trainer)
    before = snapshot(trainer)
    results = [trainer.train_step() for _ in range(trainer.max_refused)]
    assert [r.verdict for r in results] == ["refused"] * trainer.max_refused
    assert {r.refusal.code for r in results if r.refusal} == {"ST-GRAD-001"}
    assert [r.halt is None for r in results] == [True] * (trainer.max_refused - 1) + [False]
    assert results[-1].halt is not None
    assert results[-1].halt.code == "ST-GRAD-005"
    finite = [p for p in before if bool(torch.isfinite(p).all())]
    kept = [p for p in snapshot(trainer) if bool(torch.isfinite(p).all())]
    assert len(finite) == len(before) - 1
    assert all(torch.equal(a, b) for a, b in zip(finite, kept, strict=True))
    # Nobody watched: the statement must not say that the refusals were judged.
    record = gradient_record(trainer.progress, watched=False)
    assert (record.verdict, record.judged, record.refused) == (GradientVerdict.UNWATCHED, 0, 0)


def test_plain_adamw_would_have_taken_the_nan():
    """The attack works on the plain stack: one NaN in one step and every weight is gone."""
    trainer = make(None)
    trainer.train_step()
    poison(trainer)
    trainer._forward_backward(2)
    trainer.optimizer.step()
    odd = [not bool(torch.isfinite(p).all()) for p in trainer.model.parameters()]
    assert sum(odd) > len(odd) // 2


def test_asking_to_stop_is_seen_by_the_step():
    trainer = make({})
    assert not trainer.train_step().stop
    trainer.stop.requested = True  # type: ignore[misc]
    assert trainer.train_step().stop


def test_steps_that_nobody_watched_are_never_called_clean():
    assert gradient_record(Progress(step=5), watched=True).verdict is GradientVerdict.CLEAN
    unwatched = Progress(step=5, unwatched=1)
    assert gradient_record(unwatched, watched=True).verdict is GradientVerdict.UNWATCHED
    assert gradient_record(Progress(step=5), watched=False).verdict is GradientVerdict.UNWATCHED


def test_the_statement_counts_the_steps_in_which_nothing_was_found() -> None:
    assert gradient_record(Progress(step=5, clean_steps=3), watched=True).clean_steps == 3
    assert gradient_record(Progress(step=5, clean_steps=3), watched=False).clean_steps == 0
