# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the rendezvous drill takes for a refusal."""

from datetime import UTC, datetime

import pytest

from securetrain.core.errors import AdmissionError
from securetrain.drills.process_tree import Listener
from securetrain.drills.rendezvous_pickle import _judge
from securetrain.drills.tcpstore_client import Attack
from securetrain.ledger import events
from securetrain.testing.runs import make_run
from tests.tables import items

DOORS = [Listener(1000, loopback=True), Listener(1001, loopback=True)]
ATTACKS = [
    Attack(port=1000, connected=True, answer=b"\x15\x03\x01\x00"),
    Attack(port=1001, connected=True, spoke_store=True, overwritten=("/torch.rendezvous.x",)),
]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", clock=lambda: datetime.now(UTC))


def _refuse(run, code="ST-ADMN-002", kind=events.ConnectionRefused):
    run.ledger().write(kind.of(AdmissionError(code, "not TLS")))
    return run.run_dir


def test_a_closed_door_a_ledger_entry_and_a_good_end_are_a_refusal(run):
    outcome = _judge(_refuse(run), DOORS, ATTACKS, [], ended_well=True)
    assert outcome.refused
    assert not outcome.succeeded
    assert outcome.code == "ST-ADMN-002"
    assert "ended well" in outcome.evidence


def test_a_marker_is_a_success_whatever_else_was_seen(run):
    outcome = _judge(_refuse(run), DOORS, ATTACKS, [4711], ended_well=True)
    assert outcome.succeeded
    assert not outcome.refused
    assert "4711" in outcome.evidence


@items(
    "doors, attacks, ended_well",
    ([*DOORS, Listener(1002, loopback=False)], ATTACKS, True),
    (DOORS, ATTACKS[1:], True),  # nothing but an open store answered
    (DOORS, [], True),
    (DOORS, ATTACKS, False),
)
def test_anything_less_is_not(run, doors, attacks, ended_well):
    assert not _judge(_refuse(run), doors, attacks, [], ended_well=ended_well).refused


def test_the_ledger_must_say_so_itself(run):
    assert not _judge(run.run_dir, DOORS, ATTACKS, [], ended_well=True).refused
    _refuse(run, kind=events.RevocationsRefused)
    assert not _judge(run.run_dir, DOORS, ATTACKS, [], ended_well=True).refused
    _refuse(run, code="ST-ADMN-010")
    outcome = _judge(run.run_dir, DOORS, ATTACKS, [], ended_well=True)
    assert not outcome.refused
    assert outcome.code == "ST-ADMN-010"


def test_a_ledger_that_does_not_verify_says_nothing(run):
    run_dir = _refuse(run)
    data = run_dir.ledger.read_bytes()
    run_dir.ledger.write_bytes(data.replace(b"not TLS", b"not tls"))
    assert not _judge(run_dir, DOORS, ATTACKS, [], ended_well=True).refused
