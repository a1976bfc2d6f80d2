# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Owners, modes and sizes of what Slurm's daemons read, write and execute.

Which program runs as whom follows slurm.conf(5), "Prolog and Epilog Scripts": slurmd's run as root,
slurmctld's as SlurmUser, those of a task as the job's user.
"""

import hmac
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from securetrain.audit.facts import Location, Outcome, Reading, Section
from securetrain.audit.parser.values import absent, failed, ok
from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError, outcome_of
from securetrain.audit.subjects.node.collect.system import octal
from securetrain.audit.subjects.slurm.collect.parser import Conf, Setting, failure, variable_of
from securetrain.audit.subjects.slurm.collect.place import COPY, NotHereError, Place
from securetrain.audit.subjects.slurm.collect.settings import (
    PLUGSTACK,
    SLURMD_SPOOL_DIR,
    STATE_SAVE_LOCATION,
)
from securetrain.audit.subjects.slurm.facts import (
    KeyRole,
    SlurmFile,
    SlurmKey,
    SlurmPath,
    SlurmPathRole,
    SpankPlugin,
)

MAX_PATHS: Final = 512
_KEY_LIMIT: Final = 64 << 10
_MIN_BYTES: Final = 4
"""As many different ones, and a key is still a pattern."""
_MARK: Final = 32
_MUNGE: Final = "/etc/munge/munge.key"
_PROGRAMS: Final = {
    SlurmPathRole.ROOT_PROGRAM: (
        *("Prolog", "Epilog", "HealthCheckProgram", "RebootProgram", "UnkillableStepProgram"),
        "PluginDir",
    ),
    SlurmPathRole.CONTROLLER_PROGRAM: (
        *("PrologSlurmctld", "EpilogSlurmctld", "ResumeProgram", "ResumeFailProgram"),
        *("SuspendProgram", "ResvProlog", "ResvEpilog", "MailProg", "SlurmctldPrimaryOnProg"),
        "SlurmctldPrimaryOffProg",
    ),
    SlurmPathRole.JOB_PROGRAM: ("TaskProlog", "TaskEpilog", "SrunProlog", "SrunEpilog"),
}
_STATES: Final = {
    "StateSaveLocation": (SlurmPathRole.STATE, STATE_SAVE_LOCATION),
    "SlurmdSpoolDir": (SlurmPathRole.SPOOL, SLURMD_SPOOL_DIR),
}
_SCRIPTS: Final = {
    "JobSubmitPlugins": ("lua", "job_submit.lua"),
    "CliFilterPlugins": ("lua", "cli_filter.lua"),
}


def paths(
    place: Place,
    conf: Conf,
    files: tuple[SlurmFile, ...],
    plugins: Section[tuple[SpankPlugin, ...]],
) -> tuple[SlurmPath, ...]:
    """Every path whose writers rule the cluster, with the way to it."""
    found = [*_of_files(place, files), *_of_plugins(place, conf, files, plugins)]
    for role, names in _PROGRAMS.items():
        for name in names:
            several = list(conf.all(name))
            for one in several if name in {"Prolog", "Epilog"} else several[-1:]:
                found.extend(_program(place, name, role, one))
    for setting, (plugin_name, file) in _SCRIPTS.items():
        listed = conf.last(setting)
        if listed and plugin_name in listed.value.replace("/", ",").split(","):
            role, path = SlurmPathRole.CONFIGURATION, place.named(file)
            found.append(_path(place, role, path, setting, listed.at))
    found.extend(_state(place, conf, name) for name in _STATES)
    if len(found) > MAX_PATHS:
        raise TooMuchError(f"more than {MAX_PATHS} paths")
    return tuple(found)


def _of_files(place: Place, files: tuple[SlurmFile, ...]) -> Iterator[SlurmPath]:
    for file in files:
        if file.outcome is Outcome.ABSENT and file.at is None:
            continue
        name = file.path.rpartition("/")[2]
        is_dbd = name.startswith("slurmdbd.conf")
        role = SlurmPathRole.DATABASE_CONFIGURATION if is_dbd else SlurmPathRole.CONFIGURATION
        if place.live and file.outcome not in (Outcome.OK, Outcome.ABSENT):
            yield _path(place, role, file.path, file.path, file.at, unseen=file.reason)
        yield _path(place, role, file.path, name, file.at)


def _of_plugins(
    place: Place,
    conf: Conf,
    files: tuple[SlurmFile, ...],
    plugins: Section[tuple[SpankPlugin, ...]],
) -> Iterator[SlurmPath]:
    """Yield plugstack.conf's own files and plug-ins, and what hides more of them."""
    for role in (SlurmPathRole.CONFIGURATION, SlurmPathRole.ROOT_PROGRAM):
        if plugins.value is None:
            yield _path(place, role, PLUGSTACK, "SPANK", None, unseen=plugins.reason)
        for trouble in conf.troubles:
            yield _path(place, role, trouble.at.path, "Include", trouble.at, unseen=trouble.reason)
    known = {file.path for file in files}
    for plugin in plugins.value or ():
        if plugin.at.path not in known:
            known.add(plugin.at.path)
            yield _path(place, SlurmPathRole.CONFIGURATION, plugin.at.path, PLUGSTACK, None)
        if plugin.path.startswith("/"):
            yield _path(place, SlurmPathRole.ROOT_PROGRAM, plugin.path, PLUGSTACK, plugin.at)


