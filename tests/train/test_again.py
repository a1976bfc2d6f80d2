# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Steps that are done again: honest ones give what was saved, and forged ones are found.

Every forged checkpoint is signed by the run's own keys, and a verifier of signatures accepts it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from securetrain.artifacts import verify_path
from securetrain.chain import records
from securetrain.chain.replay.outcome import rate_at
from securetrain.core.errors import GuardError
from securetrain.testing.runs import SmallRun
from securetrain.train.config import JobConfig, OptimizerJob, RateSchedule
from securetrain.train.optim import lr_at, make_optimizer, set_lr
from securetrain.train.trainer import Trainer
from tests.train.conftest import now
from tests.train.recorded import (
    Forge,
    Made,
    another_rate,
    another_row,
    answer,
    changed_at,
    job_of,
    record_run,
)

pytestmark = pytest.mark.usefixtures("one_rank")


@pytest.fixture
def train(tmp_path: Path, new_run: Callable[..., SmallRun]) -> Callable[..., Made]:
    """Train; the records of the steps are what an honest trainer writes."""

    def made(job: JobConfig | None = None, *, name: str = "run", forge: Forge = None) -> Made:
        return record_run(tmp_path, new_run(name), job, name=name, forge=forge)

    return made


def accepted(made: Made, step: int) -> None:
    """The control: whoever checks signatures alone takes it."""
    path = made.run.run_dir.checkpoint(step)
    result = verify_path(path, trust=made.run.trust, policy=None, now=now())
    assert result.ok, result.problems


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.many)])
def test_honest_steps_give_every_bit_again(train, precision):
    made = train(job_of(precision))
    said = made.outcomes((0, 3), (3, 6))
    for one in [*said, *made.outcomes((3, 6), again=False)]:
        assert one.problems == ()
        assert one.difference == one.largest == one.numbers == 0.0
        assert 0 < one.reach <= 1 + 1e-5


def test_a_learning_rate_that_is_a_thousandth_off_is_found(train):
    made = train(forge=another_rate())
    accepted(made, 6)
    first, second = made.outcomes((0, 3), (3, 6))
    assert first.step == 2  # the first loss after a step that went too far
    assert second.step == 5
    assert first.tensor
    assert any("loss was recorded" in problem for problem in first.problems)
    # Elsewhere, too: far outside of the bound.
    asked = (made.asked(3, 6),)
    (bound,) = made.judged(answer(made, asked, made.job), asked, records.Comparison.BOUND)
    assert not bound.ok
    assert bound.difference > 1e-4


def test_a_row_that_was_exchanged_is_found(train):
    made = train(forge=another_row(5))
    accepted(made, 6)
    first, second = made.outcomes((0, 3), (3, 6))
    assert first.ok
    assert second.step == 5
    asked = (made.asked(3, 6),)
    (bound,) = made.judged(answer(made, asked, made.job), asked, records.Comparison.BOUND)
    assert bound.step == 5


def test_one_weight_that_was_moved_a_little_is_found(train):
    def move(trainer: Trainer) -> None:
        weight = dict(trainer.model.named_parameters())["layers.1.attention.wq.weight"]
        weight[3, 4] += 1e-4

    made = train(forge=changed_at(6, move))
    accepted(made, 6)
    first, second = made.outcomes((0, 3), (3, 6))
    assert first.ok
    assert second.step is None  # all steps were honest
    assert second.tensor == "model.layers.1.attention.wq.weight"
    assert "1 of 1024 elements" in second.problems[0]
    asked = (made.asked(3, 6),)
    (bound,) = made.judged(answer(made, asked, made.job), asked, records.Comparison.BOUND)
    assert bound.tensor == "model.layers.1.attention.wq.weight"
    assert not bound.ok


@pytest.mark.parametrize(
    "what",
    ["weight", *(pytest.param(one, marks=pytest.mark.many) for one in ("moment", "count"))],
)
def test_what_adamw_cannot_do_is_found_without_a_step(train, what):
    def change(trainer: Trainer) -> None:
        weight = next(iter(trainer.model.parameters()))
        state = trainer.optimizer.state[weight]
        match what:
            case "weight":
                weight[0, 0] += 0.1
            case "moment":
                state["exp_avg"][0, 0] = 1.0
            case _:
                state["step"] += 1

    made = train(forge=changed_at(6, change))
    accepted(made, 6)
    (found,) = made.outcomes((3, 6), again=False)
    assert not found.ok
    assert "AdamW" in found.problems[0]


def test_a_refused_step_is_passed_over(train, monkeypatch):
    import securetrain.train.trainer as place

    real = place._refusal

    def refuse(verdict: Any) -> Any:
        refusal = GuardError("ST-GRAD-002", "by a test", "gradients")
        return (refusal, None) if verdict is not None and verdict.step == 5 else real(verdict)

    with monkeypatch.context() as patch:
        patch.setattr(place, "_refusal", refuse)
        made = train()
    assert [one.verdict for one in made.records] == [*["clean"] * 4, "refused", "clean"]
    (found,) = made.outcomes((3, 6))
    assert found.problems == ()


@pytest.mark.parametrize("schedule", list(RateSchedule))
@pytest.mark.parametrize("decay", ["auto", 0, 7])
def test_the_verifier_has_the_trainers_learning_rates(schedule, decay):
    job = OptimizerJob(schedule=schedule, decay_steps=decay, warmup_steps=4, floor=0.05)
    said = {"steps": 40, "optimizer": msgspec.to_builtins(job)}
    for step in range(1, 41):
        assert rate_at(step, said) == lr_at(step, 40, job)


@pytest.mark.many
def test_fifty_honest_segments_raise_no_alarm(train):
    for seed in range(10):
        job = job_of(("fp32", "bf16")[seed % 2], seed=seed, steps=15)
        made = train(job, name=f"run-{seed}")
        ends = [(at, at + 3) for at in range(0, 15, 3)]
        for one in made.outcomes(*ends):
            assert one.problems == (), (seed, one)


def test_adamw_never_goes_farther_than_is_allowed():
    from securetrain.chain.replay import outcome

    generator = torch.Generator().manual_seed(5)
    worst = 0.0
    for betas in ((0.9, 0.95), (0.9, 0.999), (0.5, 0.3), (0.0, 0.9)):
        # Gradients that grow by the worst factor, besides random ones.
        growth = betas[1] / betas[0] if betas[0] else 1.0
        grown = torch.tensor([growth**n for n in range(12)])
        kinds = torch.cat(
            [
                torch.randn(12, 200, generator=generator),
                torch.randn(12, 200, generator=generator).abs() ** 4,
                grown[:, None].expand(12, 5),
            ],
            dim=1,
        )
        weight = torch.nn.Parameter(torch.randn(405, 1, generator=generator))
        begin = weight.detach().clone().double()
        optimizer = make_optimizer(_Module(weight), OptimizerJob(betas=betas))
        rates = [1e-3 * (1 + n % 3) for n in range(12)]
        for gradient, rate in zip(kinds, rates, strict=True):
            set_lr(optimizer, rate)
            weight.grad = gradient[:, None].clone()
            optimizer.step()
        factor, distance = outcome.allowed(rates, 0, 0.1, betas)
        went = (weight.detach().double() - begin * factor).abs().max()
        assert float(went) <= distance * (1 + 1e-4)
        worst = max(worst, float(went) / distance)
    assert worst > 0.9  # the limit is no larger than it has to be


class _Module:
    def __init__(self, weight: torch.nn.Parameter) -> None:
        self.weight = weight

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        yield self.weight

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        yield "weight", self.weight
