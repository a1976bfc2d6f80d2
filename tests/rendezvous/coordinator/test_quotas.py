# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What one node may cost, and how long one that comes and goes is kept out."""

import pytest

from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.coordinator import quotas as module
from securetrain.rendezvous.coordinator.quotas import Bucket, Quotas
from securetrain.rendezvous.wire.protocol import Heartbeat, Ready, Renew, Suspect
from tests import vocabulary

ACCUSATION = Suspect(node="node-1", epoch=0, code="ST-GRAD-001")


def code_of(call):
    """The refusal of a call, if it was refused."""
    try:
        call()
    except AdmissionError as error:
        return error
    return None


class Scene:
    def __init__(self, **settings):
        self.time = 1000.0
        fields = {"lease": 600.0, "heartbeat": 5.0, "monotonic": lambda: self.time}
        self.quotas = Quotas(**{**fields, **settings})

    def fill(self, message, node="node-0", limit=10_000):
        """How many are heard before one is too many."""
        for count in range(limit):
            refused = code_of(lambda: self.quotas.hear(node, message))
            if refused:
                assert refused.code == "ST-ADMN-031"
                return count
        raise AssertionError("there is no end")


@pytest.fixture
def scene():
    return Scene()


def test_a_bucket_fills_with_time_and_not_above_its_size():
    bucket = Bucket.full((2, 1), 0)
    assert [bucket.take(1, 0) for _ in range(3)] == [True, True, False]
    assert bucket.take(1, 1)
    assert not bucket.take(1, 1.5)
    assert bucket.take(2, 100)
    assert not bucket.take(1, 100)


@pytest.mark.parametrize(
    ("message", "number"),
    [(Heartbeat(), 400), (Ready(floors=()), 40), (Renew(), 6), (ACCUSATION, 16)],
    ids=lambda given: type(given).__name__,
)
def test_what_is_too_many_at_once(scene, message, number):
    assert scene.fill(message) == number
    assert scene.fill(message, "node-1") == number, "each node has its own"


def test_an_honest_node_never_meets_a_limit(scene):
    """Three renewals in a lease and a beat every heart-beat, for a day; a restart every minute."""
    for second in range(0, 86400, 5):
        scene.time += 5
        scene.quotas.hear("node-0", Heartbeat())
        if second % 200 == 0:
            scene.quotas.hear("node-0", Renew())
            scene.quotas.write("node-0", 1000)
        if second % 60 == 0:
            scene.quotas.hear("node-0", Ready(floors=()))
            scene.quotas.write("node-0", 3000)


def test_renewals_are_counted_by_the_lease(scene):
    assert scene.fill(Renew()) == 6
    scene.time += 100
    assert scene.fill(Renew()) == 1
    assert Scene(lease=6.0).fill(Renew()) == 6


def test_a_short_heart_beat_has_its_messages():
    fast = Scene(heartbeat=0.01)
    for _ in range(2000):
        fast.time += 0.01
        fast.quotas.hear("node-0", Heartbeat())


def test_what_is_written_for_a_node_is_bounded_in_bytes(scene):
    scene.quotas.write("node-0", 100_000)
    vocabulary.refused(AdmissionError, "ST-ADMN-031", scene.quotas.write, "node-0", 100_000)
    scene.quotas.write("node-1", 100_000)
    scene.time += 300
    scene.quotas.write("node-0", 100_000)


def test_who_comes_and_goes_waits_longer_every_time(scene):
    pauses = []
    for _ in range(20):
        scene.quotas.gone("node-0")
        refused = code_of(lambda: scene.quotas.admit("node-0"))
        assert refused is None or refused.code == "ST-ADMN-030"
        pauses.append(int(refused.what.rpartition(" in ")[2].removesuffix(" s")) if refused else 0)
    assert pauses[:10] == [0, 0, 0, 0, 5, 10, 20, 40, 80, 160]
    assert set(pauses[10:]) == {300}
    scene.quotas.admit("node-1")


def test_it_is_told_how_long_it_still_is(scene):
    for _ in range(6):
        scene.quotas.gone("node-0")
    scene.time += 3.5
    vocabulary.refused(AdmissionError, r"gone 6 times .* in 7 s", scene.quotas.admit, "node-0")
    scene.time += 6.5
    scene.quotas.admit("node-0")


def test_what_was_long_ago_is_forgotten(scene):
    for _ in range(12):
        scene.quotas.gone("node-0")
    scene.time += module.WINDOW_SECONDS
    scene.quotas.admit("node-0")
    scene.quotas.gone("node-0")
    scene.quotas.admit("node-0")
