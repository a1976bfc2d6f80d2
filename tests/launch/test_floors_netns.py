# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Two nodes in a network of their own: the store was put back, and one of them remembers (T32)."""

import json
import os
import shutil
import warnings
from datetime import UTC, datetime

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as stock_save

from securetrain import artifacts
from securetrain.artifacts import SaveContext
from securetrain.artifacts.lineage import head
from securetrain.artifacts.lineage.judging import Floors
from securetrain.artifacts.lineage.machine import HEAD
from securetrain.artifacts.statement.statements import CheckpointPredicate, open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.nodestate import NodeState
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.launch.checkpoints.head_tracker import HeadTracker
from securetrain.launch.setup import prepare_run
from securetrain.ledger import Ledger
from securetrain.testing.cluster import missing
from tests.launch.two_nodes import POLICY, TwoNodes, up
from tests.launch.worlds import clean_environment
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    needs(missing),
]

# Each node loads the checkpoint that its store calls the newest, stock and ours.
TRAIN = """
import json, os, sys, warnings
from datetime import UTC, datetime
from pathlib import Path
import torch
from torch.distributed.checkpoint.state_dict_loader import load as stock_load
import securetrain.artifacts as artifacts
from securetrain.artifacts.lineage.judging import Floors, Freshness
from securetrain.core.errors import IntegrityError
from securetrain.core.nodestate import NodeState
from securetrain.core.rundir import RunDir
from securetrain.identity.trust import TrustRoot
run = RunDir(Path(os.environ["SECURETRAIN_RUN_DIR"]))
now = datetime.now(UTC)
stock, ours = ({"a": torch.zeros(64)} for _ in range(2))
warnings.simplefilter("ignore")
stock_load(stock, checkpoint_id=run.root / "stock")
state = NodeState(Path(os.environ["SECURETRAIN_STATE"]))
known = Freshness(floors=Floors(state.floors(sys.argv[2])), head=False)
try:
    trust = TrustRoot.load(run.trust, now)
    artifacts.load(ours, run.checkpoint(1), trust=trust, policy=None, now=now, freshness=known)
    code = ""
except IntegrityError as error:
    code = error.code
found = {"stock": stock["a"].sum().item(), "ours": ours["a"].sum().item(), "code": code}
Path(sys.argv[1], f"node-{os.environ['RANK']}.json").write_text(json.dumps(found))
"""


class Apart(TwoNodes):
    """Each node has its own disk: a copy of the run's directory, and what it remembers."""

    remembers = True

    def script(self, *, run_id="", **_: object):
        return (self.folder / "train.py", self.folder, run_id)


def save(made, step, now):
    """A checkpoint, and its head; returns the head's bytes."""
    run, key = made.run, PrivateKey.load(made.run.key("checkpoint"))
    trust, path = TrustRoot.load(run.trust, now), run.checkpoint(step)
    context = SaveContext(run_id=made.job, step=step, seq=step, created=now)
    artifacts.save({"a": torch.full((64,), float(step))}, path, key=key, context=context)
    opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
    assert isinstance(opened.predicate, CheckpointPredicate)
    head.advance(LocalStorage(run.checkpoints), opened.predicate, key, trust, now)
    return (run.checkpoints / HEAD).read_bytes()


@pytest.fixture
def folder(tmp_path):
    """Two copies of a run whose store was put back by one checkpoint; node-b has seen that one."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "train.py").write_text(TRAIN)
    now = datetime.now(UTC)
    made = prepare_run(tmp_path / "run-node-a", str(tmp_path / "policy.yaml"), now)
    first = save(made, 1, now)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stock_save({"a": torch.full((64,), 1.0)}, checkpoint_id=made.run.root / "stock")
    save(made, 2, now)
    HeadTracker(
        run=made.run,
        run_id=made.job,
        floors=Floors(NodeState(tmp_path / "state-node-b").floors(made.job)),
        ledger=Ledger(
            made.run.ledger, PrivateKey.load(made.run.key("agent")), "agent", lambda: now
        ),
        clock=lambda: now,
    ).refresh()
    shutil.rmtree(made.run.checkpoint(2))
    (made.run.checkpoints / HEAD).write_bytes(first)
    shutil.copytree(made.run.root, tmp_path / "run-node-b")
    return tmp_path, made.job


def test_the_other_node_says_what_is_newest(folder):
    root, run_id = folder
    env = clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    with up(root, env=env, kind=Apart) as nodes:
        nodes.train(run_id=run_id)
        for rank in range(2):
            found = json.loads((root / f"node-{rank}.json").read_text())
            assert found == {"stock": 64.0, "ours": 0.0, "code": "ST-CKPT-151"}
        raised = [e.subject for e in nodes.events("node-a") if e.event == "floor-raised"]
        assert raised == ["node-b"]
        assert not [e for e in nodes.events("node-b") if e.event == "floor-raised"]
