# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run of the built-in trainer on two hosts: workers and launchers die, and it goes on by itself
from tests.launch.worlds import clean_environment
from the shared folder of checkpoints, along the curve of a run that nobody disturbed; and one that
goes back to before a rank's offence.
"""

import json
import re
import secrets
from pathlib import Path

import pytest

from securetrain.testing.cluster import missing
from securetrain.testing.processes import run_ranks
from tests.launch.test_eviction_netns import SharedRun
from tests.launch.test_killed_worker import curve, prepared, train
from tests.launch.two_nodes import NODES, POLICY, up
from tests.launch.worlds import clean_environment
from tests.train.jobs import JOB
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.many,
    pytest.mark.timeout(3000),
    needs(missing),
]
POISONED = Path(__file__).parents[1] / "guard" / "poisoned"

# The built-in trainer, of which ranks die or wait once at each place that the file "deaths" names:
# a rank, a place (in the middle of a step; between a checkpoint's data and its entry), a step.
TRAIN = """
import os, signal, sys, time
from pathlib import Path
from securetrain.parallel.engine import ParallelModel
from securetrain.train import checkpointing, trainer
from securetrain.train.__main__ import main
here, rank = Path(__file__).parent, os.environ["RANK"]
deaths = [line.split() for line in (here / "deaths").read_text().splitlines()]
def now(place, step):
    for number, (who, where, when, what) in enumerate(deaths):
        if (who, where, when) == (rank, place, str(step)):
            try:
                open(here / f"death-{number}", "x").close()
            except FileExistsError:
                continue
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3600)
step_of, compute = trainer.Trainer.train_step, ParallelModel.forward_backward
committed, at = checkpointing.Checkpoints._committed, [None]
def train_step(self):
    time.sleep(0.2)
    at[0] = self.progress.step + 1
    return step_of(self)
def forward_backward(self, *args, **given):
    found = compute(self, *args, **given)
    now("step", at[0])
    return found
def entering(self, path, context, digest):
    now("entry", context.step)
    return committed(self, path, context, digest)
