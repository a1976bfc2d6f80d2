# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The newest checkpoint that may be believed: every state, every event, and what is never said."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.artifacts.lineage.machine import (
    NO_EPOCH,
    TABLE,
    Event,
    Eviction,
    Floor,
    Head,
    History,
    Known,
    Made,
    Order,
    State,
    doubts,
    expired,
    in_doubt,
    newest_believed,
    next_seq,
    order,
    removable,
    state_of,
    step,
)
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    Opened,
    Parent,
    ParentRole,
)
from securetrain.artifacts.tree.layout import INDEX, Kind, Problem, TreeInfo
from securetrain.core.hashtree import TreeParams
from tests.tables import each

USABLE = {State.SAVED, State.HEADED, State.ENTERED}
START = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
RUN = "run-1"


def at(seconds):
    return START + timedelta(seconds=seconds)


def digest(number):
    return f"{number:064x}"


ONE, TWO = frozenset({digest(1)}), frozenset({digest(2)})


def claim(seq=2, previous=None, **said):
    """Checkpoint `seq` of a run, at step 10 times that, after the one before it."""
    parents = (digest(seq - 1),) if previous is None else previous
    fields = {
        "run_id": RUN,
        "seq": seq,
        "step": 10 * seq,
        "save_id": "ab" * 16,
        "created": at(10),
        "world_size": 1,
        "tree": TreeInfo.of(TreeParams()),
        "files": [],
        "index": IndexFile(name=INDEX, size=1, sha256="0" * 64),
        "parents": [Parent(digest=one) for one in parents],
    }
    name = said.pop("digest", digest(seq))
    predicate = CheckpointPredicate(**{**fields, **said})
    return Opened(
        kind=Kind.CHECKPOINT, predicate=predicate, digest=name, key_ids=frozenset({"a" * 64})
    )


def head(seq=2, **said):
    fields = {
        "run_id": RUN,
        "seq": seq,
        "step": 10 * seq,
        "digest": digest(seq),
        "created": at(0),
        "expires": at(1000),
    }
    return Head(**{**fields, **said})


def floor(seq=2, **said):
    return Floor(**{"seq": seq, "digest": digest(seq), **said})


def made(seq=2, time=None, epoch=3):
    name = f"step-{10 * seq:08d}"
    return Made(name=name, step=10 * seq, digest=digest(seq), time=time or at(10), epoch=epoch)


def history(*numbers, **said):
    return History(made=tuple(made(number) for number in numbers), **said)


def codes(one, known):
    return [problem.code for problem in doubts(one, replace(known, now=known.now or at(20)))]


# The table.

S, OVER, ASIDE = State, State.SUPERSEDED, State.SET_ASIDE
EVERY = {
    S.STAGED: [S.SAVED, *[S.STAGED] * 6],
    S.SAVED: [S.SAVED, S.HEADED, S.ENTERED, OVER, ASIDE, S.SAVED, S.SAVED],
    S.HEADED: [S.HEADED, S.HEADED, S.ENTERED, OVER, ASIDE, S.HEADED, S.HEADED],
    S.ENTERED: [S.ENTERED, S.ENTERED, S.ENTERED, OVER, ASIDE, S.ENTERED, S.REMOVED],
    S.SUPERSEDED: [OVER, OVER, S.ENTERED, OVER, ASIDE, S.REMOVING, S.REMOVED],
    S.SET_ASIDE: [S.SAVED, ASIDE, S.ENTERED, *[ASIDE] * 4],
    S.REMOVING: [*[S.REMOVING] * 6, S.REMOVED],
    S.REMOVED: [S.SAVED, S.REMOVED, S.ENTERED, S.REMOVED, ASIDE, S.REMOVED, S.REMOVED],
}


@each("state", *State)
def test_every_event_of_every_state(state):
    assert [step(state, event) for event in Event] == EVERY[state]


def test_the_table_has_a_row_for_every_state():
    assert list(TABLE) == list(State)


def test_what_was_set_aside_or_goes_is_used_only_when_it_is_made_again():
    for state in (State.SET_ASIDE, State.REMOVING, State.REMOVED, State.STAGED):
        assert state not in USABLE
        for event in set(Event) - {Event.COMMIT, Event.ENTER}:
            assert step(state, event) not in USABLE


