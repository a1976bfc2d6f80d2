# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about the files of a Slurm cluster: who can change them, and who reads its keys."""

from collections.abc import Callable, Iterable
from functools import partial
from operator import le
from typing import Any, Final

from securetrain.audit.engine.fields import Missing, View
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function
from securetrain.audit.engine.functions.paths import chain_is_safe
from securetrain.audit.engine.functions.slurm import listed, read
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, all_of, truth, unknown
from securetrain.audit.facts import Outcome, Reading
from securetrain.audit.subjects.slurm.facts import (
    KeyRole,
    PasswordClass,
    SlurmKey,
    SlurmPath,
    SlurmPathRole,
)

_LINKS: Final = (
    *fields("slurm", "paths", "*", of=("role", "path", "origin", "chain", "at")),
    *fields("slurm", "paths", "*", "chain", "*", of=("path", "kind", "uid", "mode", "group_uids")),
)
_KEYS: Final = (("slurm", "auth_type"), *fields("slurm", "keys", "*", of=("role", "path")))


class PathArgs(Args, frozen=True, kw_only=True):
    """The paths to judge."""

    roles: tuple[SlurmPathRole, ...]


class KeyArgs(Args, frozen=True, kw_only=True):
    """The size of a key."""

    min_bytes: int = 128


@function(
    "slurm.database_closed",
    reads=(*fields("slurm", of=("storage_pass", "slurm_uid")), *_LINKS),
    asks=True,
)
def database_closed(view: View, args: NoArgs) -> list[Judgement]:
    """Nobody but slurmdbd's own user reads the database's password, which is no known one."""
    del args
    found = []
    strength, at = read(view, "storage_pass")
    weak = {
        PasswordClass.NONE: "StoragePass is not set: the database asks for none",
        PasswordClass.DEFAULT: "StoragePass is a word of guides, or the account's name",
        PasswordClass.SHORT: "StoragePass is shorter than 12 characters",
    }
    if not isinstance(strength, Missing):
        good = truth(strength not in weak, at)
        why = weak.get(strength, "")
        found.append(Judgement(label="StoragePass", good=good, why=why, location=at))
    else:
        found.append(Judgement(label="StoragePass", good=unknown(strength.reason, at)))
    paths, seen = _paths(view, (SlurmPathRole.DATABASE_CONFIGURATION,))
    if not paths:
        nothing = seen if seen.value is None else unknown("slurmdbd.conf is not here")
        found.append(Judgement(label="slurmdbd.conf", good=nothing))
    for path in paths:
        good, why = _walked(view, path, own=True)
        if path.outcome is Outcome.OK and int(path.chain[-1].mode, 8) & 0o077:
            good = FALSE
            why = f"it has mode {path.chain[-1].mode}: others read the password"
        found.append(Judgement(label=path.path, good=good, why=why, location=path.location))
    return found


def _paths(view: View, roles: Iterable[SlurmPathRole]) -> tuple[list[SlurmPath], Truth]:
    found, seen = listed(view, "paths")
    wanted = set(roles)
    return [path for path in found if path.role in wanted], seen


def _walked(view: View, path: SlurmPath, *, own: bool) -> tuple[Truth, str]:
    """Judge that nobody but root, and SlurmUser for its `own`, can change a path; and why not."""
    trusted, unsure = {0}, ""
    if own:
        number, _ = read(view, "slurm_uid")
        if isinstance(number, Missing):
            unsure = number.reason
        else:
            trusted.add(number)
    good, why = chain_is_safe(path, trusted)
    if unsure and (good.value or _others_only_by_owner(path)):
        return unknown(unsure, path.location), unsure
    if good.value is None:
        why = f"{path.path}: {path.reason}" if path.reason else why
        return unknown(why, path.location), why
    return good, why


def _others_only_by_owner(path: SlurmPath) -> bool:
    """Return whether the owners alone are in question."""
    return chain_is_safe(path, {one.uid for one in path.chain})[0].value is not False


@function("slurm.configuration_safe", reads=_LINKS, asks=True)
def configuration_safe(view: View, args: NoArgs) -> list[Judgement]:
    """Nobody but root can change what Slurm's daemons are told."""
    del args
    return _safe(view, (SlurmPathRole.CONFIGURATION,)) or [
        Judgement(label="", good=unknown("no file of the configuration was seen"))
    ]


@function("slurm.programs_safe", reads=(("slurm", "slurm_uid"), *_LINKS), asks=True)
def programs_safe(view: View, args: PathArgs) -> list[Judgement]:
    """Nobody but root, and for slurmctld's own programs SlurmUser, can change the program."""
    return _safe(view, args.roles) or [Judgement(label="", good=TRUE)]


