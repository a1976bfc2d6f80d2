# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whose store is announced, who hears how the job stands, and what becomes of a lost rank 0."""

import pytest

from securetrain.core.errors import AdmissionError, UsageError
from securetrain.rendezvous.wire.protocol import Formed, Status, Store
from tests.rendezvous.worlds import Scene
from tests.tables import items
from tests.vocabulary import refused


@pytest.fixture
def scene():
    return Scene()


def test_a_round_that_is_complete_is_an_epoch(scene):
    for node in scene.nodes:
        assert scene.posted() == []
        scene.assembly.advance()
        scene.assembly.join(node)
    scene.assembly.advance()
    assert scene.posted() == [Formed]
    assert scene.assembly.membership.epoch == 7, "after that of the coordinator before"


def test_the_store_of_rank_0_is_announced_to_all(scene):
    scene.form()
    scene.announce()
    assert scene.posted() == [Store]


def test_a_store_before_there_is_an_epoch(scene):
    scene.announce()
    assert scene.posted() == []


def test_the_store_of_another_epoch_is_not_announced(scene):
    scene.form()
    scene.announce("node-1", epoch=6)
    assert scene.posted() == []


@items("node, host", ("node-1", "192.0.2.0"), ("node-1", "192.0.2.1"), ("node-0", "192.0.2.1"))
def test_only_rank_0_announces_a_store_and_only_its_own(scene, node, host):
    scene.form()
    refused(AdmissionError, "ST-ADMN-001", scene.announce, node, host)
    assert scene.posted() == []


def test_a_second_store_for_an_epoch_is_refused(scene):
    scene.form()
    scene.announce()
    refused(AdmissionError, "ST-ADMN-001", scene.announce)
    scene.form()
    scene.announce(epoch=8)


def test_where_the_job_stands_is_told_and_posted_when_the_last_one_is_done(scene):
    """Told is what is news to a node; posted is what it must hear whatever it knows."""
    assembly, session = scene.assembly, scene.nodes["node-1"]
    scene.nodes["node-2"].admitted = False

    def heard():
        assembly.tell_everybody()
        return session.take()

    assert heard() == ([], [Status]), "before the first round"
    scene.form()
    assert heard() == ([], [Status])
    for node in ("node-0", "node-1"):
        scene.rounds.finish(node)
        assert heard() == ([], [Status]), "the job is closed, and not all have done so"
    scene.rounds.finish("node-2")
    assert heard() == ([Status], []), "the last one is done"
    assert heard() == ([], [Status])
    assert scene.nodes["node-2"].take() == ([], []), "who is not in yet hears nothing"


def test_when_rank_0_goes_before_its_store_is_up_the_others_start_again(scene):
    scene.form()
    scene.assembly.remove("node-0", evicted=False)
    assert not scene.rounds.complete
    assert sorted(scene.rounds.participants) == ["node-1", "node-2"]


def test_when_it_goes_from_a_job_that_is_closed_nobody_waits_for_its_store(scene):
    scene.form()
    del scene.nodes["node-2"]
    scene.rounds.finish("node-1")
    scene.rounds.close()
    scene.assembly.remove("node-0", evicted=False)
    (error,) = scene.nodes["node-1"].evicted
    assert error.code == "ST-ADMN-008"
    assert scene.nodes["node-0"].evicted == []


@pytest.mark.parametrize("what", ["another node", "its store is up", "the next round forms"])
def test_otherwise_the_round_goes_on(scene, what):
    scene.form()
    if what == "another node":
        scene.assembly.remove("node-2", evicted=False)
    elif what == "its store is up":
        scene.announce()
        scene.assembly.remove("node-0", evicted=False)
    else:
        for node in scene.nodes:
            scene.assembly.join(node)
        number, members = scene.rounds.number, list(scene.rounds.participants)
        scene.assembly.remove("node-0", evicted=False)
        assert scene.rounds.number == number
        assert scene.rounds.participants == [node for node in members if node != "node-0"]
        return
    assert scene.rounds.complete


def test_of_a_round_that_could_not_be_recorded_nobody_is_rank_0(scene):
    class Full:
        def write(self, _said):
            raise UsageError("ST-USAG-006", "the disk is full")

    scene.assembly._journal = Full()
    with pytest.raises(UsageError):
        scene.form()
    assert scene.assembly.membership is None
    scene.assembly.remove("node-0", evicted=True)
    assert sorted(scene.rounds.participants) == ["node-1", "node-2"]
