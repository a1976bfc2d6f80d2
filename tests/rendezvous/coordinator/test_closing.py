# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whose votes end a job, and whose voices evict."""

from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.vocabulary import CloseQuorum
from securetrain.rendezvous.coordinator.closing import Suspicions, is_over
from tests.tables import each

FIRST, MAJORITY, ALL = CloseQuorum


@each(
    "rule, votes, over",
    (FIRST, "", False),
    (FIRST, "a", True),
    (FIRST, "b", False),
    (FIRST, "bc", False),
    (FIRST, "bcd", True),
    (MAJORITY, "a", False),
    (MAJORITY, "ab", False),
    (MAJORITY, "abc", True),
    (MAJORITY, "bcd", True),
    (ALL, "abc", False),
    (ALL, "abcd", True),
)
def test_the_quorum_of_the_policy(rule, votes, over):
    assert is_over(rule, "abcd", set(votes), "abcdx") is over


@pytest.mark.parametrize("rule", CloseQuorum)
def test_a_job_is_over_when_everybody_who_is_there_is_done(rule):
    assert is_over(rule, "abcd", {"d"}, {"d"})
    assert not is_over(rule, "abcd", {"d"}, {"d", "spare"}), "a spare node could go on"
    assert not is_over(rule, "abcd", {"d"}, set()), "nobody is there: those that are lost may come"


@each("rule", *CloseQuorum)
def test_who_is_no_member_has_no_vote(rule):
    assert not is_over(rule, "ab", {"x", "y", "z"}, {"a", "b", "x", "y", "z"})
    assert not is_over(rule, "ab", {"x"}, {"x"})


def epoch(number, *members) -> Any:
    return SimpleNamespace(epoch=number, members=members)


def test_a_majority_of_the_epoch_evicts_and_fewer_do_not():
    suspicions, current = Suspicions(), epoch(3, *"abcde")
    for count, by in enumerate("abc", 1):
        assert suspicions.add(current, by, "e") == count
        assert suspicions.proven(current, "e", b"") is (count == 3)
    assert not suspicions.proven(current, "d", b"")


def test_one_voice_counts_once_and_in_its_epoch_only():
    suspicions = Suspicions()
    assert suspicions.add(epoch(1, *"abc"), "a", "c") == 1
    assert suspicions.add(epoch(1, *"abc"), "a", "c") is None
    assert suspicions.add(epoch(2, *"abc"), "b", "c") == 1
    assert not suspicions.proven(epoch(2, *"abc"), "c", b"")
    assert not suspicions.proven(epoch(1, *"abc"), "c", b"")


def test_of_two_neither_can_evict_the_other():
    suspicions, current = Suspicions(), epoch(0, *"ab")
    suspicions.add(current, "a", "b")
    assert not suspicions.proven(current, "b", b"")


def test_a_transcript_counts_when_it_has_been_checked():
    current = epoch(0, *"ab")
    assert not Suspicions().proven(current, "b", b"anything"), "nobody checks any yet"
    checked = Suspicions(transcript=lambda data, node, _: (data, node) == (b"good", "b"))
    assert checked.proven(current, "b", b"good")
    assert not checked.proven(current, "b", b"bad")
    assert not checked.proven(current, "a", b"good")
    assert not checked.proven(current, "b", b"")


def test_what_statistics_say_is_recorded_and_evicts_nobody():
    suspicions, current = Suspicions(), epoch(0, *"abcd")
    for by in "abc":
        assert suspicions.add(current, by, "d", "ST-GRAD-002") == 0
        assert suspicions.add(current, by, "d", "ST-GRAD-001") is None, "heard before"
    assert not suspicions.proven(current, "d", b"")
    for count, by in enumerate("abc", 1):
        assert suspicions.add(current, by, "d", "ST-GRAD-010") == count
    assert suspicions.proven(current, "d", b"")
    assert suspicions.add(epoch(1, *"abcd"), "a", "d", "ST-GRAD-002") == 0, "of a new epoch"
