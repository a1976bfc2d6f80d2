# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import date

import pytest

from securetrain.policy.lint import Level, lint_policy
from tests.tables import items

TODAY = date(2026, 11, 20)
KNOWN = {"ST-NET-011", *(f"ST-RDZ-{number:03}" for number in range(29))}


def remarks(name):
    return lint_policy(name, today=TODAY, known_checks=KNOWN)


@pytest.mark.parametrize("name", ["baseline", "hardened"])
def test_strict_policies_have_nothing_to_remark(name):
    assert remarks(name) == []


def test_the_development_policy_says_what_it_leaves_open():
    found = {r.field: r.level for r in remarks("dev")}
    assert set(found) == {"node.allow_self_asserted.until", "host.preflight", "host.max_unknown"}
    assert set(found.values()) == {Level.WARNING}


GUARD_OFF = """\
gradients: {mode: 'off', threshold: 9.0}
checkpoint: {require_clean_verdict: false}
"""
RDMA = """\
network:
  require: [rdma-trusted]
  fabric: trusted-plaintext
  isolation: {statement: switches of our own, evidence: statement}
"""
WITNESSED = f"checkpoint: {{log: {{witnesses: [{'A' * 60}, {'B' * 60}]}}}}\n"
EXCEPTION = "node: {allow_self_asserted: {max_nodes: 2, reason: spare nodes"


@items(
    "body, field, word",
    (f"{EXCEPTION}}}}}\n", "node.allow_self_asserted.until", "for ever"),
    (f"{EXCEPTION}, until: 2026-12-01}}}}\n", "node.allow_self_asserted", "below min_tier"),
    ("host: {preflight: 'off'}\n", "host.preflight", "not looked at"),
    ("host: {preflight: warn}\n", "host.preflight", "whatever"),
    ("host: {skip_checks: [ST-NET-011]}\n", "host.skip_checks", "ST-NET-011"),
    ("host: {skip_checks: [ST-NET-999]}\n", "host.skip_checks", "there is no check"),
    ("audit: {params: {ST-NET-999: {a: 1}}}\n", "audit.params", "there is no check"),
    ("host: {max_unknown: 30}\n", "host.max_unknown", "all 30"),
    ("supply_chain: {torch_min: 2.6.0}\n", "supply_chain.torch_min", "holes"),
    ("supply_chain: {allow_entry_points: [x]}\n", "supply_chain.allow_entry_points", "x"),
    ("debug: {allow_servers: true}\n", "debug.allow_servers", "servers"),
    (RDMA, "network.require", "without protection"),
    (RDMA, "network.isolation.evidence", "nothing but a sentence"),
    ("fabric: {pin_environment: false}\n", "fabric.pin_environment", "users decide"),
    ("fabric: {allow_environment: ['NCCL_*']}\n", "fabric.allow_environment", "NCCL_TUNER_PLUGIN"),
    ("checkpoint: {unpickle: warn}\n", "checkpoint.unpickle", "any code"),
    ("checkpoint: {unpickle: 'off'}\n", "checkpoint.unpickle", "any code"),
    ("checkpoint: {allow_globals: [os.system]}\n", "checkpoint.allow_globals", "os.system"),
    ("checkpoint: {log: {}}\n", "checkpoint.log.witnesses", "rewrite itself"),
    (WITNESSED, "checkpoint.log.quorum", "in common"),
    ("checkpoint: {require_lineage: false}\n", "checkpoint.require_lineage", "no run"),
    ("checkpoint: {require_clean_verdict: false}\n", "checkpoint.require_clean_verdict", ""),
    ("gradients: {response: observe}\n", "gradients.response", "applied all the same"),
    ("gradients: {response: halt}\n", "gradients.response", "up to 32% of honest runs"),
    ("gradients: {threshold: 6.0}\n", "gradients.threshold", "steps: 100"),
    ("gradients: {threshold: 8.0}\n", "gradients.threshold", "steps: 20"),
    ("gradients: {warmup_steps: 20}\n", "gradients.warmup_steps", "no longer used"),
    (GUARD_OFF, "gradients.threshold", "no effect"),
    (GUARD_OFF, "gradients.mode", "nobody watches"),
)
def test_an_open_door_is_a_warning(write, body, field, word):
    found = [r for r in remarks(write(body)) if r.field == field and word in r.what]
    assert found, remarks(write(body))
    assert all(r.level is Level.WARNING and r.fix for r in found)


@pytest.mark.parametrize("budget", [0.5, 1])
def test_a_run_may_end_at_an_alarm_that_is_hardly_ever_false(write, budget):
    fields = f"{{response: halt, false_alarms_per_million_rank_steps: {budget}}}"
    assert not [r for r in remarks(write(f"gradients: {fields}\n")) if "gradients" in r.field]


def test_every_variable_that_loads_code_is_named_whatever_pattern_allows_it(write):
    allowed = write("fabric: {allow_environment: [NCCL_DEBUG, 'NCCL_*_PLUGIN']}\n")
    (found,) = [r for r in remarks(allowed) if r.field == "fabric.allow_environment"]
    assert "NCCL_TUNER_PLUGIN" in found.what
    assert "NCCL_COMM_ID" not in found.what


@items(
    "body, field",
    (f"{EXCEPTION}, until: 2026-11-19}}}}\n", "node.allow_self_asserted.until"),
    ("supply_chain: {torch_min: newest}\n", "supply_chain.torch_min"),
)
def test_what_cannot_work_is_an_error(write, body, field):
    (error,) = [r for r in remarks(write(body)) if r.level is Level.ERROR]
    assert error.field == field


def test_the_last_day_of_an_exception_is_inclusive(write):
    levels = {r.level for r in remarks(write(f"{EXCEPTION}, until: 2026-11-20}}}}\n"))}
    assert levels == {Level.WARNING}


def test_a_policy_that_does_not_load_is_one_error_with_its_code(write):
    (error,) = remarks(write("colour: red\n"))
    assert (error.level, error.code) == (Level.ERROR, "ST-PLCY-002")


def test_without_a_catalogue_check_ids_are_not_judged(write):
    path = write("host: {skip_checks: [ST-NET-999]}\n")
    found = lint_policy(path, today=TODAY)
    assert not [r for r in found if "there is no check" in r.what]
