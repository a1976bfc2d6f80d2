# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Steps that are done again: honest ones give what was saved, and forged ones are found.

Every forged checkpoint is signed by the run's own keys, and a verifier of signatures accepts it.
"""

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from securetrain.artifacts import verify_path
from securetrain.artifacts.lineage import checkpoints_of
from securetrain.chain import Comparison, documents
from securetrain.chain.records import StepRecord, StepVerdict, number
from securetrain.chain.replay import (
    AskedSegment,
    RankFound,
    Request,
    SegmentOutcome,
    outcome_of,
)
from securetrain.chain.replay.reach import rate_at
from securetrain.core.errors import GuardError
from securetrain.core.rundir import RunDir
from securetrain.testing.runs import SmallRun, make_run
from securetrain.train import again
from securetrain.train.checkpointing import Checkpoints
from securetrain.train.config import JobConfig, OptimizerJob, RateSchedule, parse_job
from securetrain.train.optim import lr_at, make_optimizer, set_lr
from securetrain.train.run import run_job
from securetrain.train.setup import Worker, run_id_of
from securetrain.train.trainer import StepResult, Trainer
from tests.train.conftest import now
from tests.train.jobs import JOB
from tests.train.test_run import StopAt

pytestmark = pytest.mark.usefixtures("one_rank")


def job_of(precision: str = "fp32", seed: int = 0, steps: int = 6) -> JobConfig:
    text = JOB.replace("steps: 6", f"steps: {steps}\nprecision: {precision}\nseed: {seed}")
    return parse_job(text.replace("eval: {every: 3, rows: 4}", "eval: {every: 0, rows: 4}"), "job")


def worker(run: RunDir) -> Worker:
    return Worker(
        run=run, device=torch.device("cpu"), clock=now, stop=StopAt(), console=io.StringIO()
    )


@dataclass
class Made:
    """A run with what it says of its steps."""

    run: SmallRun
    job: JobConfig
    records: list[StepRecord]
    again_run: SmallRun
    steps: tuple[int, ...] = (3, 6)

    @property
    def digests(self) -> dict[int, str]:
        folder, trust = self.run.run_dir.checkpoints, self.run.trust
        run = checkpoints_of(folder, _run_id(self.run), trust)
        return {one.checkpoint.step: one.digest for one in run}

    def asked(self, after: int, last: int, *, again: bool = True) -> AskedSegment:
        folder, digests = self.run.run_dir, self.digests
        said = self.records[after:last]
        return AskedSegment(
            begin=str(folder.checkpoint(after)) if after else "",
            begin_digest=digests[after] if after else "",
            end=str(folder.checkpoint(last)),
            end_digest=digests[last],
            after=after,
            last=last,
            rates=tuple(one.lr for one in said if one.verdict is not StepVerdict.REFUSED),
            refused=tuple(one.step for one in said if one.verdict is StepVerdict.REFUSED),
            again=again,
        )

    def outcomes(
        self, *segments: tuple[int, int], again: bool = True, job: JobConfig | None = None
    ) -> list[SegmentOutcome]:
        asked = tuple(self.asked(*one, again=again) for one in segments)
        return self.judged(answer(self, asked, job or self.job), asked)

    def judged(
        self,
        found: RankFound,
        asked: Sequence[AskedSegment],
        comparison: Comparison = Comparison.EXACT,
    ) -> list[SegmentOutcome]:
        return [
            outcome_of(
                one.begin_digest,
                one.end_digest,
                one.after,
                self.records[one.after : one.last],
                [part],
                comparison,
                self.job.precision.value,
                again=one.again,
            )
            for one, part in zip(asked, found.segments, strict=True)
        ]


def _run_id(run: SmallRun) -> str:
    return run_id_of(run.trust)


def answer(made: Made, asked: tuple[AskedSegment, ...], job: JobConfig) -> RankFound:
    """Answer a request as a worker does, in this process."""
    run = made.again_run.run_dir
    shutil.rmtree(run.checkpoints)
    run.checkpoints.mkdir()
    if not run.dataset.exists():
        shutil.copytree(made.run.run_dir.dataset, run.dataset)
    request = Request(trust=str(made.run.run_dir.trust), segments=asked)
    mine = msgspec.structs.replace(job, trust=str(made.run.run_dir.trust))
    mine = msgspec.structs.replace(
        mine, data=msgspec.structs.replace(job.data, dataset=str(made.run.run_dir.dataset))
    )
    again._answer(mine, "job", worker(run), request, run)
    data = (run.checkpoints / again.answer_name(0)).read_bytes()
    return documents.decode(data, RankFound)


@pytest.fixture
def train(
    tmp_path: Path, new_run: Callable[..., SmallRun], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Made]:
    """Train; the records of the steps are what an honest trainer writes."""

    def made(job: JobConfig | None = None, *, name: str = "run") -> Made:
        job = job or job_of()
        run, records = new_run(name), []

        def record(self: Checkpoints, result: StepResult, step: int) -> None:
            records.append((result, step))

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "record", record)
            run_job(job, "job", worker(run.run_dir))
        order = _order(job, run)
        said = [
            StepRecord(
                step=step,
                loss=number(result.loss),
                norm=number(result.grad_norm),
                lr=number(result.lr),
                verdict=StepVerdict(result.verdict),
                watched=result.judged is not None,
                rows=order.root(step),
            )
            for result, step in records
        ]
        other = make_run(tmp_path / f"{name}-again", clock=now)
        return Made(run=run, job=job, records=said, again_run=other)

    return made


def _order(job: JobConfig, run: SmallRun) -> Any:
    from securetrain.artifacts import VerifiedDataset
    from securetrain.train.data.open import plan_data

    with VerifiedDataset.open(
        run.run_dir.dataset, trust=run.trust, policy=run.policy.policy, now=now()
    ) as data:
        return plan_data(job, "job", data).open().train.described(job.data.batch_rows)


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


def test_a_learning_rate_that_is_a_thousandth_off_is_found(train, monkeypatch):
    import securetrain.train.trainer as place

    with monkeypatch.context() as patch:
        patch.setattr(place, "set_lr", lambda optimizer, rate: set_lr(optimizer, rate * 1.001))
        made = train()
    accepted(made, 6)
    first, second = made.outcomes((0, 3), (3, 6))
    assert first.step == 2  # the first loss after a step that went too far
    assert second.step == 5
    assert first.tensor
    assert any("loss was recorded" in problem for problem in first.problems)
    # Elsewhere, too: far outside of the bound.
    asked = (made.asked(3, 6),)
    (bound,) = made.judged(answer(made, asked, made.job), asked, Comparison.BOUND)
    assert not bound.ok
    assert bound.difference > 1e-4


def test_a_row_that_was_exchanged_is_found(train, monkeypatch):
    from securetrain.train.data.prefetch import Prefetch

    real = Prefetch.batch

    def other(self: Prefetch, step: int, rows: Any) -> Any:
        inputs, targets = real(self, step, rows)
        if step == 5:
            inputs, targets = inputs.clone(), targets.clone()
            inputs[1], targets[1] = inputs[0].clone(), targets[0].clone()
        return inputs, targets

    with monkeypatch.context() as patch:
        patch.setattr(Prefetch, "batch", other)
        made = train()
    accepted(made, 6)
    first, second = made.outcomes((0, 3), (3, 6))
    assert first.ok
    assert second.step == 5
    asked = (made.asked(3, 6),)
    (bound,) = made.judged(answer(made, asked, made.job), asked, Comparison.BOUND)
    assert bound.step == 5


def test_one_weight_that_was_moved_a_little_is_found(train, monkeypatch):
    real = Checkpoints.save

    def save(self: Checkpoints, trainer: Trainer) -> None:
        if trainer.progress.step == 6:
            with torch.no_grad():
                weight = dict(trainer.model.named_parameters())["layers.1.attention.wq.weight"]
                weight[3, 4] += 1e-4
        real(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        made = train()
    accepted(made, 6)
    first, second = made.outcomes((0, 3), (3, 6))
    assert first.ok
    assert second.step is None  # all steps were honest
    assert second.tensor == "model.layers.1.attention.wq.weight"
    assert "1 of 1024 elements" in second.problems[0]
    asked = (made.asked(3, 6),)
    (bound,) = made.judged(answer(made, asked, made.job), asked, Comparison.BOUND)
    assert bound.tensor == "model.layers.1.attention.wq.weight"
    assert not bound.ok


@pytest.mark.parametrize(
    "what",
    ["weight", *(pytest.param(one, marks=pytest.mark.many) for one in ("moment", "count"))],
)
def test_what_adamw_cannot_do_is_found_without_a_step(train, monkeypatch, what):
    real = Checkpoints.save

    def save(self: Checkpoints, trainer: Trainer) -> None:
        if trainer.progress.step == 6:
            name, weight = next(iter(trainer.model.named_parameters()))
            del name
            state = trainer.optimizer.state[weight]
            with torch.no_grad():
                match what:
                    case "weight":
                        weight[0, 0] += 0.1
                    case "moment":
                        state["exp_avg"][0, 0] = 1.0
                    case _:
                        state["step"] += 1
        real(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        made = train()
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
    from securetrain.chain.replay import allowed

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
        factor, distance = allowed(rates, 0, 0.1, betas)
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
