# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from securetrain.guard.assessment import STATISTICS, Reason, Statistic
from securetrain.guard.bets import MISSING, bets_for, index_of
from securetrain.guard.evidence import LAG, Evidence
from securetrain.guard.gross import Gross
from securetrain.guard.own_past import Series
from securetrain.policy.schema import GradientData

SHUFFLED, PER_RANK = GradientData


def test_powers_are_exponentials_and_what_is_missing_is_one():
    bets = bets_for(SHUFFLED)
    z = np.array([-9.0, -4.0, -1.5, 0.0, 2.25, 4.0, 9.0])
    powers = bets.powers(index_of(z))
    made = ((0.5, 4), (1, 2), (1.5, 1.5), (2, 4), (3, 4))
    strengths = [(s * sign, reach) for s, reach in made for sign in (1, -1)]
    for row, (strength, reach) in zip(powers, strengths, strict=True):
        assert row == pytest.approx(np.exp(strength * np.clip(z, -reach, reach)), rel=1e-5)
    assert index_of(np.array(np.nan)) == MISSING
    assert (bets.powers(index_of(np.array([np.nan]))) == 1).all()


@pytest.mark.parametrize("data", GradientData)
def test_shares_add_up_and_forbidden_bets_have_none(data):
    bets = bets_for(data)
    for groups in (0, 1, 7):
        shares = bets.weights(groups)
        assert shares.sum() == pytest.approx(1, rel=1e-5)
        low = shares[~bets.high]
        forbidden = low[:, :, [0, 1, 3]]
        assert (forbidden == 0).all() if data is PER_RANK else (forbidden > 0).all()
        assert (low[:, :, 2] > 0).all()


def table(evidence, generator, ranks):
    raw = generator.standard_t(3, (2 + len(evidence.groups), len(STATISTICS), ranks))
    raw[1] = np.nan
    return raw


def test_an_honest_rank_has_factors_of_mean_one_whatever_the_distribution():
    """Today's ranks alone are exact: in each stream and bet the factors' mean is one."""
    evidence = Evidence(8, SHUFFLED)
    evidence.slots(["a", "b"])
    generator, everybody = np.random.default_rng(1), np.ones(8, dtype=bool)
    index = index_of(table(evidence, generator, 8))
    factors = evidence._factors(index, everybody)
    assert factors.mean(axis=-1) == pytest.approx(1, rel=1e-4)
    means = []
    for _ in range(300):
        index = index_of(table(evidence, generator, 8))
        means.append(evidence._factors(index, everybody).mean(axis=(0, 1, 2)))
        evidence.observe(table(evidence, generator, 8), everybody, everybody)
    assert np.mean(means) == pytest.approx(1, abs=0.05)


def test_values_wait_and_those_of_who_is_named_are_never_learned():
    evidence = Evidence(4, SHUFFLED)
    slots = evidence.slots(["a"])
    everybody = np.ones(4, dtype=bool)
    generator = np.random.default_rng(2)
    for _ in range(LAG):
        evidence.observe(table(evidence, generator, 4), everybody, everybody)
    assert not evidence.memory.count.any()
    evidence.disown(3)
    evidence.observe(table(evidence, generator, 4), everybody, everybody)
    assert (evidence.memory.count[slots[0]] == 3).all()


def test_a_group_that_is_absent_keeps_its_state_and_a_new_one_changes_nothing_else():
    evidence = Evidence(4, SHUFFLED)
    first = evidence.slots(["a", "b"])
    generator, everybody = np.random.default_rng(3), np.ones(4, dtype=bool)
    for _ in range(20):
        evidence.observe(table(evidence, generator, 4), everybody, everybody)
    kept = evidence.memory.cusum[:, first[1]].copy()
    raw = table(evidence, generator, 4)
    raw[first[1]] = np.nan
    evidence.observe(raw, everybody, everybody)
    # Nothing was bet, and a bet that has lost begins again from one.
    assert (evidence.memory.cusum[:, first[1]] == np.maximum(kept, 1)).all()
    before = evidence.memory.pool.copy()
    assert evidence.slots(["b", "c", "a"]) == [3, 4, 2]
    assert (evidence.memory.pool[:, :4] == before).all()
    assert (evidence.memory.cusum[:, 4] == 1).all()


