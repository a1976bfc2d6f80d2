# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A budget of code lines for every room, and tests no longer than what they test.

A budget is the room's figure on the day it was written, and goes down with
`python -m tools.gates --shrink`. To raise one takes a reason, in the file and in the same
commit::

    "raised": [{"room": "guard", "from": 6662, "to": 6700, "reason": "sparse gradients are judged"}]
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securetrain.core.files import write_atomic
from tools.gates.tree import Source, Tree
from tools.gates.violations import Fault

FILE: Final = "tools/gates/budgets.json"
REASON: Final = 20
"""A reason has so many letters."""
RAISE: Final = "raise a budget with a reason under 'raised' in the same commit, or cut elsewhere"


@dataclass(frozen=True, slots=True)
class Budgets:
    """The file."""

    rooms: Mapping[str, int]
    raised: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Budgets":
        """Read the text of the file."""
        found = json.loads(text)
        return cls(found["rooms"], tuple(found["raised"]))

    def write(self, path: Path) -> None:
        """Write the file."""
        found = {"raised": list(self.raised), "rooms": dict(sorted(self.rooms.items()))}
        write_atomic(path, (json.dumps(found, indent=1) + "\n").encode())


def read(tree: Tree) -> Budgets:
    """The budgets of a tree."""
    return Budgets.parse((tree.root / FILE).read_text("utf-8"))


def spent(sources: Iterable[Source]) -> Counter[str]:
    """Code lines by room."""
    lines: Counter[str] = Counter()
    for source in sources:
        lines[source.room] += source.code_lines
    return +lines  # an empty file is no room


def over(tree: Tree) -> Iterator[Fault]:
    """Rooms with more code lines than their budget, and rooms that have none."""
    budgets = read(tree)
    lines = spent(tree.package)
    for room, count in sorted(lines.items()):
        budget = budgets.rooms.get(room)
        if budget is None:
            yield Fault(f"{tree.top}/{room}", f"has {count} code lines and no budget")
        elif count > budget:
            says = f"{count} code lines, {count - budget} over its budget of {budget}"
            yield Fault(f"{tree.top}/{room}", says, count)
    for room in sorted(budgets.rooms.keys() - lines.keys()):
        yield Fault(f"{tree.top}/{room}", "has a budget and is not there")


def under(tree: Tree) -> dict[str, tuple[int, int]]:
    """Rooms with fewer code lines than their budget: what they have, and the budget."""
    budgets = read(tree)
    lines = spent(tree.package)
    return {r: (lines[r], b) for r, b in budgets.rooms.items() if lines[r] < b}


def lowered(tree: Tree) -> Budgets:
    """The budgets at today's figures, where those are lower."""
    budgets = read(tree)
    lines = spent(tree.package)
    return Budgets(
        {r: min(b, lines[r]) for r, b in budgets.rooms.items() if r in lines}, budgets.raised
    )


def growth(now: Budgets, before: Budgets) -> list[str]:
    """Budgets that were raised since without a reason."""
    reasons = {
        one["room"]: one["to"]
        for one in now.raised
        if one not in before.raised and len(str(one.get("reason", ""))) >= REASON
    }
    return [
        f"{room}: {before.rooms.get(room, 0)} -> {budget}"
        for room, budget in sorted(now.rooms.items())
        if budget > max(before.rooms.get(room, 0), reasons.get(room, 0))
    ]


def tests(tree: Tree) -> Iterator[Fault]:
    """Rooms whose tests have more code lines than they have."""
    code, lines = spent(tree.package), spent(tree.tests)
    code["tools"] = spent(tree.below("tools")).total()
    for room in sorted(code.keys() & lines.keys()):
        if lines[room] > code[room]:
            says = f"{lines[room]} code lines of tests for {code[room]}"
            yield Fault(f"tests/{room}", says, lines[room])
