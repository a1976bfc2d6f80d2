# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whole runs whose workers cannot open one key: for them ``keys/`` is an empty directory."""

import json
from datetime import UTC, datetime

import pytest

from securetrain.artifacts.lineage.head import open_head, read_head
from securetrain.artifacts.lineage.machine import HEAD
from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.chain import documents as documents_of_chain
from securetrain.chain.store import EvidenceStore, document
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError
from securetrain.drills.worker_signs import ASK
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import events, key_file, read_ledger
from securetrain.ledger.events import WriterRole
from tests.launch.worlds import run_with_documents
from tests.train.jobs import JOB
from tests.vocabulary import refused

pytestmark = pytest.mark.dist

# Before anything else a worker hides the keys from itself, where it may, and dies if it opens one.
HIDE = """
import ctypes, os, sys
keys = os.environ["SECURETRAIN_RUN_DIR"] + "/keys"
if os.geteuid() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0
    assert libc.mount(b"none", b"/", None, (1 << 14) | (1 << 18), None) == 0
    assert libc.mount(b"tmpfs", keys.encode(), b"tmpfs", 0, b"size=64k") == 0
    assert os.listdir(keys) == []
def opened(event, arguments):
    if event == "open" and str(arguments[0]).startswith(keys):
        os.write(2, f"opened {arguments[0]}".encode())
        os._exit(99)
sys.addaudithook(opened)
"""

# Rank 0 makes the second group late: without fresh keys, rank 1 meets its address of before.
TRAINER = """
import time
from securetrain.train.__main__ import main
assert int(main(sys.argv[1:2], os.environ)) == 0
time.sleep(0.0 if int(os.environ["RANK"]) else 1.0)
"""

# A script of anybody: DDP, and our save in place of torch's.
SCRIPT = """
import json, torch, torch.distributed as dist
from datetime import UTC, datetime
from pathlib import Path
from torch.nn.parallel import DistributedDataParallel
import securetrain.artifacts as artifacts
from securetrain.core.errors import SecureTrainError
dist.init_process_group("gloo")
rank, out = dist.get_rank(), Path(sys.argv[2])
run = artifacts.this_run()
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in (7, 8, 9):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    now = datetime.now(UTC)
    context = artifacts.SaveContext(run_id=run.run_id, step=step, seq=step, created=now)
    artifacts.save({"model": model.state_dict()}, out / f"step-{step}", context=context)
try:  # two steps in one save
    context = artifacts.SaveContext(run_id=run.run_id, step=10 + rank, seq=10, created=now)
    artifacts.save({"model": model.state_dict()}, out / "odd", context=context)
    told = "saved"
except SecureTrainError as error:
    told = error.code
(out / f"odd-{rank}.txt").write_text(told)
dist.barrier()
if rank == 1:
    codes = lie_to_the_socket(rank, 2)
    (out / "codes.json").write_text(json.dumps(codes))
dist.barrier()
dist.destroy_process_group()
"""


def statements(folder, trust):
    found = sorted(folder.glob("step-*/" + STATEMENT))
    return [open_statement(path.read_bytes(), Kind.CHECKPOINT, trust).checkpoint for path in found]


def halves(envelope):
    """An envelope with two signatures, without the one and without the other."""
    value = json.loads(envelope)
    assert len(value["signatures"]) == 2
    return [canonical.dumps({**value, "signatures": [one]}) for one in value["signatures"]]


def needs_both(run, out, trust):
    """Every aggregate and the head carry both signatures of a pair, and count with both alone."""
    files = [*run.checkpoints.glob("step-*/" + STATEMENT), *out.glob("step-*/" + STATEMENT)]
    for path in files:
        for half in halves(path.read_bytes()):
            refused(IntegrityError, "ST-CKPT-120", open_statement, half, Kind.CHECKPOINT, trust)
    for half in halves((run.checkpoints / HEAD).read_bytes()):
        refused(IntegrityError, "ST-CKPT-120", open_head, half, trust)
    assert len(files) == 5


