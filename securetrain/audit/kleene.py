# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Three-valued logic (Kleene, strong): what is not known stays not known until something decides.

``all`` is false when one part is false, whatever else is unknown; ``any`` is true when one part is
true; otherwise an unknown part makes the whole unknown. A check passes on true only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MAX_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class Truth:
    """True, false or unknown (None), with what made it unknown."""

    value: bool | None
    reasons: tuple[str, ...] = ()

    def __invert__(self) -> "Truth":
        return self if self.value is None else (FALSE if self.value else TRUE)


TRUE: Final = Truth(True)
FALSE: Final = Truth(False)


def unknown(reason: str) -> Truth:
    """Not known, and why."""
    return Truth(None, (reason,))


def truth(value: bool) -> Truth:  # noqa: FBT001 - lifts a bool
    """A bool as a `Truth`."""
    return TRUE if value else FALSE


def all_of(parts: Iterable[Truth]) -> Truth:
    """Conjunction."""
    reasons: list[str] = []
    open_ = False
    for part in parts:
        if part.value is False:
            return FALSE
        if part.value is None:
            open_ = True
            reasons.extend(part.reasons)
    return Truth(None, _few(reasons)) if open_ else TRUE


def any_of(parts: Iterable[Truth]) -> Truth:
    """Disjunction."""
    return ~all_of(~part for part in parts)


def _few(reasons: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reasons))[:MAX_REASONS]
