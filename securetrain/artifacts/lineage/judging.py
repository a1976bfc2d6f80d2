# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Everything that is asked of a verified statement besides the bytes that it is about.

One place, so that a loader and a verifier cannot ask differently. In order: whether it is the one
that was asked for (`expectation`); expiry; the ranks' own signatures (`members`); the policy's
rules (`rules`); then whether the checkpoint is the newest that may be believed (`machine`), by the
record beside it (`quarantine`) and, when somebody asks, by its surroundings (`look`).

The surroundings of a checkpoint are read and verified here, and judged by `machine`. An old
checkpoint has a good signature, too. The head that lies beside it, the memory of this node
and the waivers of operators tell whether it is the one to go on from. The same is asked over all
ranks of a load: each brings its node's floor, and one honest node that has seen more is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from securetrain.artifacts.lineage import head as head_file
from securetrain.artifacts.lineage import machine, quarantine, waivers
from securetrain.artifacts.lineage.floors import Floors
from securetrain.artifacts.lineage.folder import CheckpointFiles
from securetrain.artifacts.lineage.machine import Floor, Known
from securetrain.artifacts.statement import expectation, members, rules
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.statements import CheckpointPredicate, Opened
from securetrain.artifacts.tree.problems import Problem
from securetrain.core.errors import IntegrityError
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.policy.schema import Policy


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
    waived = waivers.excused(freshness.waivers, trust, run_id, known.now)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The knowledge and the demands of somebody who wants to use an artifact."""

    trust: TrustRoot
    policy: Policy | None
    now: datetime
    known: Freshness | None = None
    """Given, a checkpoint must be the newest of its run, whatever the policy says."""
    newest: bool = True
    """Whether it may have to be the newest: not of what another one was made from."""
    nodes: bool = True
    """Whether to ask for the tiers of the nodes, too."""
    expect: Expectation | None = None
    """The artifact that is wanted; None when any will do."""
    shown: rules.Shown = rules.NOTHING_SHOWN
    """What evidence shows of the nodes' tiers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The problems of a statement."""

    problems: list[Problem]
    known: Known | None = None
    """The surroundings, when they were asked about."""
    excused: Sequence[Problem] = ()
    """What operators, or the run itself, let pass."""


def judge(opened: Opened, beside: CheckpointFiles, asked: Asked) -> Judged:
    """Ask everything, of what lies in a directory or of what a pack took over of that."""
    problems = judge_statement(opened, asked)
    if not isinstance(opened.predicate, CheckpointPredicate):
        return Judged(problems=problems)
    policy = None if asked.policy is None else asked.policy.checkpoint
    found = quarantine.check(beside, opened, asked.trust)
    records = {opened.digest: found[0]} if found else {}
    if records and asked.known is not None and asked.known.floors is not None:
        asked.known.floors.remember_set_aside(opened.predicate.run_id, opened.digest)
    known = Known(
        now=asked.now,
        records=records,
        head_required=asked.newest and policy is not None and policy.require_head,
    )
    asks = asked.known is not None or known.head_required
    try:
        if asks:
            fresh = asked.known or Freshness()
            known = look(opened, beside.above(), asked.trust, fresh, known)
    except IntegrityError as error:
        unread = Problem(error.code, error.what, error.where)
        return Judged(problems=[*problems, *found, unread])
    doubts = machine.doubts(opened, replace(known, excused=frozenset()))
    if doubts and waivers.excuse(beside, opened, asked.trust, asked.now):
        known = replace(known, excused=known.excused | {opened.digest})
    left = machine.doubts(opened, known)
    excused = [one for one in doubts if one not in left]
    return Judged(problems=[*problems, *left], known=known if asks else None, excused=excused)


def judge_statement(opened: Opened, asked: Asked) -> list[Problem]:
    """Ask what the statement alone can answer, wherever it lies."""
    problems = expectation.check(opened, asked.expect)
    if asked.policy is not None:
        problems += rules.check(
            opened, asked.policy, asked.now, nodes=asked.nodes, shown=asked.shown
        )
    if not isinstance(opened.predicate, CheckpointPredicate):
        return problems
    policy = None if asked.policy is None else asked.policy.checkpoint
    required = policy is not None and policy.require_rank_signatures
    return [
        *machine.expired(opened, asked.now),
        *members.check(opened.predicate, asked.trust, required=required),
        *problems,
    ]
