# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A document for continuous integration: SARIF, JUnit and Markdown.

SARIF 2.1.0, which code-scanning services show beside the code: one rule per refusal code or check;
a result names the file with its line or bytes, and the tensor or the element. Source: OASIS SARIF
version 2.1.0, sections 3.13 (log), 3.20 (invocation), 3.27 (result; 3.27.9: what is not decided is
of kind ``open`` and has no level), 3.30 (region), 3.33 (logicalLocation), 3.35 (suppression), 3.49
(rule).

JUnit XML, which CI servers show as tests: a test case for every thing that was checked. There is no
standard; this is the shape that Jenkins and GitLab document: testsuite, testcase, failure, error,
skipped. What is not decided is an error, never a test that was skipped. A problem of a whole
directory is a case of its own.

Markdown, for a comment on a pull request or the summary of a job: what comes from elsewhere is
never markup: no tag, no link, no mention of somebody; the page stays below the length that such
comments take, and counts what it leaves out; what is open leads, the worst first.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from securetrain import __version__
from securetrain.core import printable
from securetrain.core.vocabulary import Severity, State
from securetrain.report.document import (
    ASSETS,
    ROOT,
    Case,
    Document,
    Findings,
    Located,
    Place,
    Row,
    Rule,
    open_rows,
    plural,
    state_of,
)

# --- SARIF ---------------------------------------------------------------------------------------

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


def sarif(document: Document) -> dict[str, Any]:
    """The findings of a document as a SARIF log."""
    found = document.findings or Findings()
    rules = {code: found.rule(code) for code in sorted({p.code for p in found.problems})}
    order = {code: number for number, code in enumerate(rules)}
    placed = (*found.problems, *found.unread)
    bases = sorted({ROOT, *(problem.at.base for problem in placed)}, reverse=True)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": f"securetrain {document.verb}",
                        "semanticVersion": __version__,
                        "rules": [_rule(rule) for rule in rules.values()],
                    }
                },
                "originalUriBaseIds": {
                    base: {"description": {"text": _BASES[base]}} for base in bases
                },
                "invocations": [_invocation(found, document.exit_code)],
                "artifacts": [{"location": _location(name)} for name in found.files if name],
                "results": [
                    _result(problem, rules[problem.code], order[problem.code])
                    for problem in found.problems
                ],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }


def _invocation(found: Findings, code: int) -> dict[str, Any]:
    """Section 3.20: an audit of facts that cannot be relied on was no success."""
    invocation: dict[str, Any] = {
        "executionSuccessful": not found.notices,
        "exitCode": code,
    }
    notifications: list[dict[str, Any]] = [
        {"level": "error", "message": {"text": printable(notice)}} for notice in found.notices
    ]
    notifications += map(_notification, found.unread)
    if notifications:
        invocation["toolExecutionNotifications"] = notifications
    return invocation


def _notification(unread: Located) -> dict[str, Any]:
    """Section 3.58: what the tool could not look at, and where."""
    level = "note" if unread.accepted else _level(unread.severity or Severity.INFO)
    said = ". ".join(filter(None, (unread.what, unread.accepted, unread.fix)))
    return {
        "level": level,
        "message": {"text": printable(said)},
        "locations": list(_places(unread.at)),
    }


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
    if severity >= Severity.HIGH:
        return "error"
    return "warning" if severity is Severity.MEDIUM else "note"


