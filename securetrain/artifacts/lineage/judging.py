# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Everything that is asked of a verified statement besides the bytes that it is about.

One place, so that a loader and a verifier cannot ask differently. In order: expiry; the ranks' own
signatures (`members`); the policy's rules (`rules`); whether it was set aside (`quarantine`); and
whether it is the newest of its run (`freshness`). What operators have waived is left out.
"""

from dataclasses import dataclass
from datetime import datetime

from securetrain.artifacts.lineage import freshness, quarantine
from securetrain.artifacts.lineage.freshness import Freshness, Seen
from securetrain.artifacts.statement import members, rules
from securetrain.artifacts.statement.statements import CheckpointPredicate, Opened
from securetrain.artifacts.tree.problems import Problem
from securetrain.artifacts.tree.storage import Storage
from securetrain.core.errors import IntegrityError
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the one who wants to use an artifact knows and asks for."""

    trust: TrustRoot
    policy: Policy | None
    now: datetime
    known: Freshness | None = None
    """Given, a checkpoint must be the newest of its run, whatever the policy says."""
    nodes: bool = True
    """Whether to ask for the tiers of the nodes, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was found."""

    problems: list[Problem]
    seen: Seen | None = None
    """The surroundings, when they were asked about."""


def judge(opened: Opened, storage: Storage, asked: Asked) -> Judged:
    """Ask everything."""
    problems = []
    if asked.policy is not None:
        problems += rules.check(opened, asked.policy, asked.now, nodes=asked.nodes)
    if not isinstance(opened.predicate, CheckpointPredicate):
        return Judged(problems=problems)
    required = asked.policy is not None and asked.policy.checkpoint.require_rank_signatures
    problems = [
        *freshness.expired(opened.predicate, asked.now),
        *members.check(opened.predicate, asked.trust, required=required),
        *problems,
    ]
    set_aside = quarantine.check(storage, opened, asked.trust)
    if set_aside and asked.known is not None and asked.known.floors is not None:
        asked.known.floors.remember_set_aside(opened.predicate.run_id, opened.digest)
    head_required = asked.policy is not None and asked.policy.checkpoint.require_head
    if asked.known is None and not head_required:
        return Judged(problems=problems + set_aside)
    try:
        seen = _look(opened, storage, asked, head_required=head_required)
    except IntegrityError as error:
        found = Problem(code=error.code, what=error.what, file=error.where)
        return Judged(problems=[*problems, *set_aside, found])
    if opened.digest in seen.excused:
        set_aside = []
    problems += [*set_aside, *freshness.judge(opened, seen, asked.now)]
    return Judged(problems=problems, seen=seen)


def _look(opened: Opened, storage: Storage, asked: Asked, *, head_required: bool) -> Seen:
    known = asked.known or Freshness()
    return freshness.look(
        opened, storage.above(), asked.trust, known, asked.now, head_required=head_required
    )
