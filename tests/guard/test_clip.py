# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math
import random

import pytest
import torch

from securetrain.guard.after import is_sum
from securetrain.guard.clip import GROSS, ROOM, bind_norms

FOUR = (1.0, 1.2, 0.9, 1.1)
WHOLE = math.sqrt(sum(value**2 for value in FOUR))


def test_honest_norms_are_added_up_as_they_are():
    bound = bind_norms(FOUR, [1.05, 1.1, 1.0, 1.0], range(4))
    assert bound.total == pytest.approx(WHOLE)
    assert bound.wrong == bound.gross == ()


@pytest.mark.parametrize("lie", [math.nan, math.inf, -math.inf, -0.5, 1e18, 3e38, 40.0])
def test_a_norm_beyond_all_bounds_is_not_used_and_names_its_rank(lie):
    bound = bind_norms([1.0, lie, 0.9, 1.1], FOUR, range(4))
    assert bound.wrong == bound.gross == (1,)
    assert bound.total == pytest.approx(WHOLE, rel=0.05)


@pytest.mark.parametrize("lie", [0.0, 0.1, 1.2 * ROOM * 1.01, 10.0])
def test_a_smaller_lie_is_corrected_and_names_nobody(lie):
    bound = bind_norms([1.0, lie, 0.9, 1.1], FOUR, range(4))
    assert bound.wrong == (1,)
    assert bound.gross == ()
    assert bound.total == pytest.approx(WHOLE, rel=0.05)


def test_what_all_have_been_multiplied_by_is_no_lie():
    for factor in (1 / 65536, 1 / 3, 7.0, 1e4):
        said = [factor * value for value in FOUR]
        bound = bind_norms(said, FOUR, range(4))
        assert bound.wrong == ()
        assert bound.total == pytest.approx(factor * WHOLE)
        said[2] = 1e12
        bound = bind_norms(said, FOUR, range(4))
        assert bound.gross == (2,)
        assert bound.total == pytest.approx(factor * WHOLE, rel=0.05)


def test_when_most_are_off_nobody_is_named_and_nothing_is_corrected():
    bound = bind_norms([math.nan, math.nan, math.nan, 1.0], FOUR, range(4))
    assert bound.wrong == bound.gross == ()
    assert math.isnan(bound.total)


def test_a_shard_that_is_all_zeros_has_no_norm():
    bound = bind_norms([1.0, 5.0, 0.9, 0.0], [1.0, 0.0, 0.9, 0.0], range(4))
    assert bound.wrong == (1,)
    assert bound.total == pytest.approx(math.hypot(1.0, 0.9))
    assert bind_norms([0.0] * 4, [0.0] * 4, range(4)).total == 0.0


def test_part_of_the_numbers_may_be_short_but_not_long():
    said, known = [0.0, 0.0, 0.3, 0.0], [1.0, 1.0, 1.0, 1.0]
    assert bind_norms(said, known, range(4), whole=False).wrong == ()
    assert bind_norms([0.0, 0.0, 3.0, 0.0], known, range(4), whole=False).wrong == (2,)


@pytest.mark.parametrize("order", [0.5, 1.0, 3.0, math.inf])
def test_other_orders_are_bounded(order):
    generator = torch.Generator().manual_seed(3)
    shards = [torch.randn(64, generator=generator, dtype=torch.float64) for _ in range(4)]
    said = [float(torch.linalg.vector_norm(shard, order)) for shard in shards]
    known = [float(shard.norm()) for shard in shards]
    bound = bind_norms(said, known, range(4), order=order, numel=256)
    assert bound.wrong == ()
    assert bound.total == pytest.approx(float(torch.linalg.vector_norm(torch.cat(shards), order)))
    said[3] = math.nan
    bound = bind_norms(said, known, range(4), order=order, numel=256)
    assert bound.gross == (3,)
    assert math.isfinite(bound.total)


def test_a_spread_shard_has_a_longer_norm_of_low_order_than_a_narrow_one():
    assert bind_norms([8.0, 1.0, 1.0, 1.0], [1.0] * 4, range(4), order=1.0, numel=256).wrong == ()


def test_a_sketch_that_is_short_by_accident_names_nobody():
    bound = bind_norms([1.0, 1.0, 1.0, 0.5], [1.0, 1.0, 1.0, 0.01], range(4))
    assert bound.wrong == (3,)
    assert bound.gross == ()


def test_copies_of_a_shard_count_once_and_the_right_one_counts():
    owners = (0, 1, 0, 1)
    bound = bind_norms([1.0, 2.1, 1.0, math.nan], [1.0, 2.0, 1.0, 2.0], owners)
    assert bound.gross == (3,)
    assert bound.total == pytest.approx(math.hypot(1.0, 2.1))


def test_two_ranks_are_no_majority():
    assert bind_norms([1.0, math.nan], [1.0, 1.0], range(2)).gross == (1,)
    # Neither is as sketched: somebody's scale, and nobody is named.
    assert bind_norms([1e-3, 1e9], [1.0, 1.0], range(2)).gross == ()


def test_drawn_lies_of_a_minority_name_no_honest_rank_and_move_the_norm_little():
    draw = random.Random(5)
    for _ in range(2000):
        ranks = draw.choice([4, 7, 8, 16])
        honest = [draw.uniform(0.2, 2.0) for _ in range(ranks)]
        known = [value * draw.uniform(0.8, 1.25) for value in honest]
        said, liars = list(honest), draw.sample(range(ranks), (ranks - 1) // 3)
        for rank in liars:
            said[rank] = draw.choice(
                [math.nan, math.inf, 1e18, 0.0, -1.0, draw.uniform(0, 8), draw.uniform(0, 500)]
            )
        bound = bind_norms(said, known, range(ranks))
        assert set(bound.gross) <= set(bound.wrong) <= set(liars)
        longest = math.sqrt(sum((ROOM * value) ** 2 for value in known))
        assert 0 < bound.total <= longest
        for rank in liars:
            if not abs(said[rank]) <= GROSS * 3.0:
                assert rank in bound.gross


def test_torchs_sum_is_known_by_its_rounding():
    assert is_sum(WHOLE * (1 + 1e-6), WHOLE, 4, torch.float32)
    assert not is_sum(WHOLE * 1.01, WHOLE, 4, torch.float32)
    assert not is_sum(math.nan, WHOLE, 4, torch.float32)
    assert is_sum(WHOLE * 1.01, WHOLE, 4, torch.bfloat16)
    assert is_sum(math.nan, math.nan, 4, torch.float32)