@each(
    "known, state",
    (Known(), State.SAVED),
    (Known(head=head(1)), State.SAVED),
    (Known(head=head(2)), State.HEADED),
    (Known(head=head(3)), State.SUPERSEDED),
    (Known(floor=floor(3)), State.SUPERSEDED),
    (Known(heard={"rank 1's node": floor(3)}), State.SUPERSEDED),
    (Known(history=history(1)), State.SAVED),
    (Known(history=history(1, 2)), State.ENTERED),
    (Known(head=head(2), history=history(1, 2)), State.ENTERED),
    (Known(history=history(2, 3)), State.SUPERSEDED),
    (Known(history=history(1, set_aside=TWO)), State.SET_ASIDE),
    (Known(head=head(2), set_aside=TWO), State.SET_ASIDE),
    (Known(head=head(3), set_aside=TWO), State.SET_ASIDE),
    (Known(set_aside=TWO, excused=TWO), State.SAVED),
)
def test_the_state_of_a_checkpoint_by_what_is_known(known, state):
    assert state_of(claim(2), replace(known, now=at(20))) is state


# The belief.


@each(
    "one, known, found",
    (claim(2), Known(), []),
    (claim(2), Known(head_required=True), ["ST-CKPT-152"]),
    (claim(2), Known(head=head(2), head_required=True), []),
    (claim(2), Known(head=head(2), now=at(999)), []),
    (claim(2), Known(head=head(2), now=at(1000)), ["ST-CKPT-152"]),
    (claim(2), Known(head=head(2, created=at(620)), now=at(20)), []),
    (claim(2), Known(head=head(2, created=at(621)), now=at(20)), ["ST-CKPT-152"]),
    (claim(2), Known(head=head(2, run_id="run-2")), ["ST-CKPT-170"]),
    (claim(2), Known(head=head(3)), ["ST-CKPT-151"]),
    (claim(2), Known(head=head(2, digest=digest(9))), ["ST-CKPT-171"]),
    (claim(3), Known(head=head(2)), []),
    (claim(3, previous=()), Known(head=head(2)), ["ST-CKPT-170"]),
    (claim(3, previous=(digest(2), digest(1))), Known(head=head(2)), ["ST-CKPT-170"]),
    (claim(2), Known(floor=floor(2)), []),
    (claim(2), Known(floor=floor(1)), []),
    (claim(2), Known(floor=floor(3)), ["ST-CKPT-151"]),
    (claim(2), Known(floor=floor(2, digest=digest(9))), ["ST-CKPT-171"]),
    (claim(2, digest=digest(3)), Known(floor=floor(3)), []),
    (claim(2), Known(floor=floor(3), head=head(2)), ["ST-CKPT-151", "ST-CKPT-151"]),
    (claim(2), Known(heard={"rank 1's node": floor(3)}), ["ST-CKPT-151"]),
    (claim(2), Known(set_aside=TWO), ["ST-CKPT-160"]),
    (claim(2), Known(set_aside=ONE), []),
    (claim(2), Known(history=History()), ["ST-CKPT-170"]),
    (claim(2, previous=()), Known(history=History()), []),
    (claim(2), Known(history=history(1)), []),
    (claim(2), Known(history=history(1, 2)), []),
    (claim(2), Known(history=history(1, 3)), ["ST-CKPT-150"]),
    (claim(3), Known(history=history(2, 1)), ["ST-CKPT-170"]),
    (claim(2, digest=digest(9)), Known(history=history(2)), ["ST-CKPT-170"]),
    (claim(2), Known(history=history(1, set_aside=TWO)), ["ST-CKPT-160"]),
    (claim(2), Known(history=history(3, set_aside=TWO)), ["ST-CKPT-160", "ST-CKPT-150"]),
)
def test_each_rule(one, known, found):
    assert codes(one, known) == found


