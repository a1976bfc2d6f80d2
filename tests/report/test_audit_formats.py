# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An audit in SARIF, JUnit, HTML and Markdown: what stands where, and what is never lost."""

import html
import json
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from securetrain.audit import AuditResult, Check, load_checks
from securetrain.audit.engine.findings import BaselineUse
from securetrain.audit.facts import Location
from securetrain.core import canonical
from securetrain.core.vocabulary import Severity, State
from securetrain.report import written
from securetrain.report.pages.findings import findings
from securetrain.report.pages.groups import (
    element,
    fold,
    sections,
    shared_causes,
    tidy,
    why,
)
from securetrain.report.render import ci
from securetrain.report.render.ci import MAX_CHARS
from tests.report.audits import NOW, finding, mixed, result
from tests.report.test_html import HOSTILE, parse
from tests.tables import items
from tests.vocabulary import refused

SARIF_KEYS: dict[str, tuple[set[str], set[str]]] = {
    # what an object must have, and what else it may have: SARIF 2.1.0, of each object that we write
    "log": ({"version", "runs"}, {"$schema"}),
    "run": (
        {"tool"},
        {"originalUriBaseIds", "invocations", "artifacts", "results", "columnKind"},
    ),
    "driver": ({"name"}, {"semanticVersion", "rules"}),
    "rule": (
        {"id"},
        {"shortDescription", "fullDescription", "help", "defaultConfiguration", "properties"},
    ),
    "result": (
        {"message"},
        {"ruleId", "ruleIndex", "kind", "level", "locations", "partialFingerprints",
         "relatedLocations", "suppressions", "properties"},
    ),
    "location": (set(), {"physicalLocation", "logicalLocations", "message"}),
    "physicalLocation": ({"artifactLocation"}, {"region"}),
    "artifactLocation": ({"uri"}, {"uriBaseId"}),
    "region": (set(), {"startLine", "startColumn", "byteOffset", "byteLength"}),
    "suppression": ({"kind"}, {"status", "justification"}),
    "invocation": ({"executionSuccessful"}, {"exitCode", "toolExecutionNotifications"}),
}  # fmt: skip


def test_pieces_of_json_are_the_canonical_whole(monkeypatch):
    monkeypatch.setattr("securetrain.audit.engine.findings._PIECE", 2)
    names = ["a", "\x1f\u20ac", '"findings":[', "]"]
    for several in (mixed(), result(), result(*(finding(reason=one) for one in names))):
        assert several.to_json() == canonical.encode(several)
        assert len(list(several.pieces())) == 2 + (len(several.findings) + 1) // 2
        assert written(findings(several, (), set()), "json").encode() == several.to_json() + b"\n"


def test_what_ci_reads_is_made_piece_by_piece_and_a_file_is_whole(tmp_path):
    page = findings(mixed(), load_checks(), set())
    sarif, junit = list(ci.sarif(page)), list(ci.junit(page))
    assert len(sarif) == 2 + len(run_of(mixed())["results"])
    assert len(junit) == 2 + len(cases_of(mixed())[0])
    # the layout of each piece is that of the whole
    log = written(page, "sarif")
    assert json.dumps(json.loads(log), indent=2) + "\n" == log
    for output in ("json", "sarif", "junit", "markdown", "html", "text"):
        assert written(page, output, tmp_path / output) == ""
        assert (tmp_path / output).read_bytes() == written(page, output).encode()
    refused(ValueError, "unknown format", written, page, "gif", tmp_path / "gif")
    assert not (tmp_path / "gif").exists()


