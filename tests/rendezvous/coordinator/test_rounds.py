# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.coordinator.rounds import Rounds
from tests.vocabulary import refused


def make(min_nodes=2, max_nodes=3, last_call=30.0) -> Rounds:
    return Rounds(min_nodes=min_nodes, max_nodes=max_nodes, last_call=last_call)


def full(*names) -> Rounds:
    rounds = make(1, len(names))
    for name in names:
        rounds.join(name, 0)
    assert rounds.formed(0)
    return rounds


def test_complete_at_once_with_max_nodes():
    rounds = make(2, 3)
    for name in "ab":
        rounds.join(name, 0)
        assert not rounds.formed(0)
    rounds.join("c", 0)
    assert rounds.formed(0)
    again = rounds.formed(0)
    assert not again, "once a round"
    assert rounds.participants == ["a", "b", "c"]


def test_complete_after_the_last_call():
    rounds = make(2, 3, last_call=30)
    rounds.join("a", 0)
    before = rounds.deadline
    rounds.join("b", 100)
    assert [before, rounds.deadline] == [None, 130]
    assert [rounds.formed(129.9), rounds.formed(130)] == [False, True]


def test_one_who_leaves_stops_the_last_call():
    rounds = make(2, 3)
    rounds.join("a", 0)
    rounds.join("b", 0)
    rounds.remove("a", 1)
    assert rounds.deadline is None
    assert not rounds.formed(1000)
    rounds.join("a", 1000)
    assert rounds.deadline == 1030


def test_a_member_that_restarts_waits_until_the_others_come():
    rounds = full("a", "b")
    rounds.join("a", 1)
    assert rounds.num_waiting == 1
    assert not rounds.formed(1)
    rounds.join("b", 2)
    assert rounds.num_waiting == 0
    assert rounds.formed(2)
    assert sorted(rounds.participants) == ["a", "b"]
    assert rounds.number == 1


def test_a_lone_member_restarts_at_once():
    rounds = full("a")
    rounds.join("a", 1)
    assert rounds.formed(1)
    assert rounds.number == 1


def test_spare_nodes_are_not_counted_as_waiting_and_step_in():
    rounds = full("a", "b")
    rounds.join("s", 1)
    assert (rounds.num_waiting, rounds.spare) == (0, ["s"])
    rounds.remove("a", 2)
    assert (rounds.num_waiting, rounds.spare) == (1, [])
    rounds.join("b", 3)
    assert rounds.formed(3)
    assert sorted(rounds.participants) == ["b", "s"]


def test_a_member_that_restarts_keeps_its_place_before_a_spare_node():
    rounds = full("a", "b")
    rounds.join("s", 1)
    rounds.join("a", 2)
    assert (rounds.waiting, rounds.spare) == (["a"], ["s"])
    rounds.join("b", 3)
    assert rounds.formed(3)
    assert sorted(rounds.participants) == ["a", "b"]
    assert rounds.spare == ["s"]


def test_late_nodes_wait_only_while_there_is_room():
    rounds = make(1, 2, last_call=0)
    rounds.join("a", 0)
    assert rounds.formed(0)
    rounds.join("b", 1)
    rounds.join("c", 1)
    assert (rounds.waiting, rounds.spare) == (["b"], ["c"])


def test_an_eviction_asks_for_a_new_round_and_a_departure_does_not():
    rounds = full("a", "b", "c")
    rounds.remove("a", 1)
    assert rounds.num_waiting == 0
    rounds.remove("b", 2, evicted=True)
    assert rounds.num_waiting == 1
    rounds.join("c", 3)
    assert rounds.num_waiting == 0, "the new round has begun"


def test_a_departure_after_an_eviction_does_not_hide_it():
    rounds = full("a", "b", "c")
    rounds.remove("a", 1, evicted=True)
    rounds.remove("b", 2)
    assert rounds.num_waiting == 1


def test_evicting_somebody_who_was_not_in_is_no_reason():
    rounds = full("a", "b")
    rounds.join("s", 1)
    rounds.remove("s", 2, evicted=True)
    rounds.remove("nobody", 2, evicted=True)
    assert rounds.num_waiting == 0


def test_who_has_not_finished():
    rounds = full("a", "b", "c")
    assert rounds.num_unfinished == 3
    rounds.finish("b")
    assert not rounds.closed, "that takes a quorum (`closing`)"
    rounds.finish("b")
    rounds.finish("nobody")
    assert rounds.num_unfinished == 2
    rounds.remove("b", 1)
    rounds.remove("a", 1)
    assert rounds.num_unfinished == 1
    rounds.finish("c")
    assert rounds.num_unfinished == 0


