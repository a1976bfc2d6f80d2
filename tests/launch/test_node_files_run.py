# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A rank that is lost in a save, before or after it has handed its word in: nothing is half there.

After it, the launcher has the words of all ranks and signs; the coordinator of the save never hears
from the rank, and commits nothing. The next round saves under words of its own.
"""

from datetime import UTC, datetime

import pytest

from securetrain.artifacts.statement import members
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.verify import verify_path
from securetrain.identity.trust import TrustRoot
from securetrain.launch.setup import prepare_run

pytestmark = [pytest.mark.dist, pytest.mark.many]

SCRIPT = """
import os, signal, sys, torch, torch.distributed as dist
from datetime import UTC, datetime
from pathlib import Path
import securetrain.artifacts as artifacts
from securetrain.artifacts.statement.checkpoint_predicate import NodeSigner
out, when = Path(sys.argv[1]), sys.argv[2]
rank, again = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
run = artifacts.this_run()
context = artifacts.SaveContext(run_id=run.run_id, step=7, seq=7, created=datetime.now(UTC))
honest = NodeSigner.hand_in
def hand_in(self, message):
    if when == "after":
        honest(self, message)
    (out / "killed").write_text("")
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1 and not again:
    NodeSigner.hand_in = hand_in
if again and rank == 0:
    (out / "before").write_text(" ".join(path.name for path in out.iterdir() if path.is_dir()))
artifacts.save({"w": torch.full((4096,), float(again))}, out / "step-7", context=context)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rank_is_killed_in_a_save(launch, tmp_path, when):
    made = prepare_run(tmp_path / "run", "dev", datetime.now(UTC))
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "save.py").write_text(SCRIPT)
    done = launch(
        made.run.root,
        *("--standalone", "--nproc-per-node", "2", "--max-restarts", "1"),
        *(str(tmp_path / "save.py"), str(out), when),
    )
    assert (out / "killed").exists()
    assert done.code == 0, done.err
    assert "step-7" not in (out / "before").read_text().split(), "a checkpoint of one rank"
    now = datetime.now(UTC)
    trust = TrustRoot.load(made.run.trust, now)
    result = verify_path(out / "step-7", trust=trust, policy=None, now=now)
    assert result.ok, result.problems
    data = (out / "step-7" / STATEMENT).read_bytes()
    said = open_statement(data, Kind.CHECKPOINT, trust).checkpoint
    assert [node.ranks for node in said.by_nodes] == [[0, 1]]
    assert members.check(said, trust, required=True) == []
