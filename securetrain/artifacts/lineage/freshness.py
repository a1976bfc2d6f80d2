# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint is the one to go on from: an old one has a good signature, too.

Rules, in order; a waiver of operators for exactly this checkpoint excuses 3 to 6, and so does that
the newest one was set aside and the run went back to exactly this one (`floors`, rule 5):

1. the checkpoint has not expired (this one is asked always, by everybody);
2. the head, when there is one or the policy asks for one, is good and of this run (`head`);
3. not older than what this node has seen of the run, nor another one of that number (`floors`);
4. neither is the head: a store may show an old head with an old checkpoint;
5. the head's own checkpoint, or one that the head does not know yet (a crash came between the two)
   and that names the head's as the one before it;
6. it was not set aside, as far as this node has ever seen (`quarantine`).

The same is asked over all ranks of a load: each brings its node's floor, and one honest node that
has seen more is enough.
"""

from dataclasses import dataclass
from datetime import datetime

from securetrain.artifacts.lineage import head as head_file
from securetrain.artifacts.lineage.floors import Floor, Floors
from securetrain.artifacts.lineage.head import HEAD, Head
from securetrain.artifacts.lineage.waivers import excused
from securetrain.artifacts.statement.statements import CheckpointPredicate, Opened, ParentRole
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.artifacts.tree.problems import Problem
from securetrain.artifacts.tree.storage import Storage
from securetrain.core.codes import CODES, Retry
from securetrain.identity.trust import TrustRole, TrustRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """What a loader knows about the run besides the checkpoint."""

    floors: Floors | None = None
    """What this node has seen; None keeps nothing and asks for nothing."""
    waivers: tuple[bytes, ...] = ()
    """Signed by operators."""
    head: bool = True
    """Whether a head that lies beside the checkpoint is asked when the policy does not ask for one;
    not by a run that goes by its own ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A checkpoint's surroundings, read and verified; `judge` needs nothing else."""

    head: Head | None
    floor: Floor | None
    excused: frozenset[str]
    set_aside: bool
    """Whether this node has ever seen that it was set aside."""
    head_required: bool


def expired(predicate: CheckpointPredicate, now: datetime) -> list[Problem]:
    """Rule 1."""
    if predicate.expires is None or now < predicate.expires:
        return []
    what = f"it expired at {predicate.expires.isoformat()}"
    return [Problem(code="ST-CKPT-153", what=what, file=STATEMENT)]


def look(
    opened: Opened,
    folder: Storage,
    trust: TrustRoot,
    freshness: Freshness,
    now: datetime,
    *,
    head_required: bool,
) -> Seen:
    """Read the surroundings of a checkpoint.

    Raises:
        IntegrityError: ST-CKPT-110, 120, 152 (head), 123 (waiver) or 151 (floors).
    """
    predicate = opened.predicate
    assert isinstance(predicate, CheckpointPredicate)
    keys = trust.keys_for(TrustRole.CHECKPOINT)
    floors = freshness.floors
    run_id = predicate.run_id
    ask_head = freshness.head or head_required
    waived = excused(freshness.waivers, trust, run_id, now)
    return Seen(
        head=head_file.read_head(folder, trust) if ask_head else None,
        floor=None if floors is None else floors.floor(run_id, keys.keys()),
        excused=waived if floors is None else waived | floors.excused(run_id, keys.keys()),
        set_aside=floors is not None and floors.is_set_aside(run_id, opened.digest),
        head_required=head_required,
    )


def judge(opened: Opened, seen: Seen, now: datetime) -> list[Problem]:
    """Rules 2 to 6."""
    predicate = opened.predicate
    assert isinstance(predicate, CheckpointPredicate)
    problems = []
    if seen.head is not None:
        problems += head_file.problems_of(seen.head, predicate.run_id, now)
        problems += _below(seen.floor, seen.head.seq, seen.head.digest, "the head")
        problems += _against_head(predicate, opened.digest, seen.head)
    elif seen.head_required:
        problems.append(
            Problem(
                code="ST-CKPT-152",
                what="there is no signed head of the run, and the policy asks for one",
                file=HEAD,
            )
        )
    problems += _below(seen.floor, predicate.seq, opened.digest, "the checkpoint")
    if seen.set_aside:
        what = "this node has seen that it was set aside"
        problems.append(Problem(code="ST-CKPT-160", what=what, file=STATEMENT))
    if opened.digest in seen.excused:
        problems = [p for p in problems if CODES[p.code].retry is not Retry.WAIVED]
    return problems


def below(floor: Floor | None, opened: Opened, who: str) -> list[Problem]:
    """Rule 3 for the floor of another rank's node, of which `who` tells."""
    predicate = opened.predicate
    assert isinstance(predicate, CheckpointPredicate)
    return _below(floor, predicate.seq, opened.digest, "the checkpoint", who)


def remember(opened: Opened, floors: Floors) -> None:
    """Raise this node's floor to a checkpoint that was loaded or saved.

    Raises:
        IntegrityError: ST-CKPT-151.
        UsageError: ST-USAG-002.
    """
    predicate = opened.predicate
    assert isinstance(predicate, CheckpointPredicate)
    floor = Floor(seq=predicate.seq, digest=opened.digest)
    floors.raise_to(predicate.run_id, floor, opened.key_ids)


def _below(
    floor: Floor | None, seq: int, digest: str, what: str, who: str = "this node"
) -> list[Problem]:
    if floor is None or seq > floor.seq or digest == floor.digest:
        return []
    if seq == floor.seq:
        text = f"{what} {digest[:16]} has number {seq}, and {who} has seen {floor.digest[:16]}"
        return [Problem(code="ST-CKPT-171", what=text, file=STATEMENT)]
    text = f"{what} has number {seq}, and {who} has seen number {floor.seq} of this run"
    return [Problem(code="ST-CKPT-151", what=text, file=STATEMENT)]


def _against_head(predicate: CheckpointPredicate, digest: str, head: Head) -> list[Problem]:
    """Rule 5."""
    if digest == head.digest:
        return []
    if predicate.seq < head.seq:
        text = f"checkpoint {predicate.seq}, the head of the run is {head.seq} (step {head.step})"
        return [Problem(code="ST-CKPT-151", what=text, file=STATEMENT)]
    if predicate.seq == head.seq:
        text = f"{digest[:16]} has number {predicate.seq}, the head says {head.digest[:16]}"
        return [Problem(code="ST-CKPT-171", what=text, file=STATEMENT)]
    before = [p.digest for p in predicate.parents if p.role is ParentRole.PREVIOUS]
    if before != [head.digest]:
        text = "the head of the run does not know it, and it does not follow the head's checkpoint"
        return [Problem(code="ST-CKPT-170", what=text, file=STATEMENT)]
    return []
