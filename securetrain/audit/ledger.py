# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ledger of one reader while it reads: entries come in, equal ones are counted per folder.

Rules:

1. what was not understood keeps its own place, for the first `MAX_OPEN`; then it is counted per
   folder, and what is more than `MAX_ROWS` is one entry that bears on all that the others bear on;
2. what was read, and what is not ours, is counted per folder from the start;
3. nothing is dropped: the counts of a ledger add up to the units that its reader was given.
"""

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, TypeAlias

from msgspec.structs import replace

from securetrain.audit.facts import End, Entry, Location, Observed, Outcome

MAX_OPEN: Final = 1_000
MAX_ROWS: Final = 1_000


_Key: TypeAlias = tuple[object, ...]


def read_at(unit: str, at: Location, *bears_on: str) -> Entry:
    """The entry of a unit that was read."""
    return Entry(unit=unit, at=at, end=End.READ, bears_on=bears_on)


def entry_of(unit: str, path: str, read: Observed, *bears_on: str) -> Entry:
    """The entry of a unit whose record says how its reading ended."""
    at = Location(path=path)
    if read.outcome is Outcome.OK:
        return read_at(unit, at, *bears_on)
    why = read.reason or read.outcome.value
    return Entry(unit=unit, at=at, end=End.NOT_UNDERSTOOD, why=why, bears_on=bears_on)


@dataclass(slots=True)
class Ledger:
    """Entries of one reader."""

    _open: list[Entry] = field(default_factory=list)
    _counted: dict[_Key, Entry] = field(default_factory=dict)
    _paths: set[str] = field(default_factory=set)

    def add(self, entry: Entry) -> None:
        """Note what became of a unit."""
        if entry.end is End.NOT_UNDERSTOOD:
            self._paths.add(entry.at.path)
            if len(self._open) < MAX_OPEN:
                self._open.append(entry)
                return
        folder = str(PurePath(entry.at.path).parent)
        key: _Key = (entry.unit, entry.end, folder, entry.why, entry.help, entry.bears_on)
        before = self._counted.get(key)
        if before is not None:
            entry = replace(before, at=Location(path=folder), count=before.count + entry.count)
        elif len(self._counted) >= MAX_ROWS:
            key, entry = self._rest(entry)
        self._counted[key] = entry

    def _rest(self, entry: Entry) -> tuple[_Key, Entry]:
        """The one entry of all that has no row of its own."""
        key = (entry.end,)
        before = self._counted.get(key)
        if before is None:
            why = "in more folders than are told apart" if entry.why else ""
            return key, replace(entry, at=Location(path="."), why=why, help="")
        bears_on = tuple(sorted({*before.bears_on, *entry.bears_on}))
        return key, replace(before, count=before.count + entry.count, bears_on=bears_on)

    def is_open(self, path: str) -> bool:
        """Tell whether something of a file was not understood."""
        return path in self._paths

    def entries(self) -> tuple[Entry, ...]:
        """All entries: what is open first, each in the order of its places."""
        every = (*self._open, *self._counted.values())
        return tuple(sorted(every, key=lambda e: (_ORDER[e.end], e.at.path, e.at.line, e.why)))


_ORDER: Final = {End.NOT_UNDERSTOOD: 0, End.READ: 1, End.NOT_OURS: 2}
