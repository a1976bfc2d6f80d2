# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Two nodes log the checkpoints of one run, and each is a witness for the other."""

import json
from datetime import UTC, datetime

import pytest

from securetrain.artifacts.verify import verify_path
from securetrain.core.rundir import RunDir
from securetrain.identity.log.checkpoint import LogPolicy
from securetrain.identity.log.store import Log
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.launch.setup import prepare_run
from securetrain.ledger import verify_ledger
from securetrain.policy import load_policy
from securetrain.testing.cluster import missing
from tests.launch.two_nodes import TwoNodes, up, with_witnesses
from tests.vocabulary import needs

pytestmark = [
    pytest.mark.netns,
    pytest.mark.dist,
    pytest.mark.slow,
    needs(missing),
]

# Two ranks on two machines save three checkpoints onto the disk that they share.
TRAIN = """
import os
from datetime import UTC, datetime
from pathlib import Path
import torch
import torch.distributed as dist
import securetrain.artifacts as artifacts
from securetrain.artifacts import SaveContext
from securetrain.artifacts.lineage import head
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.rundir import RunDir
from securetrain.identity.trust import TrustRoot
dist.init_process_group("gloo")
run = RunDir(Path(os.environ["SECURETRAIN_RUN_DIR"]))
trust = TrustRoot.load(run.trust, datetime.now(UTC))
mine, first = artifacts.this_run(), dist.get_rank() == 0
for step in (1, 2, 3):
    now = datetime.now(UTC)
    context = SaveContext(run_id=mine.run_id, step=step, seq=step, created=now)
    path = run.checkpoint(step)
    artifacts.save({"a": torch.full((64,), float(step))}, path, context=context)
    if first:
        opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
        head.advance(LocalStorage(run.checkpoints), opened.predicate, mine.head, trust, now)
dist.barrier()
dist.destroy_process_group()
"""


class Shared(TwoNodes):
    """One run directory on one disk; each machine keeps its own memory and its own key."""

    shared = "run"
    remembers = True


def test_each_node_is_a_witness_for_the_other(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(with_witnesses(tmp_path))
    (tmp_path / "train.py").write_text(TRAIN)
    prepare_run(tmp_path / "run", str(policy), datetime.now(UTC))
    run = RunDir(tmp_path / "run")
    with up(tmp_path, kind=Shared) as nodes:
        nodes.train()
    now = datetime.now(UTC)
    trust = TrustRoot.load(run.trust, now)
    asked = load_policy(str(policy)).policy
    for step in (1, 2, 3):
        found = verify_path(run.checkpoint(step), trust=trust, policy=asked, now=now)
        assert "ST-CKPT-180" not in {problem.code for problem in found.problems}
        assert found.logged is not None
        assert len(found.logged.signed.cosigned) == 2
    # Each once, though both agents may write.
    assert Log(run.log, LogPolicy.from_trust_root(trust)).verify_all().size == 3
    ledger = run.ledger.read_bytes()
    entries = verify_ledger(ledger, trust.keys_for(TrustRole.LEDGER)).entries
    logged = [e.body.event.subject for e in entries if e.body.event.event == "checkpoint-logged"]
    assert set(logged) == {f"step-{step:08d}" for step in (1, 2, 3)}
    assert json.loads((run.root / "run.json").read_text())["exit_code"] == 0
