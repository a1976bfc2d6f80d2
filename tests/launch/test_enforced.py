# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Parts of a policy that are known at the start not to be enforced."""

from datetime import UTC, datetime

import pytest

from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import EnforcementMode, NetworkProfile
from securetrain.identity.trust import TrustRoot
from securetrain.launch import options
from securetrain.launch.agent.elastic_agent import make_plan
from securetrain.launch.network.jobnetwork import record_open_egress
from securetrain.launch.setup import agent_ledger, prepare_run
from securetrain.ledger import read_ledger
from securetrain.policy.schema import UnpickleMode
from tests.launch.worlds import policy_of
from tests.vocabulary import refused

NOW = datetime.now(UTC)


@pytest.mark.parametrize("mode", EnforcementMode)
def test_a_program_without_the_shim_is_refused_at_the_start(tmp_path, mode):
    argv = ["--standalone", "--no-python", "true"]
    given = options.parse(argv, options.scan(argv, standalone=True, environ={}))
    policy = policy_of(mode, checkpoint={"unpickle": UnpickleMode.WARN})
    if mode is EnforcementMode.REPORT:
        assert not make_plan(given, policy, tmp_path).protected
        return
    error = refused(RuntimeRefusal, "without the worker shim", make_plan, given, policy, tmp_path)
    assert error.code == "ST-RUNT-021"


@pytest.mark.parametrize("mode", EnforcementMode)
def test_a_way_out_that_nothing_limits_is_refused_and_recorded(tmp_path, mode):
    setup = prepare_run(tmp_path / "run", "dev", NOW)
    ledger = agent_ledger(setup, lambda: NOW)
    policy = policy_of(mode, network={"egress": ("example.org:443",)})
    if mode is EnforcementMode.REPORT:
        assert record_open_egress(policy, NetworkProfile.LOOPBACK, ledger)
        expected = {"egress-unlimited"}
    else:
        given = record_open_egress, policy, NetworkProfile.LOOPBACK, ledger
        error = refused(RuntimeRefusal, "ST-RUNT-021", *given)
        assert "network.egress" in error.where
        expected = {"profile-refused"}
    ledger.close()
    said = read_ledger(setup.run.ledger.read_bytes(), TrustRoot.load(setup.run.trust, NOW))
    assert {event.NAME for event in said.events} - {"close"} == expected
