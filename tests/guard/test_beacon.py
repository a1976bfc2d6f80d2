# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import hashlib
import threading

from securetrain.guard.beacon import Beacon, HashChain
from securetrain.guard.openings import hash_of
from tests.vocabulary import refused


class Meeting:
    """An in-memory group: one thread per rank."""

    def __init__(self, size):
        self.size = size
        self.barrier = threading.Barrier(size)
        self.slots = [b""] * size

    def channel(self, rank):
        return _Channel(self, rank)

    def run(self, call):
        results = [None] * self.size

        def work(rank):
            results[rank] = call(rank, self.channel(rank))

        threads = [threading.Thread(target=work, args=(r,)) for r in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return results


class _Channel:
    def __init__(self, meeting, rank):
        self.meeting, self.rank, self.size = meeting, rank, meeting.size

    def all_gather(self, data):
        self.meeting.slots[self.rank] = data
        self.meeting.barrier.wait(20)
        rows = list(self.meeting.slots)
        self.meeting.barrier.wait(20)
        return rows


def randomness(rank):
    counter = iter(range(1000))
    return lambda n: hashlib.sha512(bytes([rank, next(counter)])).digest()[:n]


def test_chain_opens_its_anchor_link_by_link():
    chain = HashChain(b"x" * 32, 5)
    last = chain.anchor
    for _ in range(5):
        value = chain.next()
        assert hash_of(value) == last
        last = value
    assert last == b"x" * 32
    assert chain.remaining == 0
    refused(ValueError, "secret bytes", HashChain, b"short", 5)


def test_ranks_agree_and_seeds_are_new():
    def call(rank, channel):
        beacon = Beacon(channel, randomness(rank), length=3)
        return [beacon.draw("batch") for _ in range(8)]  # renews the chains twice

    draws = Meeting(3).run(call)
    assert draws[0] == draws[1] == draws[2]
    assert len({d.seed for d in draws[0]}) == 8
    assert all(d.unopened == () for d in draws[0])


def test_every_rank_and_the_context_enter_the_seed():
    def call(rank, channel, context="a", other=None):
        source = randomness(other if rank == 1 and other else rank)
        return Beacon(channel, source).draw(context).seed

    base = Meeting(2).run(call)[0]
    assert Meeting(2).run(lambda r, c: call(r, c, context="b"))[0] != base
    assert Meeting(2).run(lambda r, c: call(r, c, other=9))[0] != base


def test_a_rank_that_chooses_its_value_late_is_named():
    def call(rank, channel):
        beacon = Beacon(channel, randomness(rank))
        beacon.commit()
        assert beacon._chain is not None
        if rank == 1:
            beacon._chain.next = lambda: b"\0" * 32  # type: ignore[method-assign]
        return beacon.draw("batch").unopened

    assert Meeting(3).run(call) == [(1,), (1,), (1,)]


def test_the_commitment_alone_does_not_tell_the_seed():
    # What a rank knows before it reveals: all anchors and its own chain.
    def call(rank, channel):
        beacon = Beacon(channel, randomness(rank))
        beacon.commit()
        anchors = list(beacon._last)
        assert beacon._chain is not None
        own = beacon._chain._links[-1]
        guess = hashlib.sha256(b"securetrain-seed-v1|batch|2|")
        for other, anchor in enumerate(anchors):
            guess.update(own if other == rank else anchor)
        return guess.digest(), beacon.draw("batch").seed

    for guess, seed in Meeting(2).run(call):
        assert guess != seed
