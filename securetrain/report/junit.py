# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""JUnit XML, which CI servers show as tests: one test case for every file that was checked.

There is no standard; this is the shape that Jenkins and GitLab document: testsuite, testcase,
failure. A problem of the whole directory is a case of its own.
"""

from typing import Final
from xml.etree import ElementTree as ET

from securetrain.core import printable
from securetrain.report.problems import Located, Outcome

_WHOLE: Final = "(the whole)"


def render(outcome: Outcome) -> str:
    """The outcome as a JUnit document."""
    by_file: dict[str, list[Located]] = {name: [] for name in outcome.checked}
    for problem in outcome.problems:
        by_file.setdefault(problem.file, []).append(problem)
    failures = sum(1 for problems in by_file.values() if problems)
    suite = ET.Element(
        "testsuite",
        name=f"securetrain {outcome.verb} {_text(outcome.root)}",
        tests=str(len(by_file)),
        failures=str(failures),
        errors="0",
        skipped="0",
    )
    for name, problems in by_file.items():
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"securetrain.{outcome.verb}",
            name=_text(name) or _WHOLE,
        )
        if problems:
            failure = ET.SubElement(
                case, "failure", type=problems[0].code, message=_text(problems[0].what)
            )
            failure.text = "\n".join(_line(problem) for problem in problems)
    document = ET.ElementTree(suite)
    ET.indent(document)
    return ET.tostring(suite, encoding="unicode", xml_declaration=False) + "\n"


def _line(problem: Located) -> str:
    place = "" if problem.offset is None else f" byte {problem.offset}"
    subject = f" ({_text(problem.subject)})" if problem.subject else ""
    return f"{problem.code}{place}{subject}: {_text(problem.what)}\n  fix: {problem.fix}"


def _text(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return printable(text, keep="").encode("ascii", "backslashreplace").decode("ascii")