def _safe(view: View, roles: Iterable[SlurmPathRole]) -> list[Judgement]:
    paths, seen = _paths(view, roles)
    if seen.value is None:
        return [Judgement(label="", good=seen)]
    found: dict[tuple[str, str], Judgement] = {}
    for path in paths:
        own = path.role is SlurmPathRole.CONTROLLER_PROGRAM
        good, why = _walked(view, path, own=own)
        found.setdefault(
            (path.origin, path.path),
            Judgement(
                label=path.path,
                good=good,
                why=why,
                location=path.location,
                evidence={"role": path.role.value, "origin": path.origin},
            ),
        )
    return _folded(list(found.values()))


def _folded(found: list[Judgement]) -> list[Judgement]:
    """One judgement for paths of which nothing is known for one reason, as in a copy."""
    why = {one.good.reasons[0].partition(": ")[2] for one in found if one.good.reasons}
    if len(found) > 1 and len(why) == 1 and all(one.good.value is None for one in found):
        reason = f"{len(found)} paths: {why.pop()}"
        return [Judgement(label="", good=unknown(reason), why=reason)]
    return found


@function("slurm.state_closed", reads=(("slurm", "slurm_uid"), *_LINKS), asks=True)
def state_closed(view: View, args: NoArgs) -> list[Judgement]:
    """Slurmctld's records are SlurmUser's alone; slurmd's are written by root alone."""
    del args
    found = []
    paths, seen = _paths(view, (SlurmPathRole.STATE, SlurmPathRole.SPOOL))
    if not paths:
        return [Judgement(label="", good=seen if seen.value is None else unknown("none was seen"))]
    for path in paths:
        good, why = _walked(view, path, own=True)
        limit = 0o077 if path.role is SlurmPathRole.STATE else 0o022
        if path.outcome is Outcome.ABSENT and good.value is not False:
            # The daemon of the other kind runs elsewhere, and makes it there.
            why = f"{path.path} is not on this machine"
            good = unknown(why, path.location)
        elif path.outcome is Outcome.OK and int(path.chain[-1].mode, 8) & limit:
            good, why = FALSE, f"it has mode {path.chain[-1].mode}"
        found.append(
            Judgement(
                label=path.origin,
                good=good,
                why=why,
                location=path.location,
                evidence={"path": path.path},
            )
        )
    return found


@function(
    "slurm.keys_private",
    reads=(
        *_KEYS,
        ("slurm", "slurm_user"),
        *fields("slurm", "keys", "*", of=("owner", "mode")),
    ),
    asks=True,
)
def keys_private(view: View, args: NoArgs) -> list[Judgement]:
    """The keys that daemons use are read by their own user alone."""
    del args
    keys, seen = _keys(view)
    found = [] if seen.value else [Judgement(label="", good=seen)]
    for key in keys:
        judged = all_of((_owned(view, key), _known(key, key.mode, _is_private)))
        why = ""
        if judged.value is False:
            why = f"it belongs to {key.owner.value} and has mode {key.mode.value}"
        found.append(Judgement(label=key.path, good=judged, why=why, location=key.location))
    return found


@function(
    "slurm.keys_strong",
    reads=(*_KEYS, *fields("slurm", "keys", "*", of=("size", "varied"))),
    asks=True,
)
def keys_strong(view: View, args: KeyArgs) -> list[Judgement]:
    """The keys that daemons use are long and no pattern."""
    keys, seen = _keys(view)
    found = [] if seen.value else [Judgement(label="", good=seen)]
    for key in keys:
        least = args.min_bytes if key.role is not KeyRole.TOKENS else min(args.min_bytes, 32)
        long = _known(key, key.size, partial(le, least))
        varied = _known(key, key.varied, bool)
        judged = all_of((long, varied))
        why = ""
        if judged.value is False:
            why = (
                f"it has {key.size.value} bytes, fewer than {least}"
                if long.value is False
                else "its bytes are a pattern"
            )
        found.append(Judgement(label=key.path, good=judged, why=why, location=key.location))
    return found


def _known(key: SlurmKey, reading: Reading[Any], good: Callable[[Any], bool]) -> Truth:
    if reading.outcome is not Outcome.OK or reading.value is None:
        return unknown(f"{key.path}: {reading.reason}", key.location)
    return truth(good(reading.value), key.location)


def _is_private(mode: str) -> bool:
    return int(mode, 8) & 0o177 == 0


def _owned(view: View, key: SlurmKey) -> Truth:
    """A key belongs to who reads it: munged, SlurmUser, or root for either."""
    own: Any = "munge"
    if key.role is not KeyRole.MUNGE:
        own, at = read(view, "slurm_user")
        if isinstance(own, Missing):
            return unknown(own.reason, at)
    return _known(key, key.owner, lambda owner: owner in {"root", own})


def _keys(view: View) -> tuple[list[SlurmKey], Truth]:
    """The keys of the authentication in use; when that is not known, all that are there."""
    keys, seen = listed(view, "keys")
    kind, _ = read(view, "auth_type")
    if isinstance(kind, Missing):
        return list(keys), seen
    wanted = {KeyRole.SLURM if kind == "auth/slurm" else KeyRole.MUNGE, KeyRole.TOKENS}
    return [key for key in keys if key.role in wanted], seen
