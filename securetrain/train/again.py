# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``python -m securetrain.train.again job.yaml request.json``: do recorded steps again.

It runs under `securetrain run`, in a run directory of its own with keys of its own, like any other
job. For each segment, in order:

1. the checkpoint that it begins with is loaded, verified under the trust root that the request
   names; a segment from the beginning of the run starts from the weights that the seed gives;
2. its steps are done as the trainer does them. One that was refused changes nothing, and is
   passed over;
3. the checkpoint that it ends with is loaded beside, verified alike, and each rank compares its
   part of every tensor. Two checkpoints are held against what AdamW can do, whether steps are done
   or not.

Each rank writes down what it found. Nothing is judged here (`chain.replay`). Last, a checkpoint is
saved, so that the launcher keeps the code and the environment of these steps.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from securetrain.artifacts import Expectation
from securetrain.chain import documents
from securetrain.chain.records import StepRecord, StepVerdict, number, table_digest
from securetrain.chain.replay import outcome
from securetrain.core import SIGNER_VARIABLE, RunDir
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import read_file, write_atomic
from securetrain.identity import load_trust
from securetrain.train.__main__ import StopFlag, run_dir_of
from securetrain.train.config import JobConfig, load_job
from securetrain.train.fitting import load_into
from securetrain.train.optim import STATES, lr_at
from securetrain.train.process import start_group
from securetrain.train.run import FIRST_TIMEOUT
from securetrain.train.saved_state import GUARD, PROGRESS, restore, state_of
from securetrain.train.setup import Session, Worker, open_session

REQUEST_LIMIT: Final = 1 << 30
MODEL: Final = "model."
OPTIMIZER: Final = "optim."
_ROUNDING: Final = 1.2e-7
"""One step rounds a weight by at most so much of it (float32)."""
_TINY: Final = 1e-17
"""Below this the square of a gradient has no place in float32."""


def answer_name(rank: int) -> str:
    """The file among the checkpoints, where workers may write, that holds a rank's answer."""
    return f"replay-{rank:05d}.json"


