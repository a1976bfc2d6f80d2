# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Liars in a reduction in the open: nobody honest is named, and the step is settled right."""

import math
import random
from collections.abc import Collection, Sequence

import numpy as np
import pytest
import torch

from securetrain.guard.dispute import (
    REMEMBERED,
    OpenTable,
    Ruling,
    Standing,
    guilty_by_standing,
    rule,
)
from securetrain.guard.exclusion import Exclusion, Ground
from securetrain.guard.kept import Kept
from securetrain.guard.rereduction import Attempt
from securetrain.guard.settlement import Settler

NUMEL, K = 12, 16


class Group:
    """A group in one process: every rank's gradient, and what its liars do at each attempt.

    Args:
        ranks: how many.
        liars: those that may lie.
        rng: draws their lies.
        shared: every rank gets every part.
    """

    def __init__(self, ranks, liars=(), rng=None, *, shared=True):
        self.size, self.rank, self.liars, self.shared = ranks, 0, set(liars), shared
        self.rng = rng or random.Random(0)
        self.vectors = np.random.default_rng(self.rng.randrange(2**32)).normal(
            size=(ranks, ranks * NUMEL)
        )
        self.lies = []
        self.attempts = 0

    def lie(self, kind, who, whom=None, factor=1.01):
        """From now on, in every attempt."""
        self.lies.append((kind, who, whom, factor))

    def run(  # noqa: C901, PLR0912 - one branch for each lie
        self, kept: Sequence[Kept], out: Collection[int], apart: Collection[tuple[int, int]]
    ) -> Attempt:
        """`securetrain.guard.settlement.Reducer`."""
        del kept
        self.attempts += 1
        n = self.size
        owners = [r for r in range(n) if not self.shared or (r not in out and (r, r) not in apart)]
        included = np.array(
            [[r not in out and (r, o) not in apart for o in owners] for r in range(n)]
        )
        cut = np.array_split(self.vectors, len(owners), axis=1)
        sketch = [
            np.sign(np.random.default_rng(p).normal(size=(c.shape[1], K)))
            for p, c in enumerate(cut)
        ]
        data = [c.copy() for c in cut]  # what each owner gets from each rank
        lies = [one for one in self.lies if one[1] in self.liars]
        for kind, who, whom, factor in lies:
            for part, owner in enumerate(owners):
                if kind == "send" and whom in (None, owner):
                    data[part][who] *= factor
        sent = np.stack([cut[p] @ sketch[p] for p in range(len(owners))], axis=1)
        heard = np.stack([data[p] @ sketch[p] for p in range(len(owners))])
        means = [
            data[p][included[:, p]].sum(axis=0) / max(1, included[:, p].sum())
            for p in range(len(owners))
        ]
        copies = [[m.copy() for m in means] for _ in range(n)]
        for kind, who, whom, factor in lies:
            for part, owner in enumerate(owners):
                if kind == "give" and owner == who:
                    for receiver in range(n):
                        if receiver != who and whom in (None, receiver):
                            copies[receiver][part] = copies[receiver][part] * factor
        got = np.stack([[c @ sketch[p] for p, c in enumerate(copy)] for copy in copies])
        for kind, who, whom, factor in lies:
            for part, owner in enumerate(owners):
                if kind == "sent" and whom in (None, owner):
                    sent[who, part] *= factor
                if kind == "heard" and owner == who:
                    for sender in range(n):
                        if whom in (None, sender):
                            heard[part, sender] *= factor
                if kind == "got" and whom in (None, owner):
                    got[who, part] *= factor
        table = OpenTable(
            owners=tuple(owners),
            sent=sent,
            heard=heard,
            got=got,
            included=included,
            shared=self.shared,
            roundoff=2.0**-24,
        )
        self.last = (owners, included, copies)
        return Attempt(table=table, means=(torch.zeros(1),), rows=b"", sent_bytes=0)

    def all_gather(self, data: bytes) -> list[bytes]:
        """Liars vote as they like."""
        return [
            bytes(self.rng.randrange(256) for _ in data) if rank in self.liars else data
            for rank in range(self.size)
        ]

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        raise NotImplementedError

    def settle(self, offences=(), exclusion=None, standing=None):
        exclusion = exclusion or Exclusion(self.size)
        standing = standing or Standing(self.size, exclusion.limit)
        standing.begin()
        settler = Settler(self, self, exclusion, standing)
        return settler.settle([], list(offences), (), lambda rows, out: [])

    def is_right(self):
        """Whether every honest rank has, for every part, the mean of what was to be in it."""
        owners, included, copies = self.last
        cut = np.array_split(self.vectors, len(owners), axis=1)
        for part in range(len(owners)):
            honest = [r for r in np.flatnonzero(included[:, part]) if r not in self.liars]
            if honest and len(honest) == included[:, part].sum():
                want = cut[part][honest].mean(axis=0)
                for rank in range(self.size):
                    if rank not in self.liars and not np.allclose(
                        copies[rank][part], want, rtol=1e-3, atol=1e-3
                    ):
                        return False
            first = next(r for r in range(self.size) if r not in self.liars)
            for rank in range(self.size):
                if rank not in self.liars and not np.allclose(
                    copies[rank][part], copies[first][part], rtol=1e-3, atol=1e-3
                ):
                    return False
        return True


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_honest_ranks_settle_at_once(ranks, shared):
    group = Group(ranks, shared=shared)
    found = group.settle()
    assert found.means is not None
    assert (found.offences, found.disputes, found.texts, found.out) == ([], (), (), ())
    assert group.attempts == 1


