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
from typing import Final

import msgspec

from securetrain.audit.facts import Location, Outcome, Reading, Section
from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError, outcome_of
from securetrain.audit.subjects.node.collect.system import octal
from securetrain.audit.subjects.slurm.collect import defaults
from securetrain.audit.subjects.slurm.collect.parser import Conf, Setting, failure, variable_of
from securetrain.audit.subjects.slurm.collect.place import COPY, NotHereError, Place
from securetrain.audit.subjects.slurm.collect.plugins import ok, unknown
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
    "Prolog": SlurmPathRole.ROOT_PROGRAM,
    "Epilog": SlurmPathRole.ROOT_PROGRAM,
    "HealthCheckProgram": SlurmPathRole.ROOT_PROGRAM,
    "RebootProgram": SlurmPathRole.ROOT_PROGRAM,
    "UnkillableStepProgram": SlurmPathRole.ROOT_PROGRAM,
    "PluginDir": SlurmPathRole.ROOT_PROGRAM,
    "PrologSlurmctld": SlurmPathRole.CONTROLLER_PROGRAM,
    "EpilogSlurmctld": SlurmPathRole.CONTROLLER_PROGRAM,
    "ResumeProgram": SlurmPathRole.CONTROLLER_PROGRAM,
    "ResumeFailProgram": SlurmPathRole.CONTROLLER_PROGRAM,
    "SuspendProgram": SlurmPathRole.CONTROLLER_PROGRAM,
    "ResvProlog": SlurmPathRole.CONTROLLER_PROGRAM,
    "ResvEpilog": SlurmPathRole.CONTROLLER_PROGRAM,
    "MailProg": SlurmPathRole.CONTROLLER_PROGRAM,
    "SlurmctldPrimaryOnProg": SlurmPathRole.CONTROLLER_PROGRAM,
    "SlurmctldPrimaryOffProg": SlurmPathRole.CONTROLLER_PROGRAM,
    "TaskProlog": SlurmPathRole.JOB_PROGRAM,
    "TaskEpilog": SlurmPathRole.JOB_PROGRAM,
    "SrunProlog": SlurmPathRole.JOB_PROGRAM,
    "SrunEpilog": SlurmPathRole.JOB_PROGRAM,
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
    for name, role in _PROGRAMS.items():
        several = list(conf.all(name))
        for one in several if name in {"Prolog", "Epilog"} else several[-1:]:
            found.extend(_program(place, name, role, one))
    for setting, (plugin_name, file) in _SCRIPTS.items():
        listed = conf.last(setting)
        if listed and plugin_name in listed.value.replace("/", ",").split(","):
            role, path = SlurmPathRole.CONFIGURATION, place.named(file)
            found.append(_path(place, role, path, setting, listed.at))
    found.append(_state(place, conf, "StateSaveLocation", defaults.STATE_SAVE_LOCATION))
    found.append(_state(place, conf, "SlurmdSpoolDir", defaults.SLURMD_SPOOL_DIR))
    if len(found) > MAX_PATHS:
        raise TooMuchError(f"more than {MAX_PATHS} paths")
    return tuple(found)


def _of_files(place: Place, files: tuple[SlurmFile, ...]) -> Iterator[SlurmPath]:
    for file in files:
        if file.outcome is Outcome.ABSENT and file.at is None:
            continue
        is_dbd = file.path.rpartition("/")[2].startswith("slurmdbd.conf")
        role = SlurmPathRole.DATABASE_CONFIGURATION if is_dbd else SlurmPathRole.CONFIGURATION
        if place.live and file.outcome not in (Outcome.OK, Outcome.ABSENT):
            yield _not_seen(role, file.path, file.path, file.reason, file.at)
        yield _path(place, role, file.path, file.path.rpartition("/")[2], file.at)


def _of_plugins(
    place: Place,
    conf: Conf,
    files: tuple[SlurmFile, ...],
    plugins: Section[tuple[SpankPlugin, ...]],
) -> Iterator[SlurmPath]:
    """Yield plugstack.conf's own files and plug-ins, and what hides more of them."""
    for role in (SlurmPathRole.CONFIGURATION, SlurmPathRole.ROOT_PROGRAM):
        if plugins.value is None:
            yield _not_seen(role, defaults.PLUGSTACK, "SPANK", plugins.reason, None)
        for trouble in conf.troubles:
            yield _not_seen(role, trouble.at.path, "Include", trouble.reason, trouble.at)
    known = {file.path for file in files}
    for plugin in plugins.value or ():
        if plugin.at.path not in known:
            known.add(plugin.at.path)
            role = SlurmPathRole.CONFIGURATION
            yield _path(place, role, plugin.at.path, defaults.PLUGSTACK, None)
        if plugin.path.startswith("/"):
            role = SlurmPathRole.ROOT_PROGRAM
            yield _path(place, role, plugin.path, defaults.PLUGSTACK, plugin.at)


def _program(place: Place, name: str, role: SlurmPathRole, setting: Setting) -> Iterator[SlurmPath]:
    if open_by := setting.open_by:
        reason = f"the template's {open_by!r} decides"
        yield _not_seen(role, setting.value, name, reason, setting.at)
        return
    words = setting.value.split() if name == "RebootProgram" else [setting.value]
    for value in setting.value.split(":") if name == "PluginDir" else words[:1]:
        path = value if value.startswith("/") else f"{place.directory}/{value}"
        if not any(char in path for char in "*?["):
            yield _path(place, role, path, name, setting.at)
            continue
        folder, _, last = path.rpartition("/")
        yield _path(place, role, folder, name, setting.at)
        if not place.live:
            continue
        with suppress(FileNotFoundError):
            try:
                names = place.names(folder)
            except (OSError, TooMuchError, HiddenError) as error:
                if isinstance(error, FileNotFoundError):
                    raise
                yield _not_seen(role, path, name, outcome_of(error)[1], setting.at)
                continue
            for one in names:
                if fnmatchcase(one, last):
                    yield _path(place, role, f"{folder}/{one}", name, setting.at)


