# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from datetime import UTC, datetime

import msgspec
import pytest

from securetrain.audit.documents.facts import Outcome
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import EnforcementMode, PreflightMode, Severity
from securetrain.launch.preflight import run_preflight
from securetrain.launch.run_setup import agent_ledger, prepare_run
from tests.vocabulary import refused

NOW = datetime(2026, 1, 2, tzinfo=UTC)

# Whatever the machine is like, this fails: a fabric variable that names no interface exactly.
FAILING = {"PATH": "/usr/bin", "LD_PRELOAD": "/tmp/x.so"}


@pytest.fixture
def setup(tmp_path):
    return prepare_run(tmp_path / "run", "dev", NOW)


def policy_of(setup, **fields):
    policy = setup.policy.policy
    return msgspec.structs.replace(policy, host=msgspec.structs.replace(policy.host, **fields))


def run(setup, environ=None, **fields):
    ledger = agent_ledger(setup, lambda: NOW)
    return run_preflight(setup.run, policy_of(setup, **fields), environ or FAILING, ledger, NOW)


def events(setup):
    lines = setup.run.ledger.read_text().splitlines()
    return [json.loads(line)["body"]["event"] for line in lines]


def test_warn_records_and_goes_on(setup):
    preflight = run(setup, fail_on=Severity.INFO)
    assert preflight.result is not None
    (asset,) = json.loads(setup.run.audit.read_text())["assets"]
    assert asset["asset"] == f"node:{preflight.result.about}"
    (event,) = events(setup)
    assert event["event"] in {"preflight-warned", "preflight-passed"}
    assert event["details"]["fail"] == preflight.result.counts["fail"]
    assert preflight.failures()
    lines = preflight.warnings(Severity.INFO, limit=1)
    assert len(lines) <= 2
    assert "ST-" in lines[0]


def test_enforce_refuses(setup):
    error = refused(
        RuntimeRefusal,
        "ST-RUNT-003",
        run,
        setup,
        preflight=PreflightMode.ENFORCE,
        fail_on=Severity.INFO,
    )
    assert "checks failed" in error.what
    assert setup.run.audit.exists()
    (event,) = events(setup)
    assert (event["event"], event["code"]) == ("preflight-refused", "ST-RUNT-003")


def test_enforce_refuses_too_little_evidence(setup, monkeypatch):
    from securetrain.launch import preflight as module

    real = vars(module)["audit"]
    monkeypatch.setattr(
        module,
        "audit",
        lambda *a: msgspec.structs.replace(
            real(*a), findings=(), counts={"unknown": 7}, exit_code=3
        ),
    )
    with pytest.raises(RuntimeRefusal) as caught:
        run(setup, preflight=PreflightMode.ENFORCE)
    assert "7 checks are unknown" in caught.value.what


DENIED = {"outcome": Outcome.DENIED, "reason": "only root", "value": None}


@pytest.mark.parametrize(
    ("enforcement", "outcome", "starts"),
    [
        (EnforcementMode.REPORT, Outcome.DENIED, True),
        (EnforcementMode.REPORT, Outcome.ERROR, False),
        (EnforcementMode.REQUIRE, Outcome.DENIED, False),
    ],
)
def test_what_only_root_may_read_is_named_and_an_ordinary_user_starts(
    setup, monkeypatch, enforcement, outcome, starts
):
    """On a machine where nothing else is wrong: the sections of the check are out of reach."""
    from securetrain.launch import preflight as module

    (check,) = [one for one in vars(module)["load_checks"]() if one.id == "ST-NET-002"]
    others = [one for one in vars(module)["load_checks"]() if one.id == "ST-SEC-012"]
    seen = vars(module)["collect_node"](FAILING, now=NOW)
    away = msgspec.structs.replace(seen.node.interfaces, **(DENIED | {"outcome": outcome}))
    node = msgspec.structs.replace(seen.node, interfaces=away)
    monkeypatch.setattr(
        module, "collect_node", lambda *_, **__: msgspec.structs.replace(seen, node=node)
    )
    monkeypatch.setattr(module, "load_checks", lambda: [check, *others])
    policy = msgspec.structs.replace(
        policy_of(setup, preflight=PreflightMode.ENFORCE, max_unknown=5), enforcement=enforcement
    )
    ledger = agent_ledger(setup, lambda: NOW)

    def go():
        return run_preflight(setup.run, policy, FAILING, ledger, NOW)

    if starts:
        done = go()
        assert done.unread == "ST-NET-002"
        assert done.warnings(Severity.HIGH)[-1].endswith("evidence: ST-NET-002")
        (event,) = events(setup)
        assert event["event"] == "preflight-warned"
        assert event["details"]["only-root"] == "ST-NET-002"
    else:
        error = refused(RuntimeRefusal, "ST-RUNT-003", go)
        assert "ST-NET-002" in error.what


def test_the_device_of_an_overlay_counts_before_it_is_made(setup, monkeypatch):
    from securetrain.launch import preflight as module

    environ = {"PATH": "/usr/bin", "NCCL_SOCKET_IFNAME": "=st0"}
    seen = vars(module)["collect_node"](environ, now=NOW)  # once: the machine moves on meanwhile
    monkeypatch.setattr(module, "collect_node", lambda *_, **__: seen)
    ledger = agent_ledger(setup, lambda: NOW)
    policy = policy_of(setup)
    failed = {
        tunnel: {
            finding.check
            for finding in run_preflight(
                setup.run, policy, environ, ledger, NOW, tunnel=tunnel
            ).failures()
        }
        for tunnel in ("", "st0")
    }
    assert failed[""] - failed["st0"] == {"ST-FAB-001"}
    assert failed["st0"] <= failed[""]


def test_off_checks_nothing_and_says_so(setup):
    preflight = run(setup, preflight=PreflightMode.OFF)
    assert preflight.result is None
    assert "not checked" in preflight.sentence
    assert not setup.run.audit.exists()
    assert events(setup)[0]["event"] == "preflight-skipped"
