# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary is ordered where it says so and closed everywhere."""

import pytest

from securetrain.core.vocabulary import Boundary, NetworkProfile, NodeTier, Severity
from securetrain.policy.schema import SECTIONS


def test_there_are_twelve_boundaries_and_the_policy_has_a_section_for_each():
    assert len(Boundary) == 12
    assert {section.replace("_", "-") for section in SECTIONS} == {*Boundary, "audit"}


def test_tiers_rank_from_nothing_to_everything():
    assert sorted(NodeTier, key=lambda tier: tier.rank) == list(NodeTier)
    assert NodeTier.TEST_ONLY < NodeTier.SELF_ASSERTED < NodeTier.VTPM < NodeTier.TPM
    assert NodeTier.TPM < NodeTier.TEE < NodeTier.TEE_GPU
    assert NodeTier.TPM >= NodeTier.VTPM


def test_severities_compare():
    assert Severity.CRITICAL > Severity.HIGH > Severity.INFO


@pytest.mark.parametrize("profile", NetworkProfile)
def test_only_profiles_that_leave_bytes_in_the_clear_are_degraded(profile):
    assert profile.degraded == (profile.value in {"store-tls", "rdma-trusted"})