@each(
    "known, left",
    (Known(head=head(3)), []),
    (Known(floor=floor(3)), []),
    (Known(floor=floor(2, digest=digest(9))), []),
    (Known(set_aside=TWO), []),
    (Known(records={digest(2): Problem(code="ST-CKPT-160", what="aside")}), []),
    (Known(head=head(2), now=at(1000)), ["ST-CKPT-152"]),
    (Known(head=head(1, digest=digest(9))), ["ST-CKPT-170"]),
    (Known(history=history(3)), ["ST-CKPT-150"]),
    (Known(history=history(3, set_aside=TWO)), ["ST-CKPT-150"]),
)
def test_an_excuse_is_for_one_checkpoint_and_for_three_codes(known, left):
    assert codes(claim(2), replace(known, excused=TWO)) == left
    for others in (frozenset(), ONE):
        assert codes(claim(2), replace(known, excused=others))


def test_only_the_one_before_it_counts_as_such():
    base = Parent(digest=digest(7), role=ParentRole.BASE)
    one = claim(3, parents=[Parent(digest=digest(2)), base])
    assert codes(one, Known(head=head(2), history=history(2))) == []
    one = claim(3, parents=[Parent(digest=digest(2), role=ParentRole.BASE)])
    assert codes(one, Known(head=head(2))) == ["ST-CKPT-170"]


def test_expiry_is_asked_at_a_time():
    one = claim(2, expires=at(50))
    assert expired(one, None) == []
    assert expired(one, at(49)) == []
    assert [problem.code for problem in expired(one, at(50))] == ["ST-CKPT-153"]
    assert newest_believed([one], Known(now=at(50))).newest is None
    assert newest_believed([one], Known()).newest is one


def test_who_has_seen_something_newer_is_named():
    (found,) = doubts(claim(2), Known(heard={"rank 7's node": floor(3)}))
    assert "rank 7's node has seen number 3" in found.what


def test_the_newest_of_several_and_why_not_the_others():
    claims = [claim(number) for number in (1, 2, 3)]
    belief = newest_believed(claims, Known(now=at(20), head=head(2)))
    assert belief.newest is claims[2]
    assert [[p.code for p in found] for found in belief.problems] == [["ST-CKPT-151"], [], []]
    assert belief.states == [State.SUPERSEDED, State.HEADED, State.SAVED]
    assert newest_believed([], Known()).newest is None


def test_of_equal_bytes_under_two_numbers_each_is_judged():
    old = claim(1, digest=digest(5))
    new = claim(4, digest=digest(5))
    for claims in ([old, new], [new, old]):
        belief = newest_believed(claims, Known(floor=floor(3)))
        assert belief.newest is new


def test_equal_bytes_are_the_same_checkpoint():
    assert order(1, digest(5), floor(5)) is Order.SAME
    assert order(1, digest(1), floor(5)) is Order.OLDER
    assert order(6, digest(6), floor(5)) is Order.NEWER
    assert order(5, digest(6), floor(5)) is Order.FORKED


NUMBERS = st.integers(0, 4)
DIGESTS = st.builds(digest, NUMBERS)
FLOORS = st.builds(Floor, seq=NUMBERS, digest=DIGESTS)
HEADS = st.builds(lambda seq, of: head(seq, digest=of), NUMBERS, DIGESTS)
CLAIMS = st.builds(
    lambda seq, of, at_step, previous: claim(seq, digest=of, step=at_step, previous=previous),
    NUMBERS,
    DIGESTS,
    NUMBERS,
    st.lists(DIGESTS, max_size=2).map(tuple),
)
KNOWN = st.builds(
    Known,
    now=st.just(at(20)),
    head=st.none() | HEADS,
    head_required=st.booleans(),
    floor=st.none() | FLOORS,
    heard=st.dictionaries(st.sampled_from(["a", "b"]), FLOORS),
    excused=st.frozensets(DIGESTS, max_size=2),
    set_aside=st.frozensets(DIGESTS, max_size=2),
    records=st.dictionaries(DIGESTS, st.just(Problem(code="ST-CKPT-160", what="")), max_size=2),
    history=st.none()
    | st.builds(
        lambda numbers, gone: history(*numbers, set_aside=gone - {digest(n) for n in numbers}),
        st.lists(NUMBERS, unique=True, max_size=3),
        st.frozensets(DIGESTS, max_size=2),
    ),
)


