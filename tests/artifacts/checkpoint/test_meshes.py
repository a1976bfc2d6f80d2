# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Four ranks: DDP to FSDP2 x TP and back, in the background, with rank signatures and floors."""

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from securetrain.artifacts import verify_path
from securetrain.artifacts.statement.members import issue
from securetrain.artifacts.statement.statements import CheckpointPredicate
from securetrain.policy.load import load_policy
from tests.scenarios import run_scenarios

pytestmark = pytest.mark.dist

WORKER = Path(__file__).with_name("mesh_worker.py")
WORLD = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory, keys, now):
    root = tmp_path_factory.mktemp("mesh")
    keys.checkpoint.save(root / "checkpoint.pem")
    (root / "trust.json").write_bytes(keys.trust_file())
    (root / "now").write_text(now.isoformat())
    term = (now - timedelta(hours=1), now + timedelta(hours=1))
    for number in range(2):
        signer = issue("run-1", f"node-{number}", term, keys.admitter)
        signer.store(root / f"node-{number}.pem", root / f"node-{number}.json")
    return root, run_scenarios(WORKER, WORLD, timeout=200, ROOT=str(root))


def test_ddp_to_fsdp2_with_tp_and_back_is_equal_bit_by_bit(run):
    for report in run[1]:
        assert report["differs_first"]
        assert report["ddp_to_2d"]
        assert report["2d_to_ddp"]


def test_every_rank_has_signed(run, trust, now):
    policy = load_policy("dev").policy
    asked = replace(policy, checkpoint=replace(policy.checkpoint, require_rank_signatures=True))
    for name in ("ddp", "2d"):
        assert verify_path(run[0] / name, trust=trust, policy=None, now=now).ok
        result = verify_path(run[0] / name, trust=trust, policy=asked, now=now)
        assert not {p.code for p in result.problems} & {"ST-CKPT-111", "ST-CKPT-122"}
        assert isinstance(result.statement, CheckpointPredicate)
        assert [s.rank for s in result.statement.signatures] == list(range(WORLD))
        assert len(result.statement.members) == 2


def test_one_node_that_has_seen_more_stops_a_rollback(run):
    for report in run[1]:
        assert report["rollback"].startswith("ST-CKPT-151")
        assert report["fresh"] == "none"
        assert report["remembered"]


def test_a_rank_without_a_signer_or_at_another_step(run):
    for report in run[1]:
        assert report["lone"].startswith("ST-USAG-001 rank 0 has no key")
        assert report["odd"].startswith("ST-CKPT-111 rank 2 signed")
    assert not (run[0] / "lone").exists()
    assert not (run[0] / "odd").exists()
