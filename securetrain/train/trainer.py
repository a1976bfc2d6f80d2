# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The training loop.

A step, in this order:

1. forward and backward; the loss is the sum over this rank's tokens divided by the tokens of all
   ranks, so that the result does not depend on how the rows were dealt out;
2. the guard judges what every rank sent, before anything is done with the sum;
3. one all-reduce carries the loss, the gradient's norm, whether anybody was asked to stop and how
   busy experts are: all ranks decide the same. Then the host waits for the device, once a step;
4. a step that is refused, or not finite, changes nothing: its gradients are dropped and it is
   recorded; otherwise clip, then step. Whether refused steps end the run the guard decides where it
   refuses them: one bad rank never does. What is not finite without a word of the guard's ends it
   after `max_refused` steps in a row;
5. a step counts whether or not it was refused: the next one reads other rows.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from securetrain.core.errors import GuardError
from securetrain.guard import Aftermath, Judged, Verdict
from securetrain.parallel import ParallelModel, clip_grads, squared_norm_share
from securetrain.train.baseline import Baselines
from securetrain.train.config import JobConfig
from securetrain.train.data import Rows, share
from securetrain.train.data.prefetch import Prefetch
from securetrain.train.metrics import StepMetrics
from securetrain.train.models.moe import balance_experts, busiest_expert, pop_expert_loads
from securetrain.train.models.shape import ModelShape, flops_per_token
from securetrain.train.optim import lr_at, set_lr
from securetrain.train.randomness import seed_step

LN2 = math.log(2)


class Judge(Protocol):
    """The part of `securetrain.guard.GradientGuard` that the loop needs."""

    def judge(self, step: int) -> Verdict:
        """The group's decision about this step; collective."""
        ...

    def bind_norm(self, total: torch.Tensor, grads: Sequence[torch.Tensor]) -> Aftermath:
        """Check the norm by which all are about to clip; collective."""
        ...

    @property
    def judged(self) -> Judged | None:
        """The table of the step that was judged last."""
        ...

    def follow(self, seeds: Sequence[bytes]) -> None:
        """Use recorded seeds for the next step, which is done again."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from them."""
        ...


class Stop(Protocol):
    """A request to end the run."""

    @property
    def requested(self) -> bool:
        """True once a signal has come."""
        ...


