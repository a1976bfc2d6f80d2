# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The effect of an eviction on this run's checkpoints, worked out before an epoch's workers start.

Rules:

1. a checkpoint is in doubt when it was made in an epoch of a node that was evicted later, and not
   before that node last proved itself (its last good evidence, by this node's clock). At the same
   moment is not before;
2. when and in which epoch it was made is what the ledger says (`artifacts.lineage.history`), not
   what the checkpoint says of itself;
3. a checkpoint that the ledger does not know has its own statement's word for both, but not when
   the evicted node was rank 0, which signs it: then it is in doubt. So is one that names an epoch
   that has not begun;
4. what is in doubt is set aside (`artifacts.lineage.quarantine`): kept under another name, and
   refused. The workers go on from the newest checkpoint that is left, or from the beginning;
5. rank 0's node does this first, and the others wait for it. Each node judges an eviction once, and
   a failure ends the run: nobody goes on from what could not be judged;
6. what the other nodes have seen as the newest checkpoint is heard before that (`head_tracker`),
   and what was not proven to be logged yet is, if the witnesses are there (`background`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.artifacts.lineage.history import (
    History,
    Made,
    read_history,
)
from securetrain.artifacts.lineage.quarantine import SET_ASIDE, Quarantine, set_aside
from securetrain.artifacts.lineage.retention import REMOVING
from securetrain.artifacts.statement.listing import read_statement
from securetrain.artifacts.statement.statements import CheckpointPredicate, Opened, open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.core.errors import IntegrityError
from securetrain.core.files import read_file
from securetrain.core.rundir import RunDir
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRoot
from securetrain.launch.background import BackgroundTasks
from securetrain.launch.head_tracker import HeadTracker
from securetrain.ledger import Ignored, Ledger, events, read_ledger
from securetrain.rendezvous.wire.membership import Evicted, Membership

LEDGER_LIMIT: Final = 1 << 30
SETTLE_SECONDS: Final = 30.0
"""Time that the workers wait for unfinished background tasks: proofs of an earlier start."""


def in_doubt(
    gone: Evicted,
    until: datetime,
    said: CheckpointPredicate | None,
    known: Made | None,
    epoch: int,
) -> bool:
    """Rules 1 to 3.

    Args:
        gone: The node that was evicted.
        until: When it last proved itself, by this node's clock.
        said: The checkpoint's statement, when it was found.
        known: The ledger's record of it, if any.
        epoch: The one that is about to begin.
    """
    if known is not None:
        return known.epoch <= gone.epoch and not known.time < until
    assert said is not None, "a checkpoint is found or known"
    if said.epoch is not None and said.epoch > gone.epoch:
        return said.epoch >= epoch
    return gone.led or not said.created < until


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One node's part of it; `begin` is the rendezvous handler's `on_epoch`."""

    run: RunDir
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
        """
        if self.head_tracker is not None:
            self.head_tracker.receive(membership)
        if membership.evicted:
            past = self._past()
            news = [gone for gone in membership.evicted if _name(gone) not in past.distrusted]
            if news:
                self._judge(news, past, membership.epoch, local)
        if self.head_tracker is not None:
            self.head_tracker.excuse_rollback(self._past)
        if self.background is not None:
            self.background.settle(SETTLE_SECONDS)
            if self.background.problem is not None:
                raise self.background.problem
        self.ledger.write(
            events.EpochStarted(
                subject=f"epoch {membership.epoch}",
                epoch=membership.epoch,
                nodes=" ".join(member.node for member in membership.members)[:2000],
            )
        )

    def _judge(
        self,
        news: Sequence[Evicted],
        past: History,
        epoch: int,
        local: Callable[[datetime], datetime],
    ) -> None:
        """Rules 4 and 5; the evictions are noted last, so that a crash has them judged again."""
        known = past.by_digest
        for gone in news:
            until, doubted = local(gone.last_good), set()
            for path, opened in self._found():
                assert isinstance(opened.predicate, CheckpointPredicate)
                about = known.get(opened.digest)
                if in_doubt(gone, until, opened.predicate, about, epoch):
                    self._set_aside(path, opened, gone, until)
                    doubted.add(opened.digest)
            for digest, made in known.items():
                # Of a checkpoint that is not here: another node has set it aside, or it is gone.
                if digest not in doubted and in_doubt(gone, until, None, made, epoch):
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

    def _set_aside(self, path: Path, opened: Opened, gone: Evicted, until: datetime) -> None:
        said = opened.predicate
        assert isinstance(said, CheckpointPredicate)
        self._refuse(path.name, said.step, opened.digest, gone)
        why = Quarantine(
            node=gone.node,
            code=gone.code,
            last_good=until,
            epoch=gone.epoch,
            created=self.clock(),
        )
        moved = set_aside(path, opened, why, PrivateKey.load(self.run.key("checkpoint")))
        self.say(f"{gone.node} was evicted ({gone.code}): {path.name} is set aside as {moved.name}")

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
        left = max(self._found(), key=lambda found: _step(found[1]), default=None)
        if left is None:
            name, step, digest = "the beginning", 0, ""
        else:
            name, step, digest = left[0].name, _step(left[1]), left[1].digest
        self.ledger.write(events.RestartPoint(subject=name, step=step, digest=digest))
        self.say(f"the workers go on from {name}")

    def _past(self) -> History:
        data = read_file(self.run.ledger, LEDGER_LIMIT)
        whole = data[: data.rfind(b"\n") + 1]  # another process may be writing the last line
        said = read_ledger(whole, self._trust(), where=str(self.run.ledger))
        for line in said.ignored:
            self._warn(line)
        return read_history(said.recorded)

    def _warn(self, line: Ignored) -> None:
        if line.entry.body.seq not in self.warned:
            self.warned.add(line.entry.body.seq)
            self.say(f"warning: {line}")

    def _found(self) -> Iterator[tuple[Path, Opened]]:
        """This run's checkpoints that a loader would accept a statement of."""
        trust, folder = self._trust(), self.run.checkpoints
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if SET_ASIDE in path.name or path.name.endswith(REMOVING):
                continue
            if not (path / STATEMENT).is_file():
                continue
            try:
                data = read_statement(path, Kind.CHECKPOINT)
                yield path, open_statement(data, Kind.CHECKPOINT, trust, str(path))
            except IntegrityError:
                continue  # nothing loads it

    def _trust(self) -> TrustRoot:
        return TrustRoot.load(self.run.trust, self.clock())


def _step(opened: Opened) -> int:
    assert isinstance(opened.predicate, CheckpointPredicate)
    return opened.predicate.step


def _name(gone: Evicted) -> tuple[str, str]:
    """An eviction, as the ledger names it."""
    return gone.node, gone.last_good.isoformat()
