# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fingerprints: one for each check, asset and subject, the same in every format and every audit."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.audit import AuditResult, Finding, audit, load_checks
from securetrain.audit.engine.findings import fingerprint
from securetrain.audit.engine.waivers import Waivers, parse_waivers
from securetrain.audit.sources.stored import StoredFacts
from securetrain.core.vocabulary import State
from securetrain.policy import load_policy
from securetrain.report import written
from securetrain.report.pages.findings import findings

REFERENCE = Path(__file__).parents[1] / "audit" / "fixtures" / "reference.json"
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
CHECKS = load_checks()
EVIL = "node:a\x00b", "node:a", "node:a/b", "node:a b", "node:a[b]", "node:\u00e9", "node:e\u0301"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AuditResult]:
    """An audit of two nodes with the same failures and the same evidence out of reach."""
    folder = tmp_path_factory.mktemp("nodes")
    policy = load_policy("baseline").policy

    def run(*, waivers: Waivers | None = None, move: int = 0) -> AuditResult:
        for name in ("gpu-1", "gpu-2"):
            document = json.loads(REFERENCE.read_text())
            document["collected"] |= {"hostname": name, "at": NOW.isoformat()}
            lost = {"outcome": "denied", "reason": "no rights", "value": None}
            document["node"]["sysctls"] = document["node"]["mounts"] = lost
            document["node"]["listeners"]["value"] += [
                {"address": "0.0.0.0", "port": 7000 + n, "scope": "any", "uid": 0, "process": None}
                for n in range(3)
            ]
            (folder / f"{name}.json").write_text(json.dumps(document))
        result = audit(StoredFacts(folder, unsigned=True), CHECKS, policy, NOW, waivers=waivers)
        return moved(result, move)

    return run


def moved(result: AuditResult, lines: int) -> AuditResult:
    """The result with every place some lines further down."""

    def move(one: Finding) -> Finding:
        if one.location is None:
            return one
        return replace(one, location=replace(one.location, line=one.location.line + lines))

    return replace(result, findings=tuple(map(move, result.findings)))


def waiver(**given: Any) -> Waivers:
    item = {
        "id": "W-1", "check": "ST-NET-011", "subject": "*", "asset": "node:gpu-1",
        "justification": "a monitoring agent", "owner": "network", "approved_by": "security",
        "ticket": "SEC-1", "created": "2026-11-20", "expires": "2026-12-01",
    }  # fmt: skip
    head = {"apiVersion": "securetrain.dev/policy/v1", "kind": "Waivers"}
    return parse_waivers(json.dumps(head | {"items": [item | given]}).encode(), "w.yaml")


def prints(result: AuditResult, *states: State) -> list[str]:
    return [one.fingerprint for one in result.of(*states)]


def test_two_nodes_share_no_fingerprint_and_neither_do_two_elements(
    nodes: Callable[..., AuditResult],
) -> None:
    result = nodes()
    by_node: dict[str, set[str]] = {}
    for one in result.findings:
        by_node.setdefault(one.asset, set()).add(one.fingerprint)
    first, second = by_node["node:gpu-1"], by_node["node:gpu-2"]
    assert len(first) == len(second) > 30
    assert not first & second
    assert len(set(prints(result, *State))) == len(result.findings)


def test_a_fingerprint_is_the_same_in_sarif_and_when_lines_move(
    nodes: Callable[..., AuditResult],
) -> None:
    def of_sarif(result: AuditResult) -> list[str]:
        (run,) = json.loads(written(findings(result, CHECKS, set()), "sarif"))["runs"]
        return [one["partialFingerprints"]["securetrain/v1"] for one in run["results"]]

    still, later = nodes(), nodes(move=17)
    assert of_sarif(still) == prints(still, State.FAIL, State.UNKNOWN, State.WAIVED)
    assert of_sarif(still) == of_sarif(later)


@pytest.mark.parametrize("asset", ["node:gpu-1", "node:gpu-[1]", "node:*1", "node:gpu-?"])
def test_a_waiver_of_one_node_covers_no_other(
    nodes: Callable[..., AuditResult], asset: str
) -> None:
    result = nodes(waivers=waiver(asset=asset))
    waived = {one.asset for one in result.of(State.WAIVED)}
    assert waived == ({"node:gpu-1", "node:gpu-2"} if asset.endswith("?") else {"node:gpu-1"})
    failed = {one.asset for one in result.of(State.FAIL) if one.check == "ST-NET-011"}
    assert failed == {"node:gpu-1", "node:gpu-2"} - waived


def test_a_waiver_of_one_element_covers_no_other(nodes: Callable[..., AuditResult]) -> None:
    result = nodes(waivers=waiver(subject="node.listeners[[]0.0.0.0:7000]"))
    (one,) = result.of(State.WAIVED)
    assert (one.asset, one.subject) == ("node:gpu-1", "node.listeners[0.0.0.0:7000]")


@pytest.mark.forgery
def test_no_choice_of_names_makes_two_findings_one() -> None:
    checks = ("ST-NET-011", "ST-NET-012")
    subjects = ("node", "node.x[a]", "node.x[a]]", 'node.x["a"]', "", "a", "a/b")
    every = list(product(checks, (*EVIL, ""), subjects))
    assert len({fingerprint(*one) for one in every}) == len(every)


def test_every_open_finding_of_sarif_has_a_place_of_its_own(
    nodes: Callable[..., AuditResult],
) -> None:
    found = findings(nodes(), CHECKS, set()).findings
    assert found is not None
    located = list(found.problems)
    keys = {(one.code, one.at.file, one.at.line, one.at.subject) for one in located}
    assert len(keys) == len(located)
    assert all(one.at.file and one.at.line for one in located)
    assert all(
        one.at.file.startswith(("node/gpu-1", "node/gpu-2")) for one in located if one.at.subject
    )


def test_time_changes_no_fingerprint(nodes: Callable[..., AuditResult]) -> None:
    result = nodes()
    later = replace(result, at=result.at + timedelta(hours=3))
    assert prints(result, *State) == prints(later, *State)
