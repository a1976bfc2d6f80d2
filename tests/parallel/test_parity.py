# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Loss and gradient norm of every mesh equal those of one process; and the gate can see."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from securetrain.core.rundir import RunDir
from securetrain.parallel.gradients import grad_norm
from securetrain.parallel.mesh import make_mesh
from securetrain.parallel.parallelize import ParallelModel
from securetrain.policy.schema import Gradients, GuardMode
from securetrain.testing.processes import run_ranks
from securetrain.train.config import check_world, parse_job
from securetrain.train.data import ByteSplit
from securetrain.train.setup import Worker, build
from securetrain.train.trainer import Trainer
from tests.train.conftest import now
from tests.train.jobs import JOB, memory_source

STEPS = 4
LOSS_TOLERANCE = 2e-4
NORM_TOLERANCE = 1e-2

Curve = list[tuple[float, float]]


class Never:
    requested = False


def make_trainer(parallel: str, *, guard: bool = False, extra: str = "") -> Trainer:
    """A trainer on all ranks of the default group."""
    text = JOB.replace("batch_rows: 4", "batch_rows: 8").replace("rows: 4", "rows: 8")
    job = parse_job(f"{text}parallel: {parallel}\n{extra}", "job.yaml")
    worker = Worker(
        run=RunDir(Path("unused")),
        device=torch.device("cpu"),
        clock=now,
        stop=Never(),
        console=None,
    )
    mesh = make_mesh(check_world(job, dist.get_world_size(), "job.yaml"), "cpu")
    settings = Gradients(mode=GuardMode.DETECT if guard else GuardMode.OFF)
    source = memory_source()
    splits = (ByteSplit(source, "train", ""), ByteSplit(source, "validation", ""))
    return build(job, worker, mesh, settings, splits)


def curve(parallel: str, *, guard: bool = False, extra: str = "", spoil: str = "") -> Curve:
    """Loss and gradient norm of some steps, and the validation result at the end."""
    trainer = make_trainer(parallel, guard=guard, extra=extra)
    if spoil:
        SPOILS[spoil](trainer.model)
    steps = [trainer.train_step() for _ in range(STEPS)]
    bits = trainer.evaluate()
    assert bits is not None
    return [(s.loss, s.grad_norm) for s in steps] + [(bits, 1.0)]


def half_the_gradients(model: ParallelModel) -> None:
    for module in model.module.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(2.0)


def forget_the_head(model: ParallelModel) -> None:
    output = model.module.get_submodule("output")
    assert isinstance(output, nn.Linear)
    output.weight.register_hook(torch.zeros_like)


SPOILS: dict[str, Callable[[ParallelModel], None]] = {
    "half": half_the_gradients,
    "no-head": forget_the_head,
}


def one_rank() -> dict[str, Curve]:
    return {
        "reference": curve("{}"),
        "no-head": curve("{}", spoil="no-head"),
        "bf16": curve("{}", extra="precision: bf16"),
    }


def two_ranks() -> dict[str, Curve]:
    return {
        "ddp": curve("{dp_replicate: 2}"),
        "ddp, guarded": curve("{dp_replicate: 2}", guard=True),
        "fsdp": curve("{dp_shard: 2}"),
        "fsdp, guarded": curve("{dp_shard: 2}", guard=True),
        "zero-2": curve("{dp_shard: 2, reshard_after_forward: false}"),
        "half": curve("{dp_shard: 2}", spoil="half"),
        "bf16": curve("{dp_shard: 2}", extra="precision: bf16"),
        "ddp bf16": curve("{dp_replicate: 2}", extra="precision: bf16"),
    }


def four_ranks() -> dict[str, Curve]:
    return {
        "hsdp 2x2": curve("{dp_replicate: 2, dp_shard: 2}"),
        "fsdp 4": curve("{dp_shard: 4}"),
    }


def differences(got: Curve, want: Curve) -> tuple[float, float]:
    """The largest of the losses and the largest relative one of the norms."""
    loss = max(abs(a - b) for (a, _), (b, _) in zip(got, want, strict=True))
    norm = max(abs(a / b - 1) for (_, a), (_, b) in zip(got, want, strict=True))
    return loss, norm


def passes(got: Curve, want: Curve) -> bool:
    loss, norm = differences(got, want)
    return loss < LOSS_TOLERANCE and norm < NORM_TOLERANCE


@pytest.mark.dist
def test_every_mesh_equals_one_process():
    alone = run_ranks(one_rank, 1)[0]
    reference = alone["reference"]
    assert reference[0][0] > reference[-2][0], "the reference must learn"
    assert all(math.isfinite(v) for pair in reference for v in pair)
    two, four = run_ranks(two_ranks, 2, timeout=120), run_ranks(four_ranks, 4, timeout=120)
    for ranks in (two, four):
        assert all(rank == ranks[0] for rank in ranks), "ranks must agree to the last bit"
    got = {**two[0], **four[0]}
    for name in ("ddp", "ddp, guarded", "fsdp", "fsdp, guarded", "zero-2", "hsdp 2x2", "fsdp 4"):
        assert passes(got[name], reference), (name, differences(got[name], reference))
    # The guard looks and does not touch.
    assert got["ddp, guarded"] == got["ddp"]
    assert got["fsdp, guarded"] == got["fsdp"]
    assert got["zero-2"] == got["fsdp"]
    # bfloat16 is another number format: close, and not equal.
    for name in ("bf16", "ddp bf16"):
        loss, norm = differences(got[name], alone["bf16"])
        assert loss < 0.02
        assert norm < 0.05
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

    trainer = make_trainer("{dp_shard: 2}")
    trainer._forward_backward(1)
    parameters = list(trainer.model.module.parameters())
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