def test_silent_steps_bet_nothing():
    evidence = Evidence(4, SHUFFLED)
    evidence.slots(["a"])
    everybody = np.ones(4, dtype=bool)
    raw = table(evidence, np.random.default_rng(4), 4)
    totals, _ = evidence.observe(raw, everybody, ~everybody, silent=True)
    assert totals == pytest.approx(1)


def test_reasons_have_words():
    evidence = Evidence(4, SHUFFLED)
    slot = evidence.slots(["layers.3"])[0]
    evidence.memory.cusum[3, slot, 2, 1] = 1e6  # lambda 1, down
    assert evidence.reason(1) == Reason("layers.3", Statistic.COSINE, high=False)
    assert str(evidence.reason(1)) == "its gradient of layers.3 points away from the others'"
    assert "its gradient is longer" in str(evidence.reason_at(0, 0))
    assert "in most groups is farther" in str(evidence.reason_at(1, 1))


def test_gross_bounds_grow_with_what_is_honest_and_are_coarse_at_first():
    gross = Gross(3)
    live = np.ones(4, dtype=bool)

    def leap(slot, factor, *, steps=50, statistic=0, turned=()):
        raw = np.zeros((3, 4, 4))
        raw[slot, statistic, 2] = math.log(factor)
        return gross.find(raw, live, steps, np.isin(np.arange(4), turned))

    assert leap(0, 15, steps=5) == {}
    assert leap(0, 17, steps=5) == {2: (0, 0)}
    gross = Gross(3)
    assert leap(0, 7) == {2: (0, 0)}
    assert leap(0, 7, statistic=1) == {2: (0, 1)}
    assert leap(0, 5) == {}
    assert leap(0, 15) == {}, "twice the largest honest one"
    assert leap(0, 17) == {2: (0, 0)}, "of which no more than four times is learned"
    assert leap(2, 15) == {}
    assert leap(2, 17) == {}, "twice the largest honest one"
    gross = Gross(3)
    assert leap(2, 17) == {2: (2, 0)}
    assert leap(2, 17, steps=5) == {}
    gross = Gross(3)
    assert leap(0, 1 / 50) == {}, "upwards only"
    assert leap(0, 2400) == {2: (0, 0)}, "nor does a gradient of nothing raise it"
    gross = Gross(3)
    assert leap(0, 5) == leap(0, 5, turned=[0, 1, 3]) == {}
    assert leap(0, 5, turned=[2]) == {2: (0, 0)}, "against the others"
    assert leap(0, 5, turned=[2], statistic=1) == {2: (0, 1)}
    assert leap(0, 3.9, turned=[2]) == {}
    assert leap(1, 5, turned=[2]) == {}, "of the whole gradient"
    assert leap(0, 5, turned=[2], steps=19) == {}
    assert leap(0, 5, turned=[2], steps=20) == {2: (0, 0)}
    gross = Gross(3)
    assert leap(0, 7, steps=20) == {2: (0, 0)}
    assert leap(0, 7, steps=19) == {}
    gross = Gross(3)
    live[2] = False
    assert leap(0, 100) == {}
    assert not gross.largest.any(), "who does not count raises no bound"
    gross.largest[1, 0] = 1.0
    gross.widen(5)
    assert gross.largest.shape == (5, 2)
    assert gross.largest.sum() == gross.largest[1, 0] == 1.0


def test_a_series_leaps_accumulates_and_settles():
    series, bets = Series(level=64, lag=16), bets_for(PER_RANK)
    generator = np.random.default_rng(5)
    for _ in range(150):
        leaps, evidence = series.observe(float(generator.standard_normal()) * 0.1, bets)
        assert not leaps
        assert evidence < 9
    grown = [series.observe(0.6 + float(generator.standard_normal()) * 0.1, bets) for _ in range(8)]
    assert not any(leaps for leaps, _ in grown)
    assert grown[-1][1] > 9
    series.settle(3.0)
    assert series.evidence == pytest.approx(3.0, abs=0.01)
    series.settle(5.0)
    assert series.evidence == pytest.approx(3.0, abs=0.01), "never up"
    assert series.observe(5.0, bets)[0]
