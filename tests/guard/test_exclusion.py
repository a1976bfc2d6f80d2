# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Who is excluded, for how long, and the bound that nothing exceeds."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.guard.exclusion import (
    GROSS_TERM,
    TERM,
    WINDOW,
    Exclusion,
    ExclusionState,
    Ground,
    weights_of,
)
from tests.vocabulary import refused

FINITE, GROSS, STATISTICS, PROOF = Ground.NOT_FINITE, Ground.GROSS, Ground.STATISTICS, Ground.PROOF


@pytest.mark.parametrize(
    ("ground", "term"),
    [(FINITE, GROSS_TERM), (GROSS, GROSS_TERM), (STATISTICS, TERM), (PROOF, TERM)],
)
def test_a_rank_comes_back_after_its_term_and_stays_twice_as_long_the_next_time(ground, term):
    record = Exclusion(4)
    for offence in range(3):
        decision = record.decide([(2, ground)])
        assert decision.newly == decision.excluded == record.excluded == (2,)
        for _ in range((term << offence) - 1):
            decision = record.decide([])
            assert decision.excluded == (2,)
            assert decision.newly == decision.readmitted == ()
        decision = record.decide([])
        assert decision.readmitted == (2,)
        assert decision.excluded == ()


def test_an_offence_during_the_term_begins_it_again_and_is_no_further_offence():
    record = Exclusion(4)
    record.decide([(1, FINITE)])
    for _ in range(3 * GROSS_TERM):
        decision = record.decide([(1, FINITE)])
        assert decision.excluded == (1,)
        assert decision.newly == decision.undecided == ()
    for _ in range(GROSS_TERM - 1):
        assert record.decide([]).excluded == (1,)
    assert record.decide([]).readmitted == (1,)
    assert record.state().terms[0].offences == 1


def test_a_worse_offence_makes_the_term_longer():
    record = Exclusion(4)
    record.decide([(1, GROSS)])
    record.decide([(1, PROOF), (1, GROSS)])
    assert record.state().terms[0].left == TERM
    record.decide([(1, GROSS)])
    assert record.state().terms[0].left == TERM, "and a lesser one does not make it shorter"


@pytest.mark.parametrize(("ranks", "limit"), [(1, 0), (2, 0), (3, 0), (4, 1), (6, 1), (7, 2)])
def test_more_offenders_than_the_bound_are_undecided_and_nobody_is_excluded(ranks, limit):
    assert Exclusion(ranks).limit == limit
    offenders = range(limit + 1)
    decision = Exclusion(ranks).decide([(rank, PROOF) for rank in offenders])
    assert decision.excluded == decision.newly == ()
    assert decision.undecided == tuple(offenders)
    if limit:
        assert len(Exclusion(ranks).decide([(r, PROOF) for r in range(limit)]).newly) == limit


def test_who_is_excluded_already_counts_for_the_bound():
    record = Exclusion(4)
    record.decide([(1, PROOF)])
    decision = record.decide([(2, PROOF)])
    assert (decision.excluded, decision.undecided) == ((1,), (2,))
    # Imposed by another group: not against this one's bound.
    record = Exclusion(4)
    record.impose([3])
    decision = record.decide([(2, PROOF)])
    assert (decision.excluded, decision.newly) == ((2, 3), (2,))
    record.impose([])
    assert record.excluded == (2,)


@pytest.mark.parametrize("ranks", [2, 3])
def test_of_two_or_three_one_that_says_so_of_itself_is_left_out(ranks):
    assert Exclusion(ranks).decide([(1, FINITE)]).excluded == (1,)
    assert Exclusion(ranks).decide([(1, GROSS)]).undecided == (1,)
    assert Exclusion(ranks).decide([(1, STATISTICS)]).undecided == (1,)
    assert Exclusion(3).decide([(0, FINITE), (1, FINITE)]).undecided == (0, 1)
    assert Exclusion(3).decide([(0, FINITE), (1, GROSS)]).undecided == (0, 1)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_when_all_are_not_finite_nobody_is_named(ranks):
    decision = Exclusion(ranks).decide([(rank, FINITE) for rank in range(ranks)])
    assert decision.excluded == decision.undecided == ()


