# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Assets of a kind compared with each other."""

import pytest

from securetrain.audit.facts import Location
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import State
from tests.audit.shelf import Box, Rack, not_ok, ok

PASS, FAIL, UNKNOWN, APART = State.PASS, State.FAIL, State.UNKNOWN, State.NOT_APPLICABLE
OPEN = not_ok("templated", "$AUTH", 9)
NONE = not_ok("absent", "not in the file", 3)


@pytest.fixture
def states(run_check, shelf):
    def go(rule, *values, field="auth"):
        made = [
            shelf(f"{number:02}", **{field: ok(one) if isinstance(one, str) else one})
            for number, one in enumerate(values)
        ]
        predicate = f"{{{rule}_across: [shelf, {field}]}}"
        found = run_check(*made, subject="shelf", evidence=f"shelf.{field}", predicate=predicate)
        assert len({finding.fingerprint for finding in found}) == len(values)
        by_asset = {finding.asset: finding for finding in found}
        return [by_asset[asset] for asset in sorted(by_asset)]

    return go


@pytest.mark.parametrize(
    ("rule", "values", "wanted"),
    [
        ("equal", ["a", "a", "a"], [PASS, PASS, PASS]),
        ("equal", ["a", "b", "a"], [PASS, FAIL, PASS]),
        ("equal", ["a", "b"], [FAIL, FAIL]),
        ("equal", ["a", "a", "b", "b", "c"], [FAIL] * 5),
        ("equal", ["a", "a", NONE], [PASS, PASS, FAIL]),
        ("equal", [NONE, NONE], [PASS, PASS]),
        ("equal", ["a", "a", OPEN], [PASS, PASS, UNKNOWN]),
        ("equal", ["a", OPEN], [UNKNOWN, UNKNOWN]),
        ("equal", ["a", "a", "b", OPEN], [UNKNOWN, UNKNOWN, FAIL, UNKNOWN]),
        ("equal", [OPEN, OPEN], [UNKNOWN, UNKNOWN]),
        ("equal", ["a"], [APART]),
        ("equal", [OPEN], [UNKNOWN]),
        ("majority", ["a", "a", "b"], [PASS, PASS, FAIL]),
        ("majority", ["a", "a", "b", "b", "c"], [UNKNOWN] * 5),
        ("majority", ["a", "a", "b", OPEN], [UNKNOWN] * 4),
        ("majority", ["a", "a", "a", "b", OPEN], [PASS, PASS, PASS, FAIL, UNKNOWN]),
        ("unique", ["a", "b", "c"], [PASS, PASS, PASS]),
        ("unique", ["a", "b", "a"], [FAIL, PASS, FAIL]),
        ("unique", ["a", "a", "b", OPEN], [FAIL, FAIL, UNKNOWN, UNKNOWN]),
        ("unique", [NONE, NONE, "a"], [PASS, PASS, PASS]),
        ("unique", ["a"], [APART]),
    ],
)
def test_truth(states, rule, values, wanted):
    assert [finding.state for finding in states(rule, *values)] == wanted


def test_a_finding_names_the_minority_and_what_the_rest_have(states):
    _, odd, *_ = states("equal", "97.00.9b", "97.00.5e", "97.00.9b", "97.00.9b")
    assert odd.asset == "sample:01"
    assert odd.subject == "shelf.auth"
    assert odd.reason == "97.00.5e; 3 of 4 have 97.00.9b"
    assert odd.evidence == {"shelf.auth": ["97.00.5e"]}


def test_an_unknown_one_is_counted_and_named(states):
    *_, loose = states("equal", "a", "a", "b", OPEN)
    assert loose.reason == "shelf.auth: templated: $AUTH; 3 of 4 are known, 2 have a"
    assert loose.location == Location(path="a.yaml", line=9)


def test_those_who_share_a_value_name_each_other(states):
    first, *_ = states("unique", "a", "a", "a", "a", "a", "b")
    assert first.reason == "shared with sample:01, sample:02, sample:03 and 1 more"


def test_values_of_elements_and_several_paths(run_check, shelf):
    def rack(*names):
        boxes = (Box(name=name, privileged=ok(value=True)) for name in names)
        return (Rack(name="r", boxes=ok(tuple(boxes))),)

    check = {
        "subject": "shelf",
        "evidence": "shelf.racks, shelf.auth",
        "predicate": '{unique_across: [[shelf, racks, "*", boxes, "*", name], [shelf, auth]]}',
    }
    found = run_check(
        shelf("a", racks=rack("x", "y"), auth=ok("1")),
        shelf("b", racks=rack("z", "y"), auth=ok("2")),
        shelf("c", racks=rack("w"), auth=ok("3")),
        **check,
    )
    assert [(one.asset, one.subject, one.state) for one in found] == [
        ("sample:a", "shelf.racks.*.boxes.*.name", FAIL),
        ("sample:b", "shelf.racks.*.boxes.*.name", FAIL),
        ("sample:c", "shelf", PASS),
    ]


def test_what_was_not_read_is_compared_as_unknown(run_check, shelf):
    made = shelf("a"), shelf("b", ledger=())
    predicate = "{equal_across: [shelf, auth]}"
    found = run_check(*made, subject="shelf", evidence="shelf.auth", predicate=predicate)
    assert [one.state for one in found] == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("subject", "predicate", "message"),
    [
        ("shelf", "{equal_across: [shelf]}", "no value that assets have"),
        ("shelf", "{equal_across: [shelf, auht]}", "has no field"),
        ("shelf", '{equal_across: [shelf, racks, "*"]}', "no value that assets have"),
        ("shelf", "{equal_across: [shelf, auth], where: {}}", "stands alone"),
        ("shelf", "{all: [{equal_across: [shelf, auth]}]}", "unknown keys"),
        ("shelf", "{equal_across: [[shelf, auth], [shelf, auth]]}", "stands twice"),
        ("shelf.racks[*]", "{equal_across: [shelf, auth]}", "each as a whole"),
    ],
)
def test_a_mistake_is_an_error(run_check, shelf, subject, predicate, message):
    with pytest.raises(AuditError) as refused:
        run_check(shelf(), subject=subject, evidence="shelf.auth", predicate=predicate)
    assert message in refused.value.what