@dataclass(slots=True)
class Progress:
    """The integers that a checkpoint keeps besides tensors."""

    step: int = 0
    """Steps done; also the data's cursor."""
    refused: int = 0
    """Steps whose gradients were dropped."""
    refused_in_a_row: int = 0
    observed: int = 0
    """Steps that the guard did not like and that were applied all the same."""
    unwatched: int = 0
    """Steps that no guard saw."""
    clean_steps: int = 0
    """Steps in a row, up to this one, in which the guard found nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step, the same on every rank."""

    loss: float
    grad_norm: float
    lr: float
    seconds: float
    verdict: str
    """clean, settled, refused, observed or unwatched."""
    judged: Verdict | None
    """All that the guard says of it."""
    data_seconds: float
    """How long this rank waited for its rows."""
    refusal: GuardError | None
    halt: GuardError | None
    stop: bool
    expert_load: float | None = None
    """Tokens of the busiest expert over the mean; None for a dense model."""
    table: Judged | None = None
    """What the guard leaves of the step, to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStep:
    """The sums of a step over all ranks, on the device."""

    sums: torch.Tensor
    """Of losses, and of those that were asked to stop."""
    norm: torch.Tensor | None
    """Of the whole gradient; None when the guard refused it."""
    loads: torch.Tensor | None
    """Rows of each expert; None for a dense model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedStep:
    """The facts about a step that all ranks share."""

    loss: float
    """The mean over the step's tokens."""
    finite: bool
    """Whether losses and norms are, on every rank."""
    stop: bool
    """Whether any rank was asked to stop."""
    norm: float
    """Of the whole gradient, before clipping; not a number when the guard refused it."""
    expert_load: float | None


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One rank's part of a run. `train_step` and `evaluate` are collective."""

    job: JobConfig
    shape: ModelShape
    model: ParallelModel
    optimizer: torch.optim.Optimizer
    rows: Prefetch
    held_out: Rows | None
    guard: Judge | None
    max_refused: int
    """Steps in a row that may be refused before the run halts."""
    stop: Stop
    byte_tokens: bool = True
    """Whether a token is a byte, so that losses compare with what counting bytes achieves."""
    clock: Callable[[], float] = time.perf_counter
    progress: Progress = field(default_factory=Progress)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step over all ranks."""
        return self.job.data.batch_rows * self.job.data.seq_len

    def train_step(self) -> StepResult:
        """Do the next step."""
        begin, waited = self.clock(), self.rows.seconds
        step = self.progress.step + 1
        lr = lr_at(step, self.job.steps, self.job.optimizer)
        set_lr(self.optimizer, lr)
        mesh = self.model.mesh
        seed_step(self.job.seed, step, rows=mesh.dp_rank, stage=mesh.pp_rank)
        self.optimizer.zero_grad(set_to_none=True)
        local_loss = self._forward_backward(step)
        verdict = self.guard.judge(step) if self.guard is not None else None
        refusal, halt = _refusal(verdict)
        shared = self._share_step(local_loss, with_norm=refusal is None)
        norm = shared.norm
        if norm is not None and self.guard is not None:
            norm, verdict = self._bind(norm, self.guard, verdict)
            refusal, halt = _refusal(verdict)
        agreed = self._read_step(shared, norm)
        if refusal is None and not agreed.finite:
            # The guard names the rank where there is one; this is what stands without it.
            refusal = GuardError(
                "ST-GRAD-001",
                f"step {step}: the loss or the gradient's norm is not finite",
                "gradients",
            )
        if refusal is None:
            assert norm is not None
            clip_grads(self.model.parameters(), norm, self.job.optimizer.clip)
            self.optimizer.step()
            if shared.loads is not None:
                balance_experts(self.model, self.shape, shared.loads)
            self.progress.refused_in_a_row = 0
        else:
            self.progress.refused += 1
            self.progress.refused_in_a_row += 1
            if verdict is None or verdict.proceed:
                halt = halt or self._too_many(step, refusal)
        self.optimizer.zero_grad(set_to_none=True)
        word = _verdict_word(verdict, refusal)
        self.progress.step = step
        self.progress.observed += int(word == "observed")
        self.progress.unwatched += int(verdict is None)
        clean = word == "clean" and verdict is not None and not verdict.excluded
        self.progress.clean_steps = self.progress.clean_steps + 1 if clean else 0
        return StepResult(
            loss=agreed.loss,
            grad_norm=agreed.norm,
            lr=lr,
            seconds=self.clock() - begin,
            verdict=word,
            judged=verdict,
            data_seconds=self.rows.seconds - waited,
            refusal=refusal,
            halt=halt,
            stop=agreed.stop,
            expert_load=agreed.expert_load,
            table=None if self.guard is None else self.guard.judged,
        )

    @torch.no_grad()
    def evaluate(self) -> float | None:
        """Bits a token on the held-out split, the same on every rank; None without such a split."""
        if self.held_out is None:
            return None
        rows = self._share(self.job.eval.rows)
        chunk = len(self._share(self.job.data.batch_rows))
        total = torch.zeros((), dtype=torch.float64, device=self.model.device)
        self.model.train(mode=False)
        for start in range(0, len(rows), chunk):
            batch = self.held_out.spaced(self.job.eval.rows, rows[start : start + chunk])
            total += self.model.loss_sum(*batch).double()
        self.model.train(mode=True)
        dist.all_reduce(total)
        nats = float(total) / self.model.mesh.degrees.tp
        return nats / (self.job.eval.rows * self.job.data.seq_len) / LN2

    def metrics(
        self, result: StepResult, *, peak: float | None, world: int, bits: float | None,
        baselines: Baselines | None,
    ) -> StepMetrics:  # fmt: skip
        """The line of metrics.jsonl for a step."""
        speed = self.tokens_per_step / result.seconds
        flops = flops_per_token(self.shape, self.job.data.seq_len)
        shown = baselines if bits is not None else None
        return StepMetrics(
            step=self.progress.step,
            loss=result.loss,
            bits_per_byte=result.loss / LN2 if self.byte_tokens else None,
            data_seconds=result.data_seconds,
            grad_norm=result.grad_norm,
            tokens_per_second=speed,
            mfu=None if peak is None else flops * speed / (peak * world),
            lr=result.lr,
            seconds=result.seconds,
            tokens=self.progress.step * self.tokens_per_step,
            verdict=result.verdict,
            val_bits_per_byte=bits if self.byte_tokens else None,
            val_loss=None if bits is None else bits * LN2,
            unigram_bits=shown.unigram if shown else None,
            bigram_bits=shown.bigram if shown else None,
            expert_load=result.expert_load,
        )

    def _share(self, rows: int) -> range:
        mesh = self.model.mesh
        return share(rows, mesh.dp_rank, mesh.degrees.dp)

    def _forward_backward(self, step: int) -> torch.Tensor:
        """This rank's part of the step's mean loss, detached."""
        batch = self.rows.batch(step, self._share(self.job.data.batch_rows))
        return self.model.forward_backward(*batch, self.tokens_per_step)

    def _bind(
        self, norm: torch.Tensor, guard: Judge, verdict: Verdict | None
    ) -> tuple[torch.Tensor, Verdict | None]:
        """The norm that all may clip by, and the last verdict on this step."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        after = guard.bind_norm(norm, [p.grad for p in parameters if p.grad is not None])
        if after.drop:
            for parameter in parameters:
                parameter.grad = None
        return after.value, after.verdict or verdict

    def _share_step(self, local_loss: torch.Tensor, *, with_norm: bool) -> SharedStep:
        """Add up over all ranks what they decide by."""
        degrees = self.model.mesh.degrees
        stop = torch.full_like(local_loss, float(self.stop.requested), dtype=torch.float64)
        said = [local_loss.double(), stop]
        if with_norm:
            square = squared_norm_share(self.model.parameters(), degrees.world // degrees.pp)
            said.append(square.to(local_loss.device))  # gradients may lie in host memory
        loads = pop_expert_loads(self.model, self.shape)
        sums = torch.stack(said)
        if loads is not None:
            sums = torch.cat((sums, loads.flatten()))
        dist.all_reduce(sums)
        return SharedStep(
            sums=sums[:2],
            norm=sums[2].sqrt() if with_norm else None,
            loads=None if loads is None else sums[len(said) :].view_as(loads),
        )

    def _read_step(self, shared: SharedStep, norm: torch.Tensor | None) -> ReducedStep:
        """Decide with all ranks: the only place where the host waits for the device."""
        known = [shared.sums]
        if shared.loads is not None:
            known.append(busiest_expert(shared.loads).view(1))
        if norm is not None:
            known.append(norm.double().to(shared.sums.device).view(1))
        loss, stops, *rest = torch.cat(known).tolist()
        length = rest.pop() if norm is not None else math.nan
        return ReducedStep(
            # Ranks that share matrices have computed the same loss.
            loss=loss / self.model.mesh.degrees.tp,
            # One odd number on one rank makes the sum odd.
            finite=math.isfinite(loss) and (norm is None or math.isfinite(length)),
            stop=stops > 0,
            norm=length,
            expert_load=rest.pop() if rest else None,
        )

    def _too_many(self, step: int, refusal: GuardError) -> GuardError | None:
        if self.progress.refused_in_a_row < self.max_refused:
            return None
        return GuardError(
            "ST-GRAD-005",
            f"step {step} is number {self.progress.refused_in_a_row} in a row that was refused;"
            f" the last one because: {refusal.code} {refusal.what}",
            "gradients.max_refused_steps",
        )


def _refusal(verdict: Verdict | None) -> tuple[GuardError | None, GuardError | None]:
    """Explain why the guard refuses a step, and why it halts the run."""
    if verdict is None or verdict.proceed:
        return None, None
    halt = None
    try:
        verdict.raise_if_halted()
    except GuardError as error:
        halt = error
    code = verdict.codes[0] if verdict.codes else "ST-GRAD-002"
    ranks = ", ".join(map(str, verdict.outliers)) or "none that can be named"
    refusal = GuardError(
        code, f"step {verdict.step}: {verdict.reason} (ranks: {ranks})", "gradients", ""
    )
    return refusal, halt


def _verdict_word(verdict: Verdict | None, refusal: GuardError | None) -> str:
    if refusal is not None:
        return "refused"
    if verdict is None:
        return "unwatched"
    if verdict.settled:
        return "settled"
    return "clean" if verdict.ok else "observed"
