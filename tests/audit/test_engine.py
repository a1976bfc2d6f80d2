# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from securetrain.audit.documents import Facts, Refused
from securetrain.audit.engine.audit import audit, out_of_reach
from securetrain.audit.engine.waivers import Baseline
from securetrain.audit.sources.catalogue import load_checks
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import Severity, State
from tests.audit.conftest import named
from tests.vocabulary import refused


@pytest.fixture
def run(case, catalogue, now, fixtures):
    def go(fixture="reference", *, host=None, at=now, checks=catalogue):
        there = case(fixture)
        policy = there.policy
        if host:
            plain = type(fixtures)().policy if policy is None else policy
            policy = override_host(plain, host)
        return audit(there.facts, checks, policy, at)

    return go


def override_host(policy, changes):
    import msgspec

    return msgspec.structs.replace(policy, host=msgspec.structs.replace(policy.host, **changes))


def test_clean(run, catalogue):
    result = run()
    assert result.exit_code == 0
    assert result.counts["pass"] == len(catalogue) - 4
    assert result.counts["not-applicable"] == 4  # no TLS of Gloo, no RDMA
    assert result.policy.id == "baseline"
    assert len(result.policy.digest) == 64


def test_the_same_inputs_give_the_same_bytes_in_whatever_order_checks_come(run, catalogue):
    shuffled = list(catalogue)
    random.Random(7).shuffle(shuffled)
    assert (
        run("service-on-any-address").to_json()
        == run("service-on-any-address", checks=tuple(shuffled)).to_json()
    )


def test_exit_codes_follow_the_policy(run):
    from securetrain.core.vocabulary import Severity

    assert run("ptrace-open").exit_code == 0  # medium, and fail_on is high
    assert run("ptrace-open", host={"fail_on": Severity.MEDIUM}).exit_code == 1
    assert run("accept-ra").exit_code == 1
    assert run("no-sysctls", host={"max_unknown": 6}).exit_code == 0  # six are unknown
    assert run("no-sysctls", host={"max_unknown": 5}).exit_code == 3
    assert run("no-sysctls", host={"max_unknown": 0}).exit_code == 3


def test_a_failure_outranks_missing_evidence_and_bad_facts_outrank_all(run, now):
    there = {"max_unknown": 0}
    assert run("torch-on-any-address", host=there).exit_code == 1
    old = run("torch-on-any-address", host=there, at=now + timedelta(days=2))
    assert old.exit_code == 4
    assert "older than" in old.problems[0]
    future = run(at=now - timedelta(days=2))
    assert future.exit_code == 4
    assert "future" in future.problems[0]


def test_skipped_checks_are_listed_and_not_judged(run):
    result = run("accept-ra", host={"skip_checks": ("ST-NET-002", "ST-XXX-999")})
    assert result.skipped == ("ST-NET-002",)
    assert result.exit_code == 0
    assert not [f for f in result.findings if f.check == "ST-NET-002"]


def test_an_error_inside_a_check_is_unknown_and_never_a_pass(run, catalogue):
    def broken(view):
        raise RuntimeError("boom")

    checks = tuple(replace(c, judge=broken) for c in catalogue if c.id == "ST-NET-002")
    result = run(checks=checks, host={"max_unknown": 0})
    assert [f.state for f in result.findings] == [State.UNKNOWN]
    assert "boom" in result.findings[0].reason
    assert result.exit_code == 3


def test_a_check_that_does_not_apply_is_said(run, fixtures, catalogue, now):
    import copy

    document = copy.deepcopy(fixtures.reference)
    del document["node"]["packages"]["value"]["torch"]
    result = audit(fixtures.facts_of(document), catalogue, fixtures.policy, now)
    states = {f.check: f.state for f in result.findings}
    assert states["ST-SUP-001"] is State.NOT_APPLICABLE


def test_one_finding_for_each_element_with_a_fingerprint_of_its_own(run, fixtures, catalogue, now):
    import copy

    document = copy.deepcopy(fixtures.reference)
    for port in (8888, 9999):
        document["node"]["listeners"]["value"].append(
            {"address": "0.0.0.0", "port": port, "scope": "any", "uid": 0, "process": None}
        )
    result = audit(fixtures.facts_of(document), catalogue, fixtures.policy, now)
    found = [f for f in result.findings if f.check == "ST-NET-011"]
    assert [f.subject for f in found] == [
        "node.listeners[0.0.0.0:8888]",
        "node.listeners[0.0.0.0:9999]",
    ]
    assert len({f.fingerprint for f in found}) == 2
    assert result.counts["fail"] == 1
    later = audit(fixtures.facts_of(document), catalogue, fixtures.policy, now + timedelta(hours=1))
    assert [f.fingerprint for f in later.findings] == [f.fingerprint for f in result.findings]


