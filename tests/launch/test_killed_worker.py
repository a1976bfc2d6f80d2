# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A worker that is killed in the middle of a run: its agent starts all of them again, and the run
goes on from its last checkpoint along the same curve.
"""

import json
import os
import signal
import subprocess
from datetime import UTC, datetime

import pytest

from securetrain.core.rundir import RunDir
from securetrain.testing.processes import run_ranks
from securetrain.train.config import load_job
from securetrain.train.run import run_job
from securetrain.train.setup import Worker
from tests.launch.worlds import clean_environment, run_command, run_with_documents
from tests.train.jobs import JOB
from tests.waiting import until

# The built-in trainer, except that the last rank dies in the middle of its fifth step, once: the
# two steps of the self-check come before the first.
TRAIN = """
import os, signal, sys
from securetrain.parallel.engine import ParallelModel
from securetrain.train.__main__ import main
compute, steps = ParallelModel.forward_backward, []
def dying(self, inputs, targets, divisor):
    steps.append(1)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and len(steps) == 7 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(self, inputs, targets, divisor)
ParallelModel.forward_backward = dying
sys.exit(int(main(sys.argv[1:], os.environ)))
"""
SPARSE = "model: {dim: 32, layers: 2, heads: 2, ffn: 48, experts: 2, expert_balance: 0.05}"
EXACT = ("step", "loss", "grad_norm", "lr", "val_bits_per_byte", "tokens", "expert_load")


def prepared(folder, policy="dev"):
    run_with_documents(folder, policy)
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
@pytest.mark.many
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


# The built-in trainer, except that rank 0 dies or waits between a checkpoint's data and its entry.
# arguments: what it does there, the steps at which it does, then the trainer's own.
WINDOW = """
import os, signal, sys, time
from securetrain.train import checkpointing
from securetrain.train.__main__ import main
committed, what, steps = checkpointing.Checkpoints._committed, sys.argv[1], sys.argv[2].split(",")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def dying(self, path, context, digest):
    if attempt < len(steps) and str(context.step) == steps[attempt] and self.is_rank_zero:
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)
    return committed(self, path, context, digest)
checkpointing.Checkpoints._committed = dying
sys.exit(int(main(sys.argv[3:], os.environ)))
"""
# The built-in trainer with steps of half a second.
SLOWLY = """
import os, sys, time
from securetrain.train.__main__ import main
from securetrain.train.trainer import Trainer
step = Trainer.train_step
def slowly(self):
    time.sleep(0.5)
    return step(self)
Trainer.train_step = slowly
sys.exit(int(main(sys.argv[1:], os.environ)))
"""


def two_runs(tmp_path, script):
    """A job, what its curve is, and a run that is to be disturbed."""
    (tmp_path / "train.py").write_text(script)
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("{every: 3}", "{every: 2, keep: 2}", 1))
    whole, run = (prepared(tmp_path / name) for name in ("whole", "run"))
    run_ranks(train, 1, whole, job, timeout=120)
    return job, curve(whole), run


def started(run, *arguments):
    return subprocess.Popen(
        run_command(run, "--standalone", "--nproc-per-node", "1", *arguments),
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a terminal's Ctrl-C comes to all of them
    )


@pytest.mark.dist
@pytest.mark.many
def test_two_deaths_between_data_and_entry(launch, tmp_path):
    """By `--max-restarts`, each at another checkpoint: the launcher enters what they left."""
    job, wanted, run = two_runs(tmp_path, WINDOW)
    done = launch(
        run,
        *("--standalone", "--nproc-per-node", "1", "--max-restarts", "2"),
        *(str(tmp_path / "train.py"), "die", "2,4", str(job)),
    )
    assert done.code == 0, done.err[-3000:]
    found = [said.subject for said in done.events("checkpoint-recovered")]
    assert found == ["step-00000002", "step-00000004"]
    assert curve(run) == wanted, "bit for bit"


@pytest.mark.dist
@pytest.mark.many
def test_a_launcher_that_dies_with_its_workers(launch, tmp_path):
    """As when a machine loses power: the next launch enters what it left."""
    job, wanted, run = two_runs(tmp_path, WINDOW)
    given = (str(tmp_path / "train.py"), "wait")
    for step in (2, 4):
        dying = started(run, *given, str(step), str(job))
        try:
            until(RunDir(run).checkpoint(step).is_dir)
        finally:
            dying.kill()
            dying.wait()
    done = launch(run, "--standalone", "--nproc-per-node", "1", *given, "9", str(job))
    assert done.code == 0, done.err[-3000:]
    found = [said.subject for said in done.events("checkpoint-recovered")]
    assert found == ["step-00000002", "step-00000004"]
    assert curve(run) == wanted, "bit for bit"


@pytest.mark.dist
@pytest.mark.many
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launcher_that_is_asked_to_stop(launch, tmp_path, number):
    job, wanted, run = two_runs(tmp_path, SLOWLY)
    given = (str(tmp_path / "train.py"), str(job))
    stopping = started(run, *given)
    try:
        until(lambda: RunDir(run).metrics.exists() and curve(run))
        if number == signal.SIGINT:
            os.killpg(stopping.pid, number)
        else:
            stopping.send_signal(number)
        assert stopping.wait(200) == 130
    finally:
        stopping.kill()
        stopping.wait()
    done_steps = curve(run)[-1][0]
    assert done_steps < 6
    assert RunDir(run).checkpoint(done_steps).is_dir(), "the state is saved"
    done = launch(run, "--standalone", "--nproc-per-node", "1", *given)
    assert done.code == 0, done.err[-3000:]
    assert curve(run) == wanted, "bit for bit"
