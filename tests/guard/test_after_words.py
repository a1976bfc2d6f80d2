# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers after the verdict, one rank's view: its group is a list of what the others say."""

import struct
from types import SimpleNamespace

import pytest
import torch

from securetrain.guard.after import AfterVerdict, ShardLengths
from securetrain.guard.bound_numbers import bind_flag, watch_of
from securetrain.guard.lone_watch import LoneWatch
from securetrain.guard.watch import GroupWatch

RANKS = 4
LIAR = 2


class Others:
    """A channel on which the others say what a test tells them to."""

    size = RANKS

    def __init__(self):
        self.said = [1.0] * RANKS

    def all_gather(self, data):
        return [data, *(struct.pack("<d", value) for value in self.said[1:])]


@pytest.fixture
def others():
    return Others()


@pytest.fixture
def after(others):
    return AfterVerdict(others, SimpleNamespace(tell=b""))  # type: ignore[arg-type]


def judged(after):
    after.begin(lambda: ShardLengths(values=(1.0,) * RANKS))


def norm(after):
    judged(after)
    return after.norm(1.0, order=2.0, whole=True, numel=1 << 20)


def test_a_contradiction_is_corrected_three_times_and_named_the_fourth(after, others):
    others.said[LIAR] = 3.0  # no accident, and not gross
    for _ in range(3):
        _, found = norm(after)
        assert (found.named, found.corrected) == ((), (LIAR,))
        assert found.note
    _, found = norm(after)
    assert (found.named, found.corrected) == ((LIAR,), (LIAR,))
    assert not found.note, "who is named needs no note"


def test_a_true_number_in_between_begins_the_count_again(after, others):
    for said in (3.0, 3.0, 3.0, 1.0, 3.0, 3.0, 3.0):
        others.said[LIAR] = said
        assert norm(after)[1].named == ()


def test_an_honest_norm_has_nothing_to_say(after):
    _, found = norm(after)
    assert (found.named, found.corrected, found.note) == ((), (), "")


def test_of_three_ranks_nobody_is_named_for_small_contradictions(others):
    others.size, others.said = 3, [1.0] * 3
    after = AfterVerdict(others, SimpleNamespace(tell=b""))  # type: ignore[arg-type]
    others.said[LIAR] = 3.0
    for _ in range(6):
        after.begin(lambda: ShardLengths(values=(1.0,) * 3))
        _, found = after.norm(1.0, order=2.0, whole=True, numel=1 << 20)
        assert (found.named, found.corrected) == ((), (LIAR,))


def watch(after):
    made = GroupWatch.__new__(GroupWatch)
    made.after, made.ranks = after, tuple(range(RANKS))
    made.common = SimpleNamespace(after=lambda found: found)  # type: ignore[assignment]
    return made


def test_gradients_that_are_not_sharded_over_the_group_are_nobodys(after):
    judged(after)
    assert watch_of([watch(after)], [torch.ones(3)]) is None


def test_nothing_to_clip_and_a_watch_of_another_kind_are_nobodys(after):
    judged(after)
    assert watch_of([watch(after)], []) is None
    lone = LoneWatch.__new__(LoneWatch)
    assert watch_of([lone], [torch.ones(3)]) is None


def test_without_lengths_nothing_is_bound(after):
    """A group of one watch, all gradients sharded: only the step's lengths are missing."""

    class Sharded:
        """Asked only after the lengths."""

    after.begin(None)
    assert watch_of([watch(after)], [Sharded()]) is None  # type: ignore[list-item]
    assert watch_of([watch(after)], []) is None
    assert watch_of([watch(after), watch(after)], [torch.ones(3)]) is None


def test_a_flag_that_is_not_raised_accuses_nobody_of_infinities(after, others):
    """A rank says that it found some only where torch's flag is raised as well."""
    others.said = [0.0] * RANKS
    judged(after)
    one = bind_flag(watch(after), torch.zeros(()), [torch.tensor([float("inf")])])
    assert one.bound is one.said
    assert one.found is None


def test_a_flag_that_is_raised_is_not_this_ranks_when_its_shard_is_finite(after, others):
    others.said = [0.0] * RANKS
    judged(after)
    one = bind_flag(watch(after), torch.ones(()), [torch.ones(3)])
    assert one.found is not None
    assert one.found.named == ()
    assert "no rank does" in one.found.note
    assert not one.bound
    infinite = bind_flag(watch(after), torch.ones(()), [torch.tensor([float("inf")])])
    assert infinite.found is not None
    assert infinite.found.named == (0,)
