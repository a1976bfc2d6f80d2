# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The launcher's acts on what its workers say of gradients, after it has written that down.

Rules:

1. a worker's suspicion of a rank becomes its node's suspicion of the node that runs the rank, by
   the epoch's membership and nobody's word (`rendezvous.wire.ranks`). The coordinator counts nodes,
   and counts no voice that only statistics stand behind (`coordinator.closing`, rule 4);
2. a suspicion of a rank of this node is in the ledger, and goes nowhere: no node accuses itself;
3. when the guard takes the run back, checkpoints that were made after that step are set aside
   before a worker goes on (`restart.Restart.roll_back`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.checkpoints.restart import Restart
from securetrain.launch.node.secrets import NodeSecrets
from securetrain.launch.signing.binding import Binder
from securetrain.launch.signing.peers import Worker
from securetrain.launch.signing.rules import NOT_OWN
from securetrain.ledger import LedgerEvent, events
from securetrain.rendezvous.member import Member
from securetrain.rendezvous.wire import Membership, node_of


@dataclass(slots=True)
class AfterEvents:
    """One launcher's part of a job."""

    restart: Restart
    secrets: NodeSecrets
    member: Member | None = None
    """The connection to the job; None before it has joined."""
    membership: Membership | None = None
    binder: Binder | None = None
    """Keeps the membership; None where nothing is kept."""

    def joined(self, member: Member) -> None:
        """The node has joined the job."""
        self.member = member

    def begin(self, membership: Membership, local: Callable[[datetime], datetime]) -> None:
        """An epoch begins: see `Restart.begin`; its secrets are asked for."""
        self.membership = membership
        if self.binder is not None and self.member is not None:
            self.binder.begin(membership, self.member.signed)
        self.restart.begin(membership, local)
        self.secrets.begin(self.member, membership.epoch)

    def act(self, worker: Worker, said: LedgerEvent) -> None:
        """Do what follows from an event.

        Raises:
            SecureTrainError: it cannot be done.
        """
        match said:
            case events.RankSuspected():
                self._suspect(worker, said)
            case events.RolledBack():
                self.restart.roll_back(said)
            case _:
                pass

    def _suspect(self, worker: Worker, said: events.RankSuspected) -> None:
        if self.membership is None or self.member is None:
            return
        try:
            own = node_of(self.membership, worker.rank)
            node = node_of(self.membership, said.rank)
        except LookupError as error:
            raise RuntimeRefusal(NOT_OWN, str(error)) from error
        if node != own:
            self.member.suspect(node, said.cause, said.said)
