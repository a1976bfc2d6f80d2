# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""JUnit XML, which CI servers show as tests: a test case for every thing that was checked.

There is no standard; this is the shape that Jenkins and GitLab document: testsuite, testcase,
failure, error, skipped. What is not decided is an error, never a test that was skipped. A problem
of a whole directory is a case of its own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree as ET

from securetrain.core import printable
from securetrain.report.outcome import Case, Located, Outcome

_WHOLE: Final = "(the whole)"


def render(outcome: Outcome) -> str:
    """The outcome as a JUnit document."""
    return "".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    """Every case by itself: an audit of many nodes has hundreds of thousands."""
    cases = [*outcome.cases, *(_notice(outcome.verb, text) for text in outcome.notices)]
    verdicts = Counter(_verdict(case) for case in cases)
    suite = ET.Element(
        "testsuite",
        name=f"securetrain {outcome.verb} {_text(outcome.root)}",
        tests=str(len(cases)),
        failures=str(verdicts["failure"]),
        errors=str(verdicts["error"]),
        skipped=str(verdicts["skipped"]),
    )
    suite.text = "\n"
    head, _, tail = ET.tostring(suite, encoding="unicode").rpartition("</")
    yield head
    for case in cases:
        element = _case(outcome.verb, case)
        ET.indent(element, level=1)
        yield f"  {ET.tostring(element, encoding='unicode')}\n"
    yield f"</{tail}\n"


def _notice(verb: str, text: str) -> Case:
    """A case that fails for a whole that cannot be relied on."""
    whole = Located(code=verb, what=text, fix="collect the facts again")
    return Case(name="", problems=(whole,))


def _verdict(case: Case) -> str:
    """The worst of a case: a failure, what is not decided, what is accepted; empty for a pass."""
    kinds = {_kind(problem) for problem in case.problems}
    if case.not_applicable:
        kinds.add("skipped")
    return next((kind for kind in ("failure", "error", "skipped") if kind in kinds), "")


def _kind(problem: Located) -> str:
    if problem.accepted:
        return "skipped"
    return "error" if problem.undecided else "failure"


def _case(verb: str, case: Case) -> ET.Element:
    group = f"securetrain.{verb}" + (f".{_text(case.group)}" if case.group else "")
    element = ET.Element("testcase", classname=group, name=_text(case.name) or _WHOLE)
    verdict = _verdict(case)
    if not verdict:
        return element
    worst: Sequence[Located] = [p for p in case.problems if _kind(p) == verdict]
    if not worst:
        ET.SubElement(element, verdict, message="does not apply here")
        return element
    message = worst[0].accepted if verdict == "skipped" else worst[0].what
    kind = {} if verdict == "skipped" else {"type": worst[0].code}
    result = ET.SubElement(element, verdict, {**kind, "message": _text(message)})
    result.text = "\n".join(_line(problem) for problem in case.problems)
    return element


def _line(problem: Located) -> str:
    place = "" if problem.offset is None else f" byte {problem.offset}"
    if problem.line:
        place = f" {_text(problem.file)}:{problem.line}"
    subject = f" ({_text(problem.subject)})" if problem.subject else ""
    return f"{problem.code}{place}{subject}: {_text(problem.what)}\n  fix: {_text(problem.fix)}"


def _text(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return printable(text, keep="").encode("ascii", "backslashreplace").decode("ascii")