def _state(place: Place, conf: Conf, name: str, default: str) -> SlurmPath:
    role = SlurmPathRole.STATE if name == "StateSaveLocation" else SlurmPathRole.SPOOL
    setting = conf.last(name)
    if trouble := conf.trouble_after(setting):
        return _not_seen(role, name, name, trouble.reason, trouble.at)
    if setting is not None and setting.open_by:
        reason = f"the template's {setting.open_by!r} decides"
        return _not_seen(role, setting.value, name, reason, setting.at)
    path = setting.value if setting else default
    at = setting.at if setting else Location(path=conf.main)
    if "%" in path:
        if not place.live:
            return _not_seen(role, path, name, COPY, at)
        short = os.uname().nodename.partition(".")[0]
        path = path.replace("%h", short).replace("%n", short)
    return _path(place, role, path, name, at)


def _path(
    place: Place, role: SlurmPathRole, path: str, origin: str, at: Location | None
) -> SlurmPath:
    if variable_of(path):
        return _not_seen(role, path, origin, "a template", at)
    if not place.live:
        return _not_seen(role, path, origin, COPY, at)
    outcome, reason, chain = place.chain(path)
    if outcome is Outcome.OK and chain[-1].kind == "other":
        outcome, reason = Outcome.ERROR, "something lies over it that is no file"
    return SlurmPath(
        outcome=outcome, reason=reason, role=role, path=path, origin=origin, at=at, chain=chain
    )


def _not_seen(
    role: SlurmPathRole, path: str, origin: str, reason: str, at: Location | None
) -> SlurmPath:
    return SlurmPath(
        outcome=Outcome.ERROR, reason=reason, role=role, path=path, origin=origin, at=at
    )


# --- keys -----------------------------------------------------------------------------------------


def keys(place: Place, conf: Conf | None, salt: bytes) -> tuple[SlurmKey, ...]:
    """The keys of the cluster: munge's, Slurm's own, and the one that signs tokens."""
    kind = conf.last("AuthType") if conf is not None else None
    unused = {KeyRole.SLURM} if kind is None or kind.value != "auth/slurm" else {KeyRole.MUNGE}
    if conf is None or (kind is not None and (kind.open_by or variable_of(kind.value))):
        unused = set()
    folder = "/etc/munge" if place.live else place.directory
    wanted = [(KeyRole.MUNGE, _MUNGE if place.live else f"{folder}/munge.key")]
    wanted.append((KeyRole.SLURM, place.named("slurm.key")))
    if named := _token_key(conf):
        wanted.append((KeyRole.TOKENS, named))
    found = (_key(place, role, path, salt) for role, path in wanted)
    nothing: Reading[str] = Reading(outcome=Outcome.ABSENT, reason="not used by this cluster")
    return tuple(
        msgspec.structs.replace(key, mark=nothing) if key.role in unused else key for key in found
    )


def _token_key(conf: Conf | None) -> str:
    """The key of auth/jwt; empty without auth/jwt, and for public keys alone."""
    if conf is None:
        return ""
    types, said = conf.last("AuthAltTypes"), conf.last("AuthAltParameters")
    if types is None or "jwt" not in types.value:
        return ""
    for part in (said.value if said else "").split(","):
        name, _, value = part.partition("=")
        if name.strip() == "jwt_key":
            return value.strip()
        if name.strip() == "jwks":
            return ""
    state = conf.last("StateSaveLocation")
    return f"{state.value if state else defaults.STATE_SAVE_LOCATION}/jwt_hs256.key"


def _key(place: Place, role: KeyRole, path: str, salt: bytes) -> SlurmKey:
    try:
        if variable_of(path):
            raise NotHereError(f"{path} is a template")
        path = place.named(path) if not path.startswith(place.directory) else path
        real = place.real(path)
        info = real.stat()
    except (OSError, NotHereError) as error:
        outcome, reason = failure(error)
        nothing = unknown(reason)
        return SlurmKey(
            outcome=outcome, reason=reason, role=role, path=path,
            owner=nothing, mode=nothing, size=nothing, varied=nothing, mark=nothing,
        )  # fmt: skip
    at = Location(path=path)
    mode: Reading[str] = ok(octal(info.st_mode), at) if place.live else unknown(COPY, at)
    owner: Reading[str] = (
        ok(_name(place.host, place.host.owner(info)), at) if place.live else unknown(COPY, at)
    )
    size: Reading[int] = ok(info.st_size, at)
    if not stat.S_ISREG(info.st_mode):
        size = mode = owner = unknown(f"{path} is no regular file", at)
    varied, mark = _looked_at(real, size, at, salt)
    return SlurmKey(
        outcome=Outcome.OK, role=role, path=path,
        owner=owner, mode=mode, size=size, varied=varied, mark=mark,
    )  # fmt: skip


def _looked_at(
    real: Path, size: Reading[int], at: Location, salt: bytes
) -> tuple[Reading[bool], Reading[str]]:
    """The form of a key, and its mark."""
    if size.value is None:
        return unknown(size.reason, at), unknown(size.reason, at)
    try:
        with real.open("rb") as file:
            data = file.read(_KEY_LIMIT)
    except OSError as error:
        outcome, reason = outcome_of(error)
        return (
            Reading(outcome=outcome, reason=reason, at=at),
            Reading(outcome=outcome, reason=reason, at=at),
        )
    varied = ok(len(set(data)) > _MIN_BYTES, at)
    if not salt:
        return varied, unknown("it is compared with nothing", at)
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
