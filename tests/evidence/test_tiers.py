# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a policy asks of a tier; `test_verifier` has the same through the door."""

from datetime import UTC, date, datetime

import pytest

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.tiers import check_tier
from securetrain.policy.schema import Node, SelfAsserted
from tests.tables import each
from tests.vocabulary import refused

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
EXCEPTION = SelfAsserted(max_nodes=1, reason="a test", until=date(2026, 6, 1))


@each("tier", *list(NodeTier))
@each("minimum", *list(NodeTier))
@each("id, exception", ("strict", None), ("exception", EXCEPTION))
def test_every_tier(tier, minimum, exception):
    policy = Node(min_tier=minimum, allow_self_asserted=exception)
    expected = ""
    if tier < minimum and tier is not NodeTier.SELF_ASSERTED:
        expected = "ST-ATTS-004"
    elif tier in {NodeTier.TEST_ONLY, NodeTier.SELF_ASSERTED} and exception is None:
        expected = "ST-ATTS-005"
    if not expected:
        proven = tier > NodeTier.SELF_ASSERTED
        assert check_tier(policy, tier, "n", NOW) is (None if proven else exception)
        return
    error = refused(AttestationError, expected, check_tier, policy, tier, "n", NOW)
    assert error.where.startswith("node n: node.")


@each("day, good", (1, True), (2, False))
def test_the_last_day(day, good):
    policy = Node(allow_self_asserted=EXCEPTION)
    now = NOW.replace(day=day, hour=23)
    if good:
        assert check_tier(policy, NodeTier.SELF_ASSERTED, "n", now) is EXCEPTION
        return
    with pytest.raises(AttestationError) as caught:
        check_tier(policy, NodeTier.SELF_ASSERTED, "n", now)
    assert caught.value.code == "ST-ATTS-005"
    assert "ended on 2026-06-01" in caught.value.what
    assert caught.value.where == "node n: node.allow_self_asserted.until"


def test_an_exception_without_an_end():
    exception = SelfAsserted(max_nodes=1, reason="a test")
    policy = Node(allow_self_asserted=exception)
    late = NOW.replace(year=2126)
    assert check_tier(policy, NodeTier.SELF_ASSERTED, "n", late) is exception
