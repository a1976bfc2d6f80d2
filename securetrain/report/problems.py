# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The findings of `verify` and `scan`, in the one shape behind the machine formats."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from securetrain.artifacts import NOTHING, Problem, ScanResult, VerifyResult
from securetrain.artifacts.model import ModelResult
from securetrain.artifacts.statement import CheckpointPredicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A problem and where it is."""

    code: str
    what: str
    fix: str
    file: str = ""
    """Name below the root, with forward slashes; empty for the whole."""
    offset: int | None = None
    length: int | None = None
    subject: str = ""
    """The tensors, or the value of the state dict, that lie there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The findings of one command about one directory or file."""

    verb: str
    root: str
    exit_code: int
    problems: tuple[Located, ...]
    checked: tuple[str, ...]
    """What was checked, whatever came out: files, and parts of the check that are no file."""


def of_verify(result: VerifyResult) -> Outcome:
    """The outcome of ``securetrain verify``."""
    said = result.statement
    names = ["statement.json"]
    if said is not None:
        names += [file.name for file in said.files]
    if isinstance(said, CheckpointPredicate):
        names.append(said.index.name)
    problems = tuple(map(_located, result.problems))
    return Outcome(
        verb="verify",
        root=str(result.path),
        exit_code=int(result.exit_code),
        problems=problems,
        checked=_with_files_of(problems, names),
    )


def of_model(result: ModelResult) -> Outcome:
    """The outcome of ``securetrain verify --bundle``."""
    problems = tuple(map(_located, result.problems))
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
    problems = tuple(
        Located(
            code=finding.code,
            what=finding.what,
            fix=finding.fix,
            file=finding.file,
            offset=finding.offset,
            subject=finding.item,
        )
        for finding in result.findings
    )
    return Outcome(
        verb="scan",
        root=str(result.path),
        exit_code=int(result.exit_code),
        problems=problems,
        checked=_with_files_of(problems, [one.name for one in result.judged]),
    )


def _located(problem: Problem) -> Located:
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
