# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rights of members that are in, over the job and each other: `closing`, `quotas`.

Nothing here locks: the coordinator calls it with its lock held.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec

from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.core.vocabulary import CloseQuorum
from securetrain.ledger import LedgerEvent, events
from securetrain.rendezvous.coordinator.admission import asker_of
from securetrain.rendezvous.coordinator.assembly import Assembly
from securetrain.rendezvous.coordinator.closing import Suspicions
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.memory import Held
from securetrain.rendezvous.coordinator.quotas import Quotas
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.coordinator.vault import Vault
from securetrain.rendezvous.wire.membership import Evicted
from securetrain.rendezvous.wire.protocol import AskSecrets, Suspect

_LINE: Final = 500
"""Bytes of a ledger's line beside what is said: signature, link, time."""


@dataclass(slots=True, kw_only=True)
class MemberRules:
    """The rules of one job, and what its members have done so far."""

    assembly: Assembly
    journal: Journal
    quotas: Quotas
    quorum: CloseQuorum
    coordinator: str
    """Its SPIFFE id."""
    awaited: Collection[str] = ()
    """Nodes that are not connected and may come back."""
    suspicions: Suspicions = field(default_factory=Suspicions)

    def note(self, session: Session, said: LedgerEvent) -> None:
        """Record what a node caused, at its cost.

        Raises:
            AdmissionError: ST-ADMN-031.
        """
        self.quotas.write(session.node, len(msgspec.json.encode(said)) + _LINE)
        self.journal.write(said)

    def restart(self, session: Session) -> None:
        """Count a round that a member asks for while the others of its round work.

        Raises:
            AdmissionError: ST-ADMN-031.
        """
        rounds, node = self.assembly.rounds, session.node
        others = rounds.complete and node in rounds.participants and len(rounds.participants) > 1
        if others and not rounds.num_waiting:
            self.quotas.restart(node)

    def give(self, session: Session, ask: AskSecrets, vault: Vault) -> None:
        """Answer a question for secrets, after the ledger has it.

        Raises:
            AdmissionError: ST-ADMN-031.
        """
        asker = asker_of(session, self.assembly.membership, ask.nonce)
        answer, said = vault.answer(ask, asker)
        # A question in its turn costs the node nothing: there is one in an epoch.
        in_turn = asker.epoch == ask.epoch > session.asked
        for event in said:
            self.journal.write(event) if in_turn else self.note(session, event)
        if in_turn:
            session.asked = ask.epoch
        session.post(answer)

    def close(self, session: Session, *, failed: bool = False) -> None:
        """Count a node's Close, or record that it does not count.

        Args:
            session: Of the node.
            failed: Whether its workers have failed: it is done, and that is no vote.
        """
        node, rounds = session.node, self.assembly.rounds
        if rounds.closed:
            rounds.finish(node)
        elif failed and node in rounds.participants and rounds.complete:
            rounds.finish(node)
            self.assembly.leaving.add(node)
            self.assembly.arrivals.drop(node)
            self.settle(session.subject)
        elif not self.assembly.may_close(node):
            if node not in self.assembly.ignored:
                self.assembly.ignored.add(node)
                error = AdmissionError(
                    "ST-ADMN-033", f"{node} is not in the current round: the job goes on", node
                )
                self.note(session, events.CloseIgnored.of(error, session.subject))
        elif node not in rounds.finished:
            rounds.finish(node)
            self.assembly.save()
            membership = self.assembly.membership
            assert membership is not None, "it is a member"
            votes = sum(member.node in rounds.finished for member in membership.members)
            members = len(membership.members)
            self.note(
                session,
                events.CloseCounted(subject=session.subject, votes=votes, members=members),
            )
            self.settle(session.subject)

    def settle(self, subject: str = "") -> None:
        """End the job if a quorum has closed it, also because of who is gone."""
        rounds = self.assembly.rounds
        if (
            not rounds.closed
            and not self.assembly.is_wanted
            and self.assembly.is_over(self.quorum, self.awaited)
        ):
            rounds.close()
            self.assembly.save()
            self.journal.write(events.JobClosed(subject=subject or self.coordinator))

    def suspect(self, session: Session, message: Suspect) -> Session | None:
        """Record an accusation; returns whom it brings down, with those of others.

        Raises:
            AdmissionError: ST-ADMN-035 when it makes no sense.
        """
        current = self.assembly.membership
        if current is not None and message.epoch < current.epoch:
            return None  # of an epoch that is over
        if (
            current is None
            or message.epoch != current.epoch
            or message.node == session.node
            or current.entry(message.node) is None
            or current.entry(session.node) is None
        ):
            raise AdmissionError(
                "ST-ADMN-035",
                f"{session.node} accuses {message.node} of epoch {message.epoch}",
                session.subject,
            )
        voices = self.suspicions.add(current, session.node, message.node, message.code)
        if voices is None and not message.transcript:
            return None
        self.note(
            session,
            events.MemberSuspected(
                subject=session.subject,
                suspect=message.node,
                epoch=message.epoch,
                cause=message.code,
                said=message.what[:500],
                voices=voices or 0,
            ),
        )
        if self.suspicions.proven(current, message.node, message.transcript):
            return self.assembly.session_of(message.node)
        return None

    def part(
        self,
        session: Session,
        error: SecureTrainError | None,
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        """A node is gone: evicted, or lost, or by its own will.

        Args:
            session: Its last one.
            error: Why it ended; None when the node left or was lost.
            guarded: Calls what may fail to write, and goes on.
        """
        rounds = self.assembly.rounds
        going_on = not rounds.closed
        if going_on:
            # Whatever the reason: who is not here is not attested again, and so is not heard.
            self.assembly.evictions.gone(session.node)
            if session.admitted:
                self.quotas.gone(session.node)
                guarded(lambda: self.distrust(session, error))
        # Who goes makes the others restart, unless it has finished; at the end of the job nobody.
        finished = session.said_goodbye and session.node in rounds.finished
        working = session.node not in rounds.done
        restart = going_on and working and (error is not None or not finished)
        self.assembly.remove(session.node, evicted=restart)

    def distrust(self, session: Session, error: SecureTrainError | None) -> None:
        """An admitted node is out; when its word counts no more, record since when."""
        self._doubt(self.assembly.evictions.add(session, error), session.subject)

    def lose(self, held: Held) -> None:
        """A member did not come back to this coordinator: it is lost."""
        if self.assembly.rounds.closed:
            self.assembly.remove(held.node, evicted=False)
            return
        subject = f"{self.coordinator.removesuffix('coordinator')}node/{held.node}"
        self.assembly.evictions.gone(held.node)
        self.assembly.remove(held.node, evicted=True)
        gone = self.assembly.evictions.lost(held)
        self.journal.write(events.NodeLost(subject=subject))
        self._doubt(gone, subject)
        self.settle()
        self.assembly.save()

    def _doubt(self, gone: Evicted | None, subject: str) -> None:
        if gone is not None:
            self.journal.write(
                events.TrustEnded(
                    subject=subject,
                    cause=gone.code,
                    last_good=gone.last_good.isoformat(),
                    epoch=gone.epoch,
                )
            )