def test_text_makes_nothing_that_only_machines_read(monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("made, and not read")

    for name in ("pages.findings._located", "pages.findings._tests"):
        monkeypatch.setattr(f"securetrain.report.{name}", never)
    monkeypatch.setattr(AuditResult, "pieces", never)
    page = findings(mixed(), (), set())
    assert written(page, "text")
    refused(AssertionError, "not read", written, page, "sarif")


def html_page(audited: AuditResult, checks: Sequence[Check]) -> str:
    return written(findings(audited, checks, set()), "html")


def markdown_page(audited: AuditResult) -> str:
    return written(findings(audited, (), set()), "markdown")


def has_form(kind: str, value: dict[str, Any]) -> None:
    must, may = SARIF_KEYS[kind]
    assert must <= value.keys() <= must | may, (kind, value)


def the_run(log: dict[str, Any]) -> dict[str, Any]:
    """The run of a log whose every object has the form that the standard gives it."""
    has_form("log", log)
    run: dict[str, Any]
    (run,) = log["runs"]
    has_form("run", run)
    has_form("driver", run["tool"]["driver"])
    for rule in run["tool"]["driver"]["rules"]:
        has_form("rule", rule)
    for one in run["invocations"]:
        has_form("invocation", one)
    for one in run["results"]:
        has_form("result", one)
        assert one["kind"] in {"fail", "open"}
        assert (one["level"] == "none") == (one["kind"] == "open")
        assert run["tool"]["driver"]["rules"][one["ruleIndex"]]["id"] == one["ruleId"]
        for suppression in one.get("suppressions", []):
            has_form("suppression", suppression)
        for place in (*one["locations"], *one.get("relatedLocations", ())):
            has_form("location", place)
            has_form("physicalLocation", place["physicalLocation"])
            has_form("artifactLocation", place["physicalLocation"]["artifactLocation"])
            has_form("region", place["physicalLocation"]["region"])
            assert place["physicalLocation"]["region"]["startLine"] >= 1
            base = place["physicalLocation"]["artifactLocation"].get("uriBaseId")
            assert base is None or base in run["originalUriBaseIds"]
    return run


def run_of(audited: AuditResult) -> dict[str, Any]:
    return the_run(json.loads(written(findings(audited, load_checks(), set()), "sarif")))


def test_what_a_variable_brings_is_shown_where_it_is_used_and_where_it_is_written() -> None:
    said = finding(location=Location(path="a.sh", line=9, written=Location(path="v", line=2)))
    audited = result(said, finding())
    ours, other = run_of(audited)["results"]
    assert ours["locations"][0]["physicalLocation"]["region"] == {"startLine": 9}
    (written_at,) = ours["relatedLocations"]
    assert written_at["physicalLocation"] == {
        "artifactLocation": {"uri": "v", "uriBaseId": "ROOT"},
        "region": {"startLine": 2},
    }
    assert "relatedLocations" not in other
    for form in ("text", "html"):
        text = written(findings(audited, load_checks(), set()), form)
        assert text.count("written at v:2") == 1 == text.count("a.sh:9")
    places = [one["location"] for one in json.loads(audited.to_json())["findings"]]
    assert [one.get("written") for one in places] == [{"column": 0, "line": 2, "path": "v"}, None]
    assert audited.to_json() == canonical.encode(audited)


def test_sarif_has_every_open_finding_at_its_line_and_no_other() -> None:
    run = run_of(mixed())
    assert len(run["results"]) == 8
    first, second, waived, slurm, unknown, *nodes = run["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "jobs/a.yaml", "uriBaseId": "ROOT"}
    assert place["region"] == {"startLine": 41, "startColumn": 9}
    assert second["locations"][0]["physicalLocation"]["region"]["startLine"] == 121
    assert first["message"]["text"] == (
        "Privileged containers."
        " PyTorchJob/pretrain, pod Worker, container trainer: privileged true."
    )
    assert "suppressions" not in first
    assert waived["suppressions"][0]["justification"] == "waiver W-1 until 2026-12-20"
    assert slurm["kind"] == "fail"
    assert unknown["kind"] == "open"
    assert "site.conf" in unknown["message"]["text"]
    uris = [n["locations"][0]["physicalLocation"]["artifactLocation"] for n in nodes]
    assert uris[0] == {"uri": "node/gpu-017", "uriBaseId": "ASSETS"}
    logical = nodes[0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]
    assert logical == "node:gpu-017/node.gpus[0]"
    prints = [one["partialFingerprints"]["securetrain/v1"] for one in run["results"]]
    assert len(set(prints)) == len(prints)


LEVELS = {"critical": "error", "high": "error", "medium": "warning", "low": "note", "info": "note"}


@pytest.mark.parametrize("severity", Severity)
def test_the_level_of_sarif_follows_the_severity(severity: Severity) -> None:
    weighed = (
        replace(one, severity=severity, severity_in_context=severity) for one in mixed().findings
    )
    run = run_of(replace(mixed(), findings=tuple(weighed)))
    said = {one["level"] for one in run["results"] if one["kind"] == "fail"}
    assert said == {LEVELS[severity]}


def test_a_rule_of_sarif_says_why_and_how_bad() -> None:
    audited = result(
        finding("ST-SEC-006", severity=Severity.MEDIUM, severity_in_context=Severity.LOW,
                context="nobody else is here"),
    )  # fmt: skip
    run = run_of(audited)
    (rule,) = run["tool"]["driver"]["rules"]
    assert rule["properties"]["security-severity"] == "5.5"
    assert {"security", "scheduler", "external/cwe/cwe-250"} <= set(rule["properties"]["tags"])
    assert rule["fullDescription"]["text"]
    assert run["results"][0]["properties"] == {"severity": "low"}
    assert "low, not medium: nobody else is here" in run["results"][0]["message"]["text"]


def test_sarif_of_facts_that_cannot_be_relied_on_is_no_success() -> None:
    run = run_of(replace(mixed(), problems=("the facts are from the future",), exit_code=4))
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "future" in json.dumps(invocation)


def test_what_was_not_read_stands_in_every_output_with_its_place() -> None:
    document = findings(mixed(), load_checks(), set())
    (invocation,) = run_of(mixed())["invocations"]
    open_, scoped = invocation["toolExecutionNotifications"]
    place = open_["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]) == ("c.yaml", {"startLine": 3})
    assert (open_["level"], scoped["level"]) == ("error", "note")
    assert invocation["executionSuccessful"] is True
    _, cases = cases_of(mixed())
    assert [one.tag for one in cases["c.yaml: Not read: file: a <tab> stands"]] == ["error"]
    assert [one.tag for one in cases["old.tf: Not read: file: a <tab> stands"]] == ["skipped"]
    rows = json.loads(written(document, "json"))["ledger"]
    assert [(one["entry"]["at"]["path"], one["counts"]) for one in rows] == [
        ("c.yaml", True), ("old.tf", False),
    ]  # fmt: skip
    for name in ("text", "markdown", "html"):
        plain = " ".join(html.unescape(written(document, name)).split())
        assert "c.yaml:3 (2): a <tab> stands" in plain
        assert "out of scope until" in plain
        assert "2/4, 7 not ours" in plain


def test_an_absolute_path_is_an_address_of_its_own() -> None:
    run = run_of(result(finding(asset="manifest:/etc/a b.yaml#1")))
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "file:///etc/a%20b.yaml"}


def cases_of(audited: AuditResult) -> tuple[ET.Element, dict[str, ET.Element]]:
    suite = ET.fromstring(written(findings(audited, load_checks(), set()), "junit"))
    return suite, {case.attrib["name"].partition(":  ")[0]: case for case in suite}


def test_junit_has_a_case_for_each_check_and_asset_and_unknown_is_an_error() -> None:
    suite, cases = cases_of(mixed())
    assert suite.attrib | {"name": ""} == {
        "name": "", "tests": "12", "failures": "6", "errors": "2", "skipped": "3",
    }  # fmt: skip
    found = {name.partition(": ")[0]: [one.tag for one in case] for name, case in cases.items()}
    assert found["ST-K8S-001 manifest:jobs/a.yaml#1"] == ["failure"]
    assert found["ST-K8S-001 manifest:jobs/b.yaml#2"] == ["skipped"]
    assert found["ST-SLM-001 slurm:prod"] == ["error"]
    assert found["ST-K8S-002 manifest:jobs/a.yaml#1"] == []
    assert found["ST-K8S-003 manifest:jobs/a.yaml#1"] == ["skipped"]
    failure = next(case for name, case in cases.items() if "a.yaml" in name)[0]
    assert "jobs/a.yaml:41" in str(failure.text)
    assert "fix: Drop privileged; request" in str(failure.text)


def test_a_failure_beside_an_unknown_and_a_waived_one_is_a_failure() -> None:
    one, other, third = (
        finding(subject=f"workload.pods[{n}]", state=state)
        for n, state in enumerate((State.WAIVED, State.UNKNOWN, State.FAIL))
    )
    suite, _ = cases_of(result(one, other, third))
    assert suite.attrib["failures"] == "1"
    suite, _ = cases_of(result(one, other))
    assert suite.attrib["errors"] == "1"


def test_junit_of_facts_that_cannot_be_relied_on_fails() -> None:
    suite, _ = cases_of(replace(result(), problems=("older than 24 hours",), exit_code=4))
    assert suite.attrib["failures"] == "1"


def known(audited: AuditResult, *, new_only: bool) -> AuditResult:
    use = BaselineUse(at=NOW, policy=audited.policy, new_only=new_only, known=1, gone=0)
    first, *rest = audited.findings
    return replace(audited, findings=(replace(first, known=True), *rest), baseline=use)


def test_a_known_finding_is_left_out_only_where_only_new_ones_are_asked_for() -> None:
    assert len(run_of(known(mixed(), new_only=False))["results"]) == 8
    audited = known(mixed(), new_only=True)
    assert len(run_of(audited)["results"]) == 7
    _, cases = cases_of(audited)
    case = next(case for name, case in cases.items() if "a.yaml" in name)
    assert [one.tag for one in case] == ["skipped"]
    assert "jobs/a.yaml" not in markdown_page(audited)
    assert "jobs/b.yaml" in markdown_page(audited)
    assert "41" not in re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", html_page(audited, ()),
                              flags=re.DOTALL)  # fmt: skip


def test_the_page_needs_nothing_else_and_shows_the_worst_first() -> None:
    text = html_page(mixed(), load_checks())
    for tag, attributes in parse(text).tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "img", "base", "form"}
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in {"src", "srcset", "action", "data"}
            assert name != "href" or str(value).startswith("#")
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "")
    places = [text.index(f"<code>{check}</code>") for check in
              ("ST-K8S-001", "ST-SLM-012", "ST-HST-010", "ST-SLM-001")]  # fmt: skip
    assert places == sorted(places)
    for words in ("jobs/a.yaml:41", "2026-12-20", "c.yaml:3 (2): a &lt;tab&gt; stands", "old.tf",
                  "b-failed", "not looked at"):  # fmt: skip
        assert words in text, words
    assert "all 3 nodes" in text


