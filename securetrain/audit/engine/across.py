# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Comparisons of one kind's assets with each other.

::

    {equal_across: PATH}     {majority_across: PATH}     {unique_across: PATH}

``PATH`` may be a list of paths, each compared for itself, and hold ``*``: then an asset has all of
those values. Rules:

1. what is definitely not there is a value like another, except that nobody shares it; what is not
   known makes its asset unknown;
2. ``equal_across``: an asset with another value than most fails. Where no value leads, all fail: a
   difference is there, whoever is right;
3. ``majority_across``: an asset fails where more than half of all, the unknown ones included, have
   one other value. Without such a majority nobody is known to be odd;
4. ``unique_across``: an asset fails that shares a value with another;
5. an asset passes only where no value of the unknown ones could change that;
6. one asset alone has nothing to be compared with.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from securetrain.audit.engine.fields import Missing, Path, View, elements, locate, steps_of
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, unknown
from securetrain.audit.facts import Location
from securetrain.core import canonical

RULES: Final = ("equal_across", "majority_across", "unique_across")
MAX_NAMED: Final = 3
MAX_SHOWN: Final = 80
ABSENT: Final = "nothing"
"""The value of what is definitely not there."""


@dataclass(frozen=True, slots=True)
class Across:
    """The comparison that a check makes."""

    rule: str
    """One of `RULES`."""
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The values of one asset at one path, as text to compare and to show."""

    asset: str
    values: tuple[str, ...] = ()
    missing: str = ""
    """Why they are not known."""
    at: Location | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The answer about one asset."""

    seen: Seen
    good: Truth
    why: str = ""


def see(view: View, path: Path) -> Seen:
    """The values of the view's document at a path."""
    asset = view.document.asset
    *collections, last = steps_of(path)
    found: list[str] = []
    place: Location | None = None
    for there in _focused(view, tuple(collections)):
        value, at = (there, there.at) if isinstance(there, Missing) else locate(there, last)
        place = place or at
        if isinstance(value, Missing) and not value.definite:
            return Seen(asset=asset, missing=value.reason, at=place)
        found.append(ABSENT if isinstance(value, Missing) else _text(value))
    return Seen(asset=asset, values=tuple(sorted(set(found))), at=place)


def _focused(view: View, collections: tuple[Path, ...]) -> Iterator[View | Missing]:
    """Yield the view of each element that the last step of a path starts from."""
    if not collections:
        yield view
        return
    for _, item in elements(view, collections):
        yield item if isinstance(item, Missing) else view.on(item)


def _text(value: Any) -> str:
    """A value as text that is the same for equal values only."""
    return value if type(value) is str else canonical.dumps(msgspec.to_builtins(value)).decode()


def compare(rule: str, seen: Sequence[Seen]) -> list[Compared]:
    """Judge every asset; `seen` has more than one."""
    return (_unique if rule == "unique_across" else _most)(rule, seen)


def _most(rule: str, seen: Sequence[Seen]) -> list[Compared]:
    known = Counter(one.values for one in seen if not one.missing)
    open_ = len(seen) - known.total()
    ranked = known.most_common(2)
    best, count = ranked[0] if ranked else ((), 0)
    second = ranked[1][1] if len(ranked) > 1 else 0
    counted = f"{known.total()} of {len(seen)} are known"
    if rule == "majority_across":
        leads = sure = 2 * count > len(seen)
    else:
        leads, sure = count > second, count > second + open_
    found = []
    for one in seen:
        if one.missing:
            found.append(_unknown(one, f"{counted}{_led_by(best, count)}"))
        elif not leads and rule == "majority_across":
            found.append(_unknown(one, f"no value is that of most; {counted}"))
        elif leads and one.values == best:
            good = TRUE if sure else unknown(counted)
            found.append(Compared(seen=one, good=good, why="" if sure else counted))
        else:
            others = known.most_common(MAX_NAMED + 1)
            rest = ", ".join(
                f"{number} of {len(seen)} have {_shown(values)}"
                for values, number in others
                if values != one.values
            )
            found.append(Compared(seen=one, good=FALSE, why=f"{_shown(one.values)}; {rest}"))
    return found


def _led_by(best: tuple[str, ...], count: int) -> str:
    return f", {count} have {_shown(best)}" if count else ""


def _unique(_: str, seen: Sequence[Seen]) -> list[Compared]:
    owners: dict[str, list[str]] = {}
    for one in seen:
        for value in one.values:
            if value != ABSENT:
                owners.setdefault(value, []).append(one.asset)
    open_ = sum(1 for one in seen if one.missing)
    counted = f"{len(seen) - open_} of {len(seen)} are known"
    found = []
    for one in seen:
        others = dict.fromkeys(
            asset for value in one.values for asset in owners.get(value, ()) if asset != one.asset
        )
        if one.missing:
            found.append(_unknown(one, counted))
        elif others:
            named = ", ".join(list(others)[:MAX_NAMED])
            more = f" and {len(others) - MAX_NAMED} more" if len(others) > MAX_NAMED else ""
            found.append(Compared(seen=one, good=FALSE, why=f"shared with {named}{more}"))
        else:
            has_some = set(one.values) - {ABSENT}
            good = unknown(counted) if open_ and has_some else TRUE
            found.append(Compared(seen=one, good=good, why="" if good.value else counted))
    return found


def _unknown(one: Seen, why: str) -> Compared:
    said = f"{one.missing}; {why}" if one.missing else why
    return Compared(seen=one, good=unknown(said), why=said)


def _shown(values: tuple[str, ...]) -> str:
    text = " ".join(values) or ABSENT
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
