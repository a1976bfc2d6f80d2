# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Refusals of strangers are written up to a number, then counted; everything else is written."""

import pytest

from securetrain.core.errors import AdmissionError, AttestationError
from securetrain.core.vocabulary import Boundary
from securetrain.identity.keys import PrivateKey
from securetrain.ledger import Ledger, events, verify_ledger
from securetrain.rendezvous.coordinator.journal import WINDOW_ENTRIES, WINDOW_SECONDS, Journal

STRANGE = AdmissionError("ST-ADMN-002", "no certificate")
OTHER = AdmissionError("ST-ADMN-001", "no frame")


class Scene:
    def __init__(self, path, tools):
        self.key, self.path, self.time = PrivateKey.generate(), path, 1000.0
        ledger = Ledger(path, self.key, "coordinator", tools.now).begin()
        self.journal = Journal(ledger, lambda: self.time)

    def events(self):
        keys = {self.key.key_id: self.key.public}
        entries = verify_ledger(self.path.read_bytes(), keys).entries
        return [entry.body.event for entry in entries[1:]]

    def flood(self, count, error=STRANGE):
        for _ in range(count):
            self.journal.refuse_stranger(error, "192.0.2.1")


@pytest.fixture
def scene(tmp_path, tools):
    return Scene(tmp_path / "ledger.jsonl", tools)


def test_the_refusal_of_a_node_is_always_written(scene):
    late = AttestationError("ST-ATTS-007", "the lease ended")
    for _ in range(2):
        scene.journal.write(events.NodeEvicted.of(late, "node-0"))
        scene.journal.write(events.NodeEvicted.of(STRANGE, "node-0"))
    assert [(e.event, e.code, e.boundary) for e in scene.events()] == 2 * [
        ("node-evicted", "ST-ATTS-007", Boundary.NODE),
        ("node-evicted", "ST-ADMN-002", Boundary.RENDEZVOUS),
    ]


def test_a_flood_is_written_up_to_a_number_and_then_counted(scene):
    scene.flood(WINDOW_ENTRIES + 7)
    assert [e.event for e in scene.events()] == WINDOW_ENTRIES * ["connection-refused"]
    scene.flood(1, OTHER)
    assert scene.events()[-1].code == "ST-ADMN-001", "each code has its own number"
    scene.time += WINDOW_SECONDS
    scene.flood(1)
    counted, again = scene.events()[-2:]
    assert (counted.event, counted.subject) == ("refusals-not-listed", "ST-ADMN-002")
    assert counted.details == {"count": 7}
    assert (again.event, again.code) == ("connection-refused", "ST-ADMN-002")


def test_at_the_end_what_was_left_out_is_said_once(scene):
    scene.flood(WINDOW_ENTRIES + 1)
    scene.flood(3, OTHER)
    scene.journal.finish()
    scene.journal.finish()
    assert [e.event for e in scene.events()].count("refusals-not-listed") == 1


def test_without_a_ledger_nothing_is_kept():
    journal = Journal(None)
    for _ in range(WINDOW_ENTRIES + 1):
        journal.refuse_stranger(STRANGE, "192.0.2.1")
    journal.write(events.NodeRefused.of(STRANGE, "node-0"))
    journal.finish()
    assert journal._windows == {}
