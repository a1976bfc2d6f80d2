# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A waiver that is not in order covers nothing, and the result says so."""

import json
from datetime import UTC, datetime

import pytest

from securetrain.audit.documents import Facts
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.waivers import parse_waivers, read_waivers
from securetrain.audit.sources.catalogue import load_checks
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import State
from tests.vocabulary import refused

GOOD = {
    "id": "W-1",
    "check": "ST-NET-011",
    "subject": "node.listeners[[]0.0.0.0:8888]",
    "justification": "the site's monitoring agent, behind the management firewall",
    "owner": "network",
    "approved_by": "security",
    "ticket": "SEC-441",
    "created": "2026-11-01",
    "expires": "2026-12-01",
}


def waivers(*items):
    # JSON is YAML
    file = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Waivers", "items": list(items)}
    return parse_waivers(json.dumps(file).encode(), "waivers.yaml")


@pytest.fixture
def run(case, catalogue, now):
    def go(*items, fixture="service-on-any-address", at=now):
        there = case(fixture)
        return audit(there.facts, catalogue, there.policy, at, waivers=waivers(*items))

    return go


def state(result, check="ST-NET-011"):
    return {f.state for f in result.findings if f.check == check}


def test_the_control_fails_without_a_waiver(run):
    result = run()
    assert state(result) == {State.FAIL}
    assert result.exit_code == 1


def test_a_waiver_in_order_covers_its_finding_and_is_counted(run):
    result = run(GOOD)
    assert state(result) == {State.WAIVED}
    assert result.exit_code == 0
    assert result.counts["waived"] == 1
    assert [(use.id, use.status) for use in result.waivers] == [("W-1", "applied")]
    assert next(f for f in result.findings if f.state is State.WAIVED).waiver == "W-1"


@pytest.mark.parametrize(
    ("change", "check", "reason"),
    [
        ({"expires": "2026-11-19"}, "ST-AUD-002", "last day was 2026-11-19"),
        ({"expires": "soon"}, "ST-AUD-002", "date"),
        ({"ticket": None}, "ST-AUD-002", "ticket"),
        ({"colour": "red"}, "ST-AUD-002", "unknown field"),
        ({"approved_by": "Network "}, "ST-AUD-003", "approved by its owner"),
        ({"expires": "2027-12-01"}, "ST-AUD-003", "longer than 180 days"),
        ({"created": "2026-11-21"}, "ST-AUD-003", "begins on"),
        ({"expires": "2026-10-01"}, "ST-AUD-003", "before it was created"),
        ({"check": "ST-NET-999"}, "ST-AUD-003", "no check"),
        ({"compensating": ["ST-NET-011"]}, "ST-AUD-003", "is fail, not pass"),
        ({"compensating": ["ST-NET-999"]}, "ST-AUD-003", "not there"),
    ],
)
def test_a_waiver_out_of_order_brings_the_finding_back_and_is_said(run, change, check, reason):
    item = {k: v for k, v in (GOOD | change).items() if v is not None}
    result = run(item)
    assert state(result) == {State.FAIL}
    about = [f for f in result.findings if f.check == check]
    assert len(about) == 1
    assert reason in about[0].reason
    assert result.exit_code == 1


def test_the_last_day_is_inclusive(run):
    assert state(run(GOOD | {"expires": "2026-11-20"})) == {State.WAIVED}
    late = datetime(2026, 11, 20, 23, 59, tzinfo=UTC)
    assert state(run(GOOD | {"expires": "2026-11-20"}, at=late)) == {State.WAIVED}


def test_a_critical_finding_is_waived_for_thirty_days_at_most(run):
    item = GOOD | {"check": "ST-FAB-004", "subject": "node"}
    assert state(run(item, fixture="nccl-comm-id-in-env"), "ST-FAB-004") == {State.WAIVED}
    longer = run(item | {"created": "2026-10-20"}, fixture="nccl-comm-id-in-env")
    assert state(longer, "ST-FAB-004") == {State.FAIL}
    assert "longer than 30 days" in longer.waivers[0].reason


def test_a_compensating_check_that_passes_is_enough(run):
    assert state(run(GOOD | {"compensating": ["ST-NET-002"]})) == {State.WAIVED}


@pytest.fixture
def fleet(fixtures, catalogue, now):
    """Two nodes with the same fault, and a waiver."""

    def go(item, spoil=None):
        plain = json.loads(fixtures.case("service-on-any-address").document.body.to_json())
        other = json.loads(json.dumps(plain))
        plain["collected"]["hostname"], other["collected"]["hostname"] = "gpu-1", "gpu-2"
        if spoil:
            other["node"][spoil] = fixtures.gone("denied")
        facts = fixtures.facts_of(plain, other)
        result = audit(facts, catalogue, fixtures.policy, now, waivers=waivers(item))
        found = {f.asset: f.state for f in result.findings if f.check == "ST-NET-011"}
        return found, result

    return go


