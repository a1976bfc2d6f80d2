# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Kinds of assets beside nodes: what the engine does with any of them."""

import msgspec
import pytest

from securetrain.audit.engine.audit import audit
from securetrain.audit.facts import Location
from securetrain.audit.sources.catalogue import load_check_file
from securetrain.audit.sources.stored import StoredFacts
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import State
from tests.audit.shelf import CHECK, Box, Rack, not_ok, ok
from tests.vocabulary import refused

BOXES = '{none: [shelf, racks, "*", boxes], where: {field: [privileged], op: eq, value: true}}'


def boxes(*made):
    return (Rack(name="Worker", boxes=ok(made)),)


def test_a_nested_subject_gives_a_finding_for_each_element_at_its_own_line(run_check, shelf):
    bad = Box(name="trainer", line=40, privileged=ok(value=True, line=41))
    well = Box(name="log", line=50, privileged=ok(value=False, line=51))
    found = run_check(
        shelf(racks=boxes(bad, well)),
        subject="shelf.racks[*].boxes[*]",
        evidence="shelf.racks",
        predicate=BOXES,
    )
    (finding,) = found
    assert finding.state is State.FAIL
    assert finding.asset == "sample:a"
    assert finding.subject == "shelf.racks[Worker].boxes[trainer]"
    assert finding.location == Location(path="a.yaml", line=41)
    assert finding.evidence == {"privileged": True}


def test_two_elements_of_one_name_have_fingerprints_of_their_own(run_check, shelf):
    bad = Box(name="", line=40, privileged=ok(value=True, line=41))
    twins = [Box(name="x", privileged=ok(value=True)) for _ in range(2)]
    found = run_check(
        shelf(racks=boxes(bad, *twins)),
        subject="shelf.racks[*].boxes[*]",
        evidence="shelf.racks",
        predicate=BOXES,
    )
    assert [finding.subject for finding in found] == [
        "shelf.racks[Worker].boxes[#1]",
        "shelf.racks[Worker].boxes[x]",
        "shelf.racks[Worker].boxes[x]#2",
    ]
    assert len({finding.fingerprint for finding in found}) == 3


def test_what_a_template_leaves_open_is_unknown_and_names_the_variable(run_check, shelf):
    loose = Box(name="trainer", line=40, privileged=not_ok("templated", "${PRIVILEGED}", 41))
    subject = {"subject": "shelf.racks[*].boxes[*]", "evidence": "shelf.racks"}
    (finding,) = run_check(shelf(racks=boxes(loose)), **subject, predicate=BOXES)
    assert finding.state is State.UNKNOWN
    assert finding.reason == "privileged: templated: ${PRIVILEGED}"
    assert finding.location == Location(path="a.yaml", line=41)
    # neither does it answer whether there is one
    for op in ("exists", "missing"):
        predicate = BOXES.replace("op: eq, value: true", f"op: {op}")
        (finding,) = run_check(shelf(racks=boxes(loose)), **subject, predicate=predicate)
        assert finding.state is State.UNKNOWN


def test_a_collection_on_the_way_that_is_not_known_is_unknown_for_its_parent(run_check, shelf):
    racks = (
        Rack(name="Worker", boxes=not_ok("templated", "{{ .Values.boxes }}", 7)),
        Rack(name="Master", boxes=not_ok("absent", "no boxes", 9)),
    )
    subject = {"subject": "shelf.racks[*].boxes[*]", "evidence": "shelf.racks"}
    (finding,) = run_check(shelf(racks=racks), **subject, predicate=BOXES)
    assert finding.state is State.UNKNOWN
    assert finding.subject == "shelf.racks[Worker]"
    assert "{{ .Values.boxes }}" in finding.reason
    assert finding.location == Location(path="a.yaml", line=7)
    # an empty collection that may not be empty is no pass either
    (finding,) = run_check(shelf(racks=boxes()), **subject, predicate=BOXES)
    assert (finding.state, finding.subject) == (State.UNKNOWN, "shelf.racks[Worker]")


def test_an_absent_value_fails_where_it_would_stand(run_check, shelf):
    (finding,) = run_check(
        shelf(auth=not_ok("absent", "not in slurm.conf", 12)),
        subject="shelf",
        evidence="shelf.auth",
        predicate="{field: [shelf, auth], op: exists}",
    )
    assert finding.state is State.FAIL
    assert finding.location == Location(path="a.yaml", line=12)
    assert "not in slurm.conf" in finding.reason