@pytest.mark.forgery
def test_what_was_audited_is_never_markup() -> None:
    one = finding(
        asset=f"manifest:{HOSTILE}#1", subject=f"workload.pods[{HOSTILE}]", reason=HOSTILE
    )
    audited = result(one, problems=(HOSTILE,))
    text = html_page(audited, ())
    assert "<script" not in text
    assert "onerror=y>" not in text
    assert "{{7*7}}" in text
    parse(text)
    text = markdown_page(audited)
    assert "<script" not in text
    assert "<img" not in text
    assert "[red]" not in text
    ET.fromstring(written(findings(audited, (), set()), "junit"))
    run_of(audited)


@pytest.mark.forgery
def test_a_name_in_markdown_calls_nobody_and_links_nowhere() -> None:
    odd = "@org/team #12 [x](http://evil) | `code` $x$ ![i](https://a/b) www"
    text = markdown_page(result(finding(reason=odd, subject=f"workload.pods[{odd}]")))
    for markup in ("](", "://", "`", "$x$"):
        assert markup not in text, markup
    for name in ("@org", "#12"):
        assert name not in html.unescape(text), name


def test_markdown_stays_below_what_a_comment_holds_and_counts_the_rest() -> None:
    many = [finding(f"ST-K8S-{n:03d}", reason="x" * 900) for n in range(200)]
    text = markdown_page(result(*many))
    assert len(text) <= MAX_CHARS
    shown = text.count("<details>")
    assert f"{200 - shown} more checks" in text


