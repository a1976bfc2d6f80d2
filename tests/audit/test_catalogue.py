# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every check against its own fixtures, and the whole catalogue against missing evidence."""

import dataclasses
import itertools
import json
import re
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from securetrain.audit.documents import EVIDENCE, Document, facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.check import FUNCTIONS, tuned
from securetrain.audit.engine.fields import View, _open
from securetrain.audit.engine.findings import worst_states
from securetrain.audit.engine.function import function
from securetrain.audit.engine.functions.paths import PathArgs, paths_safe
from securetrain.audit.engine.judging import Comparison, judge
from securetrain.audit.facts import End, Entry, Location
from securetrain.audit.sources.catalogue import load_check_file, load_checks
from securetrain.audit.subjects.node.facts.node import Node
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import State
from tests.audit.conftest import FIXTURES
from tests.audit.declared import declared, missing, missing_evidence
from tests.tables import each
from tests.vocabulary import refused

CHECKS = load_checks()
IDS = [check.id for check in CHECKS]

# A fault that several checks rightly see: each fixture's failures beside the intended one.
ALSO = {
    "store-on-any-address": {"ST-NET-011"},
    "torch-on-any-address": {"ST-NET-011"},
    "tensorboard": {"ST-NET-011"},
    "jupyter-beyond-loopback": {"ST-NET-011"},
    "ray-dashboard": {"ST-NET-011"},
    "debugger": {"ST-NET-011"},
    "mlflow": {"ST-NET-011"},
    "node-key-open": {"ST-RDZ-015"},
    "authority-key-open": {"ST-SEC-011"},
    "key-clear-on-nfs": {"ST-SEC-003"},
    "udp-of-nobody": {"ST-FAB-003", "ST-NET-006"},
    "gloo-interface-differs": {"ST-FAB-003"},
    "management-by-a-route": {"ST-NET-006"},
    "cloud-metadata": {"ST-NET-009"},
    "torch-unfiltered": {"ST-NET-006", "ST-NET-011"},
    "slurmd-unfiltered": {"ST-NET-006", "ST-NET-011"},
    "rpc": {"ST-NET-011", "ST-RDZ-002"},
    "gloo-tls-missing": {"ST-FAB-021"},
    "node-never-admitted": {"ST-RDZ-014"},
    "rank-on-a-node-never-admitted": {"ST-HST-001"},
    "nccl-comm-id-in-env": {"ST-FAB-021"},
    "nccl-comm-id-in-file": {"ST-FAB-021"},
    "environment-comm-id": {"ST-FAB-021"},
    "advisories-old": {"ST-AUD-006", "ST-SEC-010", "ST-SEC-011"},
    "nccl-interface-unset": set(),
    "pod-sys-nice": {"ST-K8S-040"},
    "pod-user-unset": {"ST-K8S-040"},
    "nccl-interface-absent": {"ST-FAB-001", "ST-FAB-002"},
    "nccl-interface-excluded": {"ST-FAB-002"},
} | {name: set(seen) for one in declared(FIXTURES) for name, seen in one.also.items()}

# A title names a setting: one that states the fault would say it of a check that passes, too.
SENTENCE = re.compile(
    r"^(?:An?|The|Others?|Somebody|Nobody|Every)\b|"
    r"\b(?:is|are|was|were|has|have|can|may|must|would|does|do|not|no|nobody|lets?|lacks?|stands?)\b|"
    r"\.$|^.{65}"
)


def state_of(check, case):
    return worst(check, case.facts.documents, case.policy, case.now)


def worst(check, documents, policy, now):
    """The state of a check over all of these documents."""
    (check,) = tuned([check], policy)
    views = [View(document=document, policy=policy, now=now) for document in documents]
    if check.across is None:
        findings = [finding for view in views for finding in judge(check, view)]
    else:
        comparison = Comparison(check)
        for view in views:
            comparison.see(view)
        findings = comparison.findings()
    return worst_states(findings)[check.id]


def test_at_least_twenty_node_checks_with_every_word_that_a_person_needs():
    assert len(CHECKS) >= 20
    for check in CHECKS:
        spec = check.spec
        assert spec.remediation.strip().endswith("."), check.id
        assert spec.rationale.strip().endswith("."), check.id
        assert spec.refs.nist or spec.refs.atlas, check.id
        assert spec.evidence, check.id
        assert not SENTENCE.search(spec.title), check.id


@each("check", {check.id: check for check in CHECKS})
def test_each_check_says_what_its_fixtures_are_for(fixtures, check):
    for wanted, names in check.spec.tests.by_state.items():
        for name in names:
            assert state_of(check, fixtures.case_of(check, name)) is wanted, name


