# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The members of an epoch that an earlier coordinator of the job left behind.

Rules:

1. their places are kept until the leases end that they had. A member takes its place again with the
   key that it had, in the epoch that it runs, and after it has proven itself anew like any other;
2. a node that says it runs another epoch is refused (ST-ADMN-036): the others have gone on without
   it, or this coordinator does not know what it should;
3. one that comes back without an epoch has started anew: its place is free, and the others restart;
4. one that does not come back in time is lost, as if its connection had ended then. Once another
   one is back, that is after `GRACE_HEARTBEATS`, because the network is there; sooner where the
   workers of another one have lost their group, because the others wait for it;
5. in a job that was closed, members that may not have heard of it come back to hear it. Once their
   leases have ended, whoever starts a coordinator with the same command begins anew.

Nothing here locks: the coordinator calls it with its lock held.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from securetrain.core.errors import AdmissionError
from securetrain.identity import public_key_of
from securetrain.ledger import events
from securetrain.rendezvous.coordinator.assembly import Assembly
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.memory import Held, JobMemory, JobState
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.wire.membership import digest_of

GRACE_HEARTBEATS: Final = 15
NEEDED_HEARTBEATS: Final = 5
"""More than two pauses of a node on its way back (`member.reconnect`)."""


@dataclass(slots=True, kw_only=True)
class Returning:
    """The members that may come back, and the state on disk that says so."""

    job: str
    assembly: Assembly
    journal: Journal
    memory: JobMemory | None
    lease: float
    heartbeat: float
    clock: Callable[[], datetime]
    monotonic: Callable[[], float]
    expected: dict[str, tuple[Held, float]] = field(default_factory=dict)
    """By node, with the end of its lease on the steady clock."""
    _first: float | None = None
    """When the first one came back."""

    def load(self, last_epoch: int) -> JobState | None:
        """Load the state of a coordinator before this one, if the job was not over: rule 5.

        Raises:
            AdmissionError: ST-ADMN-037.
        """
        state = self.memory.load(self.job, last_epoch) if self.memory is not None else None
        if state is not None and state.closed:
            now = self.clock()
            state = state if any(held.lease_ends > now for held in state.members) else None
        return state

    def restore(self, state: JobState) -> None:
        """Go on where another coordinator was: rule 1."""
        now, steady = self.clock(), self.monotonic()
        self.assembly.restore(state)
        for held in state.members:
            left = min(self.lease, (held.lease_ends - now).total_seconds())
            self.expected[held.node] = held, steady + left
        self.journal.write(
            events.CoordinatorResumed(
                epoch=state.membership.epoch, nodes=" ".join(self.expected)[:2000]
            )
        )

    def save(self) -> None:
        """Put the state on disk, once there is an epoch.

        Raises:
            UsageError: ST-USAG-002 or ST-USAG-006.
        """
        if self.memory is not None:
            state = self.assembly.state(self.job, self._held)
            if state is not None:
                self.memory.save(state)

    @property
    def deadline(self) -> float | None:
        """The time when the next of those that are awaited is lost."""
        return min((self._end(lease) for _, lease in self.expected.values()), default=None)

    def _end(self, lease: float) -> float:
        if self._first is None:
            return lease
        needed = self.assembly.arrivals.is_lost
        grace = (NEEDED_HEARTBEATS if needed else GRACE_HEARTBEATS) * self.heartbeat
        return min(lease, self._first + grace)

    def overdue(self) -> list[Held]:
        """Those that have not come back in time, once: rule 4."""
        now = self.monotonic()
        late = [held for held, lease in self.expected.values() if self._end(lease) <= now]
        for held in late:
            del self.expected[held.node]
        return late

    def may_hear_of_the_end(self, session: Session) -> bool:
        """Tell whether it is a member that comes back to a job which is closed."""
        resumes = session.hello is not None and session.hello.resume is not None
        return resumes and session.node in self.expected

    def check(self, session: Session) -> None:
        """Refuse who cannot take a place again: rule 2.

        Raises:
            AdmissionError: ST-ADMN-036.
        """
        assert session.hello is not None, "it has said Hello"
        epoch = session.hello.resume
        if epoch is None:
            return
        held, _ = self.expected.get(session.node, (None, 0.0))
        current = self.assembly.membership
        if current is None or epoch != current.epoch:
            known = "none" if current is None else current.epoch
            what = f"{session.node} runs epoch {epoch}, the job's is {known}"
        elif session.hello.membership != digest_of(current):
            what = f"{session.node} runs another epoch {epoch} than this coordinator knows"
        elif held is None:
            what = f"the place of {session.node} in epoch {epoch} is not kept"
        elif held.key != key_digest(session):
            what = f"{session.node} had another key in epoch {epoch}"
        else:
            return
        raise AdmissionError("ST-ADMN-036", what, session.subject)

    def arrived(self, session: Session) -> bool:
        """An awaited node was admitted; tell whether it goes on in its place (else: rule 3)."""
        assert session.hello is not None, "it has said Hello"
        del self.expected[session.node]
        if self._first is None:
            self._first = self.monotonic()
        if session.hello.resume is None:
            return False
        self.journal.write(events.NodeResumed(subject=session.subject, epoch=session.hello.resume))
        return True

    def _held(self, session: Session | None, node: str) -> Held | None:
        if session is None or not session.admitted or session.result is None:
            return self.expected[node][0] if node in self.expected else None
        return Held(
            node=node,
            key=key_digest(session),
            lease_ends=session.result.expires,
            proven=session.proven or session.result.issued,
        )


def key_digest(session: Session) -> str:
    """SHA-256 (hex) of the key of a session's node."""
    certificate = session.channel.check.certificate
    assert certificate is not None, "it is authenticated"
    return hashlib.sha256(public_key_of(certificate).spki).hexdigest()
