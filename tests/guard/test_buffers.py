# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Buffers that DDP broadcasts: what a lying first rank sends is not taken by anybody."""

import math
from typing import Any

import numpy as np
import pytest

from securetrain.guard import buffers
from securetrain.guard.buffers import NUMBERS, BufferRecord, Reading, Words, same_up_to, weight
from securetrain.testing.processes import run_ranks
from tests.guard import buffer_lies
from tests.guard.buffer_lies import ATTACKS, START

RANKS, BUFFERS = 5, 3
NAMES = ("mean", "variance", "waves")


class Job:
    """Honest ranks in numbers: a common state, noise of each rank's own, and a lie of the first.

    Sketches keep lengths, so vectors of as many numbers stand for them.
    """

    def __init__(self, *, ranks: int = RANKS, shuffled: bool = True, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.record = BufferRecord(shuffled=shuffled)
        self.state = self.random.normal(size=(BUFFERS, NUMBERS))
        self.drift = np.zeros((ranks, BUFFERS, NUMBERS))
        self.weight, self.ranks = weight(shuffled=shuffled), ranks

    def sync(self, lie: Any = 0.0, own: Any = None, said: Any = None, apart: Any = ()) -> Reading:
        noise = 0.1 * self.random.normal(size=(self.ranks, BUFFERS, NUMBERS))
        noise[:, 2] = 0.0  # constants
        had = self.state + noise
        with np.errstate(all="ignore"):
            arrived = had[0] + lie
            self.drift = self.weight * self.drift + (arrived - had)
        self.drift[0] = 0.0
        words = []
        for rank in range(self.ranks):
            digest = bytes([rank in apart]) * 32
            mine = had[rank] if own is None or rank not in own else own[rank]
            drift = self.drift[rank] if said is None or rank not in said else said[rank]
            words.append(Words.decode(Words(digest, mine, drift).encode()))
        exact = [same_up_to(2.0**-23)] * BUFFERS
        return self.record.read(words, arrived, source=0, names=NAMES, roundoff=exact)


def only(index: int, value: float) -> Any:
    lie = np.zeros((BUFFERS, NUMBERS))
    lie[index] = value
    return lie


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_honest_broadcasts_are_accepted(ranks):
    job = Job(ranks=ranks)
    assert all(job.sync() == Reading() for _ in range(200))


def test_a_gross_honest_batch_is_accepted():
    job = Job()
    for step in range(100):
        assert job.sync(only(0, 0.1) if step % 20 == 19 else 0.0) == Reading()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_what_is_not_finite_is_refused_and_named(value, ranks):
    found = Job(ranks=ranks).sync(only(1, value))
    assert found.refused == {1}
    assert found.not_finite
    assert found.is_named
    assert "not finite: variance" in found.text


def test_nobody_is_named_where_most_others_are_not_finite_either():
    bad = np.full((BUFFERS, NUMBERS), math.nan)
    found = Job().sync(only(0, math.nan), own={1: bad, 2: bad, 3: bad})
    assert not found.is_named


@pytest.mark.parametrize(("size", "gross"), [(3.0, False), (3e3, True), (1e18, True)])
@pytest.mark.parametrize("ranks", [3, 5])
def test_what_is_far_from_the_others_own_is_refused(size, gross, ranks):
    job = Job(ranks=ranks)
    for _ in range(20):
        job.sync()
    found = job.sync(only(0, size))
    assert found.refused == {0}
    assert found.gross is gross
    assert found.is_named is gross


def test_a_first_sync_is_judged_more_gently():
    assert not Job().sync(only(0, 2.0)).refused
    assert Job().sync(only(0, 50.0)).refused == {0}


def test_a_constant_is_refused_at_once_and_its_sender_never_named():
    """A script may compute it on its first rank alone."""
    job = Job()
    for _ in range(30):
        found = job.sync(only(2, 1e4))
        assert found.refused == {2}
        assert not found.is_named


def test_machines_that_round_otherwise_are_not_refused():
    job = Job()
    for _ in range(300):
        rounding = job.random.normal(size=(BUFFERS, NUMBERS)) * 1e-7
        assert not job.sync(rounding).refused


def test_a_small_lie_that_is_repeated_adds_up_and_noise_of_its_size_does_not():
    job, noisy, apart = Job(), Job(), Job(shuffled=False)
    at = next(i for i in range(200) if job.sync(only(0, 0.1)).refused)
    assert 5 < at < 100
    random = np.random.default_rng(3)
    assert not any(noisy.sync(only(0, 0.1 * random.choice([-1, 1]))).refused for _ in range(200))
    assert not any(apart.sync(only(0, 0.1)).refused for _ in range(200)), "data of its own"


def test_a_rank_that_says_it_got_something_else_keeps_its_own_alone():
    found = Job().sync(apart=(3,))
    assert found.apart == (3,)
    assert not found.refused
    assert not found.is_named
    assert found.text


def test_when_most_say_so_nobody_takes_them_and_nobody_is_named():
    found = Job().sync(apart=(1, 2, 3))
    assert found.refused == {0, 1, 2}
    assert not found.is_named


@pytest.mark.parametrize("n", [4, 8])
def test_drawn_lies_of_other_ranks_refuse_no_honest_buffer(n):
    """At most a third of them, with any numbers."""
    random = np.random.default_rng(5)
    for seed in range(20):
        job, liars = Job(ranks=n, seed=seed), random.permutation(range(1, n))[: (n - 1) // 3]
        for _ in range(8):
            size = 10.0 ** random.uniform(-6, 38)
            kind = random.integers(5)
            bad = size * random.normal(size=(BUFFERS, NUMBERS)) if kind else np.nan
            rows = {int(r): np.broadcast_to(bad, (BUFFERS, NUMBERS)) for r in liars}
            found = job.sync(
                own=rows if kind != 1 else None,
                said=rows if kind != 2 else None,
                apart=tuple(map(int, liars)) if kind == 3 else (),
            )
            assert not found.refused
            assert not found.is_named


def test_a_liar_among_the_others_saves_no_liar_that_sends():
    """Two of eight are as many as may lie."""
    random = np.random.default_rng(6)
    for seed in range(40):
        job = Job(ranks=8, seed=seed)
        for _ in range(10):
            job.sync()
        wide = {r: 1e30 * random.normal(size=(BUFFERS, NUMBERS)) for r in (5,)}
        assert job.sync(only(1, 5.0), own=wide, said=wide).refused == {1}


def test_half_of_the_others_are_not_most():
    bad = np.full((BUFFERS, NUMBERS), math.nan)
    assert not Job().sync(only(0, math.nan), own={1: bad, 2: bad}).is_named
    assert Job().sync(only(0, math.nan), own={1: bad}).is_named
    half = Job(ranks=4).sync(apart=(2, 3))
    assert half.refused == {0, 1, 2}
    assert "most ranks" in half.text


def test_half_of_the_others_refuse_nothing_and_name_nobody():
    job = Job()
    for _ in range(20):
        job.sync()
    far = only(0, 1e9)
    assert not job.sync(said={1: far, 2: far}).refused
    assert job.sync(said={1: far, 2: far, 3: far}).refused == {0}
    for liars in ((1, 2), (1, 2, 3)):
        job = Job()
        for _ in range(20):
            job.sync()
        found = job.sync(only(0, 20.0), own=dict.fromkeys(liars, job.state + only(0, 1e5)))
        assert found.refused == {0}, "for all it is far"
        assert found.is_named is (len(liars) == 3), "beyond all proportion for most"


def test_who_says_that_it_drifted_far_is_not_believed_where_its_own_arrives():
    job = Job()
    for _ in range(20):
        job.sync()
    assert not job.sync(said={rank: only(2, 1e9) for rank in range(1, RANKS)}).refused


def test_a_constant_of_zero_names_nobody_either():
    job = Job()
    job.state[2] = 0.0
    for _ in range(12):
        found = job.sync(only(2, 1e4))
        assert found.refused == {2}
        assert not found.is_named


def test_rounding_is_as_large_as_the_numbers():
    job = Job()
    job.state[2] *= 1e3
    for _ in range(30):
        rounding = np.zeros((BUFFERS, NUMBERS))
        rounding[2] = 1e-4 * job.random.normal(size=NUMBERS)
        assert not job.sync(rounding).refused


@pytest.mark.parametrize(("syncs", "capped"), [(9, False), (10, True), (30, True)])
def test_of_one_sync_as_much_is_remembered_as_of_sixty_four(syncs, capped):
    """Whoever is the median once does not widen the limit for good; the first syncs may."""
    job = Job()
    for _ in range(syncs - 1):
        job.sync()
    record = job.record
    before = record._expected[0]
    wide = 1e3 * job.random.normal(size=(RANKS, BUFFERS, NUMBERS))
    job.sync(own=dict(enumerate(wide)))
    assert bool(record._expected[0] < 65 * before) is capped
    old = weight(shuffled=True) ** 2
    assert record._counted == pytest.approx(sum(old**n for n in range(syncs)))


def test_old_deviations_weigh_less_where_data_are_shuffled_and_nothing_elsewhere():
    assert weight(shuffled=True) == 1 - 1 / 128
    assert weight(shuffled=False) == 0.0


def test_three_buffers_are_listed_and_the_others_counted():
    listed = buffers._listed
    assert listed(["a", "b", "c", "d"], np.array([True, True, False, True])) == "a, b, d"
    assert listed(["a", "b", "c", "d", "e"], np.ones(5, dtype=bool)) == "a, b, c and 2 more"
    assert listed(["a"], np.array([True])) == "a"


def test_a_model_with_more_buffers_begins_anew_by_itself():
    job = Job()
    for _ in range(20):
        job.sync()
    words = [Words(b"d" * 32, np.ones((1, NUMBERS)), np.zeros((1, NUMBERS))) for _ in range(4)]
    job.record.read(words, np.ones((1, NUMBERS)), source=0, names=("a",), roundoff=[0.0])
    assert (job.record._syncs, job.record._counted) == (1, 1.0)


def test_a_model_with_other_buffers_begins_anew():
    job = Job()
    job.sync()
    job.record.forget()
    assert job.sync() == Reading()


@pytest.fixture(scope="module")
def seen() -> Any:
    return run_ranks(buffer_lies.few, 4, timeout=280)


@pytest.mark.dist
@pytest.mark.slow
def test_without_the_guard_they_are_in_every_model(seen):
    for found in seen:
        assert math.isnan(found["nan, plain"]["held_out"])
        clean = found["clean, plain"]["held_out"]
        assert found["var times 3, plain"]["held_out"] > 1.2 * clean


@pytest.mark.dist
@pytest.mark.slow
def test_an_honest_run_keeps_every_bit(seen):
    for found in seen:
        assert found["clean"]["losses"] == found["clean, plain"]["losses"]
        assert found["clean"]["buffers"] == found["clean, plain"]["buffers"]
        assert not any(v["codes"] for v in found["clean"]["verdicts"])
        # What another rank does to its own copy is overwritten, as ever.
        assert found["another liar"]["losses"][-1] == found["clean"]["losses"][-1]


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_buffers_of_a_liar_are_not_taken(seen, name):
    for rank, found in enumerate(seen):
        case, clean = found[name], found["clean"]
        verdicts = [v for v in case["verdicts"] if v["codes"]]
        assert verdicts[0]["step"] == START + 1, "counted from one"
        assert {code for v in verdicts for code in v["codes"]} == {"ST-GRAD-014"}
        assert {r for v in verdicts for r in v["outliers"]} <= {0}
        assert all(v["response"] != "skip-step" for v in verdicts), "no step is lost"
        if name in {"nan", "huge"}:
            assert verdicts[0]["outliers"] == verdicts[0]["newly_excluded"] == [0]
        if name == "waves":
            assert not any(v["outliers"] for v in verdicts), "a script may do that"
        if rank:  # what the liar does to its own copy is its own
            assert case["held_out"] == pytest.approx(clean["held_out"], rel=0.02)
            assert case["buffers"]["waves"] == clean["buffers"]["waves"]


@pytest.mark.dist
@pytest.mark.slow
def test_a_policy_that_only_observes_says_so_and_takes_them(seen):
    for found in seen:
        case = found["observe"]
        first = next(v for v in case["verdicts"] if v["codes"])
        assert first["codes"] == ["ST-GRAD-014"]
        assert first["outliers"] == [0]
        assert not first["newly_excluded"]
        assert math.isnan(case["held_out"])


@pytest.mark.many
@pytest.mark.dist
@pytest.mark.slow
def test_a_small_factor_in_each_step_is_found_and_a_long_honest_run_is_not():
    for found in run_ranks(buffer_lies.long, 4, timeout=580):
        assert not any(v["codes"] for v in found["clean"]["verdicts"])
        first = next(v for v in found["slow"]["verdicts"] if v["codes"])
        assert first["codes"] == ["ST-GRAD-014"]
        assert first["step"] < START + 60
        assert not first["outliers"]
