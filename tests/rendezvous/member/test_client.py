# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a node makes of what it hears, on a link that connects to nobody.

With a coordinator: `test_join`, `test_evictions`; with a hostile one: `test_attacks`.
"""

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.rendezvous.member import client as member_module
from securetrain.rendezvous.member.client import Member
from securetrain.rendezvous.member.round import SpareNodeError
from securetrain.rendezvous.wire.protocol import Close, Ready, Status, Store
from tests.rendezvous.worlds import entry, membership_of
from tests.tables import items
from tests.vocabulary import refused

SOLD = AdmissionError("ST-ADMN-013", "it was sold")


def membership(epoch=0, count=2):
    entries = [entry(rank, address=f"192.0.2.{rank}") for rank in range(count)]
    return membership_of(*entries, epoch=epoch, round=epoch)


def status(*, closed=False, **more):
    return Status(waiting=0, ready=0, closed=closed, **more)


class FakeLink:
    """Remembers what was posted; open until it is told otherwise."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.posted: list[Any] = []
        self.is_open = True
        terms = SimpleNamespace(join_timeout_seconds=600.0, min_nodes=2)
        self.admitted = SimpleNamespace(terms=terms)
        self.clock_offset = timedelta(0)
        self.on_post: Any = lambda _: None

    def post(self, message):
        self.posted.append(message)
        self.on_post(message)

    def leave(self):
        self.is_open = False


class FakeTunnel:
    """What a node was told to do with its end of the job network."""

    key, port, profile = "w" * 44, 5000, NetworkProfile.OVERLAY

    def __init__(self):
        self.done = []

    def apply(self, given, *_):
        self.done.append(f"apply {given.epoch}")

    def drop(self, nodes):
        self.done.append(f"drop {' '.join(nodes)}")

    def clear(self):
        self.done.append("clear")


