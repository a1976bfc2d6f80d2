# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's side of the rendezvous: `connect` once, then `next_round` as often as the agent asks.

Rules:

1. joining and the lease are `link`'s;
2. every membership is verified (`membership.verify_membership`) against what this node sent, and
   its epoch never goes back;
3. the store's address must be rank 0's in the membership: nobody can redirect the workers;
4. once the connection or the lease is lost, every call says so: the node is out;
5. a member that was evicted is cut off the job network as soon as the coordinator says so, before
   the workers restart.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509

from securetrain.attest.node import Attester
from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.evidence import AttestationResult
from securetrain.rendezvous.member.identity_dir import NodeIdentity
from securetrain.rendezvous.member.link import Link
from securetrain.rendezvous.wire.membership import Membership, verify_membership
from securetrain.rendezvous.wire.protocol import (
    PROTOCOL,
    Admit,
    Close,
    CloseState,
    Formed,
    Hello,
    Ready,
    Status,
    Store,
    Suspect,
)
from securetrain.rendezvous.wire.tls import TlsIdentity
from securetrain.rendezvous.wire.tunnel import Keys, Tunnel, store_host

_CLOSE_SECONDS: Final = 5.0

OpenStore = Callable[[Membership], int]
"""Called on rank 0 to start the workers' store at this node's address; returns the port."""


class SpareNodeError(AdmissionError):
    """The job closed while this node was spare: its wait ended well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A complete round, as one member sees it."""

    membership: Membership
    rank: int
    host: str
    """Address of the workers' store, on rank 0's node."""
    port: int

    @property
    def world_size(self) -> int:
        """Nodes in the round."""
        return len(self.membership.members)


