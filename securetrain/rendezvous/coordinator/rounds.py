# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Rounds of the rendezvous as a state machine: no I/O, no clock, no lock.

The rules are torchelastic's (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py), so that
agents behave alike under both:

1. a round completes at once with ``max_nodes`` members, or ``last_call`` seconds after the
   ``min_nodes``-th one has joined;
2. a node that asks for the next round leaves the current one first; while others are still in it,
   it waits, and the agents of the others see it waiting and come too;
3. when the last member has left a complete round, the next one begins with everybody who waits;
4. with ``max_nodes`` members in, further nodes are spare: they are not counted as waiting, and step
   in when a member goes;
5. once closed, nobody joins any more; spare nodes leave gracefully.

Two rules are ours, because a node that goes takes its tunnel with it, and connections to it then
fall silent instead of breaking:

6. a node that was evicted counts as a reason for a new round;
7. a member that has closed the job is kept informed whether the others of its round have, too.

Three more, because a node may go, and nobody should wait for it, or for what it did:

8. the round after one that lost a member begins as soon as the members that are left, if they are
   enough, have come: there is no last call for whom nobody expects;
9. once the workers of a member have ended well, newcomers are no reason to restart the others'; a
   member that asks for another round always is, and those that are done are not waited for. Who
   asks for another round is not done;
10. a member that says that it is going has left its round, and is a reason for a new one.
"""

from dataclasses import dataclass, field

from securetrain.core.errors import AdmissionError


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The members of a round, and those that wait. Times are seconds on a steady clock."""

    min_nodes: int
    max_nodes: int
    last_call: float
    number: int = 0
    """Of the current round; grows when a new one begins."""
    complete: bool = False
    closed: bool = False
    participants: list[str] = field(default_factory=list)
    """In order of joining."""
    waiting: list[str] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    deadline: float | None = None
    evicted: bool = False
    """Since the current round was complete."""
    finished: set[str] = field(default_factory=set)
    """Nodes that have closed the job."""
    done: set[str] = field(default_factory=set)
    """Members of the current round whose workers have ended well."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"min_nodes {self.min_nodes}, max_nodes {self.max_nodes}")

    @property
    def num_waiting(self) -> int:
        """The number that agents poll: above zero, stop the workers and ask for the next round."""
        waiting = 0 if self.done else len(self.waiting)
        return max(waiting, int(self.evicted))

    @property
    def num_unfinished(self) -> int:
        """Members of the round that have not closed the job: they still need the others."""
        return sum(node not in self.finished for node in self.participants)

    @property
    def num_running(self) -> int:
        """Members of the round whose workers have not ended well."""
        return sum(node not in self.done for node in self.participants)

    def join(self, node: str, now: float) -> None:
        """A node asks for the next round.

        Raises:
            AdmissionError: ST-ADMN-008 when closed.
        """
        if self.closed:
            raise AdmissionError("ST-ADMN-008", "the job is closed", f"node {node}")
        self.finished.discard(node)
        self.done.discard(node)
        if self._withdraw(node) and self.complete and self.done:
            self.evicted = True
        self.go_on(now)
        if not self.complete:
            self._participate(node, now)
            return
        # A member that restarts keeps its place before the spare nodes.
        taken = len(self.participants) + len(self.waiting)
        (self.waiting if taken < self.max_nodes else self.spare).append(node)
        self._promote(now)

    def go_on(self, now: float) -> None:
        """Wait for no member that is done (rule 9)."""
        if self.complete and self.participants and self.done.issuperset(self.participants):
            self.participants.clear()
            self._promote(now)

    def remove(self, node: str, now: float, *, evicted: bool = False) -> None:
        """A node goes away, wherever it stands."""
        was_in = self._withdraw(node)
        if self.complete:
            self.evicted = self.evicted or (evicted and was_in)
            self._promote(now)

    def finish_work(self, node: str) -> None:
        """The workers of a member have ended well."""
        if self.complete and node in self.participants:
            self.done.add(node)

    def close(self) -> None:
        """No further rounds."""
        self.closed = True
        self.deadline = None

    def finish(self, node: str) -> None:
        """A node is done with the job; `closing` says whether that ends it for everybody."""
        self.finished.add(node)

    def formed(self, now: float) -> bool:
        """Tell whether the round has just become complete; true once a round."""
        if self.complete or self.closed:
            return False
        if len(self.participants) == self.max_nodes or (
            self.deadline is not None and now >= self.deadline
        ):
            self.complete = True
            self.deadline = None
            return True
        return False

    def reopen(self, now: float) -> None:
        """Begin the next round with the members of this one, whose store never came up."""
        again = [*self.participants, *self.waiting]
        self.participants.clear()
        self.waiting = again
        self._promote(now)

    def _withdraw(self, node: str) -> bool:
        was_in = node in self.participants
        for group in (self.participants, self.waiting, self.spare):
            if node in group:
                group.remove(node)
        if len(self.participants) < self.min_nodes:
            self.deadline = None
        return was_in

    def _participate(self, node: str, now: float) -> None:
        if len(self.participants) == self.max_nodes:
            self.spare.append(node)
            return
        self.participants.append(node)
        if len(self.participants) == self.min_nodes:
            self.deadline = now + self.last_call

    def _promote(self, now: float) -> None:
        """After somebody left a complete round: begin the next, or let spare nodes wait."""
        if not self.participants:
            lost, queue = self.evicted, [*self.waiting, *self.spare]
            self.done.clear()
            self.waiting.clear()
            self.spare.clear()
            self.complete = False
            self.evicted = False
            self.deadline = None
            self.number += 1
            for node in queue:
                self._participate(node, now)
            if lost and len(self.participants) >= self.min_nodes:
                self.deadline = now
            return
        while self.spare and len(self.participants) + len(self.waiting) < self.max_nodes:
            self.waiting.append(self.spare.pop(0))