class Clock:
    """Every look takes a second, and a hundred of them are too many."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        self.time += 1.0
        assert self.time < 100, "it waits for ever"
        return self.time


@pytest.fixture
def build(job, monkeypatch):
    monkeypatch.setattr(member_module, "Link", FakeLink)
    identity = job.identity("node-1")

    def make(**settings) -> Any:
        made: Any = Member(
            identity, job.attester(identity), clock=datetime.now, monotonic=Clock(), **settings
        )
        # A wait ends at once, as when nobody has said anything for as long as it may last.
        made._changed.wait = lambda _=None: False
        return made

    return make


def form(member, epoch=0, *, store=True):
    """As if the coordinator had formed an epoch, and rank 0 had started its store."""
    member._membership, member._store = membership(epoch), None
    if store:
        member._take_store(Store(epoch=epoch, host="192.0.2.0", port=5000))


def no_store(_):
    pytest.fail("this node is not rank 0")


# Whether it is in.


def test_a_node_is_in_until_it_fails_or_leaves(build):
    member = build()
    assert member.connected
    member._fail(SOLD)
    assert not member.connected, "also while the link's thread has not ended yet"
    member = build()
    member.leave()
    assert not member.connected


def test_the_first_failure_is_the_one_that_counts(build):
    member = build()
    member._fail(SOLD)
    member._fail(AdmissionError("ST-ADMN-007", "the connection is gone"))
    member._link.is_open = False
    for ask in (lambda: member.num_waiting, lambda: member.next_round(no_store), member.close_job):
        refused(AdmissionError, "it was sold", ask)


def test_a_node_that_has_left_is_told_so(build):
    member = build()
    member.leave()
    error = refused(AdmissionError, "this node has left the job", lambda: member.num_waiting)
    assert error.code == "ST-ADMN-007"


# Rounds.


def test_a_round(build):
    tunnel = FakeTunnel()
    member = build(tunnel=tunnel)
    member._link.on_post = lambda _: form(member)
    found = member.next_round(no_store)
    assert (found.rank, found.world_size, found.host, found.port) == (1, 2, "192.0.2.0", 5000)
    assert tunnel.done == ["clear", "apply 0"], "it drops nobody when nobody is out"
    assert isinstance(member._link.posted[0], Ready)


def test_a_round_whose_store_comes_later(build):
    """The epoch is applied once, and its store waited for."""
    tunnel = FakeTunnel()
    member = build(tunnel=tunnel)
    member._link.on_post = lambda _: form(member, store=False)

    def announce(_=None):
        assert tunnel.done == ["clear", "apply 0"], "it is ready before the store is"
        member._take_store(Store(epoch=0, host="192.0.2.0", port=5000))

    member._changed.wait = announce
    assert member.next_round(no_store).port == 5000
    assert tunnel.done == ["clear", "apply 0"]


def test_who_is_out_when_the_epoch_is_applied_is_dropped(build):
    tunnel = FakeTunnel()
    member = build(tunnel=tunnel)
    form(member)
    member._hear(status(evicted=("node-0",)))
    assert tunnel.done == ["drop node-0"]
    build()._hear(status(evicted=("node-0",)))  # a node without a tunnel has nothing to cut


@items("id, timeout, looks", ("its own", 5.0, 5), ("the coordinator's", None, 20))
def test_how_long_it_waits_for_others(build, timeout, looks):
    member = build()
    member._link.admitted.terms.join_timeout_seconds = 20.0
    error = refused(AdmissionError, "ST-ADMN-005", member.next_round, no_store, timeout)
    assert "fewer than 2 nodes have joined" in str(error)
    assert looks <= member._monotonic.time <= looks + 2
    assert not member._link.is_open, "it leaves, so that the others do not wait for it"


def test_how_long_it_waits_for_the_store(build):
    member = build()
    member._link.on_post = lambda _: form(member, store=False)
    with pytest.raises(AdmissionError, match=r"rank 0 \(node-0\) has not started the store"):
        member.next_round(no_store, 5.0)


def test_a_store_without_a_membership_is_nothing(build):
    member = build()
    member._store = Store(epoch=0, host="192.0.2.0", port=5000)
    refused(AdmissionError, "ST-ADMN-005", member._await, None, 5.0, 5.0)


def test_a_round_that_is_complete_counts_although_the_job_was_closed(build):
    member = build()

    def close_and_form(_):
        form(member)
        member._status = status(closed=True)

    member._link.on_post = close_and_form
    assert member.next_round(no_store).port == 5000


@pytest.mark.parametrize(("spare", "kind"), [(False, AdmissionError), (True, SpareNodeError)])
def test_a_job_that_is_closed_has_no_more_rounds(build, spare, kind):
    member = build()
    member._status = status(closed=True, spare=spare)
    member._link.on_post = lambda _: member.leave()  # its connection ends as well
    error = refused(AdmissionError, "ST-ADMN-008", member.next_round, no_store)
    assert "the job is closed" in str(error)
    assert type(error) is kind


def test_who_was_evicted_from_a_closed_job_hears_why(build):
    member = build()
    member._status = status(closed=True)
    member._link.on_post = lambda _: member._fail(SOLD)
    refused(AdmissionError, "it was sold", member.next_round, no_store)


# Stores.


def test_a_store_of_another_round_is_not_heard(build):
    member = build()
    member._take_store(Store(epoch=0, host="192.0.2.9", port=5000))
    assert member._store is None
    form(member, 3, store=False)
    member._take_store(Store(epoch=2, host="192.0.2.0", port=5000))
    assert member._store is None


def test_a_store_elsewhere_is_refused(build):
    member = build()
    form(member, store=False)
    with pytest.raises(AdmissionError, match=r"rank 0 is at 192\.0\.2\.0") as caught:
        member._take_store(Store(epoch=0, host="192.0.2.1", port=5000))
    assert caught.value.code == "ST-ADMN-009"
    assert member._store is None


# The end.


def test_closing_the_job_is_waited_for_and_not_for_ever(build):
    member = build()
    error = refused(AdmissionError, "ST-ADMN-005", member.close_job)
    assert "closing the job took too long" in str(error)
    assert member._link.posted == [Close()]
    member._changed.wait = lambda _: member._hear(status(closed=True)) or True
    member.close_job()
    assert member.closed


@items(
    "changes, over",
    ({"closed": True, "unfinished": 1}, False),
    ({"closed": False, "unfinished": 0}, False),
    ({"closed": True, "unfinished": 0}, True),
)
def test_the_others_are_waited_for(build, changes, over):
    member = build()
    member._status = status(**changes)
    assert member.await_others(0.0) is over


def test_who_is_out_waits_for_nobody(build):
    failed, left = build(), build()
    failed._fail(SOLD)
    left._link.is_open = False
    for member in (failed, left):
        member._status = status(closed=True, unfinished=1)
        assert member.await_others(0.0)
