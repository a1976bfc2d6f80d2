# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from securetrain.guard.bets import bets_for
from securetrain.guard.somebody import Somebody
from securetrain.policy.schema import GradientData

NORM, DISTANCE, COSINE, MOMENTUM = range(4)


class Steps:
    """Standardised statistics of steps: honest ones, in which one rank may be turned.

    `agreement` is the ranks' cosine in each group, in honest deviations.
    """

    def __init__(self, ranks=8, agreement=(0.5, 0.5, 0.5, 0.5), seed=0, unit=1.0):
        self.somebody = Somebody(bets_for(GradientData.SHUFFLED))
        self.random = np.random.default_rng(seed)
        self.ranks = ranks
        self.unit = np.full((len(agreement), 4), unit)
        self.level = np.repeat(np.array(agreement)[:, None], 4, axis=1) * self.unit
        self.base = np.ones(ranks, dtype=bool)
        self.step = 0

    def run(self, steps, turned=lambda step: None, *, scale=1.0):
        """ln E of each of `steps` steps."""
        seen = []
        for _ in range(steps):
            z = scale * self.random.standard_normal((len(self.level), 4, self.ranks))
            bad = turned(self.step)
            if bad is not None:
                z[:, 2:, bad] -= 2 * np.maximum(self.level / self.unit, 0)[:, 2:]
            total = self.somebody.observe(z, self.level, self.unit, self.base)
            seen.append(math.log(max(total, 1.0)))
            self.step += 1
        return seen


def rotating(ranks=8):
    return lambda step: step % ranks


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_another_turned_rank_in_each_step_adds_up(ranks):
    world = Steps(ranks, agreement=(1.0,) * 4)
    assert max(world.run(200)) < 9.0
    assert max(world.run(30, rotating(ranks))) > 10.8


def test_a_budget_of_honest_steps_says_nothing():
    for seed in range(4):
        assert max(Steps(seed=seed).run(600)) < 10.8


def test_groups_that_agree_weigh_and_the_others_do_not():
    """Four groups of noise beside one that agrees: the turned rank is as plain as without them."""
    alone = Steps(agreement=(1.5,), seed=3)
    noisy = Steps(agreement=(1.5, 0.0, 0.0, -1.0, 0.0), seed=3)
    for world in (alone, noisy):
        world.run(120)
    assert max(noisy.run(25, rotating())) > 10.8
    assert max(alone.run(25, rotating())) > 10.8


def test_no_group_that_agrees_is_no_evidence_at_all():
    world = Steps(agreement=(0.0, -0.5))
    assert world.run(80, rotating()) == [0.0] * 80
    assert world.somebody.learned == 0


def test_what_ranks_share_and_a_restless_step_accuse_nobody():
    world = Steps(seed=4)
    before = world.run(150)[-1]
    assert max(world.run(3, scale=4.0)) <= before + 1.5
    z = np.full((4, 4, 8), -4.0)  # all are turned: the cause is upstream
    total = world.somebody.observe(z, world.level, world.unit, world.base)
    assert math.log(max(total, 1.0)) <= before + 1.5


def test_agreement_is_the_median_of_sixteen_steps():
    world = Steps(agreement=(1.0, 1.0), seed=5)
    world.run(100)
    seen = world.somebody._level[:, :, 0]
    assert seen.shape == (16, 2)
    world.level[:] = -1.0  # for seven steps: what is expected stays
    world.run(7)
    score = world.somebody._score(
        np.full((2, 2, 8), -1.0), np.full((2, 2), 1.0), np.full((2, 2), 1.0)
    )
    assert score == pytest.approx(np.full(8, 2.0))  # four like shifts, over their length


def test_units_are_those_of_the_statistics():
    fine, coarse = (
        Steps(agreement=(1.0,) * 4, seed=6),
        Steps(agreement=(1.0,) * 4, seed=6, unit=0.01),
    )
    a = fine.run(100) + fine.run(20, rotating())
    b = coarse.run(100) + coarse.run(20, rotating())
    assert a == pytest.approx(b, abs=0.05)