trainer.Trainer.train_step, ParallelModel.forward_backward = train_step, forward_backward
checkpointing.Checkpoints._committed = entering
sys.exit(int(main(sys.argv[1:], os.environ)))
"""
PATIENCE = 500
"""Seconds that may pass on a busy machine until two hosts have started three times."""
CHECKPOINTS = "checkpoint: {every: 2, keep: 2"
STEPS = 12


class Killed(SharedRun):
    """Whoever is killed is started again by the launchers, or the launchers by the test."""

    nnodes = "2"
    patience = PATIENCE

    def start_all(self, *options):
        for node in self.names:
            self.start(node, *options)

    def kill(self):
        for node in self.names:
            self.launchers[node].kill()
        for node in self.names:
            self.launchers[node].wait()


def started(folder, env=None):
    """Two hosts, one disk, and a coordinator that nobody kills, of a job of its own."""
    (folder / "ledger.jsonl").unlink(missing_ok=True)
    job = f"job-{secrets.token_hex(6)}"
    return up(folder, job=job, env=env, kind=Killed)


def left_over(run):
    """What no save that ended well leaves."""
    names = sorted(path.name for path in run.checkpoints.iterdir())
    finished = [name for name in names if re.fullmatch(r"step-\d{8}", name)]
    aside = [name for name in names if ".quarantined-" in name]
    return set(names) - {"head.json", ".head.lock", *finished[-2:], *aside}


@pytest.mark.parametrize("background", [False, True])
def test_deaths_on_two_hosts(tmp_path, background):
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "train.py").write_text(TRAIN)
    more = ", background: true}" if background else "}"
    job = JOB.replace("checkpoint: {every: 3}", CHECKPOINTS + more)
    (tmp_path / "job.yaml").write_text(job.replace("steps: 6", f"steps: {STEPS}"))
    deaths = [
        ("1", "step", 3, "die"),
        ("0", "entry", 4, "die"),
        ("0", "step", 6, "die"),
        ("0", "entry", 6, "wait"),  # as both hosts lose power
        ("1", "step", 9, "die"),
    ]
    text = "".join(" ".join(map(str, death)) + "\n" for death in deaths)
    (tmp_path / "deaths").write_text(text)
    whole = prepared(tmp_path / "whole", str(tmp_path / "policy.yaml"))
    prepared(tmp_path / "run", str(tmp_path / "policy.yaml"))
    run_ranks(train, 2, whole, tmp_path / "job.yaml", timeout=120)
    with started(tmp_path) as nodes:
        nodes.start_all("--max-restarts", "9")
        nodes.poll((tmp_path / "death-3").exists, "the fourth death")
        assert nodes.run.checkpoint(6).is_dir()
        nodes.kill()
        nodes.start_all("--max-restarts", "0")
        nodes.poll((tmp_path / "death-4").exists, "the fifth death")
        for node in NODES:
            assert nodes.wait(node) == 1, nodes.err(node)[-3000:]
        said = {node: nodes.err(node) for node in NODES}
        killed = [node for node in NODES if "ended with signal SIGKILL" in said[node]]
        assert len(killed) == 1, said
        (survivor,) = set(NODES) - set(killed)
        assert "correct the script" not in said[survivor]
    with started(tmp_path) as nodes:
        nodes.train()
        assert [nodes.remains(node) for node in NODES] == [[], []]
    events = nodes.events()
    # Rank 1 may have entered one that rank 0 had not. In the background a save may come too late.
    resumed = [e.details["step"] for e in events if e.event == "run-resumed"]
    assert len(resumed) >= 2
    assert background or (resumed[:2], resumed[-1]) == ([2, 4], 8), resumed
    # What was made since a host has proved itself is set aside when it dies without a word.
    codes = {e.code for e in events if e.event == "checkpoint-quarantined"}
    assert codes <= {"ST-CKPT-160"}
    assert curve(nodes.run.root) == curve(whole), "bit for bit"
    assert left_over(nodes.run) == set()


FROM, LONG = 12, 40


def test_two_hosts_go_back_to_before_the_offence(tmp_path):
    """The liar is a rank of the second host's."""
    policy = POLICY + "gradients: {response: rollback}\n"
    (tmp_path / "policy.yaml").write_text(policy)
    (tmp_path / "train.py").write_text(
        "import os, sys\nfrom securetrain.train.__main__ import main\n"
        "sys.exit(int(main(sys.argv[1:], os.environ)))\n"
    )
    job = JOB.replace("steps: 6", f"steps: {LONG}").replace("batch_rows: 4", "batch_rows: 32")
    (tmp_path / "job.yaml").write_text(
        job.replace("every: 3}", "every: 4}") + "parallel: {dp_replicate: 4}\n"
    )
    prepared(tmp_path / "run", str(tmp_path / "policy.yaml"))
    env = clean_environment(PYTHONPATH=str(POISONED), POISON=f"2:{FROM}")
    asked = ("--nproc-per-node", "2", "--pass-env", "POISON")
    with started(tmp_path, env) as nodes:
        nodes.train(*asked)
    events = nodes.events()
    # The first rank of each host tells its launcher.
    first, second = (e for e in events if e.event == "rolled-back")
    assert first.details == second.details
    assert first.details["ranks"] == "2"
    back = first.details["to"]
    assert back < FROM
    assert back % 4 == 0
    assert {e.details["step"] for e in events if e.event == "restart-point"} == {back}
    assert [e.details["step"] for e in events if e.event == "run-resumed"] == [back]
    lines = [json.loads(line) for line in nodes.run.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, LONG + 1))
    aside = [e.details["step"] for e in events if e.event == "checkpoint-quarantined"]
    assert aside == list(range(back + 4, int(first.subject.split()[1]), 4)), "each once"
