# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One run from mesh to mesh: every two steps it is saved, signed, and goes on as something else.
Its curve is that of a single process that was never interrupted.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from securetrain.core.codes import ExitCode
from securetrain.core.rundir import RunDir
from securetrain.testing.processes import run_ranks
from securetrain.testing.runs import SmallRun
from securetrain.train.config import parse_job
from securetrain.train.run import run_job
from securetrain.train.setup import Worker
from tests.parallel.curves import LOSS_TOLERANCE, NORM_TOLERANCE
from tests.train.conftest import now

JOB = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: wandering
steps: 14
model: {{dim: 32, layers: 4, heads: 4, kv_heads: 2, ffn: 32, experts: 4, expert_balance: 0.05}}
data: {{seq_len: 32, batch_rows: 8}}
parallel: {parallel}
optimizer: {{warmup_steps: 2}}
checkpoint: {{every: 0}}
metrics: {{console_every: 0, tensorboard: false}}
eval: {{every: 0, rows: 8}}
"""
"""With experts, so that the same model can be cut in every way there is."""

STEPS = 14
MESHES = (
    (4, "{dp_shard: 2, tp: 2}"),
    (2, "{pp: 2, schedule: ZBVZeroBubble}"),
    (4, "{dp_replicate: 2, dp_shard: 2}"),
    (2, "{dp_shard: 2, ep: 2}"),
    (4, "{dp_shard: 4}"),
    (4, "{cp: 2, tp: 2, context: ring}"),
    (1, "{}"),
)
EACH = STEPS // len(MESHES)


def train(root: Path, parallel: str, last: int) -> None:
    job = parse_job(JOB.format(parallel=parallel), "job.yaml")
    worker = Worker(run=RunDir(root), device=_cpu(), clock=now, stop=Never(), console=None)
    assert run_job(job, "job.yaml", worker, stop_after=last) is ExitCode.OK


def _cpu() -> Any:
    import torch

    return torch.device("cpu")


class Never:
    requested = False


def lines(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


@pytest.mark.dist
@pytest.mark.slow
def test_a_run_goes_on_from_mesh_to_mesh(new_run: Callable[..., SmallRun]):
    alone, wandering = new_run("alone").run_dir, new_run("wandering").run_dir
    run_ranks(train, 1, alone.root, "{}", STEPS)
    for number, (ranks, parallel) in enumerate(MESHES, start=1):
        run_ranks(train, ranks, wandering.root, parallel, EACH * number, timeout=120)
        saved = wandering.checkpoint(EACH * number)
        assert len(list(saved.glob("rank-*.bin"))) == ranks
    got, want = lines(wandering), lines(alone)
    assert [line["step"] for line in got] == list(range(1, STEPS + 1))
    for mine, theirs in zip(got, want, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=LOSS_TOLERANCE)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=NORM_TOLERANCE)
        # The bias that evens out experts came along: the same tokens went to the same experts.
        assert mine["expert_load"] == theirs["expert_load"]
    assert got[-1]["val_bits_per_byte"] == pytest.approx(want[-1]["val_bits_per_byte"], abs=1e-3)
