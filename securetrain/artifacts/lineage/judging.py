# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Everything that is asked of a verified statement besides the bytes that it is about.

One place, so that a loader and a verifier cannot ask differently. In order: whether it is the one
that was asked for (`expectation`); expiry; the ranks' own signatures (`members`); the policy's
rules (`rules`); then whether the checkpoint is the newest that may be believed (`machine`), by the
record beside it (`quarantine`) and, when somebody asks, by its surroundings (`freshness`).
"""

from dataclasses import dataclass
from datetime import datetime

from securetrain.artifacts.lineage import freshness, machine, quarantine
from securetrain.artifacts.lineage.folder import CheckpointFiles
from securetrain.artifacts.lineage.freshness import Freshness
from securetrain.artifacts.lineage.machine import Known
from securetrain.artifacts.statement import expectation, members, rules
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.statements import CheckpointPredicate, Opened
from securetrain.artifacts.tree.problems import Problem
from securetrain.core.errors import IntegrityError
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy


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
    if asked.known is None and not known.head_required:
        return Judged(problems=[*problems, *found])
    try:
        fresh = asked.known or Freshness()
        known = freshness.look(opened, beside.above(), asked.trust, fresh, known)
    except IntegrityError as error:
        unread = Problem(error.code, error.what, error.where)
        return Judged(problems=[*problems, *found, unread])
    return Judged(problems=[*problems, *machine.doubts(opened, known)], known=known)


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