class Member:
    """One node of one job. Not for reuse after `leave`."""

    def __init__(
        self,
        identity: NodeIdentity,
        attester: Attester,
        *,
        clock: Callable[[], datetime],
        address: str = "127.0.0.1",
        local_world: int = 0,
        tunnel: Tunnel | None = None,
        network: NetworkProfile | None = None,
        timeout: float = 10.0,
        on_certificate: Callable[[x509.Certificate], None] | None = None,
        floors: Callable[[], Sequence[bytes]] = tuple,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a member; nothing is connected yet.

        Args:
            identity: this node's key and certificate.
            attester: makes evidence when the coordinator asks.
            clock: the time, timezone-aware.
            address: IP address where this node would listen for the other members.
            local_world: workers on this node; 0 when not known.
            tunnel: this node's end of the job network, when the job has one.
            network: the profile of a job of several nodes without one (store-tls).
            timeout: seconds for each step of joining.
            on_certificate: keeps this node's next certificate, when it is renewed.
            floors: what to show the others of the newest checkpoints, asked before every round
                (`gossip`); what they show is in the membership.
            monotonic: a steady clock in seconds.
        """
        self._identity = identity
        self._node = identity.spiffe.node
        self._tunnel = tunnel
        self._floors = floors
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._failure: SecureTrainError | None = None
        self._status = Status(waiting=0, ready=0, closed=False)
        self._membership: Membership | None = None
        self._store: Store | None = None
        self._keys: tuple[Keys, str] = {}, ""
        self._epoch = -1
        self._out: tuple[str, ...] = ()
        hello = Hello(
            protocol=PROTOCOL,
            job=identity.spiffe.job,
            node=self._node,
            address=address,
            local_world=local_world,
            wireguard=tunnel.key if tunnel is not None else "",
            wireguard_port=tunnel.port if tunnel is not None else 0,
            network=tunnel.profile if tunnel is not None else network,
        )
        self._link = Link(
            identity,
            hello,
            attester,
            clock=clock,
            monotonic=monotonic,
            timeout=timeout,
            on_message=self._hear,
            on_failure=self._fail,
            on_certificate=on_certificate,
        )

    def connect(self, host: str, port: int) -> AttestationResult:
        """Join: authenticate the coordinator, be challenged, be admitted.

        Raises:
            AdmissionError: ST-ADMN-002 to 008 and 011; ST-ADMN-007 when nobody answers.
            AttestationError: what the verifier refused the evidence with.
        """
        self._link.open(host, port)
        return self._link.admitted.result

    @property
    def connected(self) -> bool:
        """Tell whether the node has joined and is still in."""
        return self._failure is None and self._link.is_open

    @property
    def terms(self) -> Admit:
        """The terms that the coordinator named at admission."""
        return self._link.admitted.terms

    @property
    def result(self) -> AttestationResult:
        """The latest attestation result about this node."""
        return self._link.admitted.result

    @property
    def credentials(self) -> TlsIdentity:
        """This node's credentials for other members: its key, certified for its lease."""
        identity, passport = self._identity, self._link.admitted.passport
        return TlsIdentity(key=identity.key, certificate=passport.svid, ca=identity.ca)

    @property
    def num_waiting(self) -> int:
        """Nodes that wait for a new round; above zero the agent should restart its workers.

        Raises:
            SecureTrainError: why this node is out.
        """
        with self._changed:
            self._raise_failure()
            return self._status.waiting

    @property
    def closed(self) -> bool:
        """Tell whether the job has been closed."""
        with self._changed:
            return self._status.closed

    def local_time(self, time: datetime) -> datetime:
        """A time of the coordinator by this node's clock, or a little earlier; never later."""
        return time + self._link.clock_offset

    def next_round(self, open_store: OpenStore, timeout: float | None = None) -> Round:
        """Wait for the next complete round and its store.

        Args:
            open_store: called when this node is rank 0.
            timeout: seconds; by default what the coordinator's policy says.

        Raises:
            AdmissionError: ST-ADMN-005 not enough nodes in time, ST-ADMN-006 or 009 a bad
                membership, ST-ADMN-007 connection lost, ST-ADMN-008 closed (SpareNodeError when
                this node was spare).
            AttestationError: ST-ATTS-007 and what a renewal was refused with.
            NetworkError: ST-NETW-014 to 019 when the job network could not take the epoch.
        """
        with self._changed:
            self._raise_failure()
            self._membership = self._store = None
        if self._tunnel is not None:
            self._tunnel.clear()
        patience = timeout or self.terms.join_timeout_seconds
        deadline = self._monotonic() + patience
        self._link.post(Ready(floors=tuple(self._floors())))
        seen: Membership | None = None
        try:
            while True:
                membership, store, keys = self._await(seen, deadline, patience)
                own = membership.entry(self._node)
                assert own is not None, "verified"
                if membership is not seen and self._tunnel is not None:
                    self._tunnel.apply(membership, *keys)
                    self._cut()  # who was evicted meanwhile
                if store is not None:
                    return Round(
                        membership=membership, rank=own.rank, host=store.host, port=store.port
                    )
                seen, deadline = membership, self._monotonic() + patience
                if own.rank == 0:
                    port = open_store(membership)
                    host = store_host(membership)
                    self._link.post(Store(epoch=membership.epoch, host=host, port=port))
        except BaseException:
            # Out of step with the others: leave, so that they do not wait for this node.
            self.leave()
            raise

    def close_job(self) -> None:
        """Tell the coordinator that this node is done, and wait until it has noted it.

        That ends the job for all once a quorum of the round is done; else the others go on.

        Raises:
            SecureTrainError: why this node is out.
        """
        self._link.post(Close())
        deadline = self._monotonic() + _CLOSE_SECONDS
        with self._changed:
            while not self._noted:
                self._raise_failure()
                if not self._changed.wait(max(0.0, deadline - self._monotonic())):
                    raise AdmissionError(
                        "ST-ADMN-005", "closing the job took too long", "coordinator", "try again"
                    )

    def await_others(self, timeout: float) -> bool:
        """After `close_job`: wait until every other member of the round is done or has gone.

        Until then they may be reading from this node's store, and their workers may not have heard
        yet that this node's have ended: both go through its tunnel.

        Returns:
            Whether that was so in time; also when this node is out.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    self._failure is not None
                    or not self._link.is_open
                    or (self._noted and not self._status.unfinished)
                ),
                timeout,
            )

    @property
    def _noted(self) -> bool:
        return self._status.closed or self._status.close is not CloseState.NONE

    def suspect(self, node: str, code: str, what: str = "") -> None:
        """Tell the coordinator that this node does not trust another member of its epoch.

        It is recorded. The other one is evicted when more than half of the members say so.
        """
        self._link.post(Suspect(node=node, epoch=max(0, self._epoch), code=code, what=what[:2000]))

    def leave(self) -> None:
        """Leave the job and end the connection; may be called twice."""
        self._link.leave()
        with self._changed:
            self._changed.notify_all()

    # Called by the link's thread.

    def _hear(self, message: Status | Formed | Store) -> None:
        match message:
            case Status():
                with self._changed:
                    self._status = message
                    self._out = message.evicted
                    self._changed.notify_all()
                self._cut()
            case Formed():
                expected = self._link.expected(self._epoch)
                membership = verify_membership(message.membership, expected)
                with self._changed:
                    self._epoch, self._out = membership.epoch, ()
                    self._membership, self._store = membership, None
                    self._keys = message.preshared, message.nccl
                    self._changed.notify_all()
            case Store():
                self._take_store(message)

    def _cut(self) -> None:
        """Hear no member of the epoch that is out."""
        with self._changed:
            out = self._out
        if out and self._tunnel is not None:
            self._tunnel.drop(out)

    def _take_store(self, store: Store) -> None:
        with self._changed:
            current = self._membership
            if current is None or store.epoch != current.epoch:
                return  # of a round that this node has left
            wanted = store_host(current)
            if store.host != wanted:
                raise AdmissionError(
                    "ST-ADMN-009",
                    f"the store of epoch {store.epoch} is at {store.host}, rank 0 is at {wanted}",
                    "Store.host",
                    "stop the job: somebody redirects the workers",
                )
            self._store = store
            self._changed.notify_all()

    def _fail(self, error: SecureTrainError) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._link.is_open:
            raise AdmissionError("ST-ADMN-007", "this node has left the job", fix="join again")

    def _await(
        self, seen: Membership | None, deadline: float, patience: float
    ) -> tuple[Membership, Store | None, tuple[Keys, str]]:
        """The membership with its store, or a membership that is newer than `seen`; its keys."""
        with self._changed:
            while True:
                current = self._membership
                if self._status.closed and current is None:
                    raise self._failure or self._closed()
                self._raise_failure()
                if current is not None and (self._store is not None or current is not seen):
                    return current, self._store, self._keys
                if self._status.spare:
                    # As in torchelastic, the wait for a place has no limit of its own.
                    deadline = self._monotonic() + patience
                left = deadline - self._monotonic()
                if left <= 0:
                    raise self._late(current)
                self._changed.wait(left)

    def _closed(self) -> AdmissionError:
        if self._status.spare:
            return SpareNodeError(
                "ST-ADMN-008", "the job is closed and this node was spare", "coordinator"
            )
        return AdmissionError("ST-ADMN-008", "the job is closed", "coordinator")

    def _late(self, current: Membership | None) -> AdmissionError:
        if current is not None:
            what = f"rank 0 ({current.members[0].node}) has not started the store in time"
        elif self._status.waiting:
            what = "the members of the current round have not come for the next one in time"
        else:
            what = f"fewer than {self.terms.min_nodes} nodes have joined in time"
        return AdmissionError(
            "ST-ADMN-005",
            what,
            "rendezvous.join_timeout_seconds",
            "look at the missing nodes, or start with fewer",
        )