def _result(problem: Located, rule: Rule, number: int) -> dict[str, Any]:
    severity = problem.severity or rule.severity
    result: dict[str, Any] = {
        "ruleId": rule.id,
        "ruleIndex": number,
        "kind": "open" if problem.undecided else "fail",
        "level": "none" if problem.undecided else _level(severity),
        "message": {"text": printable(problem.what)},
        "locations": list(_places(problem.at)),
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
    text = f"{problem.code}|{problem.at.file}|{problem.at.offset}|{problem.what}"
    return hashlib.sha256(text.encode()).hexdigest()


def _places(at: Place) -> Iterator[dict[str, Any]]:
    place: dict[str, Any] = {}
    if at.file:
        place["physicalLocation"] = {"artifactLocation": _location(at.file, at.base)}
        if region := _region(at):
            place["physicalLocation"]["region"] = region
    if at.subject:
        name = printable(at.subject, keep="")
        place["logicalLocations"] = [{"fullyQualifiedName": name, "kind": at.subject_kind}]
    if place:
        yield place


def _region(at: Place) -> dict[str, int]:
    """Section 3.30: lines and columns of text, bytes of anything else."""
    given = {
        "startLine": at.line or None,
        "startColumn": (at.column or None) if at.line else None,
        "byteOffset": at.offset,
        "byteLength": at.length,
    }
    return {name: value for name, value in given.items() if value is not None}


def _location(name: str, base: str = ROOT) -> dict[str, str]:
    """Section 3.4: an absolute path is an address by itself."""
    uri = quote(name.encode("utf-8", "surrogateescape"), safe="/")
    return {"uri": f"file://{uri}"} if name.startswith("/") else {"uri": uri, "uriBaseId": base}


# --- JUnit ---------------------------------------------------------------------------------------

_WHOLE: Final = "(the whole)"
_VERDICTS: Final[Mapping[State, str]] = {
    State.FAIL: "failure",
    State.UNKNOWN: "error",
    State.WAIVED: "skipped",
    State.NOT_APPLICABLE: "skipped",
}
"""A pass has no element."""


def junit(document: Document) -> str:
    """The findings of a document as a JUnit document."""
    return "".join(_suite(document))


def _suite(document: Document) -> Iterator[str]:
    """Every case by itself: an audit of many nodes has hundreds of thousands."""
    found, verb = document.findings or Findings(), document.verb
    cases = [*found.cases, *(_notice(verb, text) for text in found.notices)]
    verdicts = Counter(_VERDICTS.get(case.state) for case in cases)
    suite = ET.Element(
        "testsuite",
        name=f"securetrain {verb} {_text(found.root)}",
        tests=str(len(cases)),
        failures=str(verdicts["failure"]),
        errors=str(verdicts["error"]),
        skipped=str(verdicts["skipped"]),
    )
    suite.text = "\n"
    head, _, tail = ET.tostring(suite, encoding="unicode").rpartition("</")
    yield head
    for case in cases:
        element = _case(verb, case)
        ET.indent(element, level=1)
        yield f"  {ET.tostring(element, encoding='unicode')}\n"
    yield f"</{tail}\n"


def _notice(verb: str, text: str) -> Case:
    """A case that fails for a whole that cannot be relied on."""
    whole = Located(code=verb, what=text, fix="collect the facts again")
    return Case(name="", problems=(whole,))


def _case(verb: str, case: Case) -> ET.Element:
    group = f"securetrain.{verb}" + (f".{_text(case.group)}" if case.group else "")
    element = ET.Element("testcase", classname=group, name=_text(case.name) or _WHOLE)
    verdict = _VERDICTS.get(case.state)
    if verdict is None:
        return element
    worst = [one for one in case.problems if state_of(one) is case.state]
    if not worst:
        ET.SubElement(element, verdict, message="does not apply here")
        return element
    message = worst[0].accepted if verdict == "skipped" else worst[0].what
    kind = {} if verdict == "skipped" else {"type": worst[0].code}
    result = ET.SubElement(element, verdict, {**kind, "message": _text(message)})
    result.text = "\n".join(_line(problem) for problem in case.problems)
    return element


def _line(problem: Located) -> str:
    at = problem.at
    place = "" if at.offset is None else f" byte {at.offset}"
    if at.line:
        place = f" {_text(at.file)}:{at.line}"
    subject = f" ({_text(at.subject)})" if at.subject else ""
    return f"{problem.code}{place}{subject}: {_text(problem.what)}\n  fix: {_text(problem.fix)}"


def _text(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return printable(text, keep="").encode("ascii", "backslashreplace").decode("ascii")


# --- Markdown ------------------------------------------------------------------------------------

MAX_CHARS: Final = 60_000
"""A comment on GitHub holds 65,536."""
MAX_DETAILS: Final = 10
_SPECIAL: Final = frozenset("\\`*_[]<>|~&$:")
_REFERRING: Final = frozenset("@#")
"""Names of people and numbers of issues are looked for in the finished page: an entity would not
hide them, a space of no width does."""


def markdown(document: Document) -> str:
    """The page."""
    found = open_rows(document.sections)
    head, foot = "\n".join(_head(document)), "\n".join(_foot(document))
    room = MAX_CHARS - len(head) - len(foot) - 200
    parts: list[str] = []
    for number, row in enumerate(found):
        part = "\n".join(_row(row))
        room -= len(part) + 1
        if room < 0:
            left = len(found) - number
            parts.append(f"\n{plural(left, 'more check')}: see the JSON of this {document.verb}.\n")
            break
        parts.append(part)
    return "\n".join([head, *parts, foot]) + "\n"


def _head(document: Document) -> Iterator[str]:
    yield f"## securetrain {document.verb}: {document.word.lower()}\n"
    counts = ", ".join(f"{number:,} {name}" for name, number in document.counts.items())
    yield f"{escaped(document.about)}: {counts}.\n"
    for notice in document.findings.notices if document.findings is not None else ():
        yield f"**The facts cannot be relied on:** {escaped(notice)}\n"
    yield from _facts(document, above=True)


def _foot(document: Document) -> Iterator[str]:
    yield from _facts(document, above=False)
    yield f"{escaped(document.sentence)}."


def _facts(document: Document, *, above: bool) -> Iterator[str]:
    """The rows that are no findings: those before the first heading, or those after it."""
    titled = [bool(one.title) for one in document.sections]
    first = titled.index(True) if True in titled else len(titled)
    for section in document.sections[:first] if above else document.sections[first:]:
        for row in section.rows if not (section.page_only or section.columns) else ():
            if not (row.open or row.passed):
                label = f"{code(row.name)}: " if row.name else ""
                state = f"{row.state}: " if row.state else ""
                yield f"{state}{label}{escaped(row.text)}\n"


def _row(row: Row) -> Iterator[str]:
    """A finding, its places and its fix folded below it."""
    label = "" if row.state == "fail" else f"{row.state}: "
    weight = f"<b>{escaped(row.label)}</b> " if row.label else ""
    name = f"<code>{row.name}</code> " if row.name else ""
    yield f"<details><summary>{label}{weight}{name}{escaped(row.text)}</summary>\n"
    details = [*filter(None, [row.source]), *row.detail]
    yield from (f"- {escaped(one)}" for one in details[:MAX_DETAILS])
    if len(details) > MAX_DETAILS:
        yield f"- and {len(details) - MAX_DETAILS} more"
    yield ""
    if row.fix:
        yield f"Fix: {escaped(row.fix)}\n"
    yield "</details>\n"


def escaped(text: str) -> str:
    """Text that is only text."""
    safe = printable(text, keep="")
    return "".join(_spelled(char, first=number == 0) for number, char in enumerate(safe))


def _spelled(char: str, *, first: bool) -> str:
    if char in _REFERRING:
        return f"&#{ord(char)};&#8203;"
    if char in _SPECIAL or (first and not char.isalnum()):
        return f"&#{ord(char)};"
    return char


def code(text: str) -> str:
    """Text in a code span, where nobody looks for names."""
    entities = "".join(
        f"&#{ord(char)};" if char in _SPECIAL or char in _REFERRING else char
        for char in printable(text, keep="")
    )
    return f"<code>{entities}</code>"
