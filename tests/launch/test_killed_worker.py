# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A worker that is killed in the middle of a run: its agent starts all of them again, and the run
goes on from its last checkpoint along the same curve.
"""

import json
from datetime import UTC, datetime

import pytest

from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.core.rundir import RunDir
from securetrain.identity.keys import PrivateKey
from securetrain.launch.run_setup import prepare_run
from securetrain.testing.processes import run_ranks
from securetrain.train.config import load_job
from securetrain.train.run import run_job
from securetrain.train.setup import Worker
from tests.train.jobs import JOB, documents

# The built-in trainer, except that the last rank dies in the middle of its fifth step, once.
TRAIN = """
import os, signal, sys
from securetrain.parallel.engine import ParallelModel
from securetrain.train.__main__ import main
compute, steps = ParallelModel.forward_backward, []
def dying(self, inputs, targets, divisor):
    steps.append(1)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and len(steps) == 5 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(self, inputs, targets, divisor)
ParallelModel.forward_backward = dying
sys.exit(int(main(sys.argv[1:], os.environ)))
"""
SPARSE = "model: {dim: 32, layers: 2, heads: 2, ffn: 48, experts: 2, expert_balance: 0.05}"
EXACT = ("step", "loss", "grad_norm", "lr", "val_bits_per_byte", "tokens", "expert_load")


def prepared(folder):
    made = prepare_run(folder, "dev", datetime.now(UTC))
    rows = [
        (split, f"{split}-{n}", text)
        for split, texts in documents().items()
        for n, text in enumerate(texts)
    ]
    key = PrivateKey.load(made.run.key("dataset"))
    sign_documents(rows, made.run.dataset, name="prose", key=key, now=datetime.now(UTC))
    return folder


class Never:
    requested = False


def train(root, path):
    """The run that nobody disturbs."""
    import torch

    worker = Worker(
        run=RunDir(root),
        device=torch.device("cpu"),
        clock=lambda: datetime.now(UTC),
        stop=Never(),
        console=None,
    )
    run_job(load_job(path), str(path), worker)


def curve(root):
    lines = RunDir(root).metrics.read_text().splitlines()
    return [tuple(json.loads(line)[key] for key in EXACT) for line in lines]


@pytest.mark.dist
@pytest.mark.slow
def test_a_killed_worker_and_the_same_curve(launch, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    dense = "model: {dim: 32, layers: 2, heads: 2, ffn: 48}"
    assert dense in JOB
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace(dense, SPARSE) + "parallel: {dp_shard: 2, ep: 2}\n")
    whole, killed = (prepared(tmp_path / name) for name in ("whole", "killed"))
    run_ranks(train, 2, whole, job, timeout=120)
    done = launch(
        killed,
        *("--standalone", "--nproc-per-node", "2", "--max-restarts", "1"),
        *(str(tmp_path / "train.py"), str(job)),
    )
    assert done.code == 0, done.err[-3000:]
    assert len(done.events("round-formed")) == 2
    (resumed,) = done.events("run-resumed")
    assert resumed.subject == "step-00000003"
    assert [line[0] for line in curve(whole)] == [1, 2, 3, 4, 5, 6]
    assert curve(killed) == curve(whole), "bit for bit"
