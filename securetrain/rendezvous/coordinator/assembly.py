# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From rounds to epochs: a signed membership for each complete round, and its store.

Rules:

1. ranks, epochs and memberships are the coordinator's alone: it takes none of them from a node;
2. rank 0 of an epoch alone may announce that epoch's store, at its address in the membership, once;
3. when rank 0 goes before its store is up, the others start the round again;
4. a node that could not say in its Hello what workers it runs says it once, and every member then
   gets the membership with everybody's workers, signed like the first;
5. a member that owes the others one of these two for too long is out, and so is one that stays in
   its round while others wait for the next one;
6. so is one that does not come to the workers' group (`arrivals`), whose rulings are carried out
   here while nobody has asked for another round.

Nothing here locks: the coordinator calls it with its lock held.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from securetrain.core.errors import AdmissionError
from securetrain.core.vocabulary import CloseQuorum
from securetrain.ledger import events
from securetrain.rendezvous.coordinator.admission import member_of
from securetrain.rendezvous.coordinator.arrivals import Arrivals
from securetrain.rendezvous.coordinator.closing import is_over
from securetrain.rendezvous.coordinator.evictions import Evictions
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.memory import Held, JobState
from securetrain.rendezvous.coordinator.rounds import Rounds
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.coordinator.terms import Terms
from securetrain.rendezvous.wire.membership import Membership, gather, sign_membership
from securetrain.rendezvous.wire.protocol import (
    Arrival,
    CloseState,
    Done,
    Going,
    Staffed,
    Status,
    Store,
    Workers,
)
from securetrain.rendezvous.wire.tunnel import announce, store_host

_STAY: Final = 0.9
"""Of ``join_timeout_seconds``: before the others give up, and after workers had time to save."""


