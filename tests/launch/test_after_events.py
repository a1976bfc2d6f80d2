# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the launcher does for what a worker said, after it was written down."""

from types import SimpleNamespace
from typing import Any

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.node.secrets import NodeSecrets
from securetrain.launch.signing.after_events import AfterEvents
from securetrain.ledger import events
from tests.rendezvous.wire.test_ranks import membership
from tests.vocabulary import refused


class Heard:
    def __init__(self) -> None:
        self.suspected: list[tuple[str, str, str]] = []
        self.back: list[events.RolledBack] = []
        self.begun: list[Any] = []

    def suspect(self, node, code, what=""):
        self.suspected.append((node, code, what))

    def roll_back(self, said):
        self.back.append(said)

    def begin(self, membership, local):
        self.begun.append((membership, local))


def after() -> tuple[AfterEvents, Heard]:
    heard: Any = Heard()
    made = AfterEvents(heard, NodeSecrets(rules={}, say=lambda _: None))
    made.joined(heard)
    made.begin(membership((2, ""), (1, ""), (1, "")), lambda time: time)
    return made, heard


def worker(rank: int) -> Any:
    return SimpleNamespace(rank=rank)


def suspicion(rank: int) -> events.RankSuspected:
    return events.RankSuspected(subject="x", rank=rank, cause="ST-GRAD-010", said="silent")


def test_a_suspicion_of_a_rank_becomes_one_of_its_node_by_the_membership():
    made, heard = after()
    made.act(worker(0), suspicion(2))
    assert heard.suspected == [("node-1", "ST-GRAD-010", "silent")]
    assert len(heard.begun) == 1


def test_a_node_does_not_accuse_itself():
    made, heard = after()
    made.act(worker(0), suspicion(1))
    assert heard.suspected == []


def test_a_rank_that_is_not_there_is_refused():
    made, _ = after()
    refused(RuntimeRefusal, "ST-RUNT-031", made.act, worker(0), suspicion(4))


def test_nothing_is_told_before_the_node_has_joined():
    made, heard = after()
    made.member = None
    made.act(worker(0), suspicion(2))
    assert heard.suspected == []


def test_a_rollback_sets_aside_and_other_events_do_nothing():
    made, heard = after()
    said = events.RolledBack(subject="step 9", to=4, ranks="2", evidence="why")
    made.act(worker(0), said)
    made.act(worker(0), events.RankReadmitted(subject="step 9", rank=2))
    assert heard.back == [said]
    assert heard.suspected == []
