# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Today's violations, in one file that may only shrink.

Rules, in order:

1. a violation that is not listed fails;
2. one that is listed with a number may not grow;
3. one that is listed and gone fails too, until `python -m tools.gates --shrink` takes it off;
4. `--shrink` writes lower numbers and fewer lines, and never more;
5. against the file as git has it, in HEAD and where this branch left `origin/main`, nothing may be
   added or raised by hand;
6. what moved is not new: a listed place that is gone, and a new one of the same gate and the same
   last name, are one violation, and `--shrink` writes its new place.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from securetrain.core.files import write_atomic

SHRINK: Final = "python -m tools.gates --shrink"
Listed: TypeAlias = Mapping[str, Mapping[str, int]]
"""Gate -> place -> number, which is 1 where the violation has none."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One violation: a place, and a sentence about it."""

    where: str
    """A path, or a path and a name after two colons."""
    says: str
    figure: int = 1
    """The number that may not grow, where the violation has one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of what was found with what is listed."""

    new: tuple[Fault, ...] = ()
    grown: tuple[tuple[Fault, int], ...] = ()
    """With the number that is listed."""
    gone: tuple[str, ...] = ()
    moved: Mapping[str, str] | None = None
    """From the listed place to the new one."""
    shrunk: int = 0
    """Violations whose number is lower than the listed one."""


def compare(found: Iterable[Fault], listed: Mapping[str, int]) -> Verdict:
    """One gate's violations against those that are listed for it."""
    faults = {fault.where: fault for fault in found}
    gone = sorted(listed.keys() - faults.keys())
    moved = _moved(gone, sorted(faults.keys() - listed.keys()))
    known = dict(listed) | {new: listed[old] for old, new in moved.items()}
    return Verdict(
        new=tuple(fault for where, fault in faults.items() if where not in known),
        grown=tuple(
            (fault, known[where])
            for where, fault in faults.items()
            if where in known and fault.figure > known[where]
        ),
        gone=tuple(where for where in gone if where not in moved),
        moved=moved,
        shrunk=sum(where in known and f.figure < known[where] for where, f in faults.items()),
    )


def shrunk(found: Iterable[Fault], listed: Mapping[str, int]) -> dict[str, int]:
    """The list with what is gone taken off, lower numbers written, and moved places renamed."""
    faults = {fault.where: fault.figure for fault in found}
    moved = compare((Fault(where, "") for where in faults), listed).moved or {}
    known = {moved.get(where, where): figure for where, figure in listed.items()}
    return {w: min(n, faults[w]) for w, n in sorted(known.items()) if w in faults}


def growth(now: Listed, before: Listed) -> list[str]:
    """Every line of a list that an earlier one does not have, or has with a lower number."""
    grown = []
    for gate, places in sorted(now.items()):
        then = before.get(gate)
        if then is None:
            continue  # the gate is newer than that list
        moved = _moved(sorted(then.keys() - places.keys()), sorted(places.keys() - then.keys()))
        known = dict(then) | {new: then[old] for old, new in moved.items()}
        grown += [
            f"{gate}: {where}" if where not in known else f"{gate}: {where}: {known[where]} -> {n}"
            for where, n in sorted(places.items())
            if n > known.get(where, 0)
        ]
    return grown


def read(text: str) -> Listed:
    """The list from the text of its file."""
    listed: Listed = json.loads(text)
    return listed


def write(path: Path, listed: Listed) -> None:
    """Write the list, a line a violation, so that two branches seldom touch the same line."""
    write_atomic(path, (json.dumps(listed, indent=0, sort_keys=True) + "\n").encode())


def _moved(gone: Iterable[str], new: Iterable[str]) -> dict[str, str]:
    waiting: dict[str, list[str]] = defaultdict(list)
    for where in new:
        waiting[_last_name(where)].append(where)
    moved = {}
    for where in gone:
        if waiting[_last_name(where)]:
            moved[where] = waiting[_last_name(where)].pop(0)
    return moved


def _last_name(where: str) -> str:
    """What a violation keeps when it moves: the name of its class or function, or of its file.

    A name with a space is that of a concept, which many files can violate: the file's comes to it.
    """
    path, _, name = where.partition("::")
    file = path.removesuffix("/__init__.py").rpartition("/")[2]
    return f"::{name}" if name and " " not in name else f"{file}::{name}"
