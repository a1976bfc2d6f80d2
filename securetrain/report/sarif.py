# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SARIF 2.1.0, which code-scanning services show beside the code.

One rule per refusal code; a result names the file, the bytes and the tensors. Source: OASIS SARIF
version 2.1.0, sections 3.13 (log), 3.27 (result), 3.30 (region: byteOffset, byteLength), 3.33
(logicalLocation).
"""

import hashlib
from typing import Any, Final
from urllib.parse import quote

from securetrain import __version__
from securetrain.core import CODES, printable
from securetrain.core.vocabulary import Severity
from securetrain.report.problems import Located, Outcome

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "ROOT"


def render(outcome: Outcome) -> dict[str, Any]:
    """The outcome as a SARIF log."""
    rules = sorted({problem.code for problem in outcome.problems})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": f"securetrain {outcome.verb}",
                        "semanticVersion": __version__,
                        "rules": [_rule(code) for code in rules],
                    }
                },
                "originalUriBaseIds": {_ROOT: {"description": {"text": "what was checked"}}},
                "invocations": [{"executionSuccessful": True, "exitCode": outcome.exit_code}],
                "artifacts": [{"location": _location(name)} for name in outcome.checked if name],
                "results": [_result(problem, rules) for problem in outcome.problems],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    return {
        "id": code,
        "shortDescription": {"text": CODES[code].title},
        "help": {"text": CODES[code].fix},
        "defaultConfiguration": {"level": _level(code)},
        "properties": {"exitCode": int(CODES[code].exit)},
    }


def _level(code: str) -> str:
    """Section 3.27.10: what the severity of a code is to a code-scanning service."""
    severity = CODES[code].severity
    if severity is Severity.INFO:
        return "note"
    return "warning" if severity is Severity.LOW else "error"


def _result(problem: Located, rules: list[str]) -> dict[str, Any]:
    place: dict[str, Any] = {}
    if problem.file:
        place["physicalLocation"] = {"artifactLocation": _location(problem.file)}
        region = {}
        if problem.offset is not None:
            region["byteOffset"] = problem.offset
        if problem.length is not None:
            region["byteLength"] = problem.length
        if region:
            place["physicalLocation"]["region"] = region
    if problem.subject:
        place["logicalLocations"] = [
            {"fullyQualifiedName": printable(problem.subject, keep=""), "kind": "variable"}
        ]
    text = f"{problem.code}|{problem.file}|{problem.offset}|{problem.what}"
    return {
        "ruleId": problem.code,
        "ruleIndex": rules.index(problem.code),
        "level": _level(problem.code),
        "message": {"text": printable(problem.what)},
        "locations": [place] if place else [],
        "partialFingerprints": {"securetrain/v1": hashlib.sha256(text.encode()).hexdigest()},
    }


def _location(name: str) -> dict[str, str]:
    return {"uri": quote(name, safe="/"), "uriBaseId": _ROOT}
