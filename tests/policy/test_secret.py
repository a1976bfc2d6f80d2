# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rules of named secrets in a policy: a contradiction is refused where it is written."""

import pytest

from securetrain.core.errors import PolicyError
from securetrain.core.vocabulary import NodeTier
from securetrain.policy.load import load_policy
from tests.tables import items

POLICY = """\
extends: dev
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {id: with-secrets, version: 1.0.0}
node:
  secrets: {%s}
"""


@pytest.fixture
def loaded(tmp_path):
    def load(secrets):
        path = tmp_path / "policy.yaml"
        path.write_text(POLICY % secrets)
        return load_policy(str(path))

    return load


def test_a_secret_is_for_a_hardware_tpm_unless_the_policy_says_less(loaded):
    found = loaded("a: {}, b: {min_tier: vtpm, hand_over: environment, variable: HF_TOKEN}")
    assert found.policy.node.secrets["a"].min_tier is NodeTier.TPM
    assert found.policy.node.secrets["b"].variable == "HF_TOKEN"


@items(
    "bad",
    "a: {value: s3cret}",
    "a: {min_tier: none}",
    "A: {}",
    "'a/../b': {}",
    "a: {hand_over: environment}",
    "a: {variable: HF_TOKEN}",
    "a: {hand_over: environment, variable: LD_PRELOAD}",
    "a: {hand_over: environment, variable: PATH}",
    "a: {hand_over: environment, variable: SECURETRAIN_RUN_DIR}",
    "a: {hand_over: environment, variable: 'A=B'}",
    "a: {groups: ['']}",
    "a: {}, a: {}",
    ", ".join(f"s{n}: {{}}" for n in range(33)),
)
def test_what_is_no_rule(loaded, bad):
    with pytest.raises(PolicyError) as caught:
        loaded(bad)
    assert caught.value.code in {"ST-PLCY-001", "ST-PLCY-002"}
