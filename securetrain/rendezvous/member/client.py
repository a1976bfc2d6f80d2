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
from datetime import datetime
from typing import Final

import msgspec
from cryptography import x509

from securetrain.attest.node import Attester
from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.evidence import AttestationResult
from securetrain.rendezvous.member.desk import Opened
from securetrain.rendezvous.member.identity_dir import NodeIdentity
from securetrain.rendezvous.member.link import Link
from securetrain.rendezvous.member.places import Place
from securetrain.rendezvous.member.reconnect import Reconnect
from securetrain.rendezvous.member.round import (
    EpochOverError,
    OpenStore,
    Round,
    closed,
    late,
    misplaced,
)
from securetrain.rendezvous.wire.membership import Membership, verify_membership, verify_staffed
from securetrain.rendezvous.wire.protocol import (
    MAX_EVICTED,
    PROTOCOL,
    Admit,
    Arrival,
    ArrivalState,
    Close,
    CloseState,
    Done,
    Formed,
    Going,
    Hello,
    Ready,
    Staffed,
    Status,
    Store,
    Suspect,
    Workers,
)
from securetrain.rendezvous.wire.tls import TlsIdentity
from securetrain.rendezvous.wire.tunnel import Keys, Tunnel, store_host

_CLOSE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
_SLICE_SECONDS: Final = 0.5
"""Longest wait between two looks at what nobody announces: that this node has left."""


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
        role: str = "",
        tunnel: Tunnel | None = None,
        network: NetworkProfile | None = None,
        timeout: float = 10.0,
        on_certificate: Callable[[x509.Certificate], None] | None = None,
        floors: Callable[[], Sequence[bytes]] = tuple,
        comes_back: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a member; nothing is connected yet.

        Args:
            identity: this node's key and certificate.
            attester: makes evidence when the coordinator asks.
            clock: the time, timezone-aware.
            address: IP address where this node would listen for the other members.
            local_world: workers on this node; 0 when not known.
            role: their role, as torchelastic calls it; empty when not known.
            tunnel: this node's end of the job network, when the job has one.
            network: the profile of a job of several nodes without one (store-tls).
            timeout: seconds for each step of joining.
            on_certificate: keeps this node's next certificate, when it is renewed.
            floors: what to show the others of the newest checkpoints, asked before every round
                (`gossip`); what they show is in the membership.
            comes_back: whether it outlives the coordinator until its lease ends (`reconnect`).
            monotonic: a steady clock in seconds.
        """
        self._identity, self._node = identity, identity.spiffe.node
        self._tunnel = tunnel
        self._floors = floors
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._failure: SecureTrainError | None = None
        self._status = Status(waiting=0, ready=0, closed=False)
        self._membership: Membership | None = None
        self._store: Store | None = None
        self._keys: tuple[Keys, str] = {}, ""
        self._epoch, self.signed = -1, ""  # `signed`: the membership in its envelope
        self.watched = False
        """Whether somebody here sees the ranks of this node on their way into their group."""
        self.failed = False
        """Whether its workers have failed for good."""
        self._out: tuple[str, ...] = ()
        hello = Hello(
            protocol=PROTOCOL,
            job=identity.spiffe.job,
            node=self._node,
            address=address,
            local_world=local_world,
            role=role,
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
            reconnect=Reconnect(self._running, lambda: self._epoch, comes_back),
        )

    def connect(self, host: str, port: int, *standbys: Place) -> AttestationResult:
        """Join the coordinator, which may also be at one of its standbys' places.

        Raises:
            AdmissionError: ST-ADMN-002 to 008 and 011; ST-ADMN-007 when nobody answers.
            AttestationError: what the verifier refused the evidence with.
        """
        self._link.open((host, port), *standbys)
        return self._link.admitted.result

    @property
    def connected(self) -> bool:
        """Tell whether the node has joined and is still in."""
        return self._failure is None and self._link.is_open

    @property
    def away(self) -> bool:
        """Tell whether the coordinator was lost: there is no news until this node is back."""
        return self.connected and self._link.is_away

    @property
    def terms(self) -> Admit:
        """The terms that the coordinator named at admission."""
        return self._link.admitted.terms

    @property
    def result(self) -> AttestationResult:
        """The latest attestation result about this node."""
        return self._link.admitted.result

    @property
    def key_exchange(self) -> str:
        """The group in which the keys of the connection to the coordinator were agreed on."""
        return self._link.key_exchange

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

    def say_workers(self, local_world: int, role: str) -> Membership:
        """Say what workers this node runs, and wait until every member of the epoch has.

        Returns:
            The epoch's membership; not staffed when the epoch is over before that.

        Raises:
            AdmissionError: ST-ADMN-040 when it contradicts what this node has said.
            SecureTrainError: why this node is out.
        """
        with self._changed:
            current = self._membership
            assert current is not None, "an agent has workers once it has a round"
            known = self._link.workers
        if not all(known):
            known = known[0] or local_world, known[1] or role
            said = Workers(epoch=current.epoch, local_world=local_world, role=role)
            if known == (local_world, role):
                self._link.say_workers(said)
        if known != (local_world, role):
            raise AdmissionError(
                "ST-ADMN-040",
                f"the agent runs {local_world} workers of role {role!r}, this node has said"
                f" {known[0]} of role {known[1]!r}",
                "role info",
                "leave local_world and role out of --rdzv-conf, or give what the agent runs",
            )
        with self._changed:
            while not current.is_staffed and not self._is_over(current.epoch):
                self._raise_failure()
                self._changed.wait(_SLICE_SECONDS)
                current = self._membership or current
            return current

    def ask_secrets(self, epoch: int, timeout: float) -> Opened | None:
        """Ask for the secrets of an epoch; None without an answer in time, or when it is out."""
        return self._link.desk.ask(epoch, timeout, self._link.post, lambda: not self.connected)

    def say_arrival(
        self, stand: ArrivalState, missing: Sequence[str] = (), timeout: float = 0.0
    ) -> None:
        """Say how far this node's ranks are on their way into the workers' group.

        Args:
            stand: How far.
            missing: The nodes that they wait for.
            timeout: Seconds that the script gives the group; 0 when not known.
        """
        said = Arrival(
            epoch=max(0, self._epoch),
            stand=stand,
            missing=tuple(missing)[:MAX_EVICTED],
            timeout=timeout,
        )
        self._link.post(said)

    def finish_work(self) -> None:
        """Say that this node's workers have ended well."""
        self._link.post(Done())

    def await_work(self, timeout: float) -> bool:
        """After `finish_work`: wait for the others' workers; tell whether none runs any more."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._status.running or not self.connected, timeout
            )

    @property
    def lost(self) -> tuple[str, ...]:
        """Members of the last epoch that are out."""
        with self._changed:
            return self._out

    @property
    def owed(self) -> bool:
        """Tell whether a member may have gone while the coordinator was: it waits for some."""
        with self._changed:
            return self._status.owed > 0

    @property
    def membership(self) -> Membership | None:
        """The epoch's; None before the first one."""
        with self._changed:
            return self._membership

    def say_going(self) -> None:
        """Say that this node will leave when its workers have ended."""
        self._link.post(Going())

    def prove_again(self, timeout: float) -> bool:
        """Prove this node once more; tell whether that was so in time, and it is not out.

        What its workers did until now is believed then.
        """
        before, deadline = self._link.admitted, self._monotonic() + timeout
        self._link.renew()
        with self._changed:
            while self._link.admitted is before:
                if self._failure is not None or self._monotonic() >= deadline:
                    return False
                self._changed.wait(_LOOK_SECONDS)
        return True

    def is_over(self, epoch: int) -> bool:
        """Tell whether the members of an epoch are to meet for another, or for none."""
        with self._changed:
            return self._is_over(epoch)

    def require_epoch(self, epoch: int) -> None:
        """Do nothing while the epoch's members are all in.

        Raises:
            EpochOverError: one of them is gone, or it is another epoch.
            SecureTrainError: why this node is out.
        """
        with self._changed:
            self._raise_failure()
            if self._out or self._membership is None or self._membership.epoch != epoch:
                gone = ", ".join(self._out) or "a member"
                raise EpochOverError("ST-ADMN-018", f"{gone} has left epoch {epoch}", "the store")

    def own_rank(self, membership: Membership) -> int:
        """This node's rank among the nodes."""
        own = membership.entry(self._node)
        assert own is not None, "verified"
        return own.rank

    def _is_over(self, epoch: int) -> bool:
        current, status = self._membership, self._status
        is_it = current is not None and current.epoch == epoch
        return not is_it or bool(self._out) or status.waiting > 0 or status.closed

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
        patience = timeout or self.terms.join_timeout_seconds
        deadline = self._monotonic() + patience
        self._ask()
        seen = -1
        try:
            while True:
                membership, store, keys = self._await(seen, deadline, patience)
                own = membership.entry(self._node)
                assert own is not None, "verified"
                is_new = membership.epoch != seen
                if is_new:
                    self.say_arrival(ArrivalState.WORKING if self.watched else ArrivalState.UNSEEN)
                if is_new and self._tunnel is not None:
                    self._tunnel.apply(membership, *keys)
                    self._cut()  # who was evicted meanwhile
                if store is not None:
                    return Round(
                        membership=membership, rank=own.rank, host=store.host, port=store.port
                    )
                seen, deadline = membership.epoch, self._monotonic() + patience
                if not is_new:  # it is over before it has begun
                    self._ask()
                elif own.rank == 0:
                    port = open_store(membership)
                    host = store_host(membership)
                    self._link.post(Store(epoch=membership.epoch, host=host, port=port))
        except BaseException:
            # Out of step with the others: leave, so that they do not wait for this node.
            self.leave()
            raise

    def _ask(self) -> None:
        """Ask for the next round."""
        with self._changed:
            self._raise_failure()
            self._membership = self._store = None
        if self._tunnel is not None:
            self._tunnel.clear()
        self._link.post(Ready(floors=tuple(self._floors())))

    def close_job(self) -> None:
        """Tell the coordinator that this node is done, and wait until it has noted it.

        That ends the job for all once a quorum of the round is done; else the others go on.

        Raises:
            SecureTrainError: why this node is out.
        """
        self._link.post(Close(failed=self.failed))
        deadline = self._monotonic() + _CLOSE_SECONDS
        with self._changed:
            while not self._noted:
                self._raise_failure()
                if not self._changed.wait(max(0.0, deadline - self._monotonic())):
                    raise AdmissionError(
                        "ST-ADMN-005", "closing the job took too long", "coordinator", "try again"
                    )

    def say_closing(self) -> None:
        """Say that this node will close the job; `close_job` says so again, and waits."""
        self._link.post(Close(failed=self.failed))

    def await_others(self, timeout: float) -> bool:
        """After `close_job`: wait until every other member of the round is done or has gone.

        Until then they may be reading from this node's store, and their workers may not have heard
        yet that this node's have ended: both go through its tunnel.

        Returns:
            Whether that was so in time; also when this node is out.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: (self._noted and not self._status.unfinished) or not self.connected,
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

    def _running(self) -> Membership | None:
        with self._changed:
            return self._membership

    def _hear(self, message: Status | Formed | Store | Staffed) -> None:
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
                    self.signed = message.membership
                    # What was said of who waits was said of the epoch before.
                    self._status = msgspec.structs.replace(
                        self._status, waiting=0, evicted=(), running=len(membership.members)
                    )
                    self._membership, self._store = membership, None
                    self._keys = message.preshared, message.nccl
                    self._changed.notify_all()
            case Store():
                self._take_store(message)
            case Staffed():
                self._take_staffed(message)

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
            if store.host != store_host(current):
                raise misplaced(store, store_host(current))
            self._store = store
            self._changed.notify_all()

    def _take_staffed(self, message: Staffed) -> None:
        with self._changed:
            current = self._membership
            if current is None or current.is_staffed:
                return  # of a round that this node has left
            mine, self.signed = self._link.expected(self._epoch), message.membership
            self._membership = verify_staffed(self.signed, current, mine)
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
        self, seen: int, deadline: float, patience: float
    ) -> tuple[Membership, Store | None, tuple[Keys, str]]:
        """The membership with its store, or one of another epoch than `seen`; its keys.

        The one of `seen` comes without a store when a member of it is out.
        """
        with self._changed:
            while True:
                current = self._membership
                if self._status.closed and current is None:
                    raise self._failure or closed(self._status)
                self._raise_failure()
                if current is not None and (
                    self._store is not None or current.epoch != seen or self._out
                ):
                    return current, self._store, self._keys
                if self._status.spare:
                    # As in torchelastic, the wait for a place has no limit of its own.
                    deadline = self._monotonic() + patience
                left = deadline - self._monotonic()
                if left <= 0:
                    raise late(current, self._status, self.terms.min_nodes, self._out)
                self._changed.wait(left)
