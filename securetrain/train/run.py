# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A whole training run on one rank: resume, steps, and what happens between them.

After every step, in this order: evaluate when due, write the metrics, record a refusal in the
ledger, halt when the guard says so, save when due. A checkpoint that is being written in the
background is settled before the next step, before a halt and at the end.

Being asked to stop (a signal on any rank) ends
the run after the step that is being done, with a checkpoint: never in the middle of one.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from securetrain.core import ExitCode
from securetrain.core.errors import SecureTrainError
from securetrain.guard import Verdict, sketch_backend, verdict_events
from securetrain.ledger import events
from securetrain.policy.schema import GuardResponse
from securetrain.train.agree import rank_zero_decides, recording_refusals
from securetrain.train.baseline import Baselines, baselines
from securetrain.train.config import JobConfig
from securetrain.train.metrics import MetricsWriter, peak_flops
from securetrain.train.models.hf_weights import load_weights
from securetrain.train.models.shape import num_parameters
from securetrain.train.process import peak_memory
from securetrain.train.profiling import Profiler
from securetrain.train.prometheus import PrometheusFile
from securetrain.train.self_check import check_job
from securetrain.train.setup import Session, Worker, open_session
from securetrain.train.trainer import StepResult

FIRST_TIMEOUT: Final = timedelta(minutes=10)
"""For everything up to the end of the first step: compilers, cold disks, slow ranks."""
STEADY_TIMEOUT: Final = timedelta(minutes=3)
"""Afterwards: a rank that is silent for this long is gone."""
COLLECT_EVERY: Final = 50
"""Steps between garbage collections, which all ranks do at the same time."""


def run_job(
    job: JobConfig, where: str, worker: Worker, *, stop_after: int | None = None
) -> ExitCode:
    """Train; collective.

    Args:
        job: The job.
        where: The job file's name, for messages.
        worker: This process.
        stop_after: Save and end after this step, although the job has more.

    Returns:
        OK, or INTERRUPTED when somebody asked the run to stop.

    Raises:
        SecureTrainError: something was refused, or the guard halted the run (ST-GRAD-005).
    """
    session = open_session(job, where, worker)
    try:
        with recording_refusals(session.ledger, events.CheckpointRefused, "resume"):
            resumed = session.checkpoints.resume(session.trainer, job.checkpoint.resume)
        if resumed is None:
            _check_mesh(session)
            _start_from(session)
            if session.may_roll_back:
                session.checkpoints.save(session.trainer)  # there is always one to go back to
        last = job.steps if stop_after is None else min(stop_after, job.steps)
        with _writer(session) as writer, _collected():
            return _Loop(session, writer, _count(session)).run(last)
    finally:
        session.close()


def _check_mesh(session: Session) -> None:
    """Compare a small copy of the model on the mesh with one process (collective)."""
    worker, subject = session.worker, str(session.mesh.degrees)
    try:
        found = check_job(session.job, session.mesh, worker.device)
    except SecureTrainError as error:
        if worker.is_rank_zero:
            session.ledger.write(events.MeshRefused.of(error, subject))
        raise
    if worker.is_rank_zero:
        session.ledger.write(
            events.MeshChecked(
                subject=subject,
                steps=found.steps,
                loss=found.loss,
                norm=found.norm,
                left_out=", ".join(found.left_out),
            )
        )


def _start_from(session: Session) -> None:
    """Read the weights that the job names, if it names any (collective)."""
    model = session.weights
    if model is None:
        return
    path = str(session.job.model.weights)
    with recording_refusals(session.ledger, events.WeightsRefused, path):
        load_weights(session.trainer.model.named_parameters(), model)
    if session.worker.is_rank_zero:
        session.ledger.write(
            events.WeightsLoaded(subject=path, digest=model.digest, signer=model.signer)
        )


