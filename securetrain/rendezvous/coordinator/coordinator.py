# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator: admits nodes, forms rounds, signs memberships. No torch, no training code.

Rules:

1. nobody is heard before TLS 1.3 with a node's certificate of this job that is not revoked; nobody
   is in before the verifier has accepted its evidence and the ledger has recorded it;
2. connections that have not been admitted are limited in number; a new one pushes out the oldest,
   so that idle connections cannot keep members away;
3. a node is in once: a second connection with the same name, key or WireGuard key is refused and
   both are noted;
4. ranks, epochs and memberships are the coordinator's alone; `assembly` has their rules;
5. what members may do to the job and to each other is bounded and counted: `member_rules`.
"""

import socket
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from securetrain.core.errors import AdmissionError, SecureTrainError, reason
from securetrain.core.vocabulary import KeyExchange
from securetrain.evidence import AttestationResult
from securetrain.identity import JobCA, Role, SpiffeId
from securetrain.ledger import Ledger, events
from securetrain.policy.load import LoadedPolicy
from securetrain.rendezvous.coordinator.admission import (
    Admission,
    admission_of,
    admitted_event,
    evict_revoked,
    record_end,
    refuse_revoked,
    refuse_twin,
)
from securetrain.rendezvous.coordinator.assembly import Assembly
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.listener import Listener
from securetrain.rendezvous.coordinator.member_rules import MemberRules
from securetrain.rendezvous.coordinator.quotas import Quotas
from securetrain.rendezvous.coordinator.reception import Reception
from securetrain.rendezvous.coordinator.returning import Returning
from securetrain.rendezvous.coordinator.rounds import Rounds
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.coordinator.settings import CoordinatorSettings, forgetful_verifier
from securetrain.rendezvous.coordinator.succession import Succession
from securetrain.rendezvous.coordinator.terms import make_terms
from securetrain.rendezvous.wire import protocol
from securetrain.rendezvous.wire.channel import Channel
from securetrain.rendezvous.wire.membership import Membership
from securetrain.rendezvous.wire.protocol import AnyMessage, Store, Suspect
from securetrain.rendezvous.wire.tls import (
    PeerCheck,
    make_connection,
    make_context,
    require_hybrid,
)
from securetrain.rendezvous.wire.tunnel import require_alike

_STOP_SECONDS: Final = 5.0
_STOPPED: Final = AdmissionError("ST-ADMN-007", "the coordinator was stopped", "coordinator")


class Coordinator:
    """One job's coordinator; `start` it, then nodes may join."""

    def __init__(
        self,
        job: str,
        ca: JobCA,
        policy: LoadedPolicy,
        ledger: Ledger | None,
        *,
        min_nodes: int,
        max_nodes: int,
        clock: Callable[[], datetime],
        settings: CoordinatorSettings | None = None,
    ) -> None:
        """Prepare a coordinator; nothing listens yet.

        Args:
            job: the job's id, as in the CA's certificates.
            ca: the job's CA; it issues the coordinator's own certificate.
            policy: what nodes must meet.
            ledger: where decisions are recorded; None keeps none.
            min_nodes: a round needs at least so many.
            max_nodes: and at most so many.
            clock: the time, timezone-aware.
            settings: what differs from an ordinary coordinator.

        Raises:
            AttestationError: ST-ATTS-009, 3xx or 7xx when the policy's reference values are bad.
        """
        chosen = settings or CoordinatorSettings()
        asked = policy.policy
        self._ca = ca
        self._clock = clock
        self._monotonic = chosen.monotonic
        self._policy = policy
        self._revoked = chosen.revoked
        self._journal = Journal(ledger, chosen.monotonic)
        self._spiffe = SpiffeId(ca.trust_domain, job, Role.COORDINATOR)
        self._verifier = chosen.verifier or forgetful_verifier(policy, clock, chosen.monotonic)
        self._terms = make_terms(
            job,
            ca,
            policy,
            chosen,
            clock=clock,
            journal=self._journal,
            nodes=(min_nodes, max_nodes),
        )
        self._last_epoch = chosen.last_epoch
        self._reception = Reception(
            ca=ca,
            key=self._terms.key,
            lifetime=timedelta(minutes=asked.identity.certificate_lifetime_minutes),
            clock=clock,
            make=partial(make_context, server=True),
            keep=lambda certificate: chosen.keep.credential(job, (certificate, ca.certificate)),
        )
        self._rounds = Rounds(min_nodes=min_nodes, max_nodes=max_nodes, last_call=chosen.last_call)
        self._nodes: dict[str, Session] = {}
        self._assembly = Assembly(
            self._rounds,
            self._terms,
            self._nodes,
            self._journal,
            coordinator=str(self._spiffe),
            clock=clock,
            last_epoch=chosen.last_epoch,
            doubt_lost=asked.node.doubt_lost,
        )
        self._member_rules = MemberRules(
            assembly=self._assembly,
            journal=self._journal,
            quotas=Quotas(
                lease=self._terms.lease, heartbeat=chosen.heartbeat, monotonic=chosen.monotonic
            ),
            quorum=asked.rendezvous.close_quorum,
            coordinator=str(self._spiffe),
        )
        self._returning = Returning(
            job=job,
            assembly=self._assembly,
            journal=self._journal,
            memory=chosen.memory,
            lease=self._terms.lease,
            heartbeat=chosen.heartbeat,
            clock=clock,
            monotonic=chosen.monotonic,
        )
        self._succession = Succession(
            terms=self._terms, journal=self._journal, subject=str(self._spiffe)
        )
        self._member_rules.awaited = self._assembly.awaited = self._returning.expected
        self._assembly.save = self._save
        self._sessions: set[Session] = set()
        self._admissions: dict[str, Admission] = {}
        self._lock = threading.Condition(threading.RLock())
        self._listener = Listener(
            self._begin, asked.rendezvous.max_unauthenticated, self._note_problem
        )
        self._round_thread = threading.Thread(
            target=self._round_loop, name="coordinator-rounds", daemon=True
        )
        self._stopping = False
        self._problem: SecureTrainError | None = None

    def start(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Listen on one address; returns it with the port (0 picks a free one).

        Raises:
            UsageError: ST-USAG-003 when the port is taken, ST-USAG-002 for a bad address.
        """
        state = self._returning.load(self._last_epoch)
        address = self._listener.open(host, port)
        self._journal.write(
            events.CoordinatorStarted(
                subject=str(self._spiffe),
                address=f"{address[0]}:{address[1]}",
                policy=self._policy.digest,
            )
        )
        if state is not None:
            with self._lock:
                self._returning.restore(state)
        self._round_thread.start()
        return address

    def stop(self, *, for_good: bool = True) -> None:
        """End every connection and wait for the threads.

        Args:
            for_good: Whether the nodes are told that it is over. Else they wait for a coordinator
                that goes on where this one was (`returning`), until their leases end.
        """
        with self._lock:
            self._stopping = True
            self._rounds.close()
            self._lock.notify_all()
        self._listener.close()
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.dismiss(_STOPPED if for_good and self.superseded is None else None)
        deadline = self._monotonic() + _STOP_SECONDS
        if self._round_thread.is_alive():  # not when the port was taken
            self._round_thread.join(_STOP_SECONDS)
        with self._lock:
            while self._sessions and self._monotonic() < deadline:
                self._lock.wait(deadline - self._monotonic())
        self._journal.finish()

    @property
    def admissions(self) -> list[Admission]:
        """Every node that was admitted, by name; those that left again too."""
        with self._lock:
            return [self._admissions[name] for name in sorted(self._admissions)]

    @property
    def membership(self) -> Membership | None:
        """The latest one."""
        with self._lock:
            return self._assembly.membership

    @property
    def problem(self) -> SecureTrainError | None:
        """The reason why the ledger could not be written, if that ever happened."""
        return self._problem

    @property
    def superseded(self) -> AdmissionError | None:
        """The later coordinator for which it has stood down."""
        return self._succession.error

    def recheck(self) -> None:
        """Evict every connected node that has been revoked: the list has changed."""
        with self._lock:
            sessions = [session for session in self._sessions if session.peer is not None]
        evict_revoked(self._revoked, sessions)

    @property
    def closed(self) -> bool:
        """Tell whether the job has been closed."""
        return self._rounds.closed

    def wait_empty(self, timeout: float) -> None:
        """Wait until every node has gone, and until those have come that may have to hear it."""
        with self._lock:
            self._lock.wait_for(lambda: not (self._nodes or self._returning.expected), timeout)

    # What sessions call (session.Hub).

    @property
    def epoch(self) -> int:
        """The job's current epoch; -1 before the first one."""
        with self._lock:
            return self._assembly.epoch

    def recognised(self, session: Session) -> None:
        """Refuse whom the cluster CA has revoked, before anything that it says is read.

        Raises:
            AdmissionError: ST-ADMN-013, ST-ADMN-012 when it cannot be known, ST-ADMN-030 or 039.
        """
        refuse_revoked(self._revoked, session)
        if self._policy.policy.rendezvous.key_exchange is KeyExchange.HYBRID:
            require_hybrid(session.channel.key_exchange, session.subject)
        with self._lock:
            self._member_rules.quotas.admit(session.node)

    def authenticated(self, session: Session) -> None:
        """Reserve the node's name.

        Raises:
            SecureTrainError: ST-ADMN-008 closed or full, 011 in; `require_alike`'s.
        """
        with self._lock:
            self._succession.check(session, self._stand_down)
            if self._rounds.closed and not self._returning.may_hear_of_the_end(session):
                raise AdmissionError("ST-ADMN-008", "the job is closed", session.subject)
            refuse_twin(self._journal, session, self._nodes.values())
            if len(self._nodes) >= 2 * self._terms.max_nodes:
                raise AdmissionError(
                    "ST-ADMN-008",
                    f"the job has {len(self._nodes)} nodes, spare ones included",
                    session.subject,
                    "raise --nnodes, or use the node for another job",
                )
            self._returning.check(session)
            hellos = [peer.hello for peer in (session, *self._nodes.values()) if peer.hello]
            require_alike(hellos[0], hellos[1:], self._policy.policy.network)
            self._nodes[session.node] = session

    def admitted(self, session: Session, result: AttestationResult) -> None:
        """Record the admission; the node hears of it only when that has worked."""
        self._journal.write(admitted_event(session, result))
        self._listener.passed(session)
        with self._lock:
            self._admissions[session.node] = admission_of(session, result)
            if session.node not in self._returning.expected:
                return
            if self._returning.arrived(session):
                self._assembly.resume(session)
                return
            self._assembly.evictions.gone(session.node)
            self._assembly.remove(session.node, evicted=True)
            self._advance()
            self._assembly.tell_everybody()

    def heard(self, session: Session, message: AnyMessage) -> None:
        """Count a message of an admitted node.

        Raises:
            AdmissionError: ST-ADMN-031.
        """
        with self._lock:
            self._member_rules.quotas.hear(session.node, message)

    def renewed(self, session: Session, result: AttestationResult) -> None:
        """Note the new lease.

        Raises:
            AdmissionError: ST-ADMN-013 when the node was revoked meanwhile.
        """
        refuse_revoked(self._revoked, session)
        renewed = events.LeaseRenewed(
            subject=session.subject, tier=result.tier, result=result.digest
        )
        with self._lock:
            self._member_rules.note(session, renewed)
            session.result = result
            self._assembly.save()
            self._admissions[session.node] = admission_of(session, result)

    def ready(self, session: Session) -> None:
        """The node joins the next round.

        Raises:
            AdmissionError: ST-ADMN-008 when the job is closed.
        """
        with self._lock:
            if not self._rounds.closed:
                self._member_rules.restart(session)
                self._assembly.join(session.node)
                self._advance()
            self._assembly.tell_everybody()

    def store(self, session: Session, store: Store) -> None:
        """Hand the store's address to every member, if it may be given by this node.

        Raises:
            AdmissionError: ST-ADMN-001.
        """
        with self._lock:
            self._assembly.announce(session, store)

    def hear(
        self,
        session: Session,
        message: protocol.Workers | protocol.Arrival | protocol.Done | protocol.Going,
    ) -> None:
        """Act on what a member says of its workers or its going, and tell the others."""
        with self._lock:
            self._assembly.hear(session, message)
            self._assembly.save()
            self._advance()
            self._assembly.tell_everybody()

    def close(self, session: Session, *, failed: bool = False) -> None:
        """Count the node's vote that the job is over, unless its workers have failed.

        Raises:
            AdmissionError: ST-ADMN-031.
        """
        with self._lock:
            self._member_rules.close(session, failed=failed)
            self._assembly.tell_everybody()

    def suspect(self, session: Session, message: Suspect) -> None:
        """Record an accusation; a majority of the epoch evicts, and nobody alone.

        Raises:
            AdmissionError: ST-ADMN-035 when it makes no sense, ST-ADMN-031.
        """
        with self._lock:
            found = self._member_rules.suspect(session, message)
        if found is not None:
            found.evict(AdmissionError("ST-ADMN-034", where=found.subject))

    def secrets(self, session: Session, ask: protocol.AskSecrets) -> None:
        """Give a member what the policy gives it."""
        with self._lock:
            self._member_rules.give(session, ask, self._terms.vault)

    def beat(self, session: Session) -> None:
        """Answer a sign of life with where the job stands."""
        with self._lock:  # until it is posted, or else news could overtake it
            session.post(self._assembly.status(session.node))

    def ended(self, session: Session, error: SecureTrainError | None) -> None:
        """Record how it ended, and go on without the node."""
        self._guarded(lambda: record_end(self._journal, session, error))
        self._listener.passed(session)
        with self._lock:
            if self._nodes.get(session.node) is session:
                del self._nodes[session.node]
                self._verifier.release(session.node)
                if not self._stopping and session.node not in self._returning.expected:
                    self._member_rules.part(session, error, self._guarded)
                    self._guarded(self._member_rules.settle)
                    self._guarded(self._assembly.save)
                    self._advance()
                    self._assembly.tell_everybody()
            self._sessions.discard(session)
            self._lock.notify_all()

    # Rounds; the lock is held.

    def _stand_down(self) -> None:
        self._stopping = True
        for session in [one for one in self._sessions if one.admitted]:
            session.dismiss(None)
        self._lock.notify_all()

    def _save(self) -> None:
        if not self._stopping:  # then rounds are closed, and the job has not ended
            self._returning.save()

    def _guarded(self, write: Callable[[], None]) -> None:
        """Keep a problem of the ledger from those who go on."""
        try:
            write()
        except SecureTrainError as problem:
            self._note_problem(problem)

    def _advance(self) -> None:
        if not self._stopping:
            try:
                self._assembly.advance()
            except Exception as problem:  # noqa: BLE001 - fail closed, whatever it was
                self._abandon(problem)
        self._lock.notify_all()  # the deadline may have moved

    def _abandon(self, problem: Exception) -> None:
        """A round that cannot be recorded is none: its nodes hear why, instead of waiting."""
        error = AdmissionError(
            "ST-ADMN-012",
            f"the round could not be recorded: {type(problem).__name__}: {reason(problem)}",
            str(self._spiffe),
        )
        self._note_problem(problem if isinstance(problem, SecureTrainError) else error)
        for node in self._rounds.participants:
            if node in self._nodes:
                self._nodes[node].evict(error)

    def _round_loop(self) -> None:
        """Completes rounds whose last call is over."""
        with self._lock:
            while not self._stopping:
                ends = (self._assembly.deadline, self._returning.deadline)
                deadline = min((end for end in ends if end is not None), default=None)
                left = None if deadline is None else deadline - self._monotonic()
                if left is None or left > 0:
                    self._lock.wait(left)
                    continue
                for held in self._returning.overdue():
                    self._guarded(partial(self._member_rules.lose, held))
                self._assembly.put_out_late()
                self._advance()
                self._assembly.tell_everybody()

    # Connections.

    def _begin(self, sock: socket.socket, remote: str) -> Session:
        check = PeerCheck(
            ca=self._ca.certificate,
            role=Role.NODE,
            trust_domain=self._ca.trust_domain,
            job=self._terms.job,
            clock=self._clock,
        )
        connection = make_connection(self._reception.context(), check, server=True)
        session = Session(
            channel=Channel(sock, connection, monotonic=self._monotonic),
            remote=remote,
            hub=self,
            verifier=self._verifier,
            terms=self._terms,
        )
        with self._lock:
            self._sessions.add(session)
        return session

    def _note_problem(self, problem: SecureTrainError) -> None:
        self._problem = self._problem or problem


__all__ = ["Admission", "Coordinator", "CoordinatorSettings"]
