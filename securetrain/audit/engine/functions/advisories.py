# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about known faults of what is installed."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion

from securetrain.audit.engine.advisories import Advisories, shipped_advisories
from securetrain.audit.engine.fields import View, resolve
from securetrain.audit.engine.function import Args, Judgement, function
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from securetrain.audit.subjects.node.facts.node import Package


class MatchArgs(Args, frozen=True, kw_only=True):
    """The packages that a check is about."""

    packages: tuple[str, ...]
    """Patterns of names."""
    besides: tuple[str, ...] = ()
    """Names that another check is about."""
    max_age_days: int


@function("advisories.none_match", reads=(("node", "packages", "*", "version"),))
def no_advisory(view: View, args: MatchArgs) -> list[Judgement]:
    """No installed package of these has a known fault."""
    advisories = view.advisories or shipped_advisories()
    installed: Mapping[str, Package] = resolve(view, ("node", "packages"))
    found = []
    for name, package in installed.items():
        is_about = name in advisories.by_package or not package.version
        if not is_about or name in args.besides:
            continue
        if any(fnmatchcase(name, pattern) for pattern in args.packages):
            good, why = _judged(view, advisories, name, package.version, args.max_age_days)
            evidence = {"version": package.version}
            found.append(Judgement(label=name, good=good, why=why, evidence=evidence))
    return found


def _judged(
    view: View, advisories: Advisories, name: str, version: str, max_age: int
) -> tuple[Truth, str]:
    if not version:
        return unknown(f"{name}: nothing says which version is installed"), ""
    try:
        matched = advisories.about(name, version)
    except InvalidVersion:
        return unknown(f"{name}: {version[:40]!r} is no version"), ""
    if matched:
        return FALSE, "; ".join(map(str, matched))
    if why := too_old(view, advisories, max_age):
        return unknown(why), ""
    return TRUE, ""


def too_old(view: View, advisories: Advisories, max_age: int) -> str:
    """Explain why a list clears nothing; empty when it does."""
    age = (view.now.date() - advisories.dated).days
    if age < 0:
        return f"the advisories are from the future ({advisories.dated})"
    return f"the advisories are {age} days old ({advisories.dated})" if age > max_age else ""


class AgeArgs(Args, frozen=True, kw_only=True):
    """The age at which a list says nothing any more."""

    max_age_days: int


@function("advisories.in_date", reads=(("node", "packages"),))
def advisories_in_date(view: View, args: AgeArgs) -> list[Judgement]:
    """The advisories are young enough for a package without one to be called clear."""
    advisories = view.advisories or shipped_advisories()
    why = too_old(view, advisories, args.max_age_days)
    evidence = {"dated": str(advisories.dated)}
    return [Judgement(label="", good=FALSE if why else TRUE, why=why, evidence=evidence)]
