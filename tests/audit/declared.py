# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of a shipped check in one file of fixtures/checks, without Python.

::

    check: ST-HST-020
    kind: node
    fixtures: {NAME: what it changes in the reference of the kind, as in mutations.yaml}
    also: {NAME: the other checks that rightly fail there}
    machines: {NAME: {steps: what is done to the files of the hardened machine or cluster}}
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from securetrain.audit.engine.check import Check
from securetrain.audit.engine.schema import CheckId
from securetrain.policy.load import parse_yaml

FOLDER = "checks"
RECIPE = "docs/contributing/audit-check.md"


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys: a step that is misspelt does nothing, and looks like a fault nobody finds."""


class Files(Protocol):
    """A machine or a cluster that is made of files."""

    root: Path


class Step(_Base, frozen=True, kw_only=True):
    """One change of a file: exactly one of `text`, `append`, `replace` and `mode`."""

    file: Annotated[str, Meta(pattern=r"^/")]
    text: str | None = None
    append: str | None = None
    replace: tuple[str, str] | None = None
    """The words that stand there once, and those in their place."""
    mode: Annotated[str, Meta(pattern=r"^[0-7]{3,4}\Z")] | None = None

    def __post_init__(self) -> None:
        """Refuse what does nothing, or two things."""
        given = (self.text, self.append, self.replace, self.mode)
        if sum(one is not None for one in given) != 1:
            raise ValueError("a step has exactly one of text, append, replace and mode")

    def take(self, files: Files) -> None:
        """Change the file; what is appended to, replaced in or given a mode must be there."""
        path = files.root / self.file.lstrip("/")
        if self.mode is not None:
            path.chmod(int(self.mode, 8))
            return
        before = "" if self.text is not None else path.read_text()
        if self.replace is not None:
            old, new = self.replace
            assert before.count(old) == 1, f"{self.file} has this once: {old!r}"
            after = before.replace(old, new)
        else:
            after = before + (self.text or self.append or "")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(after)


class Made(_Base, frozen=True, kw_only=True):
    """What makes the check fail on a hardened machine."""

    steps: Annotated[tuple[Step, ...], Meta(min_length=1)]
    is_subject: bool = False
    """Whether the file is itself what is wrong, so that nothing is wrong without it."""
    also: frozenset[CheckId] = frozenset()

    def make(self, files: Files) -> None:
        """Take the steps."""
        for step in self.steps:
            step.take(files)

    @property
    def evidence(self) -> str:
        """The file that shows it: the one of the last step."""
        return self.steps[-1].file


class Declared(_Base, frozen=True, kw_only=True):
    """One file."""

    check: CheckId
    kind: str
    fixtures: dict[str, list[dict[str, Any]]] = {}
    also: dict[str, set[CheckId]] = {}
    machines: dict[str, Made] = {}


def declared(fixtures: Path) -> tuple[Declared, ...]:
    """Every file of the folder `checks` beside the other fixtures."""
    return tuple(
        msgspec.convert(parse_yaml(path.read_text(), str(path)), Declared)
        for path in sorted((fixtures / FOLDER).glob("*.yaml"))
    )


def machines(fixtures: Path, kind: str) -> dict[str, tuple[str, Made]]:
    """The check and the machine, by name."""
    found: dict[str, tuple[str, Made]] = {}
    for one in declared(fixtures):
        if one.kind == kind:
            twice = found.keys() & one.machines.keys()
            assert not twice, f"{one.check}: machines {sorted(twice)} stand twice"
            found |= {name: (one.check, made) for name, made in one.machines.items()}
    return found


def added(there: dict[str, Any], more: dict[str, Any], where: str) -> dict[str, Any]:
    """Both; a name that stands in each would hide one of them."""
    assert not there.keys() & more.keys(), f"{where}: {sorted(there.keys() & more.keys())} twice"
    return there | more


def missing(name: str, kind: str, checks: Iterable[Check]) -> str:
    """The sentence about a fixture that checks name and no file has."""
    named = [
        check.id
        for check in checks
        if check.kind == kind
        if any(name in names for names in check.spec.tests.by_state.values())
    ]
    file = f"tests/audit/fixtures/{FOLDER}/{named[0].lower() if named else 'ID'}.yaml"
    return (
        f"{', '.join(named) or 'a test'} names the fixture {name!r} of kind {kind}, which no file "
        f"has: write it under `fixtures` in {file} (step 3 of {RECIPE})"
    )


def missing_evidence(evidence: str, kind: str) -> str:
    """The sentence about evidence that the reference of a kind does not have."""
    stem = "reference" if kind == "node" else kind
    return (
        f"the reference of kind {kind} has no {evidence}: give it a value in "
        f"tests/audit/fixtures/{stem}.json, or correct the name (the last section of {RECIPE})"
    )
