# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Policies judged with fake evidence; and real verifiers that refuse it."""

import pytest

from securetrain.attest.session.verifier import Verifier
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import UNATTESTED, NodeTier
from securetrain.policy import load_policy
from securetrain.testing.clock import SettableClock
from securetrain.testing.fake_attester import (
    FAKE_APPRAISERS,
    FakeAppraiser,
    fake_verifier,
    join,
)
from tests.vocabulary import refused


@pytest.mark.parametrize("tier", list(NodeTier))
@pytest.mark.parametrize("name", ["baseline", "hardened"])
def test_a_policy_lets_in_its_tier_and_better(name, tier):
    policy = load_policy(name)
    verifier = fake_verifier(policy, SettableClock())
    if tier >= policy.policy.node.min_tier:
        result = join(verifier, "node-1", tier)
        assert result.tier is tier
        assert result.label == tier.value
    else:
        with pytest.raises(AttestationError) as caught:
            join(verifier, "node-1", tier)
        assert caught.value.code in {"ST-ATTS-004", "ST-ATTS-005"}


def test_dev_lets_one_unattested_node_in_and_labels_it():
    verifier = fake_verifier(load_policy("dev"), SettableClock())
    assert join(verifier, "node-1", NodeTier.SELF_ASSERTED).label == UNATTESTED
    refused(AttestationError, "ST-ATTS-005", join, verifier, "node-2", NodeTier.SELF_ASSERTED)


def test_a_real_verifier_does_not_know_fake_evidence():
    policy = load_policy("dev")
    verifier = Verifier(policy=policy.policy, policy_digest=policy.digest, clock=SettableClock())
    refused(AttestationError, "ST-ATTS-006", join, verifier, "node-1", NodeTier.TEE_GPU)


def test_only_a_claim_is_believed():
    (appraiser,) = FAKE_APPRAISERS.values()
    assert isinstance(appraiser, FakeAppraiser)
    refused(AttestationError, "ST-ATTS-001", appraiser.read, b'{"tier":"better"}')
