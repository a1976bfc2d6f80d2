# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node is evicted in the middle of a run; the other goes on from before it was in doubt."""

import json
import os
import shutil
import sys
from datetime import UTC, datetime

import pytest

from securetrain.artifacts.statement.statements import CheckpointPredicate
from securetrain.artifacts.verify import verify_path
from securetrain.core.codes import ExitCode
from securetrain.core.rundir import RunDir
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import verify_ledger
from securetrain.testing.cluster import missing
from tests.launch.two_nodes import NODES, PATIENCE, POLICY, TwoNodes, job_of, up
from tests.launch.worlds import clean_environment, run_with_documents
from tests.train.jobs import JOB
from tests.vocabulary import needs, outcome

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    needs(missing),
]

STEPS, EVERY, LEASE = 400, 4, 12.0

# The built-in trainer, slowly until there is a file called "go".
TRAIN = """
import os, sys, time
from pathlib import Path
from securetrain.train import trainer
from securetrain.train.__main__ import main
step, go = trainer.Trainer.train_step, Path(__file__).with_name("go")
def slowly(self):
    if not go.exists():
        time.sleep(0.1)
    return step(self)
trainer.Trainer.train_step = slowly
sys.exit(int(main(sys.argv[1:], os.environ)))
"""


class SharedRun(TwoNodes):
    """Both nodes have the run directory on one disk, as checkpoints of several nodes need it."""

    shared = "run"
    nnodes = "1:2"

    @property
    def run(self):
        return RunDir(self.folder / "run")

    def script(self, **_):
        return (self.folder / "train.py", self.folder / "job.yaml")

    def events(self, _node=""):
        keys = TrustRoot.load(self.run.trust, datetime.now(UTC)).keys_for(TrustRole.LEDGER)
        data = self.run.ledger.read_bytes()
        entries = verify_ledger(data[: data.rfind(b"\n") + 1], keys).entries
        return [entry.body.event for entry in entries]

    def renewals(self, node):
        """How often the coordinator has renewed a node's lease."""
        lines = (self.folder / "ledger.jsonl").read_text().splitlines()
        return sum('"lease-renewed"' in line and node in line for line in lines)

    def steps(self):
        """Steps with a checkpoint that counts."""
        found = self.run.checkpoints.glob("step-????????")
        return sorted(int(path.name.removeprefix("step-")) for path in found)


def prepare(folder, every=EVERY) -> str:
    """A run directory with a signed dataset, and the job's files; returns the job's name."""
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "train.py").write_text(TRAIN)
    job = JOB.replace("steps: 6", f"steps: {STEPS}").replace("every: 3}", f"every: {every}}}", 1)
    (folder / "job.yaml").write_text(job.replace("eval: {every: 3,", "eval: {every: 0,"))
    run_with_documents(folder / "run", str(folder / "policy.yaml"))
    return job_of(folder)


def started(folder, env):
    return up(folder, job=prepare(folder), kind=SharedRun, env=env, fewest=1, lease=LEASE)


def test_a_run_goes_on_from_before_an_evicted_node_was_last_believed(tmp_path):
    # The trainer would end its step first, which it cannot without the other node.
    more = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2"}
    env = clean_environment(**more)
    with started(tmp_path, env) as nodes:
        for node in NODES:
            nodes.start(node)
        nodes.poll(nodes.steps, "both nodes save checkpoints")
        joined = nodes.renewals("node-b")
        nodes.poll(lambda: nodes.renewals("node-b") >= joined + 2, "node-b proves itself again")
        # Two checkpoints after that, and it has not proved itself meanwhile.
        while True:
            renewals, before = nodes.renewals("node-b"), nodes.steps()
            nodes.poll(
                lambda before=before: len(nodes.steps()) >= len(before) + 2, "they go on saving"
            )
            if renewals == nodes.renewals("node-b"):
                break
        newest = nodes.steps()[-1]
        nodes.revoke("node-b")
        assert nodes.launchers["node-b"].wait(PATIENCE) != 0
        del nodes.launchers["node-b"]
        nodes.poll(
            lambda: [e for e in nodes.events() if e.event == "run-resumed"], "node-a goes on"
        )
        (tmp_path / "go").touch()
        nodes.end_well("node-a")
        assert "ST-ADMN-013" in nodes.err("node-b")
        assert [nodes.remains(node) for node in NODES] == [[], []]

    events = nodes.events()
    (point,) = [e for e in events if e.event == "restart-point"]
    (resumed,) = [e for e in events if e.event == "run-resumed"]
    aside = {e.details["step"] for e in events if e.event == "checkpoint-quarantined"}
    restart = point.details["step"]
    # Plain torchelastic would have gone on from the newest one.
    assert 0 < restart < newest
    assert newest in aside
    assert restart not in aside
    assert (resumed.details["step"], resumed.details["digest"]) == (
        restart,
        point.details["digest"],
    )
    # Two at least: node-a may have begun alone, where node-b was late.
    epochs = [e.details for e in events if e.event == "epoch-started"]
    assert len(epochs) >= 2
    assert epochs[-1]["nodes"] == "node-a"
    (distrusted,) = [e for e in events if e.event == "node-distrusted"]
    assert (distrusted.subject, distrusted.details["cause"]) == ("node-b", "ST-ADMN-013")
    assert nodes.steps()[-1] == STEPS

    now, trust = datetime.now(UTC), TrustRoot.load(nodes.run.trust, datetime.now(UTC))
    final = verify_path(nodes.run.checkpoint(STEPS), trust=trust, policy=None, now=now)
    assert final.ok
    assert isinstance(final.statement, CheckpointPredicate)
    assert final.statement.epoch == epochs[-1]["epoch"]
    moved = sorted(nodes.run.checkpoints.glob("step-*.quarantined-*"))
    assert {int(path.name[5:13]) for path in moved} == aside
    command = [sys.executable, "-m", "securetrain", "verify", str(moved[-1]), "--json"]
    done = outcome([*command, "--trust", str(nodes.run.trust)], env=env)
    assert done.returncode == ExitCode.REVOKED
    # Its record says so, and the ledger of its run.
    told = [problem["code"] for problem in json.loads(done.stdout)["problems"]]
    assert told == ["ST-CKPT-160", "ST-CHAN-019"]
    # The control: nothing else speaks against it. Whole, signed, and the newest of the run.
    copy = tmp_path / "copy"
    shutil.copytree(moved[-1], copy)
    (copy / "quarantine.json").unlink()
    assert verify_path(copy, trust=trust, policy=None, now=now).ok
