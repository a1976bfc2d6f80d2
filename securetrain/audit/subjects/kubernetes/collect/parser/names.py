# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Names that differ: a number follows one that was there before."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class OwnNames:
    """Gives each of several things of one name a name of its own."""

    seen: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """The name, or ``NAME#2`` when it was there before."""
        self.seen[name] = count = self.seen.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"
