# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every check against its own fixtures, and the whole catalogue against missing evidence."""

import copy
import json
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from securetrain.audit.catalogue import load_check_file, load_checks
from securetrain.audit.documents import Document
from securetrain.audit.engine import audit, judge, worst_states
from securetrain.audit.facts import EVIDENCE, Node
from securetrain.audit.fields import View, _open
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import State
from tests.audit.conftest import view_of

CHECKS = load_checks()
IDS = [check.id for check in CHECKS]

# A fault that several checks rightly see: each fixture's failures beside the intended one.
ALSO = {
    "store-on-any-address": {"ST-NET-011"},
    "torch-on-any-address": {"ST-NET-011"},
    "nccl-comm-id-in-env": {"ST-FAB-021"},
    "nccl-comm-id-in-file": {"ST-FAB-021"},
    "nccl-interface-unset": set(),
    "nccl-interface-absent": {"ST-FAB-001", "ST-FAB-002"},
    "nccl-interface-excluded": {"ST-FAB-002"},
}


def state_of(check, case, now):
    findings = judge(check, View(document=case.document, policy=case.policy, now=now))
    return worst_states(findings)[check.id]


def test_at_least_twenty_node_checks_with_every_word_that_a_person_needs():
    assert len(CHECKS) >= 20
    for check in CHECKS:
        spec = check.spec
        assert spec.remediation.strip().endswith("."), check.id
        assert spec.rationale.strip().endswith("."), check.id
        assert spec.refs.nist or spec.refs.atlas, check.id
        assert spec.evidence, check.id


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_each_check_says_what_its_fixtures_are_for(check, case, now):
    for wanted, names in (
        (State.PASS, check.spec.tests.passes),
        (State.FAIL, check.spec.tests.fail),
        (State.UNKNOWN, check.spec.tests.unknown),
    ):
        for name in names:
            assert state_of(check, case(name), now) is wanted, name


def test_every_fixture_is_used_by_a_check(fixtures):
    used = {
        name
        for check in CHECKS
        for names in (check.spec.tests.passes, check.spec.tests.fail, check.spec.tests.unknown)
        for name in names
    }
    assert set(fixtures.mutations) <= used


def test_the_reference_node_passes_everything(case, now):
    result = audit(case("reference").facts, CHECKS, case("reference").policy, now)
    assert {f.check: f.state for f in result.findings if f.state is not State.PASS} == {}
    assert result.exit_code == 0


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_a_single_fault_flips_the_intended_check_only(check, case, now):
    for name in check.spec.tests.fail:
        result = audit(case(name).facts, CHECKS, case(name).policy, now)
        failed = {f.check for f in result.of(State.FAIL)}
        assert check.id in failed
        assert failed - {check.id} <= ALSO.get(name, set()), name


@pytest.mark.parametrize("outcome", ["denied", "absent", "error", "timeout"])
@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_no_check_passes_when_any_declared_evidence_is_taken_away(check, outcome, fixtures):
    for name in check.spec.evidence:
        document = copy.deepcopy(fixtures.reference)
        document["node"][name.removeprefix("node.")] = fixtures.gone(outcome)
        assert worst_states(judge(check, view_of(fixtures, document)))[check.id] is State.UNKNOWN, (
            name
        )


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_forgetting_a_value_never_turns_a_failure_into_a_pass(check, case, fixtures, now):
    """Sweep: in each failing fixture, make every nullable field unknown, one at a time."""
    for name in check.spec.tests.fail:
        failing = case(name)
        plain = json.loads(failing.document.body.to_json())
        for evidence in check.spec.evidence:
            section = evidence.removeprefix("node.")
            for mutated in forgotten(plain, section, fixtures):
                view = View(document=mutated, policy=failing.policy, now=now)
                assert worst_states(judge(check, view))[check.id] is not State.PASS, evidence


def forgotten(document: dict[str, Any], section: str, fixtures: Any) -> Iterator[Document]:
    """Copies in which one record with an outcome was denied, or one nullable field is null."""
    for way in places(document["node"][section]["value"], ()):
        for key in list(at(document["node"][section]["value"], way)):
            changed = copy.deepcopy(document["node"][section])
            forget(at(changed["value"], way), key)
            try:
                facts = fixtures.facts_of(
                    document | {"node": document["node"] | {section: changed}}
                )
            except AuditError:
                continue  # not a nullable field: no collector can produce this
            yield facts.documents[0]


def forget(record: dict[str, Any], key: str) -> None:
    if key != "outcome":
        record[key] = None
        return
    record["outcome"] = "denied"
    for field in ("value", "options", "uid", "mode", "network_filesystem"):
        if field in record:
            record[field] = None


