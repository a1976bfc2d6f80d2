# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SARIF 2.1.0, which code-scanning services show beside the code.

One rule per refusal code or check; a result names the file with its line or bytes, and the tensor
or the element. Source: OASIS SARIF version 2.1.0, sections 3.13 (log), 3.20 (invocation), 3.27
(result; 3.27.9: what is not decided is of kind ``open`` and has no level), 3.30 (region), 3.33
(logicalLocation), 3.35 (suppression), 3.49 (rule).
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from securetrain import __version__
from securetrain.core import printable
from securetrain.core.vocabulary import Severity
from securetrain.report.outcome import ASSETS, ROOT, Located, Outcome, Rule

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_BASES: Final[Mapping[str, str]] = {
    ROOT: "what was checked",
    ASSETS: "the machines and services that were audited",
}
_SCORES: Final[Mapping[Severity, str]] = {
    Severity.CRITICAL: "9.5",
    Severity.HIGH: "8.0",
    Severity.MEDIUM: "5.5",
    Severity.LOW: "2.0",
    Severity.INFO: "0.0",
}
"""Numbers in the ranges that code-scanning services show as these words."""


def render(outcome: Outcome) -> dict[str, Any]:
    """The outcome as a SARIF log."""
    rules = {code: outcome.rule(code) for code in sorted({p.code for p in outcome.problems})}
    order = {code: number for number, code in enumerate(rules)}
    bases = sorted({ROOT, *(problem.base for problem in outcome.problems)}, reverse=True)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": f"securetrain {outcome.verb}",
                        "semanticVersion": __version__,
                        "rules": [_rule(rule) for rule in rules.values()],
                    }
                },
                "originalUriBaseIds": {
                    base: {"description": {"text": _BASES[base]}} for base in bases
                },
                "invocations": [_invocation(outcome)],
                "artifacts": [{"location": _location(name)} for name in outcome.checked if name],
                "results": [
                    _result(problem, rules[problem.code], order[problem.code])
                    for problem in outcome.problems
                ],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }


def _invocation(outcome: Outcome) -> dict[str, Any]:
    """Section 3.20: an audit of facts that cannot be relied on was no success."""
    invocation: dict[str, Any] = {
        "executionSuccessful": not outcome.notices,
        "exitCode": outcome.exit_code,
    }
    if outcome.notices:
        invocation["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": printable(notice)}} for notice in outcome.notices
        ]
    return invocation


def _rule(rule: Rule) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "security-severity": _SCORES[rule.severity],
        "tags": ["security", *rule.tags],
    }
    if rule.exit_code is not None:
        properties["exitCode"] = rule.exit_code
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        **({"fullDescription": {"text": rule.why}} if rule.why else {}),
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": _level(rule.severity)},
        "properties": properties,
    }


def _level(severity: Severity) -> str:
    """Section 3.27.10: what a severity is to a code-scanning service."""
    if severity is Severity.INFO:
        return "note"
    return "warning" if severity is Severity.LOW else "error"


def _result(problem: Located, rule: Rule, number: int) -> dict[str, Any]:
    severity = problem.severity or rule.severity
    result: dict[str, Any] = {
        "ruleId": rule.id,
        "ruleIndex": number,
        "kind": "open" if problem.undecided else "fail",
        "level": "none" if problem.undecided else _level(severity),
        "message": {"text": printable(problem.what)},
        "locations": list(_places(problem)),
        "partialFingerprints": {"securetrain/v1": problem.fingerprint or _digest(problem)},
    }
    if severity is not rule.severity:
        result["properties"] = {"severity": severity.value}
    if problem.accepted:
        result["suppressions"] = [
            {
                "kind": "external",
                "status": "accepted",
                "justification": printable(problem.accepted),
            }
        ]
    return result


def _digest(problem: Located) -> str:
    text = f"{problem.code}|{problem.file}|{problem.offset}|{problem.what}"
    return hashlib.sha256(text.encode()).hexdigest()


def _places(problem: Located) -> Iterator[dict[str, Any]]:
    place: dict[str, Any] = {}
    if problem.file:
        place["physicalLocation"] = {"artifactLocation": _location(problem.file, problem.base)}
        if region := _region(problem):
            place["physicalLocation"]["region"] = region
    if problem.subject:
        name = printable(problem.subject, keep="")
        place["logicalLocations"] = [{"fullyQualifiedName": name, "kind": problem.subject_kind}]
    if place:
        yield place


def _region(problem: Located) -> dict[str, int]:
    """Section 3.30: lines and columns of text, bytes of anything else."""
    given = {
        "startLine": problem.line or None,
        "startColumn": (problem.column or None) if problem.line else None,
        "byteOffset": problem.offset,
        "byteLength": problem.length,
    }
    return {name: value for name, value in given.items() if value is not None}


def _location(name: str, base: str = ROOT) -> dict[str, str]:
    """Section 3.4: an absolute path is an address by itself."""
    uri = quote(name.encode("utf-8", "surrogateescape"), safe="/")
    return {"uri": f"file://{uri}"} if name.startswith("/") else {"uri": uri, "uriBaseId": base}