@settings(max_examples=1000)
@given(st.lists(CLAIMS, max_size=5), KNOWN)
def test_nothing_is_believed_below_a_floor_or_head_or_that_was_set_aside(claims, known):
    belief = newest_believed(claims, known)
    one = belief.newest
    if one is None:
        assert all(belief.problems)
        return
    number = next(n for n, other in enumerate(claims) if other is one)
    assert belief.problems[number] == []
    assert belief.states[number] in USABLE
    past = known.history or History()
    if known.history is not None:
        assert one.digest not in past.set_aside or one.digest in known.excused
        last = past.last
        assert last is None or last.digest == one.digest or one.checkpoint.step > last.step
    if one.digest in known.excused:
        return
    assert one.digest not in {*known.records, *known.set_aside}
    seen = [known.head, known.floor, *known.heard.values()]
    for than in seen:
        if than is not None:
            assert one.digest == than.digest or one.checkpoint.seq > than.seq
    assert known.head is not None or not known.head_required


# Evictions.


def gone(**changes):
    return Eviction(**{"epoch": 3, "led": False, "until": at(50), **changes})


@each("time, doubted", (at(49.999), False), (at(50), True), (at(50.001), True))
def test_before_is_before(time, doubted):
    """What was made at the very moment of the last good evidence was not made before it."""
    assert in_doubt(gone(), claim(), made(time=time), 4) is doubted
    assert in_doubt(gone(), None, made(time=time), 4) is doubted
    assert in_doubt(gone(), claim(created=time), None, 4) is doubted


def test_what_was_made_without_the_node_is_not_in_doubt():
    assert not in_doubt(gone(), claim(), made(time=at(99), epoch=4), 5)
    assert not in_doubt(gone(), claim(created=at(99), epoch=4), None, 5)
    assert in_doubt(gone(), claim(created=at(99), epoch=3), None, 5)


def test_the_ledger_is_believed_and_not_the_statement():
    """The evicted node signs an earlier time, or a later epoch; the ledger says otherwise."""
    assert in_doubt(gone(led=True), claim(created=at(1), epoch=9), made(time=at(60)), 4)
    assert not in_doubt(gone(), claim(created=at(99)), made(time=at(40)), 4)


def test_what_only_the_evicted_node_vouches_for_is_in_doubt():
    assert not in_doubt(gone(led=False), claim(created=at(1)), None, 4)
    assert in_doubt(gone(led=True), claim(created=at(1)), None, 4)


def test_an_epoch_that_has_not_begun_is_a_forgery():
    assert in_doubt(gone(), claim(created=at(1), epoch=4), None, 4)
    assert not in_doubt(gone(), claim(created=at(1), epoch=4), None, 6)


def test_not_knowing_the_epoch_is_no_excuse():
    assert in_doubt(gone(), claim(), made(time=at(60), epoch=NO_EPOCH), 4)


# Removal and numbers.


def old(*steps):
    return [claim(seq, step=at_step, digest=f"d{at_step}") for seq, at_step in enumerate(steps)]


@each(
    "keep, every, protected, going",
    (0, 0, [], []),
    (1, 0, [], [10, 20, 30, 40]),
    (2, 0, [], [10, 20, 30]),
    (9, 0, [], []),
    (2, 20, [], [10, 30]),
    (2, 0, ["d20"], [10, 30]),
)
def test_the_newest_stay_and_every_so_many(keep, every, protected, going):
    found = removable(old(10, 20, 30, 40, 50), keep=keep, every=every, protected=protected)
    assert [one.checkpoint.step for one in found] == going


def test_newest_is_by_number_not_by_step():
    # A run that went back makes its steps again: what it made last is the newest.
    found = removable(old(10, 40, 20), keep=2, every=0, protected=())
    assert [one.checkpoint.step for one in found] == [10]


@each(
    "present, seen, number",
    (None, None, 5),
    (head(4), None, 5),
    (head(5), None, 6),
    (head(9, run_id="run-2"), None, 5),
    (head(6), floor(8), 9),
    (head(8), floor(6), 9),
)
def test_no_number_is_used_twice(present, seen, number):
    assert next_seq(5, RUN, present, seen) == number
