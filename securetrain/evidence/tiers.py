# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The policy's rule over a node's tier: the same at a join and over a bundle in a file.

Rules:

1. a tier below ``node.min_tier`` is refused (ST-ATTS-004). `self-asserted` is not measured by the
   minimum but by rule 2;
2. a node that has proven nothing (`self-asserted`, `test-only`) comes in by the policy's exception
   alone, however low the minimum is, and while the exception lasts (ST-ATTS-005).

How many unattested nodes are in is for who holds the leases (`verifier`).
"""

from datetime import datetime

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier, tier_label
from securetrain.policy.schema import Node, SelfAsserted


def check_tier(policy: Node, tier: NodeTier, node: str, now: datetime) -> SelfAsserted | None:
    """Judge a tier.

    Args:
        policy: what is asked of nodes.
        tier: what the node has proven.
        node: its name.
        now: the time of the check.

    Returns:
        The exception by which the node comes in; None where it needs none.

    Raises:
        AttestationError: ST-ATTS-004 or 005.
    """
    if tier < policy.min_tier and tier is not NodeTier.SELF_ASSERTED:
        raise AttestationError(
            "ST-ATTS-004",
            f"the tier is {tier}, the policy asks for {policy.min_tier}",
            f"node {node}: node.min_tier",
        )
    if tier > NodeTier.SELF_ASSERTED:
        return None
    exception = policy.allow_self_asserted
    if exception is None:
        raise AttestationError(
            "ST-ATTS-005",
            f"the node is {tier_label(tier)}, the policy asks for {policy.min_tier}",
            f"node {node}: node.allow_self_asserted",
        )
    if exception.until is not None and now.date() > exception.until:
        raise AttestationError(
            "ST-ATTS-005",
            f"the exception for unattested nodes ended on {exception.until}",
            f"node {node}: node.allow_self_asserted.until",
            "attest the node, or renew the exception",
        )
    return exception