def test_a_forgotten_fixture_is_a_sentence_that_names_its_file(fixtures):
    check = next(check for check in CHECKS if check.kind == "node" and check.spec.tests.fail)
    spec = msgspec.structs.replace(check.spec.tests, fail=("forgotten",))
    forgetful = dataclasses.replace(check, spec=msgspec.structs.replace(check.spec, tests=spec))
    said = missing("forgotten", "node", [forgetful])
    assert f"{check.id} names the fixture 'forgotten'" in said
    assert f"tests/audit/fixtures/checks/{check.id.lower()}.yaml" in said
    assert "docs/contributing/audit-check.md" in said
    with pytest.raises(pytest.fail.Exception, match="the fixture 'forgotten' of kind node"):
        fixtures.case_of(forgetful, "forgotten")
    refused(pytest.fail.Exception, r"has no node\.forgotten", fixtures.case, "no-forgotten")


def test_every_fixture_is_used_by_a_check(fixtures):
    used = {
        (check.kind, name)
        for check in CHECKS
        for names in check.spec.tests.by_state.values()
        for name in names
    }
    there = {(kind, name) for kind, names in fixtures.changes.items() for name in names}
    assert there <= used


@pytest.mark.parametrize("kind", sorted({check.kind for check in CHECKS}))
def test_the_reference_of_each_kind_passes_everything(kind, case, now):
    result = audit(case("reference", kind).facts, CHECKS, case("reference").policy, now)
    alone = {check.id for check in CHECKS if check.across is not None}
    good = {State.PASS, State.NOT_APPLICABLE}  # of a kind that the check is not about
    bad = {f.check: f.state for f in result.findings if f.state not in good}
    assert {check: state for check, state in bad.items() if check not in alone} == {}
    assert result.exit_code == 0


@pytest.fixture(scope="module")
def failed_in(fixtures):
    """The checks that fail in a fixture, which is audited once for all checks that name it."""
    found: dict[tuple[str, str, bool], set[str]] = {}

    def look(check, name):
        key = (check.kind, name, check.across is not None)
        if key not in found:
            there = fixtures.case_of(check, name)
            result = audit(there.facts, CHECKS, there.policy, there.now)
            found[key] = {one.check for one in result.of(State.FAIL)}
        return found[key]

    return look


@each("check", {check.id: check for check in CHECKS})
def test_a_single_fault_flips_the_intended_check_only(failed_in, check):
    for name in check.spec.tests.fail:
        failed = failed_in(check, name)
        assert check.id in failed
        assert failed - {check.id} <= ALSO.get(name, set()), name


@pytest.mark.parametrize("outcome", ["denied", "absent", "error", "timeout"])
def test_no_check_passes_when_any_declared_evidence_is_taken_away(outcome, fixtures, now, subtests):
    for check in CHECKS:
        with subtests.test(check.id):
            for name in check.spec.evidence:
                root, field = name.split(".")
                there = fixtures.references[check.kind][root].get(field)
                assert there is not None, missing_evidence(name, check.kind)
                if not (isinstance(there, dict) and "outcome" in there):
                    continue  # no collector's outcome: its emptiness is in the fixtures
                documents = [*fixtures.facts_without(field, check.kind, outcome).documents]
                if check.across is not None:
                    documents += fixtures.facts_of(*fixtures.neighbours(check.kind)).documents
                state = worst(check, documents, fixtures.policy, now)
                may_fail = (
                    outcome == "absent" and "at" in there
                )  # a reading that is absent is an answer
                answers = {State.FAIL, State.NOT_APPLICABLE} if may_fail else set()
                assert state in {State.UNKNOWN, *answers}, name


@pytest.mark.parametrize(
    ("check", "fixture", "evidence"),
    [
        ("ST-SLM-001", "auth-none", {"slurm.auth_type"}),
        ("ST-SLM-001", "auth-alt-none", {"slurm.auth_alt_types"}),
        ("ST-K8S-016", "pod-ingress-only", {"egress.limited"}),
    ],
)
def test_a_finding_shows_the_clause_that_decided(check, fixture, evidence, fixtures):
    (check,) = (one for one in CHECKS if one.id == check)
    case = fixtures.case_of(check, fixture)
    view = View(document=case.facts.documents[0], policy=case.policy, now=case.now)
    (finding,) = judge(check, view)
    assert {*finding.evidence} == evidence
    assert finding.reason == ""


def test_a_default_is_called_one(fixtures):
    (check,) = (one for one in CHECKS if one.id == "ST-K8S-014")
    case = fixtures.case("pod-token-by-default", "workload")
    view = View(document=case.facts.documents[0], policy=case.policy, now=case.now)
    assert judge(check, view)[0].reason == "account.token_mounted is not set"


@each("check", {check.id: check for check in CHECKS})
def test_forgetting_a_value_never_turns_a_failure_into_a_pass(fixtures, check):
    """Sweep: in a failing fixture, make every nullable field unknown, one at a time."""
    forget_each(check, fixtures, check.spec.tests.fail[:1])


@pytest.mark.many
@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_nor_does_forgetting_one_of_any_other_failure(check, fixtures):
    forget_each(check, fixtures, check.spec.tests.fail[1:])


def forget_each(check, fixtures, names):
    for name in names:
        failing = fixtures.case_of(check, name)
        documents = list(failing.facts.documents)
        for i, evidence in itertools.product(range(len(documents)), check.spec.evidence):
            plain = json.loads(documents[i].body.to_json())
            for mutated in forgotten(plain, evidence, fixtures, check):
                several = [*documents[:i], mutated, *documents[i + 1 :]]
                state = worst(check, several, failing.policy, failing.now)
                assert state is not State.PASS, evidence