def test_a_waiver_for_one_node_never_covers_the_other(fleet):
    found, result = fleet(GOOD | {"asset": "node:gpu-1"})
    assert found == {"node:gpu-1": State.WAIVED, "node:gpu-2": State.FAIL}
    assert result.exit_code == 1
    both, _ = fleet(GOOD | {"asset": "node:gpu-*"})
    assert set(both.values()) == {State.WAIVED}


def test_a_waiver_without_an_asset_does_not_count_where_there_are_several(fleet):
    found, result = fleet(GOOD)
    assert set(found.values()) == {State.FAIL}
    assert "names no asset" in result.waivers[0].reason


def test_what_compensates_must_pass_on_the_node_itself(fleet):
    item = GOOD | {"asset": "node:gpu-*", "compensating": ["ST-HST-006"]}
    assert set(fleet(item)[0].values()) == {State.WAIVED}
    found, result = fleet(item, spoil="sysctls")
    assert set(found.values()) == {State.FAIL}
    assert "on node:gpu-2" in result.waivers[0].reason
    apart, _ = fleet(item | {"asset": "node:gpu-1"}, spoil="sysctls")
    assert apart["node:gpu-1"] is State.WAIVED


def test_only_the_named_subject_is_covered(run):
    result = run(GOOD | {"subject": "node.listeners[[]0.0.0.0:9999]"})
    assert state(result) == {State.FAIL}
    assert result.waivers[0].status == "unused"


def test_missing_evidence_cannot_be_waived(run):
    result = run(GOOD | {"subject": "*"}, fixture="no-listeners")
    assert state(result) == {State.UNKNOWN}
    assert result.waivers[0].status == "unused"
    assert state(run(GOOD | {"subject": "*"})) == {State.WAIVED}


def test_the_same_id_twice_covers_nothing_the_second_time(run):
    result = run(GOOD | {"subject": "nothing"}, GOOD)
    assert state(result) == {State.FAIL}
    assert {use.status for use in result.waivers} == {"unused", "malformed"}


@pytest.mark.parametrize("text", ["", "kind: Waivers", "items: []", "\xff", "a: &b c"])
def test_a_file_that_is_not_a_list_of_waivers_is_an_error(tmp_path, text):
    path = tmp_path / "w.yaml"
    path.write_bytes(text.encode("latin-1"))
    refused(AuditError, "ST-AUDT-003", read_waivers, path)


BOTH = GOOD | {"check": "ST-FAB-001", "subject": "*", "asset": "*"}
"""A waiver of a check that asks nodes and launches."""


@pytest.fixture
def kinds(fixtures, now):
    """A node and a launch that fail one check, and a waiver."""

    def go(item, node="nccl-interface-unset", launch="environment-interface"):
        there = (
            fixtures.case(node).facts.documents + fixtures.case(launch, "launch").facts.documents
        )
        facts = Facts(there)
        return audit(facts, load_checks(), fixtures.policy, now, waivers=waivers(item))

    return go


def covered(result):
    found = [one for one in result.findings if one.check == "ST-FAB-001"]
    return {one.asset.partition(":")[0] for one in found if one.state is State.WAIVED}


def test_a_waiver_of_one_kind_never_covers_another(kinds):
    every = kinds(BOTH)
    assert covered(every) == set()
    assert "its check asks launch and node" in every.waivers[0].reason
    assert {one.status for one in kinds(BOTH | {"asset": "[nl]*:*"}).waivers} == {"rejected"}
    assert covered(kinds(BOTH | {"asset": "node:*"})) == {"node"}
    assert covered(kinds(BOTH | {"subject": "launch.*"})) == {"launch"}


def test_what_compensates_on_a_kind_is_not_asked_of_another(kinds):
    item = BOTH | {"subject": "node.*", "compensating": ["ST-HST-006"]}
    assert covered(kinds(item)) == {"node"}
    assert covered(kinds(item | {"subject": "launch.*"})) == set()


def test_a_check_of_two_kinds_counts_once_for_each(kinds):
    counts = kinds(BOTH | {"asset": "node:*"}).counts
    apart = kinds(BOTH | {"asset": "node:*"}, launch="reference").counts
    assert (counts["fail"] - apart["fail"], apart["waived"], counts["waived"]) == (1, 1, 1)
