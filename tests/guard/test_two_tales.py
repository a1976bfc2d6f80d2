# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A rank that tells one gradient and sends another is seen by lengths and angles."""

import numpy as np
import pytest

from securetrain.guard.two_tales import changed_tales

RANKS, K, LIAR = 4, 256, 2


def tales(factor, *, ranks=RANKS, k=K, likeness=1.0, seed=0, liars=(LIAR,)):
    """The same gradients under two random sketches; liars send `factor` times what they told."""
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(2000)
    gradients = likeness * common + generator.standard_normal((ranks, 2000))
    sent = gradients.copy()
    for liar in liars:
        sent[liar] *= factor
    told_by, sent_by = generator.standard_normal((2, 2000, k)) / np.sqrt(k)
    return gradients @ told_by, sent @ sent_by


@pytest.mark.parametrize("factor", [-5.0, 5.0, 0.1, 0.0, -3.0])
def test_another_length_is_seen(factor):
    told, sent = tales(factor)
    assert changed_tales(told, sent, most=1) == (LIAR,)


def test_the_same_length_the_other_way_is_seen_by_its_angles():
    told, sent = tales(-1.0, likeness=2.0)
    assert changed_tales(told, sent, most=1) == (LIAR,)


def test_more_liars_than_there_may_be_make_everybody_look_alike():
    """Then the bound on exclusions holds: nobody is left out, and the step is undecided."""
    told, sent = tales(-1.0, likeness=2.0, liars=(1, 2))
    assert changed_tales(told, sent, most=1) == (0, 1, 2, 3)


@pytest.mark.parametrize(("ranks", "k"), [(4, 256), (8, 256), (32, 64)])
def test_honest_ranks_are_not_named_by_chance(ranks, k):
    for seed in range(60):
        told, sent = tales(1.0, ranks=ranks, k=k, seed=seed, likeness=seed % 3)
        assert changed_tales(told, sent, most=(ranks - 1) // 3) == ()


def test_what_is_not_finite_says_nothing_and_zeros_are_the_same():
    told, sent = tales(1.0)
    told[0], sent[1] = np.nan, np.inf
    assert changed_tales(told, sent, most=1) == ()
    nothing = np.zeros((RANKS, K))
    assert changed_tales(nothing, nothing, most=1) == ()


def test_lengths_beyond_all_numbers_turn_nobody():
    """Two ranks' squares overflow: their angles with honest ranks are not known."""
    told, sent = tales(1.0, likeness=3.0)
    sent[0] *= 1e200
    sent[1] *= 1e200
    assert changed_tales(told, sent, most=1) == ()


def test_one_that_says_nothing_and_sends_something_is_seen_by_its_length():
    told, sent = tales(1.0, likeness=3.0)
    told[LIAR] = 0.0
    assert changed_tales(told, sent, most=1) == (LIAR,)
