# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Train a small model on a mesh for some steps, and compare with one process."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from securetrain.core.rundir import RunDir
from securetrain.parallel.engine import ParallelModel
from securetrain.parallel.mesh import make_mesh
from securetrain.policy.schema import Gradients, GuardMode
from securetrain.train.composition import check_world
from securetrain.train.config import parse_job
from securetrain.train.setup import Worker, build
from securetrain.train.trainer import Trainer
from tests.train.conftest import now
from tests.train.jobs import JOB, byte_rows

STEPS = 4
LOSS_TOLERANCE = 2e-4
NORM_TOLERANCE = 1e-2
"""Of the worst step; measured on every mesh of the matrix: below 2e-6 and 1e-5."""

Curve = list[tuple[float, float]]
"""Loss and gradient norm of every step; the last pair is the validation result and 1."""

DENSE = "{dim: 32, layers: 4, heads: 4, kv_heads: 2, ffn: 64}"


class Never:
    requested = False


@dataclass(frozen=True)
class Case:
    """One mesh."""

    name: str
    ranks: int
    parallel: str
    """The section of the job file."""
    model: str = DENSE
    extra: str = ""
    """More of the job file."""
    guard: bool = False


def make_trainer(case: Case, device: str = "cpu") -> Trainer:
    """A trainer on all ranks of the default group."""
    text = JOB.replace("batch_rows: 4", "batch_rows: 8").replace("rows: 4", "rows: 8")
    lines = [line for line in text.splitlines() if not line.startswith("model:")]
    lines += [f"model: {case.model}", f"parallel: {case.parallel}", case.extra]
    job = parse_job("\n".join(lines) + "\n", "job.yaml")
    worker = Worker(
        run=RunDir(Path("unused")),
        device=torch.device(device),
        clock=now,
        stop=Never(),
        console=None,
    )
    mesh = make_mesh(check_world(job, dist.get_world_size(), "job.yaml"), torch.device(device).type)
    settings = Gradients(mode=GuardMode.DETECT if case.guard else GuardMode.OFF)
    return build(job, worker, mesh, settings, byte_rows(job))


def curve(
    case: Case, spoil: Callable[[ParallelModel], None] | None = None, device: str = "cpu"
) -> Curve:
    """Loss and gradient norm of some steps, and the validation result at the end."""
    trainer = make_trainer(case, device)
    if spoil is not None:
        spoil(trainer.model)
    steps = [trainer.train_step() for _ in range(STEPS)]
    bits = trainer.evaluate()
    assert bits is not None
    return [(s.loss, s.grad_norm) for s in steps] + [(bits, 1.0)]


def curves(cases: Sequence[Case], device: str = "cpu") -> dict[str, Curve | str]:
    """Each case's curve, or what it raised; runs on every rank of `run_ranks`."""
    found: dict[str, Curve | str] = {}
    for case in cases:
        try:
            found[case.name] = curve(case, device=device)
        except Exception:  # noqa: BLE001 - shown by the test
            # The other ranks may wait for this one now: what follows cannot be compared.
            found[case.name] = traceback.format_exc()
            break
    return found


def differences(got: Curve, want: Curve) -> tuple[float, float]:
    """The largest of the losses and the largest relative one of the norms."""
    loss = max(abs(a - b) for (a, _), (b, _) in zip(got, want, strict=True))
    norm = max(abs(a / b - 1) for (_, a), (_, b) in zip(got, want, strict=True))
    return loss, norm


def passes(got: Curve, want: Curve) -> bool:
    """The gate: loss and norm, because a constant factor on gradients is invisible in the loss."""
    loss, norm = differences(got, want)
    return loss < LOSS_TOLERANCE and norm < NORM_TOLERANCE
