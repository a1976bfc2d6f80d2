# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runs whose steps are done again, honest and forged, for tests and the campaign `replay`.

A forged run is signed by its own keys, and whoever checks signatures alone takes it.
"""

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch

import securetrain.train.trainer as loop
from securetrain.artifacts import Dataset, Kind, tensor_sizes
from securetrain.artifacts.lineage import folder as run_folder
from securetrain.artifacts.statement.reading import read_statement
from securetrain.artifacts.statement.statements import open_statement
from securetrain.chain import documents
from securetrain.chain.records import Comparison, StepRecord, StepVerdict, number
from securetrain.chain.replay import outcome
from securetrain.core.rundir import RunDir
from securetrain.testing.runs import SmallRun, make_run
from securetrain.train import again
from securetrain.train.checkpointing import Checkpoints
from securetrain.train.config import JobConfig, parse_job
from securetrain.train.data.open import plan_data
from securetrain.train.data.prefetch import Prefetch
from securetrain.train.optim import set_lr
from securetrain.train.run import run_job
from securetrain.train.setup import Worker, run_id_of
from securetrain.train.trainer import StepResult, Trainer
from tests.train.conftest import now
from tests.train.jobs import JOB
from tests.train.test_run import StopAt

Forge = Any
"""A context in which a run is trained."""


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
        run = run_folder.checkpoints_of(folder, _run_id(self.run), trust)
        return {one.checkpoint.step: one.digest for one in run}

    def asked(self, after: int, last: int, *, again: bool = True) -> outcome.AskedSegment:
        folder, digests = self.run.run_dir, self.digests
        said = self.records[after:last]
        return outcome.AskedSegment(
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
    ) -> list[outcome.SegmentOutcome]:
        asked = tuple(self.asked(*one, again=again) for one in segments)
        return self.judged(answer(self, asked, job or self.job), asked)

    def judged(
        self,
        found: outcome.RankFound,
        asked: Sequence[outcome.AskedSegment],
        comparison: Comparison = Comparison.EXACT,
    ) -> list[outcome.SegmentOutcome]:
        return [
            outcome.outcome_of(
                one.begin_digest,
                one.end_digest,
                one.after,
                self.records[one.after : one.last],
                [part],
                comparison,
                self.job.precision.value,
                again=one.again,
                sizes=self.sizes(one.end),
            )
            for one, part in zip(asked, found.segments, strict=True)
        ]

    def sizes(self, place: str) -> dict[str, int]:
        """The elements of each tensor of a checkpoint."""
        data = read_statement(Path(place), Kind.CHECKPOINT)
        opened = open_statement(data, Kind.CHECKPOINT, self.run.trust)
        return tensor_sizes(Path(place), opened.checkpoint)


def _run_id(run: SmallRun) -> str:
    return run_id_of(run.trust)


def answer(
    made: Made, asked: tuple[outcome.AskedSegment, ...], job: JobConfig
) -> outcome.RankFound:
    """Answer a request as a worker does, in this process."""
    run = made.again_run.run_dir
    shutil.rmtree(run.checkpoints)
    run.checkpoints.mkdir()
    if not run.dataset.exists():
        shutil.copytree(made.run.run_dir.dataset, run.dataset)
    request = outcome.Request(trust=str(made.run.run_dir.trust), segments=asked)
    mine = msgspec.structs.replace(job, trust=str(made.run.run_dir.trust))
    mine = msgspec.structs.replace(
        mine, data=msgspec.structs.replace(job.data, dataset=str(made.run.run_dir.dataset))
    )
    again._answer(mine, "job", worker(run), request, run)
    data = (run.checkpoints / again.answer_name(0)).read_bytes()
    return documents.decode(data, outcome.RankFound)


def record_run(
    folder: Path,
    run: SmallRun,
    job: JobConfig | None = None,
    *,
    name: str = "run",
    forge: Forge = None,
) -> Made:
    """Train; the records of the steps are what an honest trainer writes.

    Args:
        folder: For the run in which the steps are done again.
        run: The run, with its dataset.
        job: The job.
        name: Of the run.
        forge: What is done to the training meanwhile.
    """
    job = job or job_of()
    records: list[tuple[StepResult, int]] = []

    def record(self: Checkpoints, result: StepResult, step: int) -> None:
        del self
        records.append((result, step))

    with patch.object(Checkpoints, "record", record), forge or nullcontext():
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
    other = make_run(folder / f"{name}-again", clock=now)
    return Made(run=run, job=job, records=said, again_run=other)


def _order(job: JobConfig, run: SmallRun) -> Any:
    with Dataset.open(
        run.run_dir.dataset, trust=run.trust, policy=run.policy.policy, now=now()
    ) as data:
        return plan_data(job, "job", data).open().train.described(job.data.batch_rows)


@contextmanager
def another_rate(factor: float = 1.001) -> Iterator[None]:
    """Every step uses a learning rate that is a little off; the records say the declared one."""
    with patch.object(loop, "set_lr", lambda optimizer, rate: set_lr(optimizer, rate * factor)):
        yield


@contextmanager
def another_row(step: int, place: int = 1, source: int = 0) -> Iterator[None]:
    """One row of a step is another row of it."""
    real = Prefetch.batch

    def other(self: Prefetch, at: int, rows: Any) -> Any:
        inputs, targets = real(self, at, rows)
        if at == step:
            inputs, targets = inputs.clone(), targets.clone()
            inputs[place], targets[place] = inputs[source].clone(), targets[source].clone()
        return inputs, targets

    with patch.object(Prefetch, "batch", other):
        yield


@contextmanager
def changed_at(step: int, change: Callable[[Trainer], None]) -> Iterator[None]:
    """Something is changed before the checkpoint of a step is saved."""
    real = Checkpoints.save

    def save(self: Checkpoints, trainer: Trainer) -> None:
        if trainer.progress.step == step:
            with torch.no_grad():
                change(trainer)
        real(self, trainer)

    with patch.object(Checkpoints, "save", save):
        yield
