# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""torchelastic's RendezvousHandler over our rendezvous.

Rules:

1. nothing is unpickled: the agents' state lives in the coordinator, not in a store;
2. each round has a fresh store, at one address of rank 0's node, and keys below the epoch, so that
   a late worker of an old round meets nothing of the new one;
3. our errors become the ones that torchelastic expects; their text keeps code and fix, and
   ``__cause__`` the error itself;
4. a node that is done stays until the others of its round are done too, or for a while: its store
   and its tunnel go with it, and who waits for an answer through them would hear nothing, not even
   that the connection ended.
"""

import logging
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from securetrain.core.errors import AdmissionError, SecureTrainError, UsageError
from securetrain.rendezvous.member.agent_store import AgentStore
from securetrain.rendezvous.member.client import Member
from securetrain.rendezvous.member.patience import patiently
from securetrain.rendezvous.member.relay import LOOPBACK, Carrier
from securetrain.rendezvous.member.round import EpochOverError, SpareNodeError
from securetrain.rendezvous.member.store import (
    HostedStore,
    WorkersNetwork,
    connect_store,
    host_store,
    host_store_inside,
)
from securetrain.rendezvous.wire.membership import Membership
from securetrain.rendezvous.wire.tunnel import store_host

BACKEND: Final = "securetrain"
STORE_TIMEOUT: Final = timedelta(minutes=5)
LINGER_SECONDS: Final = 10

OnEpoch: TypeAlias = Callable[[Membership, Callable[[datetime], datetime]], None]

log = logging.getLogger(__name__)


class SecureRendezvousHandler(RendezvousHandler):
    """Forms rounds through one `Member`; joins the coordinator at the first one."""

    def __init__(
        self,
        connect: Callable[[], Member],
        *,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        join_timeout: float | None = None,
        store_timeout: timedelta = STORE_TIMEOUT,
        inside: Callable[[], AbstractContextManager[None]] = nullcontext,
        carrier: Carrier | WorkersNetwork | None = None,
        store_port: int = 0,
        on_epoch: OnEpoch = lambda _membership, _local: None,
    ) -> None:
        """Prepare a handler.

        Args:
            connect: makes a member that has joined.
            run_id: the job's id, which `torchrun` calls the rendezvous id.
            min_nodes: as given to the launcher; must be what the coordinator says.
            max_nodes: likewise.
            join_timeout: seconds to wait for the other nodes; by default the coordinator's.
            store_timeout: how long a store operation may take.
            inside: puts the calling thread where the store's sockets belong: the job network. The
                connection to the coordinator is not made there.
            carrier: carries the store's connections over TLS, in a job without a network of its
                own; the store itself then listens on loopback. Or the workers' network with
                loopback alone, in which it listens.
            store_port: the port of the store that this node hosts first; 0 for any. A later round
                gets a free one, because the store before may still be open.
            on_epoch: hears of every epoch before its workers start, and what gives a time of the
                coordinator by this node's clock. Rank 0's hears first: the others wait for it.
        """
        self._connect = connect
        self._run_id = run_id
        self._inside = inside
        self._carrier = carrier if isinstance(carrier, Carrier) else None
        self._network = None if isinstance(carrier, Carrier) else carrier
        self._store_port = store_port
        self._on_epoch = on_epoch
        self._nodes = (min_nodes, max_nodes)
        self._join_timeout = join_timeout
        self._store_timeout = store_timeout
        self._member: Member | None = None
        self._hosted: HostedStore | None = None
        self._closed = False
        self._told: SecureTrainError | None = None

    @property
    def member(self) -> Member | None:
        """This node, once it has joined."""
        return self._member

    def get_backend(self) -> str:
        """See base class."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Always: a store that a worker opened itself would listen on every interface."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """See base class."""
        try:
            return self._next_round()
        except SecureTrainError as error:
            self._told = error
            raise as_rendezvous_error(error) from error

    def is_closed(self) -> bool:
        """See base class."""
        return self._closed or (self._member is not None and self._member.closed)

    def set_closed(self) -> None:
        """See base class. A node that has not joined closes nothing but this handler."""
        member = self._member
        # Also when another node has closed it: this one has to be heard, too (rule 4).
        if member is not None and not self._closed and (member.connected or not member.closed):
            try:
                member.close_job()
            except SecureTrainError as error:
                raise as_rendezvous_error(error) from error
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """See base class."""
        if self._member is None:
            return 0
        try:
            return self._member.num_waiting
        except SecureTrainError as error:
            self._told = error
            raise as_rendezvous_error(error) from error

    def get_run_id(self) -> str:
        """See base class."""
        return self._run_id

    def shutdown(self) -> bool:
        """Close the job for everybody, as torchelastic's own handler does, and leave (rule 4)."""
        try:
            self.set_closed()
            if self._member is not None and not self._member.await_others(LINGER_SECONDS):
                log.warning("other nodes have not ended within %d s", LINGER_SECONDS)
        except RendezvousError as error:
            if error.__cause__ is not self._told:  # else the agent ends with that very error
                log.warning("the rendezvous could not be closed: %s", error)
            return False
        finally:
            if self._member is not None:
                self._member.leave()
            if self._carrier is not None:
                self._carrier.close()
        return True

    def _next_round(self) -> RendezvousInfo:
        if self._closed:
            raise AdmissionError("ST-ADMN-008", "this node has closed the job")
        while True:
            try:
                return self._meet(self._joined())
            except EpochOverError as error:
                log.info("%s; the others meet again", error.what)
            except AdmissionError as error:
                if error.code == "ST-ADMN-005":
                    self._member = None  # it has left; who tries again joins again
                raise

    def _meet(self, member: Member) -> RendezvousInfo:
        """One round.

        Raises:
            EpochOverError: a member went before this one had the store.
        """
        found = member.next_round(self._host, self._join_timeout)
        membership = found.membership
        host, port = found.host, found.port
        if found.rank == 0:
            hosted = self._hosted
            assert hosted is not None, "rank 0 has opened its store"
            store, host, port = hosted.store, hosted.host, hosted.port
        else:
            self._hosted = None
            self._on_epoch(membership, member.local_time)
            if self._carrier is not None:
                place, shown = (host, port), lambda: member.credentials
                host, port = self._carrier.to_store(place, membership, shown)
            store = self._connect_store(host, port, membership.epoch)
        inner = PrefixStore(f"securetrain/{membership.epoch}", store)
        return RendezvousInfo(
            AgentStore(inner, member, membership, self._store_timeout),
            found.rank,
            found.world_size,
            RendezvousStoreInfo(host, port),
        )

    def _connect_store(self, host: str, port: int, epoch: int) -> TCPStore:
        """Rank 0's store; torch would try for minutes to reach one whose node is gone."""

        def connect() -> TCPStore:
            with self._inside():
                return connect_store(host, port, self._store_timeout)

        member = self._member
        assert member is not None, "it has joined"
        return patiently(connect, lambda: member.require_epoch(epoch))

    def _joined(self) -> Member:
        if self._member is None:
            member = self._connect()
            terms = member.terms
            if self._nodes != (terms.min_nodes, terms.max_nodes):
                member.leave()
                raise UsageError(
                    "ST-USAG-001",
                    f"this node was started for {self._nodes[0]}:{self._nodes[1]} nodes, the"
                    f" coordinator for {terms.min_nodes}:{terms.max_nodes}",
                    "--nnodes",
                    f"--nnodes {terms.min_nodes}:{terms.max_nodes} on every node",
                )
            self._member = member
            # Who drops the handler leaves the job. At the end of the process the connection does.
            weakref.finalize(self, member.leave).atexit = False
        return self._member

    def _host(self, membership: Membership) -> int:
        """A fresh store; the one of the round before goes with its last reference."""
        log.debug("epoch %d: starting the workers' store", membership.epoch)
        member = self._member
        assert member is not None, "it has joined"
        self._on_epoch(membership, member.local_time)
        if self._network is not None:
            given = self._network, self._store_timeout, self._store_port
            self._hosted = host_store_inside(*given)
        else:
            address = store_host(membership) if self._carrier is None else LOOPBACK
            with self._inside():
                self._hosted = host_store(address, self._store_timeout, self._store_port)
        self._store_port = 0
        if self._carrier is None:
            return self._hosted.port
        shown = lambda: member.credentials  # noqa: E731 - asked anew for each connection
        return self._carrier.before_store(self._hosted.port, membership, shown)[1]


def as_rendezvous_error(error: SecureTrainError) -> RendezvousError:
    """The error that torchelastic expects, with our whole text in it."""
    text = str(error)
    if isinstance(error, SpareNodeError):
        return RendezvousGracefulExitError(text)
    match error.code:
        case "ST-ADMN-008":
            return RendezvousClosedError(text)
        case "ST-ADMN-005":
            return RendezvousTimeoutError(text)
        case "ST-ADMN-006" | "ST-ADMN-009":
            return RendezvousStateError(text)
        case _:
            return RendezvousConnectionError(text)