def _program(place: Place, name: str, role: SlurmPathRole, setting: Setting) -> Iterator[SlurmPath]:
    at = setting.at
    if open_by := setting.open_by:
        why = f"the template's {open_by!r} decides"
        yield _path(place, role, setting.value, name, at, unseen=why)
        return
    words = setting.value.split() if name == "RebootProgram" else [setting.value]
    for value in setting.value.split(":") if name == "PluginDir" else words[:1]:
        path = value if value.startswith("/") else f"{place.directory}/{value}"
        if not any(char in path for char in "*?["):
            yield _path(place, role, path, name, at)
            continue
        folder, _, last = path.rpartition("/")
        yield _path(place, role, folder, name, at)
        try:
            names = place.names(folder) if place.live else []
        except FileNotFoundError:
            continue
        except (OSError, TooMuchError, HiddenError) as error:
            yield _path(place, role, path, name, at, unseen=outcome_of(error)[1])
            continue
        for one in names:
            if fnmatchcase(one, last):
                yield _path(place, role, f"{folder}/{one}", name, at)


def _state(place: Place, conf: Conf, name: str) -> SlurmPath:
    role, path = _STATES[name]
    setting = conf.last(name)
    if trouble := conf.trouble_after(setting):
        return _path(place, role, name, name, trouble.at, unseen=trouble.reason)
    at = Location(path=conf.main)
    if setting is not None:
        path, at = setting.value, setting.at
        if open_by := setting.open_by:
            why = f"the template's {open_by!r} decides"
            return _path(place, role, path, name, at, unseen=why)
    if place.live:
        short = os.uname().nodename.partition(".")[0]
        path = path.replace("%h", short).replace("%n", short)
    return _path(place, role, path, name, at)


def _path(
    place: Place,
    role: SlurmPathRole,
    path: str,
    origin: str,
    at: Location | None,
    *,
    unseen: str = "",
) -> SlurmPath:
    """The record of a path; `unseen` is why nothing can be known of it."""
    unseen = unseen or ("a template" if variable_of(path) else "" if place.live else COPY)
    outcome, reason, chain = (Outcome.ERROR, unseen, ()) if unseen else place.chain(path)
    if chain and outcome is Outcome.OK and chain[-1].kind == "other":
        outcome, reason = Outcome.ERROR, "something lies over it that is no file"
    return SlurmPath(
        outcome=outcome, reason=reason, role=role, path=path, origin=origin, at=at, chain=chain
    )


# --- keys -----------------------------------------------------------------------------------------