def test_what_another_field_decides_needs_no_reading_that_is_open(run_check, shelf):
    predicate = (
        "{any: [{field: [shelf, auth], op: eq, value: munge},"
        " {some: [shelf, labels], where: {field: [key], op: eq, value: safe}}]}"
    )
    check = {"subject": "shelf", "evidence": "shelf.auth, shelf.labels", "predicate": predicate}
    loose = not_ok("templated", "$AUTH")
    (finding,) = run_check(shelf(auth=loose, labels={"safe": "1"}), **check)
    assert finding.state is State.PASS
    (finding,) = run_check(shelf(auth=loose), **check)
    assert finding.state is State.UNKNOWN


def test_entries_of_a_mapping_are_quantified(run_check, shelf):
    check = {
        "subject": "shelf.limits[*]",
        "evidence": "shelf.limits",
        "predicate": "{every: [shelf, limits], where: {field: [value], op: le, value: 3}}",
    }
    limits = {"a": ok(1), "b": ok(9, 5), "c": not_ok("templated", "$C")}
    much, loose = run_check(shelf(limits=limits), **check)
    assert (much.state, much.subject) == (State.FAIL, "shelf.limits[b]")
    assert much.location == Location(path="a.yaml", line=5)
    assert (loose.state, loose.subject) == (State.UNKNOWN, "shelf.limits[c]")
    (none,) = run_check(shelf(), **check)
    assert none.state is State.UNKNOWN, "an empty mapping that may not be empty"


def test_a_mapping_with_named_keys_promises_each(run_check, case, fixtures, now, tmp_path):
    plain = msgspec.json.decode(case("reference").document.body.to_json())
    del plain["node"]["sysctls"]["value"]["kernel.kptr_restrict"]
    path = tmp_path / "x.yaml"
    predicate = "{every: [node, sysctls], where: {field: [value], op: ge, value: 0}}"
    path.write_text(
        CHECK.format(subject="node.sysctls[*]", evidence="node.sysctls", predicate=predicate)
    )
    checks = load_check_file(path)
    (finding,) = audit(fixtures.facts_of(plain), checks, fixtures.policy, now).findings
    assert (finding.state, finding.subject) == (
        State.UNKNOWN,
        "node.sysctls[kernel.kptr_restrict]",
    )


def test_each_check_runs_on_the_assets_of_its_kind(run_check, shelf, case, now):
    node = case("reference").document.body
    found = run_check(
        node, shelf("a"), shelf("b"),
        subject="shelf", evidence="shelf.auth",
        predicate="{field: [shelf, auth], op: eq, value: munge}",
    )  # fmt: skip
    assert [finding.asset for finding in found] == ["sample:a", "sample:b"]


TWO_KINDS = (
    "{all: [{field: [shelf, auth], op: exists},"
    " {some: [node, env], where: {field: [name], op: eq, value: a}}]}"
)
STAR = '{field: [shelf, racks, "*", name], op: eq, value: a}'


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (("shelf", "shelf.auth, node.env", TWO_KINDS), "is of kind node"),
        (("job", "shelf.auth", "{field: [shelf, auth], op: exists}"), "no kind of asset"),
        (("shelf.racks[*].boxes", "shelf.racks", BOXES), "a collection with"),
        (("shelf.racks[*].auth[*]", "shelf.racks", BOXES), "has no field"),
        (("shelf.auth[*].boxes[*]", "shelf.auth", BOXES), "a collection of records"),
        (("shelf.racks[*]", "shelf.racks", BOXES), "another collection"),
        (("shelf", "shelf.racks", STAR), "quantifier only"),
    ],
)
def test_a_mistake_is_an_error(run_check, shelf, check, message):
    subject, evidence, predicate = check
    with pytest.raises(AuditError) as error:
        run_check(shelf(), subject=subject, evidence=evidence, predicate=predicate)
    assert message in error.value.what


def test_saved_facts_say_their_kind_and_are_read_as_that(shelf, case, tmp_path):
    bodies = (case("reference").document.body, shelf("a"))
    for number, body in enumerate(bodies):
        (tmp_path / f"{number}.json").write_bytes(body.to_json())
    facts = StoredFacts(tmp_path, unsigned=True)
    assert [(one.kind, one.body) for one in facts.documents] == [
        ("node", bodies[0]),
        ("sample", bodies[1]),
    ]
    for changed in (b'"kind":"node"', b'"kind":"other"', b'"kind":["sample"]', b'"kind":1'):
        path = tmp_path / "1.json"
        path.write_bytes(bodies[1].to_json().replace(b'"kind":"sample"', changed))
        refused(AuditError, "ST-AUDT-002", list, StoredFacts(path, unsigned=True))
