# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about a run: the proofs of its nodes, and the place of its ranks."""

from datetime import datetime, timedelta
from typing import Final

from securetrain.audit.engine.fields import View, resolve
from securetrain.audit.engine.function import Judgement, NoArgs, fields, function
from securetrain.audit.engine.kleene import truth, unknown
from securetrain.audit.subjects.run.facts import RankRange, RunNode
from securetrain.policy.schema import Policy

_NODES: Final = fields(
    "run", "nodes", "*", of=("name", "tier", "proven", "until", "refused", "compared")
)
_SLACK: Final = timedelta(minutes=1)
"""A renewal is on its way for a moment."""


@function(
    "run.nodes_attested",
    reads=(
        *_NODES,
        ("policy", "node", "min_tier"),
        ("policy", "node", "lease_minutes"),
    ),
)
def nodes_attested(view: View, args: NoArgs) -> list[Judgement]:
    """Every node of the newest epoch has proven what the policy asks for, and lately enough."""
    del args
    nodes: tuple[RunNode, ...] = resolve(view, ("run", "nodes"))
    found = []
    for node in nodes:
        why = _unproven(node, view.policy, view.now)
        good = truth(not why, node.location)
        if not why and node.compared is None:
            good = unknown("the reference values that the policy names cannot be used")
        proven = node.proven.isoformat() if node.proven else None
        evidence = {"tier": node.tier, "proven": proven}
        found.append(
            Judgement(
                label=node.label, good=good, why=why, location=node.location, evidence=evidence
            )
        )
    return found


def _unproven(node: RunNode, policy: Policy, now: datetime) -> str:
    """Explain why a node's proof is none; empty when it is one."""
    if node.tier is None or node.proven is None:
        return "the coordinator never admitted it, and it is a member"
    if node.refused.startswith("ST-ATTS-"):
        return f"its evidence was refused ({node.refused}), and it proved nothing since"
    if node.tier < policy.node.min_tier:
        allowed = "; the policy lets it in nevertheless" if policy.node.allow_self_asserted else ""
        wanted = policy.node.min_tier
        return f"it proved the tier {node.tier}, and the policy asks for {wanted}{allowed}"
    if node.compared is False:
        return "it was not compared with the reference values that the policy names"
    age = (node.until or now) - node.proven
    if age <= timedelta(minutes=policy.node.lease_minutes) + _SLACK:
        return ""
    when = "was" if node.until else "is"
    told = " when it left or the run ended" if node.until else ""
    return (
        f"its newest proof {when} {int(age.total_seconds() // 60)} minutes old{told}, and the"
        f" policy asks for one every {policy.node.lease_minutes}"
    )


@function(
    "run.ranks_listed",
    reads=(
        *fields("run", "ranks", "*", of=("node", "first", "last")),
        *_NODES,
        ("run", "inventory"),
        ("run", "strangers"),
    ),
)
def ranks_listed(view: View, args: NoArgs) -> list[Judgement]:
    """Each rank is on a node of the inventory that was admitted, and on one alone."""
    del args
    ranks: tuple[RankRange, ...] = resolve(view, ("run", "ranks"))
    nodes: tuple[RunNode, ...] = resolve(view, ("run", "nodes"))
    inventory: tuple[str, ...] = resolve(view, ("run", "inventory"))
    strangers: tuple[str, ...] = resolve(view, ("run", "strangers"))
    admitted = {node.name for node in nodes if node.tier is not None}
    found = []
    follows = 0
    for one in sorted(ranks, key=lambda one: one.first):
        why = ""
        if one.node not in inventory:
            why = f"they are on {one.node}, which the inventory does not list"
        elif one.node not in admitted:
            why = f"they are on {one.node}, which the coordinator never admitted"
        elif one.first != follows or one.last < one.first:
            why = f"they are on {one.node}, and rank {follows} should come next"
        follows = one.last + 1
        good = truth(not why, one.location)
        evidence = {"node": one.node}
        found.append(
            Judgement(label=one.label, good=good, why=why, location=one.location, evidence=evidence)
        )
    why = "another launcher says: " + "; ".join(strangers)
    found += [Judgement(label="", good=truth(False, None), why=why)] if strangers else []
    return found