def test_equal_findings_of_machines_are_folded_and_no_others() -> None:
    groups = {g.first.check: g for s in sections(mixed()) for g in s.groups if g.state == "fail"}
    (place,) = groups["ST-HST-010"].places
    assert place.where == "all 3 nodes"
    assert [p.where for p in groups["ST-K8S-001"].places] == ["jobs/a.yaml:41", "jobs/b.yaml:121"]
    assert groups["ST-K8S-001"].count == "2 of 3 workloads"
    assert len(groups["ST-HST-010"].places[0].findings) == 3


@items(
    "names, text",
    (["gpu-1"], "gpu-1"),
    (["gpu-001", "gpu-003", "gpu-002", "gpu-017"], "gpu-[001-003,017]"),
    (["gpu-9", "gpu-10", "gpu-11"], "gpu-9, gpu-[10-11]"),
    (["login", "a7", "a8"], "a[7-8], login"),
    (["x" + "1" * 12, "x" + "1" * 11 + "2"], "x111111111111, x111111111112"),
)
def test_names_of_machines_fold_as_slurm_writes_them(names: list[str], text: str) -> None:
    assert fold(names) == text


@items(
    "subject, text",
    ("node", ""),
    ("node.listeners[[::]:22]", "listener [::]:22"),
    ("workload.pods[Worker].containers[trainer]", "pod Worker, container trainer"),
    ("workload.pods[].containers[trainer]", "container trainer"),
    ("cluster.network_policies[a.b]", "network policy a.b"),
    ("workload.pods[/spec/template/spec].containers[trainer]", "container trainer"),
    ("launch.addresses[rdzv-endpoint]", "address rdzv-endpoint"),
    ("launch.rendezvous[torchrun]", "rendezvous torchrun"),
    ("launch.fetches[curl]", "fetch curl"),
    ("node.indexes[/etc/pip.conf]", "index /etc/pip.conf"),
    ("node.path[/tmp/x]", "path /tmp/x"),
)
def test_a_subject_in_words(subject: str, text: str) -> None:
    assert element(subject) == text


