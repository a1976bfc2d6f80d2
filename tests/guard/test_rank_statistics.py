# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from securetrain.guard.medians import against_others, mean_of, median, spread
from securetrain.guard.rank_statistics import GRID, bounded, copies, measure, residuals

RNG = np.random.default_rng(0)


def by_hand(rows, momentum, base, rank):
    """The formulas of the docstring, for one group."""
    others = [j for j in np.flatnonzero(base) if j != rank]
    norms = np.linalg.norm(rows, axis=1)
    usual = np.median(norms[base])
    unit = rows / norms[:, None]
    centre = np.mean([min(norms[j], 2 * usual) * unit[j] for j in others], axis=0)
    lean = np.sum([unit[j] for j in others], axis=0)
    cosine = unit[rank] @ lean / np.linalg.norm(lean)
    along = unit[rank] @ momentum / np.linalg.norm(momentum)
    distance = math.hypot(np.linalg.norm(rows[rank] - centre), 1e-3 * usual)
    return [
        math.log(norms[rank] + 1e-6 * usual),
        math.log(distance),
        math.atanh(cosine),
        math.atanh(along),
    ]


@pytest.mark.parametrize("ranks", [3, 4, 9])
def test_the_four_statistics_are_what_the_docstring_says(ranks):
    rows = RNG.standard_normal((2, ranks, 32)) + 0.5
    rows[:, 0] *= 5  # longer than twice the median
    momentum = RNG.standard_normal((2, 32)) + 0.2
    base = np.ones(ranks, dtype=bool)
    if ranks > 3:
        base[1] = False
    values = measure(rows, momentum, base)
    for group in range(2):
        for rank in range(ranks):
            expected = by_hand(rows[group], momentum[group], base, rank)
            assert values[group, :, rank] == pytest.approx(expected, abs=1e-9)


def test_absent_groups_and_momenta_say_nothing():
    rows = RNG.standard_normal((2, 4, 8))
    rows[1] = 0.0
    base = np.ones(4, dtype=bool)
    values = measure(rows, np.zeros((2, 8)), base)
    assert np.isnan(values[1]).all()
    assert np.isnan(values[0, 3]).all()
    assert np.isfinite(values[0, :3]).all()
    assert np.isnan(measure(rows, None, base)[0, 3]).all()


def test_a_zero_row_is_short_and_has_no_direction():
    rows = RNG.standard_normal((1, 4, 8))
    rows[0, 1] = 0.0
    values = measure(rows, RNG.standard_normal((1, 8)), np.ones(4, dtype=bool))
    assert values[0, 0, 1] < values[0, 0, 0] - 10
    assert values[0, 2, 1] == 0.0
    assert values[0, 3, 1] == 0.0


def test_residuals_agree_on_processors_that_round_otherwise():
    """Another processor's products differ in the last bits; what is decided from does not."""
    rows = RNG.standard_normal((8, 8, 64)) + 1
    momentum = RNG.standard_normal((8, 64))
    base = np.ones(8, dtype=bool)
    here = residuals(measure(rows, momentum, base), base)
    there = residuals(measure(rows * (1 + 1e-15), momentum, base) + 1e-14, base)
    assert (here == there).mean() > 0.99999
    assert (here / GRID == np.round(here / GRID)).all()


def test_bounded_rows():
    rows = RNG.standard_normal((1, 4, 8))
    rows[0, 1, 2] = math.nan
    rows[0, 2] = 1e200
    live = np.array([True, False, True, True])
    cut = bounded(rows, live)
    norms = np.linalg.norm(cut, axis=2)[0]
    assert norms[1] == 0.0
    assert norms[2] <= 1.001e6 * np.median(np.linalg.norm(cut[0, live], axis=1))
    assert (cut[0, 0] == rows[0, 0]).all()
    assert (bounded(np.zeros((1, 4, 8)), live) == 0).all()


def test_copies_are_much_nearer_than_usual():
    rows = RNG.standard_normal((6, 64))
    live = np.ones(6, dtype=bool)
    assert copies(rows, live) == ()
    rows[4] = 1.01 * rows[1]
    rows[5] = rows[1]
    assert copies(rows, live) == ((1, 4), (1, 5), (4, 5))
    live[1] = False
    assert copies(rows, live) == ((4, 5),)
    assert copies(np.zeros((6, 64)), live) == ()
    assert copies(np.ones((6, 64)), live) == ()


def test_medians_of_what_is_there():
    values = np.array([[3.0, 1.0, np.nan, 2.0], [np.nan] * 4, [4.0, 3.0, 2.0, 1.0]])
    assert median(values, 1)[[0, 2]].tolist() == [2.0, 2.5]
    assert np.isnan(median(values, 1)[1])
    assert spread(np.array([-1.0, 2.0, -3.0])) == pytest.approx(2 * 1.4826)
    means = mean_of(values)
    assert means.tolist()[:2] == [3.5, 2.0]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_the_median_of_the_others(ranks):
    values = RNG.standard_normal((3, ranks))
    values[1] = np.round(values[1])  # ties
    live = np.ones(ranks, dtype=bool)
    if ranks > 3:
        live[0] = False
    found = against_others(values, live)
    for row in range(3):
        for rank in range(ranks):
            others = [values[row, j] for j in np.flatnonzero(live) if j != rank]
            assert found[row, rank] == pytest.approx(values[row, rank] - np.median(others))