def forgotten(
    document: dict[str, Any], evidence: str, fixtures: Any, check: Any
) -> Iterator[Document]:
    """Copies in which one record with an outcome was denied, or one nullable field is null.

    What the check does not read is left as it is.
    """
    root, field = evidence.split(".")
    whole = {"value": document[root][field]}
    for way in places(whole, ()):
        if not is_read(check, (root, field, *way)):
            continue
        there = at(whole, way)
        for key in ["outcome"] if "outcome" in there else list(there):
            record = document[root] | {field: without(whole, way, key)["value"]}
            try:
                yield fixtures.document_of(document | {root: record})
            except AuditError:
                continue  # not a nullable field: no collector can produce this


def is_read(check: Any, way: tuple[Any, ...]) -> bool:
    """Whether a check reads something at this place, around it or below it."""
    steps = tuple("*" if isinstance(one, int) else one for one in way if one != "value")
    return any(
        all(b in {a, "*"} for a, b in zip(steps, path, strict=False)) for path in check.reads
    )


def without(value: Any, way: tuple[Any, ...], key: str) -> Any:
    """A copy whose record at the end of the way forgot something; the rest is the same objects."""
    changed = value.copy()
    if way:
        changed[way[0]] = without(value[way[0]], way[1:], key)
    else:
        forget(changed, key)
    return changed


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
            if key != "at":  # where it stands decides nothing
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
    "node.indexes.*.options.*.host",
    "node.indexes.*.options.*.line",
    "node.indexes.*.path",
    "node.records.changed.*.path",
    "node.records.distributions",
    "node.records.files",
    "node.requirements.*.origin",
    "node.artifacts.checkpoints.*.origin",
    "node.artifacts.checkpoints.*.problems.*.code",
    "node.artifacts.checkpoints.*.problems.*.file",
    "node.artifacts.checkpoints.*.problems.*.what",
    "node.artifacts.checkpoints.*.unsafe.*.file",
    "node.artifacts.checkpoints.*.unsafe.*.what",
    "node.artifacts.datasets.*.origin",
    "node.artifacts.datasets.*.problems.*.code",
    "node.artifacts.datasets.*.problems.*.file",
    "node.artifacts.datasets.*.problems.*.what",
    "node.artifacts.datasets.*.sampled_bytes",
    "node.artifacts.pointers.*.path",
    "node.artifacts.pointers.*.target",
    "node.network_mounts.*.fstype",
    "node.network_mounts.*.target",
    "node.listeners.*.address",
    "node.rdma.devices.*.path",
    "node.rdma.devices.*.uid",
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
    with pytest.raises(AuditError) as error:
        load_text(tmp_path, text)
    assert error.value.code == "ST-AUDT-001"
    assert message in error.value.what
    assert "x.yaml" in error.value.where


def test_an_id_may_stand_once(tmp_path):
    (tmp_path / "a.yaml").write_text(VALID)
    (tmp_path / "b.yaml").write_text(VALID)
    refused(AuditError, "also defined", load_checks, tmp_path)


def test_an_empty_directory_is_an_error_and_not_a_clean_audit(tmp_path):
    refused(AuditError, "0 check files", load_checks, tmp_path)


def test_a_function_is_registered_once():
    with pytest.raises(ValueError, match=r"paths\.safe_from_others: taken already"):
        function("paths.safe_from_others", reads=())(paths_safe)
    assert FUNCTIONS["paths.safe_from_others"].args is PathArgs
    assert list(FUNCTIONS) == sorted(FUNCTIONS)


def test_no_check_passes_beside_an_open_entry_and_none_changes_beside_a_read_one(
    fixtures, subtests
):
    """The same fixtures with one more entry of the ledger, for each evidence of each check."""
    at = Location(path="x", line=7)
    for check in CHECKS:
        if check.across is not None:
            continue
        with subtests.test(check.id):
            names = (*check.spec.tests.passes[:1], *check.spec.tests.fail[:1])
            for name in (*names, *check.spec.tests.not_applicable):
                case = fixtures.case_of(check, name)
                before = state_of(check, case)
                closed = before in {State.PASS, State.NOT_APPLICABLE}
                for evidence in check.spec.evidence:
                    hole = Entry(
                        unit="word", at=at, end=End.NOT_UNDERSTOOD, why="$X", bears_on=(evidence,)
                    )
                    wanted = State.UNKNOWN if closed else before
                    assert state_of(check, beside(case, hole)) is wanted, (name, evidence)
                twin = Entry(unit="word", at=at, end=End.READ, bears_on=check.spec.evidence)
                assert state_of(check, beside(case, twin)) is before, name


def beside(case, entry):
    bodies = (one.body for one in case.facts.documents)
    more = [msgspec.structs.replace(one, ledger=(*one.ledger, entry)) for one in bodies]
    return dataclasses.replace(case, facts=facts_of(more))