def test_who_asks_for_another_round_is_not_done():
    rounds = full("a", "b")
    rounds.finish("b")
    rounds.join("b", 1)
    assert rounds.finished == set()


def test_reopening_a_round_keeps_everybody():
    rounds = make(1, 2, last_call=5)
    rounds.join("a", 0)
    rounds.join("b", 0)
    assert rounds.formed(0)
    rounds.remove("a", 1)
    rounds.reopen(1)
    assert not rounds.complete
    assert rounds.participants == ["b"]
    assert rounds.deadline == 6


def test_closed():
    rounds = make(1, 2)
    rounds.join("a", 0)
    rounds.close()
    assert not rounds.formed(1000)
    assert rounds.deadline is None, "nobody needs to be woken for it"
    refused(AdmissionError, "ST-ADMN-008", rounds.join, "b", 1)


def test_impossible_sizes(subtests):
    for least, most in ((0, 1), (3, 2), (-1, -1)):
        with subtests.test(least=least, most=most), pytest.raises(ValueError, match="min_nodes"):
            make(least, most)


_STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "evict", "tick"]), st.sampled_from("abcdef")),
    max_size=40,
)


@given(_STEPS, st.integers(1, 3), st.integers(0, 3))
def test_whatever_happens_nobody_is_in_two_places(steps, least, extra):
    rounds = make(least, least + extra, last_call=3)
    now, in_at_last = 0.0, set()
    for action, node in steps:
        now += 1
        match action:
            case "join":
                rounds.join(node, now)
                in_at_last.add(node)
            case "leave" | "evict":
                rounds.remove(node, now, evicted=action == "evict")
                in_at_last.discard(node)
            case _:
                pass
        was_complete = rounds.complete
        if rounds.formed(now):
            assert not was_complete
            assert least <= len(rounds.participants) <= least + extra
        everybody = [*rounds.participants, *rounds.waiting, *rounds.spare]
        assert len(everybody) == len(set(everybody))
        assert set(everybody) == in_at_last
        assert len(rounds.participants) <= least + extra
        assert not (rounds.complete and not rounds.participants)
        assert not (rounds.spare and len(rounds.participants) + len(rounds.waiting) < least + extra)


def test_a_round_that_was_about_to_form_does_not_once_the_job_is_closed():
    rounds = make(2, 2)
    for name in "ab":
        rounds.join(name, 0)
    rounds.close()
    assert not rounds.formed(0)
    assert not rounds.complete


# Members that go, and those that are done.


def test_after_a_loss_the_next_round_has_no_last_call():
    rounds = make(2, 3, last_call=30)
    for name in "abc":
        rounds.join(name, 0)
    assert rounds.formed(0)
    rounds.remove("c", 1, evicted=True)
    rounds.join("a", 2)
    assert not rounds.formed(2), "b is still in the old one"
    rounds.join("b", 3)
    assert rounds.formed(3)
    assert rounds.participants == ["a", "b"]


def test_with_too_few_left_the_last_call_is_as_long_as_ever():
    rounds = full("a", "b")
    rounds.min_nodes = 2
    rounds.max_nodes = 3
    rounds.remove("b", 1, evicted=True)
    rounds.join("a", 2)
    assert rounds.deadline is None
    rounds.join("c", 5)
    assert rounds.deadline == 35


def test_without_a_loss_there_is_a_last_call_in_every_round():
    rounds = make(1, 3, last_call=30)
    rounds.join("a", 0)
    assert rounds.formed(30)
    rounds.join("b", 40)
    rounds.join("a", 41)
    assert rounds.deadline == 71


def test_who_is_done_restarts_for_nobody_who_comes():
    rounds = make(1, 3, last_call=0)
    for name in "ab":
        rounds.join(name, 0)
    assert rounds.formed(0)
    rounds.finish_work("a")
    rounds.finish_work("a")
    rounds.finish_work("nobody")
    assert (rounds.num_running, rounds.done) == (1, {"a"})
    rounds.join("c", 1)
    assert rounds.num_waiting == 0
    rounds.remove("b", 2, evicted=True)
    assert (rounds.num_waiting, rounds.num_running) == (1, 0)


def test_who_asks_for_another_round_does_not_wait_for_those_that_are_done():
    rounds = full("a", "b", "c")
    rounds.finish_work("a")
    rounds.finish_work("b")
    rounds.join("c", 1)
    assert rounds.participants == ["c"]
    assert not rounds.complete
    assert rounds.done == set()
    assert rounds.num_running == 1


def test_nobody_is_done_with_a_round_that_forms():
    rounds = make(2, 2)
    rounds.join("a", 0)
    rounds.finish_work("a")
    assert rounds.done == set()
