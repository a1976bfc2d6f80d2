# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The run's own ledger, as evidence about its nodes and checkpoints.

A run directory lies on a disk that others may write. Its ledger is signed and chained, so it
decides:

1. which nodes took part, and what they proved (`node-admitted` of the current start);
2. which checkpoint is the newest (`artifacts.lineage.history`): a directory that was rolled back or
   brought in from another run, is not continued without being asked for by path (ST-CKPT-150,
   ST-CKPT-170). Checkpoints that the launcher has set aside, because a node was evicted, do not
   count, and are not continued if they come back (ST-CKPT-160);
3. which epoch is in force, for the statements of the checkpoints to come.

A crash may come between a checkpoint's last rename and its ledger entry, so one step further than
the ledger is accepted, if that checkpoint names the ledger's last one as its parent.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from securetrain.artifacts.lineage import history as ledger_history
from securetrain.artifacts.lineage.history import NO_EPOCH, Made
from securetrain.artifacts.statement.statements import CheckpointPredicate, NodeRef, ParentRole
from securetrain.core.errors import IntegrityError
from securetrain.core.files import read_file
from securetrain.core.rundir import RunDir
from securetrain.identity.trust import TrustRoot
from securetrain.ledger import LedgerEvent, events, read_ledger

LEDGER_LIMIT: Final = 1 << 30
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_STEP: Final = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """The history of a run, from its ledger; empty for a run without one."""

    nodes: tuple[NodeRef, ...] = ()
    last: Made | None = None
    """The last checkpoint that the ledger knows and that was not set aside."""
    set_aside: frozenset[str] = frozenset()
    """Digests of those that were."""
    epoch: int | None = None
    """The membership that is in force; None when nobody said."""
    restart: str = ""
    """The digest of the checkpoint that the run went back to last, if it did."""
    ignored: tuple[str, ...] = ()
    """Lines of the ledger that count for nothing, and why."""


def read_history(run: RunDir, trust: TrustRoot, world: int) -> RunHistory:
    """Verify the ledger and read it.

    Args:
        run: The run's directory.
        trust: Names the keys that may write ledgers.
        world: How many ranks there are; a lone node has them all.

    Raises:
        IntegrityError: ST-LEDG-001 to 003.
    """
    if not run.ledger.exists():
        return RunHistory()
    data = read_file(run.ledger, LEDGER_LIMIT)
    # Another process may be writing the last line at this moment.
    whole = data[: data.rfind(b"\n") + 1]
    said = read_ledger(whole, trust, where=str(run.ledger))
    past = ledger_history.read_history(said.recorded)
    return RunHistory(
        nodes=_nodes(said.events, world),
        last=past.made[-1] if past.made else None,
        set_aside=past.set_aside,
        epoch=None if past.epoch == NO_EPOCH else past.epoch,
        restart=past.restart,
        ignored=tuple(map(str, said.ignored)),
    )


def _nodes(said: Sequence[LedgerEvent], world: int) -> tuple[NodeRef, ...]:
    admitted: dict[str, NodeRef] = {}
    for event in said:
        match event:
            case events.RunStarted():
                admitted.clear()
            case events.NodeAdmitted():
                admitted[event.subject] = NodeRef(
                    node=event.subject,
                    tier=event.tier,
                    label=event.label,
                    result=event.result if _DIGEST.fullmatch(event.result) else "",
                )
            case _:
                pass
    nodes = tuple(admitted.values())
    if len(nodes) == 1:
        only = nodes[0]
        ranks = list(range(world))
        return (msgspec.structs.replace(only, ranks=ranks),)
    return nodes


def newest_checkpoint(run: RunDir) -> Path | None:
    """The finished checkpoint with the highest step; half-written ones have other names."""
    if not run.checkpoints.is_dir():
        return None
    found = [p for p in run.checkpoints.iterdir() if _STEP.fullmatch(p.name) and p.is_dir()]
    return max(found, key=step_of, default=None)


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint's directory."""
    match = _STEP.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def check_newest(
    history: RunHistory, predicate: CheckpointPredicate, digest: str, where: str
) -> int:
    """Refuse a checkpoint that is not where the ledger says the run stopped; returns its step.

    Raises:
        IntegrityError: ST-CKPT-150 when it is older, ST-CKPT-160 when it was set aside, ST-CKPT-170
            when it is not the run's own.
    """
    if digest in history.set_aside:
        raise IntegrityError(
            "ST-CKPT-160",
            f"the checkpoint of step {predicate.step} was set aside, whatever its directory says",
            where,
            "find out who put it back; the ledger says why it was set aside",
        )
    last = history.last
    fix = f"to continue from it all the same: --resume {where}"
    if last is not None and digest == last.digest:
        return predicate.step
    if last is not None and predicate.step <= last.step:
        raise IntegrityError(
            "ST-CKPT-150" if predicate.step < last.step else "ST-CKPT-170",
            f"a checkpoint of step {predicate.step}, but the ledger's last is that of step"
            f" {last.step} ({last.digest[:16]})",
            where,
            fix,
        )
    parents = [p.digest for p in predicate.parents if p.role is ParentRole.PREVIOUS]
    if parents != ([] if last is None else [last.digest]):
        raise IntegrityError(
            "ST-CKPT-170",
            "the ledger does not know it, and it does not follow the ledger's last checkpoint",
            where,
            fix,
        )
    return predicate.step