def test_a_failure_weighs_what_it_weighs_here_and_says_why(run, fixtures, catalogue, now):
    import copy

    def found(private_tmp, logins):
        document = copy.deepcopy(fixtures.case("inductor-writable").document.body.to_json())
        plain = json.loads(document)
        context = plain["node"]["context"]["value"]
        context["private_tmp"] |= {"value": private_tmp}
        context["logins"] |= {"value": logins}
        if logins is None:
            context["logins"] |= {"outcome": "error"}
        result = audit(fixtures.facts_of(plain), catalogue, fixtures.policy, now)
        (finding,) = result.of(State.FAIL)
        return finding, result.exit_code

    alone, code = found(private_tmp=True, logins=[])
    assert (alone.severity, alone.severity_in_context) == ("critical", "low")
    assert "Nobody else can log in" in alone.context
    assert code == 0, "the policy's fail_on looks at what it weighs here"
    for private_tmp, logins in ((True, ["eve"]), (False, []), (True, None)):
        shared, code = found(private_tmp, logins)
        assert shared.severity_in_context == "critical", (private_tmp, logins)
        assert shared.context == ""
        assert code == 1


def test_another_index_weighs_more_where_a_job_installs_packages(fixtures, catalogue, now):
    case = fixtures.case("index-extra")
    plain = json.loads(case.document.body.to_json())
    for installs, weight in ((True, "high"), (False, "medium")):
        if not installs:
            plain["node"]["requirements"]["value"] = []
        result = audit(fixtures.facts_of(plain), catalogue, fixtures.policy, now)
        (finding,) = (one for one in result.of(State.FAIL) if one.check == "ST-SUP-009")
        assert finding.severity_in_context == weight
    assert "nothing is fetched" in finding.context


def nodes(fixtures, *names, fixture="service-on-any-address"):
    """Documents of the same machine under several names."""
    plain = json.loads(fixtures.case(fixture).document.body.to_json())
    return fixtures.facts_of(*(named(plain, name) for name in names))


def test_two_nodes_with_the_same_faults_share_no_fingerprint(fixtures, catalogue, now):
    result = audit(nodes(fixtures, "b", "a", fixture="sshd-match"), catalogue, fixtures.policy, now)
    assert [asset.asset for asset in result.assets] == ["node:a", "node:b"]
    prints = {name: {f.fingerprint for f in result.findings if f.asset == name}
              for name in ("node:a", "node:b")}  # fmt: skip
    judged = sum(check.kind == "node" for check in catalogue)
    assert len(prints["node:a"]) == len(prints["node:b"]) == judged
    assert prints["node:a"].isdisjoint(prints["node:b"])
    again = audit(nodes(fixtures, "a", fixture="sshd-match"), catalogue, fixtures.policy, now)
    assert {finding.fingerprint for finding in again.findings} == prints["node:a"]


def test_what_is_unknown_is_told_of_each_that_shares_a_place(fixtures, now):
    plain = json.loads(fixtures.case("rendezvous-templated", "launch").document.body.to_json())
    facts = fixtures.facts_of(*(plain | {"file": name} for name in "ab"))
    found = audit(facts, load_checks(), fixtures.policy, now).of(State.UNKNOWN)
    assert {one.asset for one in found if one.location} == {"launch:a", "launch:b"}


@pytest.fixture
def shared(fixtures, now, tmp_path):
    """Workloads with one fault at one place of one file, as an audit tells them."""

    def go(names, base=None, result=None):
        plain = json.loads(fixtures.case("pod-privileged", "workload").document.body.to_json())
        facts = fixtures.facts_of(*(plain | {"file": f"a.yaml#{name}"} for name in names))
        result = result or audit(facts, load_checks(), fixtures.policy, now)
        if base is None:
            return result
        (tmp_path / "base.json").write_bytes(base.to_json())
        baseline = Baseline.read(tmp_path / "base.json")
        return baseline.compare(result, fixtures.policy, new_only=True)

    return go


@pytest.mark.parametrize(
    ("before", "after", "known", "gone"),
    [("ab", "ab", True, 0), ("ab", "b", True, 1), ("a", "ab", False, 0), ("b", "ab", False, 0)],
)
def test_what_stands_for_several_is_known_when_all_are(before, after, known, gone, shared):
    result = shared(after, base=shared(before))
    found = [one for one in result.of(State.FAIL) if one.location]
    assert found
    assert {len(one.evidence.get("also", ())) for one in found} == {len(after) - 1}
    assert {one.known for one in found} == {known}
    assert (result.baseline.gone, result.exit_code) == (gone * len(found), 0 if known else 1)


