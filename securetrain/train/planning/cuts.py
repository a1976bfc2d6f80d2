# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The cut of one parameter, as data. Free of torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One parameter, or the same one of every layer."""

    name: str
    whole: tuple[int, ...]
    axes: tuple[str, ...]
    """Each axis of more than one rank that holds it, and the dimension that it cuts."""
    local: tuple[int, ...]
    """The shape on the first rank."""

    def __str__(self) -> str:
        how = ", ".join(self.axes) or "whole on every rank"
        return f"{self.name} {self.whole}: {how}; {self.local} on a rank"
