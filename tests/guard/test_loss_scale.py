# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Which overflows a loss scale explains."""

from securetrain.guard.loss_scale import Overflows


def forgiven(ranks, steps):
    overflows = Overflows(ranks)
    return [overflows.forgive(step) for step in steps]


def test_a_clean_step_has_nothing_to_forgive():
    assert forgiven(4, [[], []]) == [False, False]


def test_a_rank_alone_is_forgiven_six_times_in_two_hundred_steps():
    assert forgiven(4, [[1]] * 8) == [True] * 6 + [False] * 2
    assert forgiven(4, [[1]] * 6 + [[]] * 195 + [[1]])[-1]
    assert not forgiven(4, [[1]] * 6 + [[]] * 193 + [[1]])[-1]


def test_each_rank_has_a_count_of_its_own():
    assert all(forgiven(4, [[1]] * 6 + [[2]] * 6))
    assert not forgiven(5, [[1]] * 6 + [[1, 2]])[-1]


def test_most_ranks_together_are_the_scale_for_longer():
    assert forgiven(4, [[0, 1]] * 34) == [True] * 32 + [False] * 2
    # And it is no reproach to one of them later on.
    assert forgiven(4, [[0, 1, 2, 3]] * 16 + [[1]] * 6)[-1]


def test_of_two_ranks_each_is_half():
    assert all(forgiven(2, [[1]] * 32))
    assert not forgiven(2, [[1]] * 33)[-1]
