# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What fields depend on: no field of the schema is in no row of the table."""

import msgspec
import pytest

from securetrain.core.vocabulary import EnforcementMode, SandboxMode
from securetrain.policy import load_policy, sandbox_mode, unsigned_demands
from securetrain.policy.enforcement import NEEDS, REFUSED_AT, Needs
from securetrain.policy.explanation import documented_fields
from tests.tables import items


def test_every_field_that_a_run_enforces_is_in_the_table_and_no_other():
    enforced = {".".join(f.path) for f in documented_fields() if "run" in f.enforced_by}
    assert sorted(enforced - set(NEEDS)) == [], "say in securetrain/policy/enforcement.py"
    assert sorted(set(NEEDS) - enforced) == []
    assert set(REFUSED_AT) == set(Needs) == set(NEEDS.values())


@items(
    "name, mode",
    ("dev", EnforcementMode.REPORT),
    ("baseline", EnforcementMode.REPORT),
    ("hardened", EnforcementMode.REQUIRE),
)
def test_the_shipped_policies(name, mode):
    assert load_policy(name).policy.enforcement is mode


def test_what_a_policy_demands_of_saves():
    assert unsigned_demands(load_policy("hardened").policy) == (
        "checkpoint.require_head",
        "checkpoint.require_rank_signatures",
        "checkpoint.require_clean_verdict",
    )
    policy = load_policy("dev").policy
    lenient = msgspec.structs.replace(policy.checkpoint, require_clean_verdict=False)
    assert unsigned_demands(msgspec.structs.replace(policy, checkpoint=lenient)) == ()


@pytest.mark.parametrize("mode", SandboxMode)
@pytest.mark.parametrize("enforcement", EnforcementMode)
def test_a_preferred_sandbox_is_a_required_one_where_all_is_required(mode, enforcement):
    policy = load_policy("dev").policy
    host = msgspec.structs.replace(policy.host, sandbox=mode)
    policy = msgspec.structs.replace(policy, host=host, enforcement=enforcement)
    raised = enforcement is EnforcementMode.REQUIRE and mode is SandboxMode.PREFERRED
    assert sandbox_mode(policy) is (SandboxMode.REQUIRED if raised else mode)