def places(value: Any, way: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        yield way
        for key, inner in value.items():
            yield from places(inner, (*way, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from places(inner, (*way, i))


def at(value: Any, way: tuple[Any, ...]) -> Any:
    for step in way:
        value = value[step]
    return value


def test_every_evidence_name_is_a_section():
    assert "node.listeners" in EVIDENCE
    assert {name for check in CHECKS for name in check.spec.evidence} <= set(EVIDENCE)


# Shown in a finding to whoever reads it, and compared with nothing.
SHOWN_ONLY = {
    "node.listeners.*.address",
    "node.listeners.*.process.pid",
    "node.listeners.*.process.name",
    "node.mounts.*.fstype",
    "node.secrets.*.path",
    "node.shm.*.name",
    "node.shm.*.uid",
    "node.entry_points.*.value",
    "node.python.startup_files.*.path",
    "node.ssh.*.path",
    "node.ssh.*.options.*.line",
    "node.sshd.path",
    "node.context.services",
}


def leaves(path: tuple[str, ...], hint: Any) -> Iterator[tuple[str, ...]]:
    """Every value that a facts document has a place for."""
    hint = _open(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        names = typing.get_args(args[0]) if typing.get_origin(args[0]) is typing.Literal else ["*"]
        for name in names:
            yield from leaves((*path, name), args[1])
    elif origin is tuple and isinstance(_open(args[0]), type(Node)):
        yield from leaves((*path, "*"), args[0])
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        for name, inner in typing.get_type_hints(hint).items():
            if name not in {"outcome", "reason"}:
                yield from leaves((*path, name), inner)
    else:
        yield path


def test_no_evidence_is_collected_that_no_check_reads():
    read = {".".join(path) for check in CHECKS for path in check.reads}
    # A package is named by the check that asks for it.
    read |= {"node.packages.*.version"} if "node.packages.torch.version" in read else set()
    collected = {".".join(leaf) for leaf in leaves(("node",), Node)}
    assert "node.hardware.tpm" in collected
    assert sorted(collected - read - SHOWN_ONLY) == []
    assert sorted(SHOWN_ONLY - collected) == []


VALID = """\
apiVersion: securetrain.dev/policy/v1
kind: CheckSet
metadata: {id: x, version: 1.0.0}
checks:
- id: ST-XXX-001
  title: Something about the kernel is wrong
  severity: low
  boundary: host
  threats: [T-HST-001]
  subject: node
  evidence: [node.sysctls]
  assert: {field: [node, sysctls, kernel.kptr_restrict], op: ge, value: 1}
  rationale: Because it matters.
  remediation: Change the setting.
  fixed_by: administrator
  refs: {nist: [CM-6]}
  tests: {pass: [reference], fail: [x], unknown: [y]}
"""


def load_text(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return load_check_file(path)


def test_the_valid_example_is_valid(tmp_path):
    assert load_text(tmp_path, VALID)[0].id == "ST-XXX-001"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel.kptr_restrict", "kernel.kptr_restrct", "is not collected"),
        ("[node, sysctls, kernel.kptr_restrict]", "[node, sysctl]", "has no field"),
        ("[node, sysctls, kernel.kptr_restrict]", "[node, sysctls, kernel.kptr_restrict, outcome]",
         "has no fields"),
        ("[node, sysctls, kernel.kptr_restrict]", "[nodes]", "is not one of"),
        ("[node, sysctls, kernel.kptr_restrict]", "node", "a list of names"),
        ("op: ge", "op: gte", "unknown operator"),
        ("op: ge", "op: starts", "does not take"),
        ("op: ge", "op: exists", "takes no operand"),
        ("value: 1", "value: '1'", "does not fit"),
        ("value: 1", "value: true", "does not fit"),
        ("value: 1", "param: least", "no param"),
        ("value: 1", "ref: [job, user]", "another type"),
        ("value: 1}", "value: 1, ref: [job, uid]}", "exactly one"),
        ("evidence: [node.sysctls]", "evidence: [node.sysctls, node.env]", "declares"),
        ("evidence: [node.sysctls]", "evidence: []", "declares"),
        ("evidence: [node.sysctls]", "evidence: [node.sysctlz]", "no evidence"),
        ("subject: node", "subject: node.env", "[*]"),
        ("subject: node", "subject: node.env[*]", "needs none or every"),
        ("boundary: host", "boundary: orchestrator", "Invalid enum value"),
        ("severity: low", "severity: severe", "Invalid enum value"),
        ("id: ST-XXX-001", "id: ST-XXXX-001", "matching regex"),
        ("fixed_by: administrator", "fixed_by: nobody", "Invalid enum value"),
        ("kind: CheckSet", "kind: Checks", "Invalid enum value"),
        ("  refs:", "  colour: red\n  refs:", "unknown field"),
        ("fail: [x]", "fail: []", "length"),
        ("refs: {nist: [CM-6]}", "refs: {atlas: [AML.T0010]}", "matching regex"),
        ("assert: {field", "assert: {all: [], x: {field", "unknown keys"),
        ("value: 1}", "value: 1}\n  call: {fn: a}", "either assert or call"),
        ("assert: {field: [node, sysctls, kernel.kptr_restrict], op: ge, value: 1}",
         "call: {fn: os.system}", "no function"),
        ("evidence:", "params: {least: {type: int, default: 1}}\n  evidence:", "not used"),
        ("evidence:", "params: {least: {type: int, default: one}}\n  evidence:", "Expected `int`"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_check_is_an_error(tmp_path, old, new, message):
    assert old in VALID
    text = VALID.replace(old, new, 1)
    if "all: []" in new:
        text = text.replace("value: 1}", "value: 1}}")
    with pytest.raises(AuditError) as refused:
        load_text(tmp_path, text)
    assert refused.value.code == "ST-AUDT-001"
    assert message in refused.value.what
    assert "x.yaml" in refused.value.where


def test_an_id_may_stand_once(tmp_path):
    (tmp_path / "a.yaml").write_text(VALID)
    (tmp_path / "b.yaml").write_text(VALID)
    with pytest.raises(AuditError, match="also defined"):
        load_checks(tmp_path)


def test_an_empty_directory_is_an_error_and_not_a_clean_audit(tmp_path):
    with pytest.raises(AuditError, match="0 check files"):
        load_checks(tmp_path)
