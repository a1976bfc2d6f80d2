# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import events, verify_ledger
from securetrain.policy.load import load_resolved
from securetrain.testing.clock import SettableClock
from securetrain.testing.runs import KEYS, make_run


def test_a_small_run_verifies(tmp_path):
    clock = SettableClock()
    run = make_run(tmp_path / "run", policy="baseline", clock=clock)
    run.ledger("rank-0").write(events.CheckpointSeen(step=1, digest=""))
    run.ledger().close()
    clock.advance(timedelta(days=1))
    trust = TrustRoot.load(run.run_dir.trust, clock())
    ledger = verify_ledger(
        run.run_dir.ledger.read_bytes(), trust.keys_for(TrustRole.LEDGER), require_closed=True
    )
    assert [entry.body.writer for entry in ledger.entries] == ["agent", "agent", "rank-0", "agent"]
    assert load_resolved(run.run_dir.resolved_policy).digest == run.policy.digest
    assert set(trust.keys_for(TrustRole.CHECKPOINT)) == {run.keys["checkpoint"].key_id}
    for name in (*KEYS, "node"):
        assert PrivateKey.load(run.run_dir.key(name)).key_id == run.keys[name].key_id


def test_a_clock_is_made_when_none_is_given(tmp_path):
    assert make_run(tmp_path / "run").clock().year == 2026
