# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain run`` under a policy that asks for a transparency log.

Commands of docs/how-to/signed-checkpoints.md are tried here.
"""

from datetime import UTC, datetime

import pytest

from securetrain.artifacts.lineage.head import read_head
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.artifacts.verify import verify_path
from securetrain.core.codes import ExitCode
from securetrain.identity.log.checkpoint import LogPolicy, open_checkpoint
from securetrain.identity.log.store import Log
from securetrain.identity.trust import TrustRoot
from securetrain.policy import load_policy
from tests.launch.worlds import write_policy

pytestmark = pytest.mark.dist

POLICY = {
    "gradients": {"mode": "off"},
    "checkpoint": {"log": {}, "require_clean_verdict": False, "require_lineage": False},
}

# Saves one checkpoint and goes on until it has a proof. With an argument, then puts another history
# in the log's place, which it can without a sandbox: it has the rights and keys of the user who
# runs the job.
TRAIN = """
import os, shutil, sys, time
from datetime import UTC, datetime
from pathlib import Path
import torch
import securetrain.artifacts as artifacts
from securetrain.artifacts import SaveContext
from securetrain.artifacts.lineage import head
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.rundir import RunDir
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log.store import Log
from securetrain.identity.trust import TrustRoot
run, now = RunDir(Path(os.environ["SECURETRAIN_RUN_DIR"])), datetime.now(UTC)
trust = TrustRoot.load(run.trust, now)
mine, path = artifacts.this_run(), run.checkpoint(1)
context = SaveContext(run_id=mine.run_id, step=1, seq=1, created=now)
artifacts.save({"a": torch.ones(64)}, path, context=context)
opened = open_statement((path / STATEMENT).read_bytes(), Kind.CHECKPOINT, trust)
head.advance(LocalStorage(run.checkpoints), opened.predicate, mine.head, trust, now)
if len(sys.argv) > 1:
    proof = path.with_name(path.name + ".tlog-proof")
    while not proof.exists():
        time.sleep(0.02)
    owner, origin = PrivateKey.load(run.key("log")), trust.document.log_origin
    shutil.rmtree(run.log)
    log = Log.create(run.log, origin, owner)
    for text in (b"x", b"y"):
        log.append(dsse.sign(text, "text/plain", [owner]), {owner.key_id: owner.public}, owner)
    time.sleep(600)
"""


@pytest.fixture
def start(launch, tmp_path):
    policy = tmp_path / "policy.yaml"
    write_policy(policy, **POLICY)
    (tmp_path / "train.py").write_text(TRAIN)

    def run(*arguments):
        if arguments:
            write_policy(policy, host={"sandbox": "off"}, **POLICY)
        return launch(
            tmp_path / "run",
            *("--standalone", "--policy", str(tmp_path / "policy.yaml")),
            *(str(tmp_path / "train.py"), *arguments),
        )

    return run


def test_a_run_logs_its_checkpoints_and_keeps_the_proofs(start, tmp_path):
    done = start()
    assert done.code == 0, done.err
    assert "1 checkpoint logged" in done.err
    (event,) = done.events("checkpoint-logged")
    assert (event.subject, event.details["index"]) == ("step-00000001", 0)
    now = datetime.now(UTC)
    trust = TrustRoot.load(done.run.trust, now)
    shown = read_head(LocalStorage(done.run.checkpoints), trust)
    assert shown is not None
    assert shown.log_index == 0
    policy = load_policy(str(tmp_path / "policy.yaml")).policy
    path = done.run.checkpoint(1)
    found = verify_path(path, trust=trust, policy=policy, now=now)
    assert found.problems == []
    assert found.logged is not None
    assert found.logged.seen is not None
    path.with_name(f"{path.name}.tlog-proof").unlink()
    found = verify_path(path, trust=trust, policy=policy, now=now)
    assert {problem.code for problem in found.problems} == {"ST-CKPT-180"}
    # The next start finds the proof gone, and makes it again before its workers begin.
    (tmp_path / "train.py").write_text("")
    again = start()
    assert again.code == 0, again.err
    assert path.with_name(f"{path.name}.tlog-proof").exists()


@pytest.mark.forgery
def test_a_log_with_another_history_ends_the_run(start):
    done = start("lie")
    assert done.code == int(ExitCode.LOG_PROOF), done.err
    assert "error ST-IDEN-043:" in done.err
    assert ("log-refused", "ST-IDEN-043") in [
        (event.event, event.code) for event in done.events("log-refused")
    ]
    assert done.summary["code"] == "ST-IDEN-043"
    # The control: who only asks whether the log signed it takes the other history.
    now = datetime.now(UTC)
    trust = TrustRoot.load(done.run.trust, now)
    full = LogPolicy.from_trust_root(trust)
    plain = LogPolicy(origin=full.origin, keys=full.keys)
    state, signed = Log(done.run.log, plain).state()
    assert open_checkpoint(signed.encode(), plain, now).checkpoint.size == state.size == 2