@dataclass(slots=True)
class _Loop:
    session: Session
    writer: MetricsWriter | None
    """Rank 0's; None on the others."""
    baselines: Baselines | None
    bits: float | None = None
    """The last validation result."""
    steady: bool = False
    """Whether a silent rank is a lost one by now."""
    profiler: Profiler = field(init=False)

    def __post_init__(self) -> None:
        folder = self.session.worker.run.profile
        self.profiler = Profiler(self.session.job.profile, folder, dist.get_rank())

    def run(self, last: int) -> ExitCode:
        """Train up to step `last`."""
        progress = self.session.trainer.progress
        self._say(self._greeting(progress.step))
        begin = progress.step
        result: StepResult | None = None
        while self.session.trainer.progress.step < last and not (result and result.stop):
            result = self._step(last)
            step = self.session.trainer.progress.step
            if step == begin + 1:
                self._tighten()
            if step % COLLECT_EVERY == 0:
                gc.collect()
        self._settle(wait=True)
        step = self.session.trainer.progress.step
        if step < last:
            self._say(f"stopped after step {step}; the state is saved")
            return ExitCode.INTERRUPTED
        if result is not None and step == self.session.job.steps:
            self._finish(result)
        return ExitCode.OK

    def _step(self, last: int) -> StepResult:
        job, trainer = self.session.job, self.session.trainer
        subject = str(self.session.dataset.path)
        self._settle(wait=False)
        self.profiler.begin(trainer.progress.step + 1)
        with recording_refusals(self.session.ledger, events.DatasetRefused, subject):
            result = trainer.train_step()
            step = trainer.progress.step
            ends = result.stop or step >= last
            trace = self.profiler.end(step, ends=ends)
            # Somebody who asks to stop does not want to wait for an evaluation.
            due = _due(job.eval.every, step, ends=step >= last)
            bits = trainer.evaluate() if due else None
        self.bits = self.bits if bits is None else bits
        self.session.checkpoints.record(result, step)
        self._write(result, bits, ends=ends)
        self._record(result)
        if trace is not None:
            self._say(f"profiled: {trace.parent}")
        if result.halt is not None:
            self._settle(wait=True)
            raise result.halt
        if result.judged is not None and result.judged.response is GuardResponse.ROLLBACK:
            self._roll_back(result.judged)
            return result
        if _due(job.checkpoint.every, step, ends=ends):
            if self.writer is not None:
                self.writer.sync()
            with self._patiently():
                self.session.checkpoints.save(trainer)
        return result

    def _roll_back(self, verdict: Verdict) -> None:
        session = self.session
        refusals = recording_refusals(session.ledger, events.CheckpointRefused, "rollback")
        with refusals, self._patiently():
            step = session.checkpoints.roll_back(session.trainer, verdict)
        ranks = ", ".join(map(str, verdict.newly_excluded))
        if step is None:
            self._say(
                f"step {verdict.step}: rank {ranks} is excluded; no checkpoint from before its"
                " offence is left to go back to"
            )
            return
        if self.writer is not None:
            self.writer.rewind(step)
        self._say(f"step {verdict.step}: rank {ranks} is excluded; back to step {step}")

    def _write(self, result: StepResult, bits: float | None, *, ends: bool) -> None:
        session = self.session
        step = session.trainer.progress.step
        # A refused step is always written: it is what people look for.
        due = step % session.job.metrics.every == 0 or ends or bits is not None
        if self.writer is None or not (due or result.refusal is not None):
            return
        device = session.worker.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        metrics = session.trainer.metrics(
            result,
            peak=peak_flops(name),
            world=dist.get_world_size(),
            bits=bits,
            baselines=self.baselines,
        )
        self.writer.write(replace(metrics, memory_bytes=peak_memory(device)))
        if result.judged is not None:
            self.writer.write_verdict(result.judged)

    def _settle(self, *, wait: bool) -> None:
        """Hear how a checkpoint in the background went (collective while there is one)."""
        checkpoints = self.session.worker.run.checkpoints
        ledger = self.session.ledger
        refusals = recording_refusals(ledger, events.CheckpointRefused, str(checkpoints))
        with refusals, self._patiently():
            self.session.checkpoints.settle(wait=wait)

    def _record(self, result: StepResult) -> None:
        if not self.session.worker.is_rank_zero:
            return
        ledger, step = self.session.ledger, self.session.trainer.progress.step
        if result.judged is not None:
            for event in verdict_events(result.judged):
                ledger.write(event)
        if result.refusal is None:
            return
        ledger.write(events.StepRefused.of(result.refusal, f"step {step}"))
        if result.halt is not None:
            ledger.write(events.RunHalted.of(result.halt, f"step {step}"))

    def _finish(self, result: StepResult) -> None:
        """The figures of the run, signed: a report cannot overstate them."""
        progress = self.session.trainer.progress
        tokens = progress.step * self.session.trainer.tokens_per_step
        if self.session.worker.is_rank_zero:
            is_bytes = self.session.trainer.byte_tokens
            self.session.ledger.write(
                events.TrainingFinished(
                    subject=f"step {progress.step}",
                    tokens=tokens,
                    refused=progress.refused,
                    observed=progress.observed,
                    loss=result.loss,
                    validation_bits_per_byte=self.bits if is_bytes else None,
                    validation_bits_per_token=None if is_bytes else self.bits,
                )
            )
        text = f"done: {progress.step} steps, {tokens:,} tokens"
        if self.bits is not None:
            unit = "byte" if self.session.trainer.byte_tokens else "token"
            text += f", validation {self.bits:.3f} bits/{unit}"
        if self.baselines is not None:
            text += f" (unigram {self.baselines.unigram:.3f}, bigram {self.baselines.bigram:.3f})"
        self._say(text)

    def _tighten(self) -> None:
        """After the first step a silent rank is a lost rank."""
        for group in self.session.mesh.groups:
            _set_pg_timeout(STEADY_TIMEOUT, group)
        self.steady = True

    @contextmanager
    def _patiently(self) -> Iterator[None]:
        """Storage may take longer than a step: what the job's own group says meanwhile may wait."""
        if not self.steady:
            yield
            return
        _set_pg_timeout(FIRST_TIMEOUT)
        try:
            yield
        finally:
            _set_pg_timeout(STEADY_TIMEOUT)

    def _say(self, text: str) -> None:
        if self.writer is not None:
            self.writer.say(text)

    def _greeting(self, step: int) -> str:
        session = self.session
        text = (
            f"{session.job.name}: {num_parameters(session.trainer.shape):,} parameters,"
            f" {session.mesh.degrees},"
            f" {session.data.tokens:,} tokens of verified data"
        )
        if session.trainer.guard is not None:
            text += f", sketches by {sketch_backend()}"
        return f"{text}, resumed after step {step}" if step else text


