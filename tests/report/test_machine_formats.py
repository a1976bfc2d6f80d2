# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SARIF and JUnit: what stands where, and what is never lost."""

import json
from xml.etree import ElementTree as ET

from securetrain.report import written
from securetrain.report.document import Document, Findings, Located, Place

DAMAGED = Located(
    code="ST-CKPT-130",
    what="the content is not what was signed",
    fix="get it again",
    at=Place(file="rank 0.bin", offset=1 << 20, length=1 << 20, subject="layers.0.weight"),
)
WHOLE = Located(code="ST-CKPT-100", what="bad\x00\x1b[2J<name>", fix="sign it")


def outcome(*problems: Located) -> Document:
    names = ("statement.json", "rank 0.bin", *("" for p in problems if not p.at.file))
    found = Findings(root="/data/step", problems=problems, checked=names)
    return Document(verb="verify", findings=found, code=13)


def test_sarif_names_the_bytes_and_the_tensor() -> None:
    (run,) = json.loads(written(outcome(DAMAGED, WHOLE), "sarif"))["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["ST-CKPT-100", "ST-CKPT-130"]
    first, second = run["results"]
    assert rules[first["ruleIndex"]] == first["ruleId"] == "ST-CKPT-130"
    place = first["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "rank%200.bin"
    assert place["physicalLocation"]["region"] == {"byteOffset": 1 << 20, "byteLength": 1 << 20}
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "layers.0.weight"
    assert second["locations"] == []
    assert second["message"]["text"] == r"bad\x00\x1b[2J<name>"
    assert run["invocations"][0]["exitCode"] == 13
    assert len({result["partialFingerprints"]["securetrain/v1"] for result in run["results"]}) == 2


def test_sarif_of_a_clean_outcome_has_no_results() -> None:
    (run,) = json.loads(written(outcome(), "sarif"))["runs"]
    assert run["results"] == []
    assert [one["location"]["uri"] for one in run["artifacts"]] == [
        "statement.json",
        "rank%200.bin",
    ]


def test_junit_has_a_case_for_every_file_and_one_for_the_whole() -> None:
    suite = ET.fromstring(written(outcome(DAMAGED, WHOLE), "junit"))
    assert suite.attrib["tests"] == "3"
    assert suite.attrib["failures"] == "2"
    cases = {case.attrib["name"]: case for case in suite}
    assert list(cases["statement.json"]) == []
    failure = cases["rank 0.bin"][0]
    assert failure.attrib["type"] == "ST-CKPT-130"
    assert "layers.0.weight" in str(failure.text)
    assert cases["(the whole)"][0].attrib["message"] == r"bad\x00\x1b[2J<name>"


def test_junit_holds_any_name() -> None:
    odd = Located(code="ST-CKPT-141", what="extra", fix="", at=Place(file="\ud800\x08\u2028\u00e9"))
    ET.fromstring(written(outcome(odd), "junit"))
