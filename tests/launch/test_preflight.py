# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
import os
from datetime import UTC, datetime
from functools import partial
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from securetrain.audit import audit, load_checks
from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.collect.node import collect_node
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import EnforcementMode, PreflightMode, Severity
from securetrain.launch.node.preflight import AuditProcess, run_preflight, start_preflight
from securetrain.launch.setup import agent_ledger, prepare_run
from tests.tables import items
from tests.vocabulary import changed, refused

NOW = datetime(2026, 1, 2, tzinfo=UTC)
COLLECT = "securetrain.audit.subjects.node.collect.node.collect_node"

# Whatever the machine is like, this fails: a fabric variable that names no interface exactly.
FAILING = {"PATH": "/usr/bin", "LD_PRELOAD": "/tmp/x.so"}


@pytest.fixture
def setup(tmp_path):
    return prepare_run(tmp_path / "run", "dev", NOW)


def policy_of(setup, **fields):
    policy = setup.policy.policy
    return changed(policy, host=fields)


def run(setup, environ=None, **fields):
    ledger = agent_ledger(setup, lambda: NOW)
    return run_preflight(setup.run, policy_of(setup, **fields), environ or FAILING, ledger, NOW)


def events(setup):
    lines = setup.run.ledger.read_text().splitlines()[1:]
    return [json.loads(line)["body"]["event"] for line in lines]


def test_warn_records_and_goes_on(setup):
    done = run(setup, fail_on=Severity.INFO)
    assert done.result is not None
    (asset,) = json.loads(setup.run.audit.read_text())["assets"]
    assert asset["asset"] == f"node:{done.result.about}"
    (event,) = events(setup)
    assert event["event"] in {"preflight-warned", "preflight-passed"}
    assert event["details"]["fail"] == done.result.counts["fail"]
    assert done.failures()
    assert "ST-" in done.warnings(Severity.INFO, limit=1)[0]


def test_enforce_refuses(setup):
    mode = PreflightMode.ENFORCE
    error = refused(
        RuntimeRefusal, "ST-RUNT-003", run, setup, preflight=mode, fail_on=Severity.INFO
    )
    assert "checks failed" in error.what
    assert setup.run.audit.exists()
    (event,) = events(setup)
    assert (event["event"], event["code"]) == ("preflight-refused", "ST-RUNT-003")


def test_enforce_refuses_too_little_evidence(setup, monkeypatch):
    blind = {"findings": (), "counts": {"unknown": 7}, "exit_code": 3}
    monkeypatch.setattr("securetrain.audit.audit", lambda *given: replace(audit(*given), **blind))
    error = refused(RuntimeRefusal, "ST-RUNT-003", run, setup, preflight=PreflightMode.ENFORCE)
    assert "7 checks are unknown" in error.what


@items(
    "enforcement, outcome, starts",
    ("report", "denied", True),
    ("report", "error", False),
    ("require", "denied", False),
)
def test_an_ordinary_user_starts(setup, monkeypatch, enforcement, outcome, starts):
    """Where nothing is wrong but that root alone may read the evidence of a check."""
    checks = [one for one in load_checks() if one.id in {"ST-NET-002", "ST-SEC-012"}]
    seen = collect_node(FAILING, now=NOW)
    gone = replace(seen.node.interfaces, outcome=Outcome(outcome), reason="x", value=None)
    facts = changed(seen, node={"interfaces": gone})
    monkeypatch.setattr(COLLECT, lambda *_, **__: facts)
    monkeypatch.setattr("securetrain.audit.load_checks", lambda: checks)
    policy = policy_of(setup, preflight=PreflightMode.ENFORCE, max_unknown=5)
    policy = replace(policy, enforcement=EnforcementMode(enforcement))
    go = partial(run_preflight, setup.run, policy, FAILING, agent_ledger(setup, lambda: NOW), NOW)
    if not starts:
        assert "ST-NET-002" in refused(RuntimeRefusal, "ST-RUNT-003", go).what
        return
    assert go().warnings(Severity.HIGH)[-1].endswith("evidence: ST-NET-002")
    (event,) = events(setup)
    assert (event["event"], event["details"]["only-root"]) == ("preflight-warned", "ST-NET-002")


def test_the_device_of_an_overlay_counts_before_it_is_made(setup, monkeypatch):
    environ = {"PATH": "/usr/bin", "NCCL_SOCKET_IFNAME": "=st0"}
    seen = collect_node(environ, now=NOW)  # once: the machine moves on meanwhile
    monkeypatch.setattr(COLLECT, lambda *_, **__: seen)
    given = (setup.run, policy_of(setup), environ, agent_ledger(setup, lambda: NOW), NOW)
    without, beside = (run_preflight(*given, tunnel=tunnel).failures() for tunnel in ("", "st0"))
    failed = {"": {one.check for one in without}, "st0": {one.check for one in beside}}
    assert failed[""] - failed["st0"] == {"ST-FAB-001"}
    assert failed["st0"] <= failed[""]


@items("child", "answers", "dies", "is refused")
def test_the_audit_of_another_process_is_the_launchers_own(setup, monkeypatch, child):
    """Whatever becomes of that process: no node starts unaudited, or on a gentler audit."""
    seen, fork = collect_node(FAILING, now=NOW), os.fork
    monkeypatch.setattr(COLLECT, lambda *_, **__: seen)
    dies, none = (lambda: fork() or os._exit(1)), Mock(side_effect=OSError)
    monkeypatch.setattr(os, "fork", {"answers": fork, "dies": dies, "is refused": none}[child])
    given = (setup.run, policy_of(setup), FAILING, agent_ledger(setup, lambda: NOW), NOW)
    with AuditProcess.started(PreflightMode.WARN) as process:
        found = start_preflight(*given, process=process)()
    first, second = (one.result and one.result.to_json() for one in (found, run_preflight(*given)))
    assert first == second is not None


def test_off_checks_nothing_and_says_so(setup):
    done = run(setup, preflight=PreflightMode.OFF)
    assert done.result is None
    assert "not checked" in done.sentence
    assert not setup.run.audit.exists()
    assert events(setup)[0]["event"] == "preflight-skipped"
