# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Descriptions of evidence, for people and for ``--json``: sections of facts and tables.

What cannot be read becomes a fact with the code of its refusal: a bad part hides no other.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from securetrain.core.errors import SecureTrainError


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what is said under it."""

    name: str
    value: str
    code: str = ""
    """Of the refusal, where it could not be read; `value` then says why."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of what is said."""

    name: str
    """For ``--section``."""
    title: str
    label: str = ""
    """What everything in it is worth: UNATTESTED, unverified."""
    facts: tuple[Fact, ...] = ()
    table: Table | None = None

    def to_dict(self) -> dict[str, Any]:
        """The section as data; rows are objects by column."""
        table = self.table or Table((), ())
        return {
            "name": self.name,
            "title": self.title,
            "label": self.label,
            "facts": [asdict(fact) for fact in self.facts],
            "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        }


def refused(name: str, error: SecureTrainError) -> Fact:
    """The stand-in for something that cannot be read."""
    where = f" ({error.where})" if error.where else ""
    return Fact(name, f"{error.what or error.definition.title}{where}", error.code)


def tried(name: str, read: Callable[[], Iterable[Fact]]) -> list[Fact]:
    """The facts that `read` gives, or the one that says why it gives none."""
    try:
        return list(read())
    except SecureTrainError as error:
        return [refused(name, error)]


def yes(holds: bool) -> str:  # noqa: FBT001 - a value to be shown
    """A truth value in words."""
    return "yes" if holds else "no"
