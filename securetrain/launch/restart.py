# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Judge a run's checkpoints after an eviction, at every epoch before its workers start.

Rules:

1. a checkpoint is in doubt by the time and the epoch in which it was made (`machine.in_doubt`),
   and a node's last proof of itself is at its last good evidence, by this node's clock;
2. what is in doubt is set aside (`artifacts.lineage.quarantine`): kept under another name, and
   refused. The workers go on from the newest checkpoint that is left, or from the beginning;
3. rank 0's node does this first, and the others wait for it. Each node judges an eviction once, and
   a failure ends the run: nobody goes on from what could not be judged;
4. what the other nodes have seen as the newest checkpoint is heard before that (`newest`), and what
   was not proven to be logged yet is, if the witnesses are there (`keeper`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.artifacts.lineage import folder as disk
from securetrain.artifacts.lineage.folder import Found, state_in_name
from securetrain.artifacts.lineage.history import (
    EPOCH_STARTED,
    NODE_DISTRUSTED,
    QUARANTINED,
    RESTART_POINT,
    read_entries,
    read_history,
)
from securetrain.artifacts.lineage.machine import (
    Eviction,
    History,
    Known,
    State,
    in_doubt,
    newest_believed,
)
from securetrain.artifacts.lineage.quarantine import Quarantine, set_aside
from securetrain.core.errors import IntegrityError
from securetrain.core.rundir import RunDir
from securetrain.core.vocabulary import Boundary
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.launch.keeper import Keeper
from securetrain.launch.newest import Newest
from securetrain.ledger import Ledger
from securetrain.rendezvous.wire.membership import Evicted, Membership

SETTLE_SECONDS: Final = 30.0
"""How long the workers wait for what the keeper has not finished: proofs of an earlier start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One node's part of it; `begin` is the rendezvous handler's `on_epoch`."""

    run: RunDir
    ledger: Ledger
    clock: Callable[[], datetime]
    say: Callable[[str], None]
    newest: Newest | None = None
    keeper: Keeper | None = None

    def begin(self, membership: Membership, local: Callable[[datetime], datetime]) -> None:
        """An epoch's members are known, and no worker of it has started.

        Args:
            membership: The epoch.
            local: Gives a time of the coordinator by this node's clock.

        Raises:
            SecureTrainError: the ledger, the trust root or the disk does not allow to judge.
        """
        if self.newest is not None:
            self.newest.hear(membership)
        if membership.evicted:
            past = self._past()
            news = [gone for gone in membership.evicted if _name(gone) not in past.distrusted]
            if news:
                self._judge(news, past, membership.epoch, local)
        if self.newest is not None:
            self.newest.went_back(self._past)
        if self.keeper is not None:
            self.keeper.settle(SETTLE_SECONDS)
            if self.keeper.problem is not None:
                raise self.keeper.problem
        self.ledger.observe(
            Boundary.RENDEZVOUS,
            EPOCH_STARTED,
            f"epoch {membership.epoch}",
            epoch=membership.epoch,
            nodes=" ".join(member.node for member in membership.members)[:2000],
        )

    def _judge(
        self,
        news: Sequence[Evicted],
        past: History,
        epoch: int,
        local: Callable[[datetime], datetime],
    ) -> None:
        """Rules 2 and 3; the evictions are noted last, so that a crash has them judged again."""
        known = past.by_digest
        for gone in news:
            until = local(gone.last_good)
            eviction, doubted = Eviction(epoch=gone.epoch, led=gone.led, until=until), set()
            for found in self._found():
                if in_doubt(eviction, found, known.get(found.digest), epoch):
                    self._set_aside(found, gone, until)
                    doubted.add(found.digest)
            for digest, made in known.items():
                # Of a checkpoint that is not here: another node has set it aside, or it is gone.
                if digest not in doubted and in_doubt(eviction, None, made, epoch):
                    self._refuse(made.name, made.step, digest, gone)
                    doubted.add(digest)
            known = {digest: made for digest, made in known.items() if digest not in doubted}
        self._point()
        for gone in news:
            self.ledger.observe(
                Boundary.NODE,
                NODE_DISTRUSTED,
                gone.node,
                cause=gone.code,
                last_good=gone.last_good.isoformat(),
                last_good_here=local(gone.last_good).isoformat(),
                epoch=gone.epoch,
            )

    def _set_aside(self, found: Found, gone: Evicted, until: datetime) -> None:
        name = found.path.name
        self._refuse(name, found.checkpoint.step, found.digest, gone)
        why = Quarantine(
            node=gone.node,
            code=gone.code,
            last_good=until,
            epoch=gone.epoch,
            created=self.clock(),
        )
        key = PrivateKey.load(self.run.key("checkpoint"))
        moved = set_aside(found.path, found, why, key)
        self.say(f"{gone.node} was evicted ({gone.code}): {name} is set aside as {moved.name}")

    def _refuse(self, name: str, step: int, digest: str, gone: Evicted) -> None:
        error = IntegrityError(
            "ST-CKPT-160", f"not made before {gone.node}, evicted since, last proved itself", name
        )
        self.ledger.refuse(
            Boundary.CHECKPOINT, QUARANTINED, error, name, step=step, digest=digest, node=gone.node
        )

    def _point(self) -> None:
        """Say from where the workers go on."""
        left = newest_believed(list(self._found()), Known()).newest
        if left is None:
            name, step, digest = "the beginning", 0, ""
        else:
            name, step, digest = left.path.name, left.checkpoint.step, left.digest
        self.ledger.observe(Boundary.CHECKPOINT, RESTART_POINT, name, step=step, digest=digest)
        self.say(f"the workers go on from {name}")

    def _past(self) -> History:
        return read_history(read_entries(self.run.ledger, self._trust()))

    def _found(self) -> Iterator[Found]:
        """This run's checkpoints that a loader would accept a statement of."""
        return disk.checkpoints(self.run.checkpoints, self._trust(), _is_wanted)

    def _trust(self) -> TrustRoot:
        return TrustRoot.load(self.run.trust, self.clock())


def _is_wanted(path: Path) -> bool:
    return state_in_name(path.name) not in {State.SET_ASIDE, State.REMOVING}


def _name(gone: Evicted) -> tuple[str, str]:
    """An eviction, as the ledger names it."""
    return gone.node, gone.last_good.isoformat()
