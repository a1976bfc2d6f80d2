# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about the paths that a job executes or loads from."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from securetrain.audit.engine.fields import View
from securetrain.audit.engine.function import Args, Judgement, fields, function, records
from securetrain.audit.engine.functions.settings import LAUNCHED, settings
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, all_of, truth, unknown
from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.node.facts.node import (
    ALWAYS_THERE,
    SEARCHED,
    Link,
    PathFact,
    PathRole,
)

if TYPE_CHECKING:
    from securetrain.audit.subjects.slurm.facts import SlurmPath

PATHS: Final = (
    *fields("node", "paths", "*", of=("role", "path", "origin", "chain")),
    *fields("node", "paths", "*", "chain", "*", of=("path", "kind", "uid", "mode", "group_uids")),
)
"""The fields of a path that its safety follows from."""


class PathArgs(Args, frozen=True, kw_only=True):
    """The paths to judge."""

    roles: tuple[PathRole, ...]


@function("paths.safe_from_others", reads=(*PATHS, *LAUNCHED))
def paths_safe(view: View, args: PathArgs) -> list[Judgement]:
    """Nobody but root and the job's user can change, replace or pre-create the path."""
    if view.document.kind == "launch":
        return [
            one for name in _PRELOADS if SEARCHED[name] in args.roles for one in _named(view, name)
        ]
    facts: tuple[PathFact, ...] = records(view, "paths")
    chosen = {fact.path: fact for fact in facts if fact.role in args.roles}
    there = {fact.role for fact in chosen.values()}
    lacking = [role for role in args.roles if role in ALWAYS_THERE and role not in there]
    return [
        *(_judge_path(fact, view.document.root("job").uid) for fact in chosen.values()),
        *(Judgement(label=role, good=unknown(f"no path of {role} was seen")) for role in lacking),
    ]


_PRELOADS: Final = ("LD_PRELOAD", "LD_AUDIT")
_FOR_ALL: Final = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - this is what is looked for
_OF_ROOT: Final = ("/usr/", "/lib/", "/lib64/")


def _named(view: View, name: str) -> Iterator[Judgement]:
    """Judge the libraries that a launch names, without having seen them."""
    for one in settings(view, name):
        for entry in re.split(r"[:\s]+", one.value) if one.value else [""]:
            good, why = TRUE, ""
            if not one.known:
                good = unknown(one.why)
            elif "/" in entry and not entry.startswith("/"):
                good, why = FALSE, "a relative path: it is looked for where the job starts"
            elif entry.startswith(_FOR_ALL):
                good, why = FALSE, "everybody can make files there"
            elif "/" in entry and not entry.startswith(_OF_ROOT):
                good = unknown(f"{entry}: who can write it is not known")
            seen = {name: one.value}
            yield Judgement(label=name, good=good, why=why, location=one.location, evidence=seen)


def _judge_path(fact: PathFact, uid: int) -> Judgement:
    if is_found_from_anywhere(fact):
        good, why = FALSE, "a relative path: it is looked for in whatever directory the job is in"
    else:
        good, why = path_is_safe(fact, uid)
    return Judgement(
        label=fact.path,
        good=good,
        why=why,
        location=fact.location,
        evidence={"role": fact.role.value, "origin": fact.origin, "outcome": fact.outcome.value},
    )


def is_found_from_anywhere(fact: PathFact) -> bool:
    """Return whether programs or libraries are looked for below the working directory.

    A library to preload without a slash is searched for like any other (ld.so(8)). Python's path
    is relative to where the job starts, which is its own directory as a rule: that is unknown.
    """
    if fact.path.startswith("/"):
        return False
    match fact.role:
        case PathRole.EXECUTABLES | PathRole.LIBRARIES:
            return True
        case PathRole.PRELOAD:
            return "/" in fact.path
        case _:
            return False


def path_is_safe(fact: PathFact, uid: int) -> tuple[Truth, str]:
    """Walk the chain as the kernel does.

    Every component must belong to root or `uid`. A directory that others may write is harmless on
    the way only when it is sticky and the next component exists: then nobody else can replace it.
    At the end of what exists, and for the target itself, others may not write at all.
    """
    return chain_is_safe(fact, {0, uid})


def chain_is_safe(fact: "PathFact | SlurmPath", trusted: set[int]) -> tuple[Truth, str]:
    """`path_is_safe` for other users than root and the job's."""
    open_: list[str] = []
    for position, link in enumerate(fact.chain):
        if link.uid not in trusted:
            return FALSE, f"{link.path} belongs to uid {link.uid}"
        if link.kind == "link":
            continue  # its target follows in the chain; its own mode means nothing
        writable = others_can_write(link, trusted)
        last = position == len(fact.chain) - 1
        if writable.value is False or (not last and _is_sticky(link)):
            continue
        if writable.value is None:
            open_.extend(writable.reasons)
            continue
        if last and fact.outcome is Outcome.ABSENT:
            return FALSE, f"others can create it first: {link.path} has mode {link.mode}"
        return FALSE, f"others can write {link.path}: it has mode {link.mode}"
    if fact.outcome not in (Outcome.OK, Outcome.ABSENT) or not fact.chain:
        open_.append(f"{fact.path}: {fact.outcome.value}: {fact.reason}")
    if open_:
        return all_of(unknown(reason) for reason in open_), open_[0]
    return TRUE, ""


def others_can_write(link: Link, trusted: set[int]) -> Truth:
    """Return whether anybody outside `trusted` may write it, by its permission bits."""
    mode = int(link.mode, 8)
    if mode & 0o002:
        return TRUE
    if not mode & 0o020:
        return FALSE
    if link.group_uids is None:
        return unknown(f"{link.path}: the members of its group are not known")
    return truth(not set(link.group_uids) <= trusted)


def _is_sticky(link: Link) -> bool:
    return bool(int(link.mode, 8) & 0o1000)