@pytest.mark.parametrize(
    ("before", "after", "known", "gone"),
    [
        ({}, {}, True, 0),
        ({"state": State.UNKNOWN}, {}, False, 0),
        ({"state": State.WAIVED}, {}, False, 0),
        ({"state": State.PASS}, {}, False, 0),
        ({"severity_in_context": Severity.LOW}, {}, False, 0),
        ({"fingerprint": "0" * 64}, {}, False, 1),
        ({}, {"state": State.UNKNOWN}, True, 0),
        ({}, {"state": State.WAIVED}, False, 0),
        ({}, {"state": State.PASS}, False, 1),
        # as earlier releases wrote it
        ({"evidence": {"also": ["manifest:b: workload.pods"]}}, {"state": State.PASS}, False, 1),
    ],
)
def test_a_finding_is_known_when_it_was_as_open_as_it_is(before, after, known, gone, shared):
    (one, *_) = [found for found in shared("a").of(State.FAIL) if found.location]

    def only(change):
        return structs.replace(shared("a"), findings=(structs.replace(one, **change),))

    result = shared("a", base=only(before), result=only(after))
    assert (result.findings[0].known, result.baseline.gone) == (known, gone)


def test_one_machine_twice_is_refused(fixtures):
    refused(AuditError, "about one asset", nodes, fixtures, "a", "a")


def test_the_exit_code_is_that_of_the_worst_node(fixtures, catalogue, now):
    well, ill = nodes(fixtures, "a", fixture="reference"), nodes(fixtures, "b")
    both = Facts((*well.documents, *ill.documents))
    assert audit(well, catalogue, fixtures.policy, now).exit_code == 0
    assert audit(both, catalogue, fixtures.policy, now).exit_code == 1
    # what is unknown counts by node: two with six each are not twelve
    blind = nodes(fixtures, "a", "b", fixture="no-sysctls")
    lenient = override_host(fixtures.policy, {"max_unknown": 6})
    assert audit(blind, catalogue, lenient, now).exit_code == 0


def test_old_facts_of_one_node_are_named(fixtures, catalogue, now):
    late = now + timedelta(hours=23, minutes=30)
    result = audit(nodes(fixtures, "a", "b"), catalogue, fixtures.policy, late)
    assert result.exit_code == 4
    assert any("node:b" in problem for problem in result.problems)


def test_a_finding_says_the_file_and_line_that_it_was_read_from(run):
    def place(fixture):
        (finding,) = run(fixture).of(State.FAIL)
        return (finding.location.path, finding.location.line) if finding.location else None

    assert place("sshd-match") == ("/etc/ssh/sshd_config.d/9.conf", 2)
    assert place("fabric-variable-in-file") == ("/etc/nccl.conf", 2)
    assert place("path-writable") == ("/usr/bin", 0)
    assert place("ptrace-open") is None


def test_a_fingerprint_stays_when_lines_move(run, fixtures, catalogue, now):
    plain = json.loads(fixtures.case("sshd-match").document.body.to_json())
    plain["node"]["sshd"]["value"]["options"][-1]["line"] = 77
    (moved,) = audit(fixtures.facts_of(plain), catalogue, fixtures.policy, now).of(State.FAIL)
    (before,) = run("sshd-match").of(State.FAIL)
    assert moved.location != before.location
    assert moved.fingerprint == before.fingerprint


def test_what_only_root_may_read_of_a_node_is_out_of_reach(fixtures, now):
    fields = {"node": "env", "launch": "environment"}
    made = [fixtures.case(f"no-{field}", kind).document for kind, field in fields.items()]
    checks, facts = load_checks(), Facts(made)
    result = audit(facts, checks, fixtures.policy, now)
    both: Any = (*facts, Refused(source="x", reason="y"))
    found, _ = out_of_reach(result, both, checks, fixtures.policy)
    assert {one.asset for one in result.of(State.UNKNOWN)} == {one.asset for one in made}
    assert {one.asset for one in found} == {made[0].asset}
    broken = fixtures.facts_without("env", "node", "error")
    result = audit(broken, checks, fixtures.policy, now)
    assert out_of_reach(result, broken, checks, fixtures.policy)[0] == []


@pytest.mark.many
def test_a_thousand_nodes_are_one_audit(fixtures, catalogue, now):
    facts = nodes(fixtures, *(f"n{number:04}" for number in range(1000)))
    result = audit(facts, catalogue, fixtures.policy, now)
    assert len(result.assets) == 1000
    assert len({finding.fingerprint for finding in result.findings}) == 1000 * sum(
        check.kind == "node" for check in catalogue
    )
    assert result.counts["fail"] == 1, "checks are counted, each by its worst"


def test_findings_show_what_decided_and_never_a_secret(run):
    listener = next(f for f in run("service-on-any-address").findings if f.state is State.FAIL)
    assert listener.evidence["port"] == 8888
    assert listener.evidence["scope"] == "any"
    token = next(f for f in run("token-in-env").findings if f.state is State.FAIL)
    assert token.subject == "node.env[HF_TOKEN]"
    assert token.evidence["value"] is None