def test_one_rank_alone_that_is_not_finite_is_undecided():
    """Nobody else could say that the cause is upstream."""
    assert Exclusion(1).decide([(0, FINITE)]).undecided == (0,)


def test_statistics_exclude_ranks_of_one_node_in_a_window():
    record = Exclusion(8, nodes=[0, 0, 0, 0, 1, 1, 1, 1])
    assert record.decide([(1, STATISTICS)]).newly == (1,)
    for _ in range(WINDOW - 1):
        decision = record.decide([(5, STATISTICS)])
        assert (decision.undecided, decision.excluded) == ((5,), (1,))
    assert record.decide([(5, STATISTICS)]).excluded == (1, 5), "the window is over"
    record = Exclusion(8, nodes=[0, 0, 0, 0, 1, 1, 1, 1])
    assert record.decide([(1, STATISTICS), (2, STATISTICS)]).newly == (1, 2)
    record = Exclusion(8, nodes=[0, 0, 0, 0, 1, 1, 1, 1])
    record.decide([(1, STATISTICS)])
    assert record.decide([(5, PROOF)]).newly == (5,), "proof is no matter of chance"


def test_whom_the_detector_holds_is_out_until_it_lets_go():
    record = Exclusion(4)
    assert record.decide([], held=[3]).newly == (3,)
    for _ in range(2 * TERM):
        assert record.decide([], held=[3]).excluded == (3,)
    assert record.decide([], held=[]).readmitted == (3,)


def test_a_preview_changes_nothing():
    record = Exclusion(8)
    record.decide([(1, PROOF)])
    before = record.state()
    assert record.preview([(2, PROOF)]).excluded == (1, 2)
    assert record.state() == before
    assert record.excluded == (1,)


def test_the_record_survives_a_checkpoint():
    record = Exclusion(8, nodes=range(8))
    record.decide([(1, STATISTICS), (2, FINITE)])
    saved = json.loads(msgspec.json.encode(record.state()))
    other = Exclusion(8, nodes=range(8))
    other.restart(msgspec.convert(saved, ExclusionState))
    assert other.excluded == record.excluded
    for step in range(3 * TERM):
        assert other.decide([(2, FINITE)] if step % 7 == 0 else []) == record.decide(
            [(2, FINITE)] if step % 7 == 0 else []
        )
    another = Exclusion(4)
    another.restart(record.state())
    assert another.excluded == (), "of another group"


def test_weights_make_the_mean_of_the_live():
    assert weights_of(4, []) == (1.0,) * 4
    assert weights_of(4, [2]) == (4 / 3, 4 / 3, 0.0, 4 / 3)
    refused(ValueError, "all of 2", weights_of, 2, [0, 1])
    refused(ValueError, "3 nodes for 4 ranks", Exclusion, 4, nodes=[0, 1, 2])


GROUNDS = st.sampled_from(list(Ground))


@settings(max_examples=300, deadline=None)
@given(data=st.data(), ranks=st.integers(1, 16))
def test_never_more_than_the_bound_whatever_is_said(data, ranks):
    record = Exclusion(ranks, nodes=[rank // 2 for rank in range(ranks)])
    bound = max(record.limit, 1) if ranks > 1 else 0
    for _ in range(data.draw(st.integers(1, 40))):
        said = data.draw(
            st.lists(st.tuples(st.integers(0, ranks - 1), GROUNDS), max_size=ranks, unique=True)
        )
        held = data.draw(st.sets(st.integers(0, ranks - 1), max_size=2))
        before = record.excluded
        decision = record.decide(said, held=held)
        assert len(decision.excluded) <= bound
        assert decision.excluded == record.excluded
        assert set(decision.newly) == set(decision.excluded) - set(before)
        assert set(decision.readmitted) == set(before) - set(decision.excluded)
        offenders = {rank for rank, _ in said} | held
        assert set(decision.newly) <= offenders, "only who did something"
        assert not set(decision.undecided) & set(decision.excluded)
        assert sum(weights_of(ranks, decision.excluded)) == pytest.approx(ranks)