def _due(every: int, step: int, *, ends: bool) -> bool:
    return ends or (every > 0 and step % every == 0)


def _count(session: Session) -> Baselines | None:
    """Rank 0 counts bytes while the others wait, so that a refusal stops them too."""
    found: list[Baselines] = []
    text = session.data.text
    if text is None:
        return None

    def count() -> int:
        with recording_refusals(session.ledger, events.DatasetRefused, str(session.dataset.path)):
            found.append(baselines(*text))
        return 0

    rank_zero_decides(count, session.worker.device)
    return found[0] if found else None


@contextmanager
def _writer(session: Session) -> Iterator[MetricsWriter | None]:
    worker, job = session.worker, session.job
    if not worker.is_rank_zero:
        yield None
        return
    with MetricsWriter(
        path=worker.run.metrics,
        tensorboard=worker.run.tensorboard if job.metrics.tensorboard else None,
        console=worker.console,
        console_every=job.metrics.console_every,
        steps=job.steps,
        resumed_at=session.trainer.progress.step,
        prometheus=PrometheusFile(
            worker.run.prometheus, run=session.checkpoints.run_id, job=job.name
        )
        if job.metrics.prometheus
        else None,
    ) as writer:
        yield writer


@contextmanager
def _collected() -> Iterator[None]:
    """Garbage is collected between steps, on all ranks at once, not whenever one rank likes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
