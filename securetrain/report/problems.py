# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of `verify` and `scan` as an `Outcome`."""

import dataclasses
from collections.abc import Sequence

from securetrain.artifacts import NOTHING, Finding, Problem, SavedResult, ScanResult, VerifyResult
from securetrain.artifacts.model import ModelResult
from securetrain.artifacts.statement import CheckpointPredicate
from securetrain.report.outcome import Located, Outcome


def of_verify(result: VerifyResult) -> Outcome:
    """The outcome of ``securetrain verify``."""
    said = result.statement
    names = ["statement.json"]
    if said is not None:
        names += [file.name for file in said.files]
    if isinstance(said, CheckpointPredicate):
        names.append(said.index.name)
    problems = tuple(map(located, result.problems))
    return Outcome(
        verb="verify",
        root=str(result.path),
        exit_code=int(result.exit_code),
        problems=problems,
        checked=_with_files_of(problems, names),
    )


def of_saved(result: SavedResult) -> Outcome:
    """The outcome of ``securetrain verify`` for what a script saved in another format."""
    problems = tuple(map(located, result.problems))
    names = [file.name for one in result.statements for file in one.said.files]
    return Outcome(
        verb="verify",
        root=str(result.path),
        exit_code=int(result.exit_code),
        problems=problems,
        checked=_with_files_of(problems, names),
    )


def of_model(result: ModelResult) -> Outcome:
    """The outcome of ``securetrain verify --bundle``."""
    problems = tuple(map(located, result.problems))
    names = [result.bundle.name, *(resource.name for resource in result.resources)]
    return Outcome(
        verb="verify",
        root=str(result.path),
        exit_code=int(result.exit_code),
        problems=problems,
        checked=_with_files_of(problems, names),
    )


def with_scan(outcome: Outcome, scanned: ScanResult) -> Outcome:
    """A verified directory that was scanned too.

    That nothing in it could be scanned is no problem here: the native format holds no objects, and
    every byte has been verified.
    """
    found = of_scan(scanned)
    problems = tuple(problem for problem in found.problems if problem.code != NOTHING)
    code = outcome.exit_code or (found.exit_code if problems else 0)
    together = (*outcome.problems, *problems)
    return dataclasses.replace(
        outcome,
        exit_code=code,
        problems=together,
        checked=_with_files_of(together, outcome.checked),
    )


def of_scan(result: ScanResult) -> Outcome:
    """The outcome of ``securetrain scan``."""
    problems = tuple(map(_found, result.findings))
    return Outcome(
        verb="scan",
        root=str(result.path),
        exit_code=int(result.exit_code),
        problems=problems,
        checked=_with_files_of(problems, [one.name.partition("!")[0] for one in result.judged]),
    )


def _found(finding: Finding) -> Located:
    """A finding at its place on disk: the file with its byte, and the member as its subject."""
    file, _, member = finding.file.partition("!")
    subject = ", ".join(filter(None, (member, finding.item)))
    return Located(
        code=finding.code,
        what=finding.what,
        fix=finding.fix,
        file=file,
        offset=finding.at if member else finding.offset,
        subject=subject,
        subject_kind="member" if member else "variable",
    )


def located(problem: Problem) -> Located:
    """A problem of an artifact at its place."""
    return Located(
        code=problem.code,
        what=problem.what,
        fix=problem.fix,
        file=problem.file,
        offset=problem.offset,
        length=problem.length,
        subject=problem.tensor,
    )


def _with_files_of(problems: Sequence[Located], names: Sequence[str]) -> tuple[str, ...]:
    """The names, and those that only a problem has; each once."""
    return tuple(dict.fromkeys([*names, *(problem.file for problem in problems)]))