def keys(place: Place, conf: Conf | None, salt: bytes) -> tuple[SlurmKey, ...]:
    """The keys of the cluster: munge's, Slurm's own, and the one that signs tokens."""
    kind = conf.last("AuthType") if conf is not None else None
    unused = KeyRole.MUNGE if kind is not None and kind.value == "auth/slurm" else KeyRole.SLURM
    is_open = conf is None or (kind is not None and bool(kind.open_by))
    wanted = [
        (KeyRole.MUNGE, _MUNGE if place.live else f"{place.directory}/munge.key"),
        (KeyRole.SLURM, place.named("slurm.key")),
    ]
    if named := _token_key(conf):
        wanted.append((KeyRole.TOKENS, named))
    return tuple(
        _key(place, role, path, None if role is unused and not is_open else salt)
        for role, path in wanted
    )


def _token_key(conf: Conf | None) -> str:
    """The key of auth/jwt; empty without auth/jwt, and for public keys alone."""
    types = conf.last("AuthAltTypes") if conf is not None else None
    if conf is None or types is None or "jwt" not in types.value:
        return ""
    said = conf.last("AuthAltParameters")
    for part in (said.value if said else "").split(","):
        name, _, value = part.partition("=")
        if name.strip() == "jwt_key":
            return value.strip()
        if name.strip() == "jwks":
            return ""
    state = conf.last("StateSaveLocation")
    return f"{state.value if state else STATE_SAVE_LOCATION}/jwt_hs256.key"


def _key(place: Place, role: KeyRole, path: str, salt: bytes | None) -> SlurmKey:
    """A key; without `salt` the cluster does not use it."""
    size: Reading[Any]
    mode: Reading[Any]
    owner: Reading[Any]
    varied: Reading[Any]
    mark: Reading[Any]
    outcome, reason = Outcome.OK, ""
    try:
        if variable_of(path):
            raise NotHereError(f"{path} is a template")
        path = path if path.startswith(place.directory) else place.named(path)
        real = place.real(path)
        info = real.stat()
    except (OSError, NotHereError) as error:
        outcome, reason = failure(error)
        size = mode = owner = varied = mark = failed(reason, None)
    else:
        at = Location(path=path)
        mode = owner = failed(COPY, at)
        if place.live:
            mode = ok(octal(info.st_mode), at)
            owner = ok(_name(place.host, place.host.owner(info)), at)
        size = ok(info.st_size, at)
        if not stat.S_ISREG(info.st_mode):
            size = mode = owner = failed(f"{path} is no regular file", at)
        varied, mark = _looked_at(real, size, at, salt or b"")
    if salt is None:
        mark = absent(None, "not used by this cluster")
    return SlurmKey(
        outcome=outcome, reason=reason, role=role, path=path,
        owner=owner, mode=mode, size=size, varied=varied, mark=mark,
    )  # fmt: skip


def _looked_at(
    real: Path, size: Reading[int], at: Location, salt: bytes
) -> tuple[Reading[bool], Reading[str]]:
    """The form of a key, and its mark."""
    if size.value is None:
        return failed(size.reason, at), failed(size.reason, at)
    try:
        with real.open("rb") as file:
            data = file.read(_KEY_LIMIT)
    except OSError as error:
        outcome, reason = outcome_of(error)
        unread: Reading[Any] = Reading(outcome=outcome, reason=reason, at=at)
        return unread, unread
    varied = ok(len(set(data)) > _MIN_BYTES, at)
    if not salt:
        return varied, failed("it is compared with nothing", at)
    return varied, ok(hmac.digest(salt, data, "sha256").hex()[:_MARK], at)


def _name(host: Host, uid: int) -> str:
    """The user's name, or the number."""
    return next((name for name, number in users(host) if number == uid), str(uid))


def users(host: Host) -> Iterator[tuple[str, int]]:
    """Yield names and numbers of the machine's own users."""
    with suppress(OSError, TooMuchError, HiddenError):
        for row in host.text("/etc/passwd").splitlines():
            fields = row.split(":")
            if len(fields) > 3 and fields[2].isdigit():
                yield fields[0], int(fields[2])