@pytest.mark.parametrize("ranks", [4, 7, 8])
@pytest.mark.parametrize("kind", ["sent", "send", "heard", "got"])
def test_who_contradicts_many_is_guilty(ranks, kind):
    group = Group(ranks, [1])
    group.lie(kind, 1)
    found = group.settle()
    assert found.means is not None
    assert {rank for rank, _ in found.offences} == {1}
    assert found.out == (1,)
    assert {rank for rank, _ in found.texts} == {1}


@pytest.mark.parametrize("kind", ["sent", "send", "heard"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_pair_is_set_apart_and_neither_is_named(kind, shared):
    group = Group(4, [1], shared=shared)
    group.lie(kind, 1, 3)
    found = group.settle()
    assert found.means is not None
    assert (found.offences, found.texts, found.out) == ([], (), ())
    assert found.disputes == ((1, 3),)
    assert group.attempts == 2
    owners, included, _ = group.last
    assert included.sum() == len(owners) * 4 - 1, "one contribution to one part is left out"


def test_an_owner_that_gives_one_rank_another_copy_owns_no_more():
    group = Group(4, [1])
    group.lie("give", 1, 3)
    found = group.settle()
    assert found.means is not None
    assert found.disputes == ()
    assert found.offences == []
    assert 1 not in group.last[0]
    assert group.is_right()


def test_an_owner_that_gives_most_another_copy_is_guilty():
    group = Group(4, [1])
    group.lie("give", 1)
    found = group.settle()
    assert found.out == (1,)
    assert "gave" in found.texts[0][1]
    assert group.is_right()


def test_disputes_of_many_steps_add_up():
    standing = Standing(4, 1)
    for step, other in enumerate((0, 2)):
        standing.begin()
        found = guilty_by_standing(standing, [(min(1, other), max(1, other))])
        assert found == ({} if step == 0 else {1: (0, 2)})
    assert guilty_by_standing(standing, [(0, 3)]) == {}, "what it did counts against nobody else"
    standing = Standing(4, 1)
    standing.begin()
    guilty_by_standing(standing, [(0, 1)])
    for _ in range(REMEMBERED):
        standing.begin()
    assert guilty_by_standing(standing, [(1, 2)]) == {}, "forgotten"
    standing = Standing(3, 0)
    standing.begin()
    assert guilty_by_standing(standing, [(0, 1), (1, 2)]) == {}, "of three nobody is outvoted"


def test_numbers_that_are_not_finite_are_said_by_their_sender():
    group = Group(4, [2])
    group.vectors[2, 3] = math.nan
    found = group.settle()
    assert found.offences == [(2, Ground.NOT_FINITE)]
    assert found.out == (2,)
    assert group.is_right()


def test_one_that_hears_no_numbers_accuses_in_vain():
    group = Group(4, [2])
    group.lie("heard", 2, 0, math.nan)
    found = group.settle()
    assert found.means is not None
    assert found.offences == []
    assert found.disputes == ((0, 2),)


def test_more_offenders_than_the_bound_are_undecided():
    found = Group(4).settle([(1, Ground.PROOF), (2, Ground.PROOF)])
    assert found.means is None
    assert found.undecided


def test_without_a_majority_the_step_stays_refused():
    found = Group(4, [0, 1]).settle()
    assert found.means is None
    assert not found.undecided
    assert found.offences == []


def test_a_part_as_small_as_nothing_is_no_dispute():
    table = OpenTable(
        owners=(0, 1),
        sent=np.zeros((2, 2, K)),
        heard=np.zeros((2, 2, K)),
        got=np.zeros((2, 2, K)),
        included=np.ones((2, 2), dtype=bool),
        shared=True,
        roundoff=2.0**-24,
    )
    assert rule(table, [0, 1]) == Ruling()


def honest_table(ranks=4, *, shared=True, roundoff=2.0**-24, k=K):
    """All say what is so: each number of a row is 1, and so are the means."""
    return OpenTable(
        owners=tuple(range(ranks)),
        sent=np.ones((ranks, ranks, k)),
        heard=np.ones((ranks, ranks, k)),
        got=np.ones((ranks, ranks, k)),
        included=np.ones((ranks, ranks), dtype=bool),
        shared=shared,
        roundoff=roundoff,
    )


def test_numbers_in_which_the_others_are_lost_are_set_apart_though_nobody_denies_them():
    """They would widen the limit of their part, or bring down the owner who rounds in them."""
    whole = 4 * math.sqrt(K)  # of all parts, of most
    for length, found in ((1.001, ((2, 1),)), (0.999, ())):
        table = honest_table(ranks=16)
        table.sent[2, 1] = table.heard[1, 2] = 16 * whole * length / math.sqrt(K)
        table.got[:, 1] = table.heard[1].mean(axis=0)
        ruling = rule(table, range(16))
        assert ruling.apart == found
        assert (ruling.guilty, ruling.disputes) == ({}, ())
    table = honest_table(ranks=2)
    table.sent[1, 0] = table.heard[0, 1] = 1e9
    table.got[:, 0] = table.heard[0].mean(axis=0)
    assert rule(table, [0, 1]).apart == (), "of two neither is out of proportion"


@pytest.mark.parametrize(("ranks", "growth"), [(4, 2.5), (16, 8.0), (20, 2 * math.sqrt(20))])
@pytest.mark.parametrize("roundoff", [2.0**-24, 2.0**-8])
def test_what_an_owner_gives_out_may_be_off_by_rounding_and_no_more(ranks, growth, roundoff):
    table = honest_table(ranks, roundoff=roundoff, k=4)
    limit = (2 * roundoff * (1 + growth) + 2.0**-20 + 2.0**-18) * 2.0
    table.got[3, 1, 2] = 1 + 0.999 * limit
    assert rule(table, range(ranks)) == Ruling()
    table.got[3, 1, 2] = 1 + 1.001 * limit
    ruling = rule(table, range(ranks))
    assert (ruling.complaints, ruling.disputes) == (((3, 1),), ((1, 3),))
    # Who does not count has no complaint, but what it says is compared.
    ruling = rule(table, [rank for rank in range(ranks) if rank != 3])
    assert (ruling.complaints, ruling.disputes) == ((), ((1, 3),))


def test_an_owner_is_guilty_by_the_word_of_more_than_half():
    table = honest_table()
    table.got[[0, 3], 1] = 2.0
    assert rule(table, range(4)).guilty == {}, "half is not more than half"
    table.got[2, 1] = 2.0
    ruling = rule(table, range(4))
    assert set(ruling.guilty) == {1}
    assert ruling.complaints == ruling.disputes == ()
    table = honest_table()
    table.got[1, 1] = 2.0
    assert set(rule(table, range(4)).guilty) == {1}, "it contradicts itself"
    table = honest_table(shared=False)
    table.got[[0, 2, 3], 1] = 2.0
    assert rule(table, range(4)) == Ruling(), "what they say of another's part is not looked at"


def test_sender_and_owner_may_differ_by_rounding_and_no_more():
    for change, disputes in ((0.999, ()), (1.001, ((0, 2),))):
        table = honest_table()
        table.heard[2, 0] *= 1 - change * 2.0**-18
        table.got[:, 2] = table.heard[2].mean(axis=0)
        ruling = rule(table, range(4))
        assert ruling.disputes == disputes
        assert ruling.apart == tuple((rank, 2) for rank, _ in disputes)


def test_what_a_rank_that_does_not_count_sends_is_compared_and_set_apart_from_nobody():
    table = honest_table()
    table.included[0] = False
    table.sent[0, 2] = 5.0
    ruling = rule(table, [1, 2, 3])
    assert (ruling.disputes, ruling.apart) == (((0, 2),), ())
    table.sent[0] = math.nan
    ruling = rule(table, [1, 2, 3])
    assert ruling.not_finite == (), "its numbers refuse nothing"


def test_who_has_most_disputes_explains_those_of_the_others():
    standing = Standing(7, 2)
    standing.begin()
    pairs = [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]
    assert guilty_by_standing(standing, pairs) == {1: (0, 4, 5, 6)}
    assert standing.pairs == [(0, 2), (0, 3)], "which is not too many"
    standing = Standing(7, 2)
    standing.begin()
    found = guilty_by_standing(standing, [(0, 6), (1, 6), (2, 6), (3, 6)])
    assert found == {6: (0, 1, 2, 3)}, "who has disputes with one liar has one dispute"
    assert standing.pairs == []


KINDS = ["sent", "send", "heard", "got", "give"]
FACTORS = [1.0001, 1.01, -1.0, -5.0, 0.0, 1e6, 1e30, math.nan, math.inf]


def random_lies(seed, *, most=6):
    rng = random.Random(seed)
    ranks = rng.choice([4, 4, 5, 7, 8, 10])
    liars = rng.sample(range(ranks), rng.randint(1, (ranks - 1) // 3))
    group = Group(ranks, liars, rng, shared=rng.random() < 0.7)
    for _ in range(rng.randint(1, most)):
        whom = rng.choice([None, *range(ranks)])
        group.lie(rng.choice(KINDS), rng.choice(liars), whom, rng.choice(FACTORS))
    return group


def check(seed):
    group = random_lies(seed)
    exclusion = Exclusion(group.size)
    standing = Standing(group.size, exclusion.limit)
    settled = 0
    for _ in range(3):
        with np.errstate(all="ignore"):
            found = group.settle(exclusion=exclusion, standing=standing)
        named = {rank for rank, _ in found.offences} | {rank for rank, _ in found.texts}
        assert named <= group.liars, (seed, group.lies)
        assert set(found.out) <= group.liars, seed
        assert all(set(pair) & group.liars for pair in found.disputes), seed
        if found.means is not None:
            settled += 1
            with np.errstate(all="ignore"):
                assert group.is_right() or not group.shared, (seed, group.lies)
        exclusion.decide(found.offences)
    assert settled >= 2, (seed, group.lies, found)


def test_drawn_lies_name_nobody_honest_and_are_settled():
    for seed in range(150):
        check(seed)


@pytest.mark.many
def test_many_drawn_lies_name_nobody_honest_and_are_settled():
    for seed in range(1000, 4000):
        check(seed)
