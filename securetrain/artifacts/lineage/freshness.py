# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The surroundings of a checkpoint: read and verified here, judged by `machine`.

An old checkpoint has a good signature, too. The head that lies beside it, the memory of this node
and the waivers of operators tell whether it is the one to go on from. The same is asked over all
ranks of a load: each brings its node's floor, and one honest node that has seen more is enough.
"""

from dataclasses import dataclass, replace

from securetrain.artifacts.lineage import head as head_file
from securetrain.artifacts.lineage.floors import Floors
from securetrain.artifacts.lineage.folder import CheckpointFiles
from securetrain.artifacts.lineage.machine import Floor, Known
from securetrain.artifacts.lineage.waivers import excused
from securetrain.artifacts.statement.statements import Opened
from securetrain.identity.trust import TrustRole, TrustRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The knowledge of a loader about the run besides the checkpoint."""

    floors: Floors | None = None
    """What this node has seen; None keeps nothing and asks for nothing."""
    waivers: tuple[bytes, ...] = ()
    """Signed by operators."""
    head: bool = True
    """Whether a head that lies beside the checkpoint is asked when the policy does not ask for one;
    not by a run that goes by its own ledger."""


def look(
    opened: Opened, folder: CheckpointFiles, trust: TrustRoot, freshness: Freshness, known: Known
) -> Known:
    """Add the surroundings of a checkpoint to what is known already.

    Args:
        opened: The checkpoint.
        folder: The folder that it lies in.
        trust: The keys that may sign heads and waivers.
        freshness: This node's knowledge.
        known: With the time, and whether a head is required.

    Raises:
        IntegrityError: ST-CKPT-110, 120, 152 (head), 123 (waiver) or 151 (floors).
    """
    assert known.now is not None
    keys = trust.keys_for(TrustRole.CHECKPOINT).keys()
    floors, run_id = freshness.floors, opened.checkpoint.run_id
    waived = excused(freshness.waivers, trust, run_id, known.now)
    ask_head = freshness.head or known.head_required
    known = replace(known, head=head_file.read_head(folder, trust) if ask_head else None)
    if floors is None:
        return replace(known, excused=waived)
    set_aside = {opened.digest} if floors.is_set_aside(run_id, opened.digest) else ()
    return replace(
        known,
        floor=floors.floor(run_id, keys),
        excused=waived | floors.excused(run_id, keys),
        set_aside=frozenset(set_aside),
    )


def remember(opened: Opened, floors: Floors) -> None:
    """Raise this node's floor to a checkpoint that was loaded or saved.

    Raises:
        IntegrityError: ST-CKPT-151.
        UsageError: ST-USAG-002.
    """
    floor = Floor(seq=opened.checkpoint.seq, digest=opened.digest)
    floors.raise_to(opened.checkpoint.run_id, floor, opened.key_ids)
