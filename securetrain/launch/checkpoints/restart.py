# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The effect of an eviction on this run's checkpoints, worked out before an epoch's workers start.

Rules:

1. a checkpoint is in doubt by the time and the epoch in which it was made (`machine.in_doubt`),
   and a node's last proof of itself is at its last good evidence, by this node's clock;
2. what is in doubt is set aside (`artifacts.lineage.quarantine`): kept under another name, and
   refused. The workers go on from the newest checkpoint that is left, or from the beginning;
3. rank 0's node does this first, and the others wait for it. Each node judges an eviction once, and
   a failure ends the run: nobody goes on from what could not be judged;
4. what a death has interrupted is finished (`artifacts.lineage.recovery`): what was being written
   goes, a rollback is done to its end, and a checkpoint that was whole and signed is entered;
5. what the other nodes have seen as the newest checkpoint is heard before that (`head_tracker`),
   and what was not proven to be logged yet is, if the witnesses are there (`background`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.artifacts.lineage import Recovery, folder, head, machine, quarantine
from securetrain.artifacts.lineage import folder as disk
from securetrain.core import RunDir
from securetrain.core.errors import IntegrityError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.launch.checkpoints.background import BackgroundTasks
from securetrain.launch.checkpoints.head_tracker import HeadTracker
from securetrain.ledger import Ignored, Ledger, events
from securetrain.rendezvous.wire import Evicted, Membership, node_ranks

SETTLE_SECONDS: Final = 30.0
"""Time that the workers wait for unfinished background tasks: proofs of an earlier start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One node's part of it; `begin` is the rendezvous handler's `on_epoch`."""

    run: RunDir
    run_id: str
    ledger: Ledger
    clock: Callable[[], datetime]
    say: Callable[[str], None]
    head_tracker: HeadTracker | None = None
    background: BackgroundTasks | None = None
    warned: set[int] = field(default_factory=set)
    """Lines of the ledger that count for nothing, of which people have been told."""

    def begin(self, membership: Membership, local: Callable[[datetime], datetime]) -> None:
        """An epoch's members are known, and no worker of it has started.

        Args:
            membership: The epoch.
            local: Gives a time of the coordinator by this node's clock.

        Raises:
            SecureTrainError: the ledger, the trust root or the disk does not allow to judge.
            RuntimeRefusal: ST-RUNT-023, a sandbox would show another directory.
        """
        if (problem := self.run.problem()) is not None:
            raise problem
        if self.head_tracker is not None:
            self.head_tracker.receive(membership)
        if membership.evicted:
            past = self._past()
            news = [gone for gone in membership.evicted if _name(gone) not in past.distrusted]
            if news:
                self._judge(news, past, membership.epoch, local)
        if self.head_tracker is not None:
            self.head_tracker.excuse_rollback(self._past)
        self._recover()
        if self.background is not None:
            self.background.settle(SETTLE_SECONDS)
            if self.background.problem is not None:
                raise self.background.problem
        self.ledger.write(
            events.EpochStarted(
                subject=f"epoch {membership.epoch}",
                epoch=membership.epoch,
                nodes=" ".join(member.node for member in membership.members)[:2000],
                ranks=_ranks(membership),
            )
        )

    def _recover(self) -> None:
        """Rule 4."""
        past = self._past()
        if past.going_back is not None:
            self.roll_back(past.going_back)
            past = self._past()
        recovery = Recovery(
            folder=self.run.checkpoints,
            run_id=self.run_id,
            trust=self._trust(),
            ledger=self.ledger,
            key=lambda: PrivateKey.load(self.run.key("checkpoint")),
            clock=self.clock,
            floors=None if self.head_tracker is None else self.head_tracker.floors,
            files=self.run.worker_files,
        )
        for found in recovery.begin(past):
            self.say(f"{found.name} was saved when the run died, and is entered now")

    def roll_back(self, said: events.RolledBack | machine.Rollback) -> None:
        """The guard takes the run back to a step: what was made after it is set aside, and this
        node's memory of the newest checkpoint allows it.

        Raises:
            SecureTrainError: the ledger, the trust root or the disk does not allow it.
        """
        epoch = self._past().epoch
        for found in self._found():
            if found.checkpoint.step <= said.to:
                continue
            why = quarantine.Quarantine(
                node="",
                code="ST-GRAD-002",
                last_good=self.clock(),
                epoch=max(0, epoch),
                created=self.clock(),
                ranks=said.ranks[:200],
                to=said.to,
            )
            name = found.path.name
            error = IntegrityError(
                "ST-CKPT-160",
                f"the gradients of rank {said.ranks} may be in it: the run goes back to {said.to}",
                name,
            )
            self.ledger.write(
                events.CheckpointQuarantined(
                    subject=name,
                    step=found.checkpoint.step,
                    digest=found.digest,
                    **events.because(error),
                )
            )
            key = PrivateKey.load(self.run.key("checkpoint"))
            moved = quarantine.set_aside(found.path, found, why, key)
            self.say(f"rank {said.ranks} is excluded: {name} is set aside as {moved.name}")
        self._point()
        if self.head_tracker is not None:
            self.head_tracker.excuse_rollback(self._past)

    def _judge(
        self,
        news: Sequence[Evicted],
        past: machine.History,
        epoch: int,
        local: Callable[[datetime], datetime],
    ) -> None:
        """Rules 2 and 3; the evictions are noted last, so that a crash has them judged again."""
        known = past.by_digest
        for gone in news:
            until = local(gone.last_good)
            eviction, doubted = machine.Eviction(epoch=gone.epoch, led=gone.led, until=until), set()
            for found in self._found():
                if machine.in_doubt(eviction, found, known.get(found.digest), epoch):
                    self._set_aside(found, gone, until)
                    doubted.add(found.digest)
            for digest, made in known.items():
                # Of a checkpoint that is not here: another node has set it aside, or it is gone.
                if digest not in doubted and machine.in_doubt(eviction, None, made, epoch):
                    self._refuse(made.name, made.step, digest, gone)
                    doubted.add(digest)
            known = {digest: made for digest, made in known.items() if digest not in doubted}
        self._point()
        for gone in news:
            self.ledger.write(
                events.NodeDistrusted(
                    subject=gone.node,
                    cause=gone.code,
                    last_good=gone.last_good.isoformat(),
                    last_good_here=local(gone.last_good).isoformat(),
                    epoch=gone.epoch,
                )
            )

    def _set_aside(self, found: folder.Found, gone: Evicted, until: datetime) -> None:
        name = found.path.name
        self._refuse(name, found.checkpoint.step, found.digest, gone)
        why = quarantine.Quarantine(
            node=gone.node,
            code=gone.code,
            last_good=until,
            epoch=gone.epoch,
            created=self.clock(),
        )
        key = PrivateKey.load(self.run.key("checkpoint"))
        moved = quarantine.set_aside(found.path, found, why, key)
        self.say(f"{gone.node} was evicted ({gone.code}): {name} is set aside as {moved.name}")

    def _refuse(self, name: str, step: int, digest: str, gone: Evicted) -> None:
        error = IntegrityError(
            "ST-CKPT-160", f"not made before {gone.node}, evicted since, last proved itself", name
        )
        self.ledger.write(
            events.CheckpointQuarantined(
                subject=name, step=step, digest=digest, node=gone.node, **events.because(error)
            )
        )

    def _point(self) -> None:
        """Say from where the workers go on."""
        left = machine.newest_believed(list(self._found()), machine.Known()).newest
        if left is None:
            name, step, digest = "the beginning", 0, ""
        else:
            name, step, digest = left.path.name, left.checkpoint.step, left.digest
        self.ledger.write(events.RestartPoint(subject=name, step=step, digest=digest))
        self.say(f"the workers go on from {name}")

    def _past(self) -> machine.History:
        said = head.read_run_ledger(self.run.ledger, self._trust())
        for line in said.ignored:
            self._warn(line)
        return head.read_history(said.recorded)

    def _warn(self, line: Ignored) -> None:
        if line.entry.body.seq not in self.warned:
            self.warned.add(line.entry.body.seq)
            self.say(f"warning: {line}")

    def _found(self) -> Iterator[folder.Found]:
        """This run's checkpoints that a loader would accept a statement of."""
        return disk.checkpoints(self.run.checkpoints, self._trust(), _is_wanted)

    def _trust(self) -> TrustRoot:
        return TrustRoot.load(self.run.trust, self.clock())


def _is_wanted(path: Path) -> bool:
    return folder.state_in_name(path.name) not in {machine.State.SET_ASIDE, machine.State.REMOVING}


def _ranks(membership: Membership) -> str:
    """The ranks of the nodes, for a reader: computed, like everybody's, from the membership."""
    if not membership.is_staffed:
        return ""
    return " ".join(f"{found.ranks[0]}-{found.ranks[-1]}" for found in node_ranks(membership))[
        :2000
    ]


def _name(gone: Evicted) -> tuple[str, str]:
    """An eviction, as the ledger names it."""
    return gone.node, gone.last_good.isoformat()