def test_a_boundary_with_a_failure_is_never_shown_as_checked() -> None:
    """In whatever order findings come, and with passes of the same boundary at the end."""
    found = mixed().findings
    for order in (found, found[::-1], found[4:] + found[:4]):
        (scheduler,) = [s for s in sections(result(*order)) if s.boundary == "scheduler"]
        states = {group.state for group in scheduler.groups}
        assert states == {State.FAIL, State.UNKNOWN, State.WAIVED}
        row = re.search(r'<tr id="b-scheduler">.*?</tr>', html_page(result(*order), ()), re.DOTALL)
        assert row is not None
        assert ">failed<" in row[0]
        assert ">checked<" not in row[0]


def test_unknown_checks_stand_below_the_one_cause_that_they_share() -> None:
    lost = "a.conf:4 includes b.conf, which is not here"
    several = [
        finding(f"ST-SLM-00{n}", asset="slurm:x", subject="slurm", state=State.UNKNOWN,
                reason=f"slurm.s{n}: error: Setting{n}: {lost}")
        for n in range(3)
    ]  # fmt: skip
    more = finding("ST-SLM-009", asset="slurm:x", subject="slurm", state=State.UNKNOWN,
                   reason=f"slurm.a: error: A: {lost}; slurm.b: denied: no rights")  # fmt: skip
    (section,) = sections(result(*several, more, finding()))
    (cause,) = shared_causes(section.groups)
    assert cause.reason == lost
    assert [missing for _, missing in cause.groups] == ["Setting0", "Setting1", "Setting2"]
    assert shared_causes(section.groups[:3]) == ()
    page = written(findings(result(*several, more, finding()), (), set()), "text")
    for check in ("ST-SLM-000", "ST-SLM-001", "ST-SLM-002", "ST-SLM-009", "ST-K8S-001"):
        assert page.count(check) >= 1, check


@items(
    "reason, path, text",
    ("slurm.auth_type: error: AuthType: x", "", "AuthType: x"),
    ("node.sysctls: denied: no rights", "", "node.sysctls: denied: no rights"),
    ("/a/b: /a/b: not here", "/a/b", "/a/b: not here"),
    ("/a/b: is open; /a/b: is open", "/a/b:7", "is open"),
    ("a.b: templated: x decides; c", "", "x decides; c"),
    ("run_as_user: absent: not set", "", "run_as_user: not set"),
)
def test_a_reason_as_people_read_it(reason: str, path: str, text: str) -> None:
    assert tidy(reason, path) == text


def test_evidence_is_shown_as_people_write_it() -> None:
    evidence = {
        "node": {"sysctls": {"a.b": 0}, "outcome": "ok"},
        "options": ({"name": "x", "line": 3}, {"name": "x", "line": 4}, {"host": "h", "line": 5}),
        "on": True,
        "none": None,
        "verbs": ["get", "list"],
    }
    one = finding(evidence=evidence, subject="node", reason="")
    assert why(one) == "sysctls.a.b 0, options x, host h line 5, on true, verbs get, list"


def test_evidence_does_not_repeat_the_place_nor_the_subject() -> None:
    evidence = {
        "at": {"path": "jobs/a.yaml", "line": 41, "column": 9},
        "path": "jobs/a.yaml",
        "name": "HF_TOKEN",
        "kind": "pattern",
    }
    one = finding(evidence=evidence, subject="launch.secrets[HF_TOKEN]")
    assert why(one) == "kind pattern"
