# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How the end of a connection is written down, and what two nodes may not share."""

from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError
from securetrain.ledger.events.event import encode_event
from securetrain.rendezvous.coordinator import admission
from securetrain.rendezvous.coordinator.admission import record_end, twin_of
from tests.tables import items

ERROR = AdmissionError("ST-ADMN-013", "it was revoked")


class Written:
    """A journal that remembers what was written."""

    def __init__(self):
        self.rows = []

    def write(self, said):
        wire = encode_event(said)
        self.rows.append((wire.event, wire.code or None, wire.subject))

    def refuse_stranger(self, error, subject):
        self.rows.append(("stranger", error.code, subject))


def end(error, *, peer="node-0", hello=True, admitted=False, said_goodbye=False):
    journal: Any = Written()
    session: Any = SimpleNamespace(
        peer=peer,
        hello="Hello" if hello else None,
        admitted=admitted,
        said_goodbye=said_goodbye,
        subject=peer or "192.0.2.1",
    )
    record_end(journal, session, error)
    return journal.rows


def test_the_end_of_a_member():
    assert end(None, admitted=True, said_goodbye=True) == [("node-left", None, "node-0")]
    assert end(None, admitted=True) == [("node-lost", None, "node-0")]
    assert end(ERROR, admitted=True) == [("node-evicted", "ST-ADMN-013", "node-0")]


def test_a_node_that_was_not_let_in_is_always_written_down():
    assert end(ERROR) == [("node-refused", "ST-ADMN-013", "node-0")]


@pytest.mark.parametrize(("peer", "hello"), [("node-0", False), (None, True), (None, False)])
def test_who_has_not_said_who_it_is_may_be_counted_only(peer, hello):
    """A certificate alone costs its owner nothing to show again and again."""
    assert end(ERROR, peer=peer, hello=hello) == [("stranger", "ST-ADMN-013", peer or "192.0.2.1")]


def test_who_was_still_arriving_when_the_coordinator_stopped_is_nobody():
    assert end(None) == []


def session(node, key, wireguard=""):
    hello = SimpleNamespace(wireguard=wireguard)
    certificate = SimpleNamespace(key=key)
    channel = SimpleNamespace(check=SimpleNamespace(certificate=certificate))
    return SimpleNamespace(node=node, hello=hello, channel=channel)


@items(
    "new, shared",
    (session("node-0", "k1", "w1"), "name"),
    (session("node-1", "k0", "w1"), "key"),
    (session("node-1", "k1", "w0"), "WireGuard key"),
    (session("node-1", "k1", "w1"), ""),
    (session("node-1", "k1"), ""),
)
def test_what_only_one_node_can_have(monkeypatch, new, shared):
    monkeypatch.setattr(admission, "spki_of", lambda certificate: certificate.key)
    first = session("node-0", "k0", "w0")
    plain = session("node-9", "k9")
    found = (first, shared) if shared else (None, "")
    assert twin_of(new, [plain, first]) == found