def test_ranks_outside_the_reference_and_groups_without_numbers_do_not_count():
    world = Steps(seed=7)
    world.run(120)
    world.base[2] = False
    seen = []
    for step in range(30):
        z = world.random.standard_normal((4, 4, 8))
        z[:, 2:, 2] = -4.0  # it is known, and judged elsewhere
        z[step % 4] = np.nan
        level = world.level.copy()
        level[step % 4] = np.nan
        seen.append(world.somebody.observe(z, level, world.unit, world.base))
    assert all(np.isfinite(seen))
    assert math.log(max(seen)) < 9.0


def test_a_new_group_makes_room():
    world = Steps(agreement=(1.0, 1.0), seed=8)
    world.run(60)
    world.level, world.unit = np.ones((3, 4)), np.ones((3, 4))
    assert all(np.isfinite(world.run(5)))
    assert world.somebody._level.shape == (16, 3, 2)


def test_nothing_is_bet_before_sixteen_steps_have_waited_thirty_two():
    world = Steps(agreement=(2.0,) * 4)
    assert world.run(48, rotating()) == [0.0] * 48
    assert (world.somebody.learned, len(world.somebody.waiting)) == (16, 32)
    world.run(1)
    assert (world.somebody.cusum != 1).all()


def test_the_longer_memory_keeps_what_the_shorter_forgot():
    """A wilder time is not forgotten in 64 steps: the larger mean is the reference."""
    world = Steps(seed=9)
    world.run(60)
    pool, count = world.somebody._pool, world.somebody._count
    assert pool.shape == (2, 4)
    assert count[:, 0] == pytest.approx([(1 - (1 - 1 / n) ** 28) * n for n in (64, 256)], rel=1e-9)
    means = pool / count
    world.somebody._pool = np.stack([pool[0], 1e6 * pool[1]])
    world.somebody.cusum[:] = 1
    world.run(1, lambda step: 3)
    assert (world.somebody.cusum < 1e-2).all()
    world.somebody._pool = np.stack([1e6 * pool[0], pool[1]])
    world.somebody.cusum[:] = 1
    world.run(1, lambda step: 3)
    assert (world.somebody.cusum < 1e-2).all()
    assert (means > 0).all()


def test_a_twin_goes_its_own_way():
    world = Steps(agreement=(1.0,) * 4, seed=10)
    world.run(100)
    twin = world.somebody.copy()
    before = (twin.cusum.copy(), twin._level.copy(), twin._deviation.copy(), len(twin.waiting))
    world.somebody.scale(0.25)
    world.run(3, rotating())
    assert (twin.cusum == before[0]).all()
    assert np.array_equal(twin._level, before[1], equal_nan=True)
    assert np.array_equal(twin._deviation, before[2], equal_nan=True)
    assert len(twin.waiting) == before[3]


def test_a_group_weighs_by_its_cosine_in_its_own_deviation():
    somebody = Somebody(bets_for(GradientData.SHUFFLED))
    z = np.zeros((2, 2, 4))
    z[0, :, 1] = z[1, :, 2] = -1.0
    level = np.ones((2, 2))
    unit = np.array([[1.0, 1.0], [3.0, 3.0]])
    score = somebody._score(z, level, unit)
    assert score is not None
    assert score[1] == pytest.approx(3 * score[2])
    # A group that is not there takes nothing from the length either.
    z[1] = np.nan
    score = somebody._score(z, level, unit)
    assert score == pytest.approx([0, math.sqrt(2), 0, 0])


def test_scores_are_compared_with_the_others():
    somebody = Somebody(bets_for(GradientData.SHUFFLED))
    assert somebody._standardised(np.full(5, 7.0)) == pytest.approx(np.zeros(5))
    assert somebody._standardised(np.array([7.0, 7, 7, 7, 8])) == pytest.approx([0, 0, 0, 0, 20])


def test_a_step_wins_the_mean_over_the_ranks():
    world = Steps(agreement=(4.0,) * 4, seed=11)
    world.run(30)
    world.run(1, lambda step: 3)
    strength = np.array([0.5, 1.0, 1.5, 2.0])
    reach = np.array([4.0, 2.0, 1.5, 4.0])
    highest = np.exp(strength * reach)
    assert (world.somebody.waiting[-1] > highest / 8).all()
    assert (world.somebody.waiting[-1] < highest / 2).all()
