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
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from textwrap import indent
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
_RESULT: Final = " " * 8
_RESULTS: Final = "\n" + " " * 6
"""How far a result, and the end of all of them, stand from the margin."""
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


def sarif(document: Document) -> Iterator[str]:
    """Yield the pieces of a SARIF log of a document's findings: its results one by one."""
    found = document.findings or Findings()
    codes = sorted({problem.code for problem in found.problems})
    rules = {code: (found.rule(code), number) for number, code in enumerate(codes)}
    used = {ROOT, *(p.at.base for p in found.problems), *(p.at.base for p in found.unread)}
    bases = sorted(used, reverse=True)
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": f"securetrain {document.verb}",
                        "semanticVersion": __version__,
                        "rules": [_rule(rule) for rule, _ in rules.values()],
                    }
                },
                "originalUriBaseIds": {
                    base: {"description": {"text": _BASES[base]}} for base in bases
                },
                "invocations": [_invocation(found, document.exit_code)],
                "artifacts": [{"location": _location(name)} for name in found.files if name],
                "results": [],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }
    # No string of JSON holds this: a quotation mark inside of one is escaped.
    head, name, tail = json.dumps(log, indent=2).partition('"results": [')
    yield head + name
    end, comma = "", ""
    for problem in found.problems:
        result = _result(problem, *rules[problem.code])
        yield f"{comma}\n{indent(json.dumps(result, indent=2), _RESULT)}"
        end, comma = _RESULTS, ","
    yield f"{end}{tail}\n"


def _given(**values: Any) -> dict[str, Any]:
    """Leave out what is not there."""
    return {name: value for name, value in values.items() if value is not None}


def _invocation(found: Findings, code: int) -> dict[str, Any]:
    """Section 3.20: an audit of facts that cannot be relied on was no success."""
    said = [{"level": "error", "message": {"text": printable(one)}} for one in found.notices]
    said += map(_notification, found.unread)
    return _given(
        executionSuccessful=not found.notices,
        exitCode=code,
        toolExecutionNotifications=said or None,
    )


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
    score = {"security-severity": _SCORES[rule.severity], "tags": ["security", *rule.tags]}
    return _given(
        id=rule.id,
        shortDescription={"text": rule.title},
        fullDescription={"text": rule.why} if rule.why else None,
        help={"text": rule.fix},
        defaultConfiguration={"level": _level(rule.severity)},
        properties=score | _given(exitCode=rule.exit_code),
    )


def _level(severity: Severity) -> str:
    """Section 3.27.10: what a severity is to a code-scanning service."""
    if severity >= Severity.HIGH:
        return "error"
    return "warning" if severity is Severity.MEDIUM else "note"


def _result(problem: Located, rule: Rule, number: int) -> dict[str, Any]:
    severity, accepted = problem.severity or rule.severity, printable(problem.accepted)
    suppressed = {"kind": "external", "status": "accepted", "justification": accepted}
    written = {"message": {"text": "Written here."}}
    return _given(
        ruleId=rule.id,
        ruleIndex=number,
        kind="open" if problem.undecided else "fail",
        level="none" if problem.undecided else _level(severity),
        message={"text": printable(problem.what)},
        locations=list(_places(problem.at)),
        relatedLocations=[one | written for one in _places(problem.at.written or Place())] or None,
        partialFingerprints={"securetrain/v1": problem.fingerprint or _digest(problem)},
        properties={"severity": severity.value} if severity is not rule.severity else None,
        suppressions=[suppressed] if problem.accepted else None,
    )


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
    return _given(
        startLine=at.line or None,
        startColumn=(at.column or None) if at.line else None,
        byteOffset=at.offset,
        byteLength=at.length,
    )


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


def junit(document: Document) -> Iterator[str]:
    """Yield the pieces of a JUnit document of a document's findings: its cases one by one."""
    found, verb = document.findings or Findings(), document.verb
    notices = [_notice(verb, text) for text in found.notices]
    verdicts = Counter(_VERDICTS.get(case.state) for case in chain(found.cases, notices))
    suite = ET.Element(
        "testsuite",
        name=f"securetrain {verb} {_text(found.root)}",
        tests=str(verdicts.total()),
        failures=str(verdicts["failure"]),
        errors=str(verdicts["error"]),
        skipped=str(verdicts["skipped"]),
    )
    suite.text = "\n"
    head, _, tail = ET.tostring(suite, encoding="unicode").rpartition("</")
    yield head
    for case in chain(found.cases, notices):
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


def markdown(document: Document) -> Iterator[str]:
    """Yield the page."""
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
    yield "\n".join([head, *parts, foot]) + "\n"


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
