# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""`Rounds` beside torch's own state machine, over any order of events.

torch's nodes race for the places of a round; the model lets them come in the order in which ours
gives places, which is one of the orders that can happen there. Then, after every event: the same
participants with the same ranks, the same round, complete or not, and the same end of the last
call. Who has no place stands by in both. The one difference: under torch, such a node may be
counted as waiting although the round has no room for it, which makes the others restart for nothing
(see `test_elastic_departures`); ours never counts more than have room.
"""

from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as torch_rendezvous
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousSettings,
    RendezvousTimeout,
    _Action,
    _DistributedRendezvousOpExecutor,
    _NodeDesc,
    _remove_participant_epilogue,
    _RendezvousExitOp,
    _RendezvousJoinOp,
    _RendezvousState,
    _RendezvousStateHolder,
)

from securetrain.rendezvous.coordinator.rounds import Rounds

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_LAST_CALL = 2.5  # no event is at the very moment at which it ends
_NEVER = float("inf")
_IDLE = {_Action.SYNC, _Action.KEEP_ALIVE}


class Clock:
    """Stands for the class `datetime`."""

    def __init__(self, seconds):
        self._now = _BEGIN + timedelta(seconds=seconds)

    def now(self, _zone):
        return self._now


class Executor(_DistributedRendezvousOpExecutor):
    """Without its event log, which looks at the stack every time."""

    def _record(self, *args, **more):
        pass


class Holder(_RendezvousStateHolder):
    """One state, without a backend."""

    def __init__(self):
        self._state = _RendezvousState()

    @property
    def state(self):
        return self._state

    def sync(self):
        return None

    def mark_dirty(self):
        pass


class Torch:
    """torch's rendezvous, one step at a time, at a time that stands still."""

    def __init__(self, low, high):
        self.holder = Holder()
        self.state = self.holder.state
        self.settings = RendezvousSettings(
            "job-1",
            low,
            high,
            RendezvousTimeout(last_call=timedelta(seconds=_LAST_CALL)),
            keep_alive_interval=timedelta(days=1),
            keep_alive_max_attempt=3,
        )
        self.asking = set()
        """Nodes that are inside next_rendezvous."""

    def run(self, node, op):
        executor = Executor(_NodeDesc(node, 1, 1), self.holder, self.settings)
        executor.run(op, _NEVER, lambda _: _NEVER)

    def ask(self, node):
        self.run(node, _RendezvousExitOp())
        self.asking.add(node)

    def lose(self, node):
        """As when its heart-beats have stopped."""
        desc, state = _NodeDesc(node, 1, 1), self.state
        was_in = desc in state.participants
        for group in (state.wait_list, state.redundancy_list):
            group.discard(desc)
        state.participants.pop(desc, None)
        state.last_heartbeats.pop(desc, None)
        self.asking.discard(node)
        if was_in:
            _remove_participant_epilogue(state, self.settings)

    def settle(self, order):
        """Let every node that asks do what it can do now, again and again."""
        before = None
        while before != (before := self.seen()):
            for node in order:
                if node in self.asking:
                    self.run(node, self._step)
            if self.state.complete:
                self.asking -= {desc.addr for desc in self.state.participants}

    @staticmethod
    def _step(ctx, deadline):
        action = _RendezvousJoinOp()(ctx, deadline)
        return _Action.FINISH if action in _IDLE else action

    def seen(self):
        state = self.state
        ranks = {desc.addr: rank for desc, rank in state.participants.items()}
        end = None if state.deadline is None else (state.deadline - _BEGIN).total_seconds()
        return (
            sorted(ranks, key=ranks.__getitem__) if state.complete else sorted(ranks),
            state.round,
            state.complete,
            end,
            {desc.addr for desc in state.wait_list},
            {desc.addr for desc in state.redundancy_list},
        )


def compare(ours, torch):
    members, number, complete, end, waiting, redundant = torch.seen()
    assert (ours.number, ours.complete, ours.deadline) == (number, complete, end)
    assert sorted(ours.participants) == members, "by rank, once they have ranks"
    assert {*ours.waiting, *ours.spare} == waiting | redundant
    assert set(ours.waiting) <= waiting
    room = ours.max_nodes - len(members)
    if len(waiting) <= room:
        assert set(ours.waiting) == waiting, "where there is room for all, they agree"


class Both:
    """The two, side by side."""

    def __init__(self, low, high):
        self.ours = Rounds(min_nodes=low, max_nodes=high, last_call=_LAST_CALL)
        self.torch = Torch(low, high)
        self.now = 0.0

    def do(self, action, node):
        """One event, a second after the last one; the last call may have ended between the two."""
        self.now += 1
        with patch.object(torch_rendezvous, "datetime", Clock(self.now)):
            self._settle()
            match action:
                case "ask":
                    self.ours.join(node, self.now)
                    self.torch.ask(node)
                case "lose":
                    self.ours.remove(node, self.now)
                    self.torch.lose(node)
                case _:
                    pass
            self._settle()

    def _settle(self):
        ours = self.ours
        ours.formed(self.now)
        self.torch.settle([*ours.participants, *ours.waiting, *ours.spare])
        compare(ours, self.torch)


_STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "lose", "pass"]), st.sampled_from("abcdef")),
    max_size=40,
)


@settings(max_examples=500, deadline=None)
@given(_STEPS, st.integers(1, 3), st.integers(0, 2))
def test_whatever_happens_both_form_the_same_rounds(steps, least, extra):
    both = Both(least, least + extra)
    for action, node in steps:
        both.do(action, node)


def test_the_comparison_notices():
    both = Both(1, 2)
    both.do("ask", "a")
    both.ours.deadline = 0.0
    with pytest.raises(AssertionError):
        compare(both.ours, both.torch)


def test_more_nodes_during_the_last_call_do_not_extend_it():
    both = Both(2, 4)
    for node in "ab":
        both.do("ask", node)
    end = both.ours.deadline
    both.do("ask", "c")
    assert both.ours.deadline == end == 2 + _LAST_CALL
    both.do("pass", "")
    both.do("pass", "")
    assert both.ours.complete
    assert both.torch.state.complete


def test_one_that_goes_stops_the_last_call_and_the_next_one_starts_it_anew():
    both = Both(2, 3)
    for step in [("ask", "a"), ("ask", "b"), ("lose", "a"), ("ask", "c")]:
        both.do(*step)
    assert both.ours.deadline == 4 + _LAST_CALL


def test_torch_counts_a_spare_node_as_waiting_once_a_member_restarts():
    """And goes on counting it in the full round that follows, if the member keeps its place."""
    both = Both(2, 2)
    for node in "abcab":
        both.do("ask", node)
    *_, waiting, redundant = both.torch.seen()
    assert both.ours.participants == ["a", "b"]
    assert both.ours.complete
    assert (waiting, redundant) == ({"c"}, set())
    assert (both.ours.waiting, both.ours.spare) == ([], ["c"])