def binds_its_inputs(run, saved):
    """The dataset's statement and the job's settings are bound, without a path of this machine."""
    trust, store = TrustRoot.load(run.trust, datetime.now(UTC)), EvidenceStore(run.evidence)
    data = open_statement((run.dataset / STATEMENT).read_bytes(), Kind.DATASET, trust)
    first, second = saved
    assert {one.bound.dataset for one in saved} == {data.statement}
    assert (len(first.bound.parents), len(second.bound.parents)) == (0, 1)
    job = document(store, second.bound.job or "", documents_of_chain.Job)
    assert job is not None
    assert job.declared is not None
    told = document(store, job.declared, documents_of_chain.Declared)
    assert told is not None
    assert told.settings["steps"] == 6
    assert str(run.root.parent).encode() not in (store.get(job.declared) or b"")


def reading(run, trust):
    found = read_ledger(run.ledger.read_bytes(), trust)
    assert not found.ignored
    return found.recorded


def test_the_trainer_and_a_script_save_without_a_key_and_speak_for_nobody_else(launch, tmp_path):
    """One job: the trainer first, then DDP in a group made anew, with our save; rank 1 lies."""
    made = run_with_documents(tmp_path / "run")
    (tmp_path / "train.py").write_text(HIDE + TRAINER + ASK + SCRIPT)
    (tmp_path / "job.yaml").write_text(JOB)
    done = launch(
        made.run.root,
        *("--standalone", "--nproc-per-node", "2"),
        *(str(tmp_path / "train.py"), str(tmp_path / "job.yaml"), str(tmp_path / "out")),
    )
    assert done.code == 0, done.err
    trust = TrustRoot.load(made.run.trust, datetime.now(UTC))

    by_trainer = statements(made.run.checkpoints, trust)
    assert [one.step for one in by_trainer] == [3, 6]
    for one in by_trainer:
        assert members.check(one, trust, required=True) == []
        assert [signature.ranks for signature in one.by_nodes] == [[0, 1]], "once for the node"
    binds_its_inputs(made.run, by_trainer)
    newest = read_head(LocalStorage(made.run.checkpoints), trust)
    assert newest is not None
    assert newest.step == 6
    trainer = PrivateKey.load(key_file(made.run, WriterRole.RANK)).key_id
    by_rank = [line for line in reading(made.run, trust) if line.entry.keyid == trainer]
    assert {line.entry.body.writer for line in by_rank} == {"rank-0"}
    kinds = [type(line.event) for line in by_rank]
    assert kinds.count(events.CheckpointSigned) == 2

    by_script = statements(tmp_path / "out", trust)
    assert [one.step for one in by_script] == [7, 8, 9]
    assert all(members.check(one, trust, required=True) == [] for one in by_script)
    needs_both(made.run, tmp_path / "out", trust)
    # The ranks of the node did not agree on the step: both are told, and nothing is there.
    odd = [(tmp_path / "out" / f"odd-{rank}.txt").read_text() for rank in (0, 1)]
    assert odd == ["ST-RUNT-033"] * 2
    folders = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert folders == ["step-7", "step-8", "step-9"]
    codes = json.loads((tmp_path / "out" / "codes.json").read_text())
    assert codes == {
        "rank": "ST-RUNT-031",
        "run_id": "ST-RUNT-033",
        "step": "ST-RUNT-033",
        "world_size": "ST-RUNT-031",
    }
    denied = [e.event for e in reading(made.run, trust) if type(e.event) is events.SigningRefused]
    disagreed, *denied = denied
    assert (disagreed.code, "do not agree on the step" in disagreed.what) == ("ST-RUNT-033", True)
    assert [event.code for event in denied] == list(codes.values())
    assert {event.subject for event in denied} == {"rank-1"}