class Assembly:
    """Forms the epochs of one job out of the sessions of its nodes."""

    def __init__(
        self,
        rounds: Rounds,
        terms: Terms,
        nodes: dict[str, Session],
        journal: Journal,
        *,
        coordinator: str,
        clock: Callable[[], datetime],
        last_epoch: int,
        doubt_lost: bool,
    ) -> None:
        """Prepare.

        Args:
            rounds: the members and those that wait.
            terms: of the job.
            nodes: the sessions by the names of their nodes; the coordinator's own table.
            journal: where memberships are recorded.
            coordinator: its SPIFFE id.
            clock: the time, timezone-aware.
            last_epoch: of an earlier coordinator of this job.
            doubt_lost: the policy's word about nodes that go (`evictions`).
        """
        self.rounds = rounds
        self.membership: Membership | None = None
        self._store: Store | None = None
        self._epoch = last_epoch
        self._over = False
        self._formed_at = 0.0
        self._asked_at: float | None = None
        """When the members of a round were told to meet again."""
        self.evictions = Evictions(doubt_lost=doubt_lost)
        self.arrivals = Arrivals(terms.waits.arrival_seconds, terms.min_nodes)
        self.leaving: set[str] = set()
        """Nodes that have said that they go, or that their workers have failed for good."""
        self.awaited: Collection[str] = ()
        """Nodes that are not connected and may come back."""
        self.save: Callable[[], None] = lambda: None
        """Keeps what was decided, before anybody hears of it."""
        self.ignored: set[str] = set()
        """Nodes whose Close counts for nothing."""
        self._terms = terms
        self._nodes = nodes
        self._journal = journal
        self._coordinator = coordinator
        self._clock = clock

    @property
    def epoch(self) -> int:
        """The latest one, of an earlier coordinator too."""
        return self._epoch

    def join(self, node: str) -> None:
        """A node asks for the next round.

        Raises:
            AdmissionError: ST-ADMN-047 when it has said that it goes; ST-ADMN-008.
        """
        self.ignored.discard(node)
        if node in self.leaving:
            why = f"{node} has said that it goes, and asks for another round"
            raise AdmissionError("ST-ADMN-047", why, f"node {node}", "start it again")
        self.rounds.join(node, self._terms.monotonic())
        self._orphaned(node)

    def remove(self, node: str, *, evicted: bool) -> None:
        """A node is gone."""
        self.ignored.discard(node)
        if node in self.leaving:
            self.leaving.discard(node)
            self.rounds.finished.discard(node)
        self.arrivals.drop(node)
        self.rounds.remove(node, self._terms.monotonic(), evicted=evicted)
        self._orphaned(node)

    def session_of(self, node: str) -> Session | None:
        """The connection of a node that is in."""
        return self._nodes.get(node)

    def may_close(self, node: str) -> bool:
        """Tell whether a node is a member of the current round, whose end would be a good one."""
        current = self.membership
        return (
            current is not None
            and current.entry(node) is not None
            and self.rounds.complete
            and node in self.rounds.participants
            and self.arrivals.counts(node)
        )

    def is_over(self, rule: CloseQuorum, expected: Collection[str]) -> bool:
        """Tell whether the job has been closed by a quorum (`closing`).

        Args:
            rule: The policy's.
            expected: Nodes that are not connected and may come back.
        """
        if self.membership is None:
            return False
        return is_over(
            rule,
            [member.node for member in self.membership.members],
            self.rounds.finished,
            {*expected, *(node for node, session in self._nodes.items() if session.admitted)},
            self.leaving,
        )

    @property
    def is_wanted(self) -> bool:
        """Tell whether a round is to follow the one that was lost: its votes do not end that."""
        current, rounds = self.membership, self.rounds
        if not rounds.complete:
            return rounds.deadline is not None  # enough have come
        if current is None or not rounds.evicted:
            return False
        work = set(rounds.participants) - rounds.done - rounds.finished  # they are told to come
        waits = {node for node in rounds.waiting if current.entry(node) is not None}
        return bool(waits) or len(work) >= self._terms.min_nodes

    def status(self, node: str) -> Status:
        """The state of the job, for one node."""
        rounds = self.rounds
        return Status(
            waiting=rounds.num_waiting,
            ready=0 if rounds.complete else len(rounds.participants),
            closed=rounds.closed,
            spare=node in rounds.spare,
            evicted=self.evictions.out,
            unfinished=rounds.num_unfinished if node in rounds.participants else 0,
            running=rounds.num_running if node in rounds.participants else 0,
            owed=len(self.awaited),
            close=self._close_of(node),
        )

    def _close_of(self, node: str) -> CloseState:
        if node in self.rounds.finished:
            return CloseState.COUNTED
        return CloseState.IGNORED if node in self.ignored else CloseState.NONE

    def tell_everybody(self) -> None:
        """Post the status to every node to which it is news: to all when the last one is done."""
        if not self.rounds.complete or not self.rounds.num_waiting:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = self._terms.monotonic()
        over = bool(self.rounds.finished) and not self.rounds.num_unfinished
        news, self._over = over and not self._over, over
        for session in list(self._nodes.values()):
            if session.admitted:
                (session.post if news else session.tell)(self.status(session.node))

    def announce(self, session: Session, store: Store) -> None:
        """Hand the store's address to every member, if it may be given by this node.

        Raises:
            AdmissionError: ST-ADMN-001.
        """
        current = self.membership
        if current is None or store.epoch != current.epoch:
            return  # of a round that is over; its members have moved on
        wanted = current.members[0].node, store_host(current)
        if (session.node, store.host) != wanted or self._store is not None:
            raise AdmissionError(
                "ST-ADMN-001",
                f"{session.node} announced a store at {store.host} for epoch {store.epoch}",
                session.subject,
                "announce it from rank 0 only, once, at its own address",
            )
        self._journal.write(
            events.StoreAnnounced(
                subject=session.subject, epoch=store.epoch, address=f"{store.host}:{store.port}"
            )
        )
        self._store = store
        self.save()
        for member in current.members:
            peer = self._nodes.get(member.node)
            if peer is not None:
                peer.post(store)

    def hear(self, session: Session, message: Workers | Arrival | Done | Going) -> None:
        """Act on what a member says of its workers, or that it will leave."""
        match message:
            case Workers():
                self._staff()
            case Arrival():
                self.arrivals.hear(session.node, message, self._terms.monotonic())
            case Done():
                self.arrivals.finish(session.node)
            case Going() if session.node in self.rounds.participants and not self.rounds.closed:
                self._journal.write(events.NodeGoing(subject=session.subject))
                self.remove(session.node, evicted=True)
                self.leaving.add(session.node)
            case _:
                pass  # it has no place to leave
        told = self.rounds.complete and self.rounds.num_waiting  # what was said stays true
        self.rounds.done.clear()
        for node in self.arrivals.done:
            self.rounds.finish_work(node)
        self.rounds.evicted |= bool(told and self.rounds.done)
        if self.rounds.waiting:
            self.rounds.go_on(self._terms.monotonic())
        self._rule()

    @property
    def _may_rule(self) -> bool:
        """Tell whether the members are in their round, and none has asked for another."""
        rounds = self.rounds
        return rounds.complete and not (rounds.closed or rounds.num_waiting)

    def _rule(self) -> None:
        """Carry out what the words of the members come to: rule 6."""
        now = self._terms.monotonic()
        while self._may_rule and (ruling := self.arrivals.judge(now)) is not None:
            for node, why in ruling.absent.items():
                self.arrivals.drop(node)
                self.rounds.done.discard(node)
                if (peer := self._nodes.get(node)) is not None:
                    peer.evict(AdmissionError("ST-ADMN-047", why, peer.subject))
            if why := ruling.again or ruling.end:
                self._journal.write(events.GroupFailed(subject=f"epoch {self._epoch}", said=why))
            self.rounds.evicted = self.rounds.evicted or bool(ruling.again)
            if ruling.end:
                self.rounds.close()
                for node in self.rounds.participants:
                    if (peer := self._nodes.get(node)) is not None:
                        peer.evict(AdmissionError("ST-ADMN-048", ruling.end, peer.subject))

    def _staff(self) -> None:
        """Hand every member the membership with everybody's workers, once all have said it."""
        current = self.membership
        if current is None or current.is_staffed:
            return
        sessions = [self._nodes.get(member.node) for member in current.members]
        if not all(peer is not None and peer.staffed for peer in sessions):
            return
        self.membership = replace(
            current,
            members=tuple(
                replace(member, local_world=peer.hello.local_world, role=peer.hello.role)
                for member, peer in zip(current.members, sessions, strict=True)
                if peer is not None and peer.hello is not None
            ),
        )
        staffed = Staffed(membership=sign_membership(self.membership, self._terms.key))
        self._terms.keep.membership(staffed.membership, self.membership)
        for peer in sessions:
            if peer is not None:
                peer.post(staffed)

    @property
    def deadline(self) -> float | None:
        """The time when something is due: the last call's end, or what members owe each other."""
        if self.rounds.deadline is not None:
            return self.rounds.deadline
        ends = [self.arrivals.deadline] if self._may_rule else []
        ends.append(self._due if self._owing() else None)
        return min((end for end in ends if end is not None), default=None)

    def put_out_late(self) -> None:
        """End the sessions of members that keep the others waiting: rules 5 and 6."""
        self._rule()
        if self.rounds.deadline is not None or self._terms.monotonic() < self._due:
            return
        for peer, what in self._owing():
            peer.evict(
                AdmissionError("ST-ADMN-005", f"{peer.node} has not {what} in time", peer.subject)
            )
        self._formed_at = self._terms.monotonic()
        self._asked_at = self._formed_at if self._asked_at is not None else None

    @property
    def _due(self) -> float:
        """The time when what members owe each other is due: rule 5."""
        if self._asked_at is not None:
            return self._asked_at + _STAY * self._terms.waits.join_timeout_seconds
        return self._formed_at + self._terms.waits.join_timeout_seconds / 2

    def _owing(self) -> list[tuple[Session, str]]:
        """Members for which the others of a complete round wait, and for what."""
        current, rounds = self.membership, self.rounds
        if current is None or not rounds.complete or rounds.closed:
            return []
        if self._asked_at is not None:
            late = list(rounds.participants)  # who is done has nobody to wait for any more
            what = "left its round, and the others wait for the next one"
        elif rounds.evicted:
            return []
        elif self._store is None:
            late, what = [current.members[0].node], "started the workers' store"
        elif not current.is_staffed:
            late = [
                member.node
                for member in current.members
                if (peer := self._nodes.get(member.node)) is not None and not peer.staffed
            ]
            what = "said what workers it runs"
        else:
            return []
        return [
            (self._nodes[node], what)
            for node in late
            if node in self._nodes and node in rounds.participants
        ]

    def advance(self) -> None:
        """Form the next epoch if its round is complete.

        Raises:
            SecureTrainError: it cannot be recorded, and nobody has heard of it.
        """
        if not self.rounds.formed(self._terms.monotonic()):
            return
        membership = Membership(
            job=self._terms.job,
            coordinator=self._coordinator,
            epoch=self._epoch + 1,
            round=self.rounds.number,
            policy=self._terms.policy_digest,
            issued=self._clock(),
            members=tuple(
                member_of(rank, self._nodes[node])
                for rank, node in enumerate(sorted(self.rounds.participants))
            ),
            evicted=self.evictions.all,
            floors=gather({node: peer.floors for node, peer in self._nodes.items()}),
        )
        self._journal.write(
            events.RoundFormed(
                subject=f"epoch {membership.epoch}",
                round=self.rounds.number,
                nodes=len(membership.members),
                evicted=" ".join(gone.node for gone in membership.evicted)[:2000],
                floors=len(membership.floors),
            )
        )
        self._epoch, self._store, self.membership = membership.epoch, None, membership
        self._formed_at = self._terms.monotonic()
        self.evictions.formed(membership)
        self.arrivals.begin(self._epoch, self.rounds.participants, self._formed_at)
        self.save()
        announced = list(announce(membership, self._terms.key, self._terms.random))
        self._terms.keep.membership(announced[0][1].membership, membership)
        for node, formed in announced:
            self._nodes[node].post(formed)

    def state(
        self, job: str, held: Callable[[Session | None, str], Held | None]
    ) -> JobState | None:
        """Everything that another coordinator needs to go on; None before the first epoch."""
        if self.membership is None:
            return None
        rounds, evictions = self.rounds, self.evictions
        in_round = rounds.participants if rounds.complete else []
        members = [held(self._nodes.get(node), node) for node in in_round]
        return JobState(
            job=job,
            round=rounds.number,
            membership=replace(self.membership, floors=()),
            members=tuple(member for member in members if member is not None),
            store=self._store,
            closed=rounds.closed,
            restart=rounds.evicted,
            finished=tuple(sorted(rounds.finished - self.leaving)),  # these say it again
            done=tuple(sorted(rounds.done)),
            evicted=evictions.all,
            out=evictions.out,
            last=evictions.last,
            led=tuple(sorted(evictions.led)),
        )

    def restore(self, state: JobState) -> None:
        """Go on from the state of another coordinator."""
        rounds = self.rounds
        rounds.number = state.round
        rounds.participants = [member.node for member in state.members]
        rounds.complete = bool(state.members)
        rounds.closed, rounds.evicted = state.closed, state.restart and rounds.complete
        rounds.finished, rounds.done = set(state.finished), set(state.done)
        self._formed_at = self._terms.monotonic()
        self.membership, self._store = state.membership, state.store
        self._epoch = max(self._epoch, state.membership.epoch)
        self.arrivals.begin(state.membership.epoch, rounds.participants, self._formed_at)
        self.evictions.restore(state)

    def resume(self, session: Session) -> None:
        """Tell a member that has come back what it may have missed."""
        if self._store is not None:
            session.post(self._store)
        session.post(self.status(session.node))

    def _orphaned(self, node: str) -> None:
        """If rank 0 went before its store came up, the others start the round again."""
        current = self.membership
        if (
            current is not None
            and self._store is None
            and self.rounds.complete
            and current.members[0].node == node
        ):
            if not self.rounds.closed:
                for gone in [n for n in self.rounds.participants if n not in self._nodes]:
                    self.rounds.remove(gone, self._terms.monotonic())
                if self.rounds.complete:
                    self.rounds.reopen(self._terms.monotonic())
                return
            for member in current.members[1:]:
                if member.node in self._nodes:
                    self._nodes[member.node].evict(
                        AdmissionError(
                            "ST-ADMN-008",
                            f"{node} left before it had started the store, and the job is closed",
                            "round",
                        )
                    )