def main(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Answer a request on one rank.

    Raises:
        SecureTrainError: Something was refused.
    """
    parser = argparse.ArgumentParser(prog="securetrain.train.again")
    parser.add_argument("job", type=Path)
    parser.add_argument("request", type=Path)
    asked = parser.parse_args(argv)
    job = load_job(asked.job)
    data = read_file(asked.request, REQUEST_LIMIT)
    request = documents.decode(data, outcome.Request, str(asked.request))
    run = run_dir_of(environment)
    device = start_group(os.environ, FIRST_TIMEOUT)
    try:
        worker = Worker(
            run=run,
            device=device,
            clock=lambda: datetime.now(UTC),
            stop=StopFlag(),
            console=sys.stdout,
            is_node_leader=environment.get("LOCAL_RANK") == "0",
            signer=environment.get(SIGNER_VARIABLE, ""),
        )
        _answer(job, str(asked.job), worker, request, run)
    finally:
        dist.destroy_process_group()


def _answer(
    job: JobConfig, where: str, worker: Worker, request: outcome.Request, run: RunDir
) -> None:
    session = open_session(job, where, worker)
    session.checkpoints.recorder = None  # the answer has the records
    try:
        found = tuple(_segment(session, asked, Path(request.trust)) for asked in request.segments)
        made = outcome.RankFound(
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            mesh=str(session.mesh.degrees),
            segments=found,
        )
        write_atomic(run.checkpoints / answer_name(dist.get_rank()), documents.encode(made))
        session.checkpoints.save(session.trainer)
        session.checkpoints.settle(wait=True)
    finally:
        session.close()


def _segment(session: Session, asked: outcome.AskedSegment, trust: Path) -> outcome.SegmentFound:
    trainer = session.trainer
    live = state_of(trainer)
    if asked.begin:
        _load(session, live, asked.begin, asked.begin_digest, trust)
        restore(trainer, live)
    elif trainer.progress.step:
        raise ValueError("a run begins once: its first segment is asked for first")
    before = {name: _local(one).clone() for name, one in live.items() if name.startswith(MODEL)}
    done = {
        name: int(_local(live[f"{OPTIMIZER}{name.removeprefix(MODEL)}.step"]).item())
        for name in before
        if f"{OPTIMIZER}{name.removeprefix(MODEL)}.step" in live
    }
    records = _steps(session, asked) if asked.again else ()
    live = state_of(trainer)
    recorded: dict[str, Any] = {
        name: torch.empty_like(one) if isinstance(one, Tensor) else one
        for name, one in live.items()
    }
    _load(session, recorded, asked.end, asked.end_digest, trust)
    differ = asked.again and recorded[PROGRESS] != live[PROGRESS]
    return outcome.SegmentFound(
        records=records,
        tensors=tuple(_compare(session, asked, live, recorded, before, done)),
        values_differ=differ or recorded[PROGRESS]["step"] != asked.last,
    )


def _load(session: Session, state: dict[str, Any], path: str, digest: str, trust: Path) -> None:
    now = session.worker.clock()
    load_into(
        state,
        Path(path),
        shape=session.trainer.shape,
        trust=load_trust(trust, now),
        policy=None,
        now=now,
        expect=Expectation(digest=digest),
    )


def _steps(session: Session, asked: outcome.AskedSegment) -> tuple[StepRecord, ...]:
    trainer = session.trainer
    order = session.data.train.described(session.job.data.batch_rows)
    made: list[StepRecord] = []
    for step in range(asked.after + 1, asked.last + 1):
        if step in asked.refused:
            made.append(_passed(session, step, order.root(step)))
            continue
        if trainer.guard is not None and asked.seeds:
            seeds = asked.seeds[step - asked.after - 1]
            trainer.guard.follow([bytes.fromhex(seed) for seed in seeds])
        result = trainer.train_step()
        made.append(
            StepRecord(
                step=step,
                loss=number(result.loss),
                norm=number(result.grad_norm),
                lr=number(result.lr),
                verdict=StepVerdict(result.verdict),
                watched=result.judged is not None,
                without=() if result.judged is None else tuple(result.judged.excluded),
                rows=order.root(step),
                table=None if result.table is None else table_digest(result.table),
            )
        )
    return tuple(made)


def _passed(session: Session, step: int, rows: str) -> StepRecord:
    """A step whose gradients were dropped: it counts, and changes nothing."""
    trainer, job = session.trainer, session.job
    trainer.progress.step = step
    trainer.progress.refused += 1
    trainer.progress.refused_in_a_row += 1
    trainer.progress.clean_steps = 0
    rate = number(lr_at(step, job.steps, job.optimizer))
    watched = trainer.guard is not None
    return StepRecord(
        step=step,
        loss="nan",
        norm="nan",
        lr=rate,
        verdict=StepVerdict.REFUSED,
        watched=watched,
        rows=rows,
    )


def _compare(  # noqa: PLR0917 - two states, and what leads from one to the other
    session: Session,
    asked: outcome.AskedSegment,
    live: Mapping[str, Any],
    recorded: Mapping[str, Any],
    before: Mapping[str, Tensor],
    done: Mapping[str, int],
) -> Iterator[outcome.TensorFound]:
    """This rank's part of each tensor, in the order of the model."""
    rates = [float.fromhex(rate) for rate in asked.rates]
    optimizer = session.job.optimizer
    for name, one in recorded.items():
        if name in {PROGRESS, GUARD} or not isinstance(one, Tensor):
            continue
        theirs, ours = _local(one), _local(live[name])
        said: dict[str, Any] = {"square": _squared(theirs)}
        if asked.again:
            said |= _apart(theirs, ours)
        if name in before:
            said["moved"] = _squared(theirs.double() - before[name].double())
        if name in done:
            decay = optimizer.weight_decay if one.ndim > 1 else 0.0
            limits = outcome.allowed(rates, done[name], decay, optimizer.betas)
            said["reach"] = _reach(before[name], theirs, limits, len(rates))
            bare = name.removeprefix(MODEL)
            first, second = (_local(recorded[f"{OPTIMIZER}{bare}.{state}"]) for state in STATES)
            count = int(_local(recorded[f"{OPTIMIZER}{bare}.step"]).item())
            if count != done[name] + len(rates):
                said["moments"] = math.inf
            elif count:
                said["moments"] = _moments(
                    first, second, outcome.moment_limit(count, optimizer.betas)
                )
        differing = said.pop("differing", 0)
        yield outcome.TensorFound(
            name=name,
            size=theirs.numel(),
            differing=differing,
            **{key: number(value) for key, value in said.items()},
        )


def _local(tensor: Any) -> Tensor:
    """The part of a tensor that is on this rank."""
    found = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    assert isinstance(found, Tensor)
    return found.detach()


def _squared(tensor: Tensor) -> float:
    return float(tensor.double().square().sum()) if tensor.numel() else 0.0


def _apart(theirs: Tensor, ours: Tensor) -> dict[str, Any]:
    if not theirs.numel():
        return {}
    apart = (theirs.double() - ours.double()).abs()
    size = theirs.element_size()
    bits = theirs.contiguous().reshape(-1).view(torch.uint8).view(-1, size)
    other = ours.contiguous().reshape(-1).view(torch.uint8).view(-1, size)
    return {
        "differing": int((bits != other).any(dim=1).sum()),
        "difference": _squared(apart),
        "largest": float(apart.max()),
    }


def _reach(before: Tensor, after: Tensor, limits: tuple[float, float], steps: int) -> float:
    """The farthest that an element went, as a part of what is allowed."""
    if not after.numel():
        return 0.0
    factor, distance = limits
    begin, end = before.double(), after.double()
    went = (end - begin * factor).abs()
    went = went - steps * _ROUNDING * torch.maximum(begin.abs(), end.abs())
    farthest = float(went.clamp(min=0).max()) if bool(went.isfinite().all()) else math.inf
    if distance > 0:
        return farthest / distance
    return 0.0 if farthest == 0 else math.inf


def _moments(first: Tensor, second: Tensor, limit: float) -> float:
    """The largest |m| over sqrt(v), as a part of what is allowed."""
    if not first.numel():
        return 0.0
    if not bool(first.isfinite().all() and second.isfinite().all()) or bool((second < 0).any()):
        return math.inf
    most = (second.double().sqrt() + _TINY) * limit
    return float((first.double().abs() / most).max())


if __name__ == "__main__":
    try:
        main(sys.argv[1:], os.environ)
    except SecureTrainError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(int(error.exit_code)) from error
