# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Three-valued logic (Kleene, strong): what is not known stays not known until something decides.

``all`` is false when one part is false, whatever else is unknown; ``any`` is true when one part is
true; otherwise an unknown part makes the whole unknown. A check passes on true only.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from securetrain.audit.facts import Location

MAX_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class Truth:
    """True, false or unknown (None), with what made it unknown and where the answer stands."""

    value: bool | None
    reasons: tuple[str, ...] = ()
    at: "Location | None" = None
    """The place of the value that decided."""
    read: tuple[tuple[str, ...], ...] = ()
    """The fields that decided: of a conjunction that fails, those of the part that does."""

    def __invert__(self) -> "Truth":
        return self if self.value is None else replace(self, value=not self.value)


TRUE: Final = Truth(True)
FALSE: Final = Truth(False)


def unknown(reason: str, at: "Location | None" = None) -> Truth:
    """Not known, and why."""
    return Truth(None, (reason,), at)


def truth(value: bool, at: "Location | None" = None) -> Truth:  # noqa: FBT001 - lifts a bool
    """A bool as a `Truth`."""
    if at is not None:
        return Truth(value, (), at)
    return TRUE if value else FALSE


def all_of(parts: Iterable[Truth]) -> Truth:
    """Conjunction; the place is that of the first part that decides and has one."""
    reasons: list[str] = []
    at = open_at = None
    read: tuple[tuple[str, ...], ...] = ()
    open_ = False
    for part in parts:
        if part.value is False:
            return part
        if part.value is None:
            open_ = True
            open_at = open_at or part.at
            reasons.extend(part.reasons)
        at = at or part.at
        read += part.read
    return Truth(None, _few(reasons), open_at) if open_ else Truth(True, (), at, read)


def any_of(parts: Iterable[Truth]) -> Truth:
    """Disjunction."""
    return ~all_of(~part for part in parts)


def _few(reasons: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reasons))[:MAX_REASONS]
