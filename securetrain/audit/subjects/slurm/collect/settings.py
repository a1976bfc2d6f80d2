# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Settings as Slurm would use them: what the files say, what runs, and Slurm's defaults.

Source of the defaults: Slurm's own, https://github.com/SchedMD/slurm, branches slurm-21.08 to
slurm-26.05: ``src/common/read_config.h`` and ``read_config.c`` for slurm.conf,
``src/interfaces/cgroup.c`` (before 23.02 ``src/common/cgroup.c``) for cgroup.conf,
``src/slurmdbd/read_config.c`` for slurmdbd.conf, ``src/plugins/namespace/tmpfs/read_jcconf.h`` for
job_container.conf. None of those that checks ask about changed between these versions; where a name
came, the row says since when. What a newer version does without a setting is not known here.

Rules:

1. a setting that a later trouble may have changed is not known, and the reason names that place;
2. what ``scontrol show config`` printed stands in for files that are not there; where it differs
   from the file, the running daemon has not read the file yet, and the setting is not known;
3. a switch is one of the words that Slurm takes for yes and no, and nothing else.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.values import failed, ok, opened
from securetrain.audit.subjects.slurm.collect.parser import Conf
from securetrain.audit.subjects.slurm.collect.place import NotHereError
from securetrain.audit.subjects.slurm.facts import PasswordClass

Version: TypeAlias = tuple[int, int]

OLDEST: Final[Version] = (21, 8)
NEWEST: Final[Version] = (26, 5)
"""The versions that the defaults were compared with."""
STATE_SAVE_LOCATION: Final = "/var/spool"
SLURMD_SPOOL_DIR: Final = "/var/spool/slurmd"
PRIVATE_DIRS: Final = "/tmp,/dev/shm"  # noqa: S108 - what it makes private
PLUGSTACK: Final = "plugstack.conf"

_YES: Final = frozenset({"yes", "up", "true", "1"})
_NO: Final = frozenset({"no", "down", "false", "0"})
_NONE: Final = frozenset({"", "(null)", "none", "n/a"})
_RUNNING: Final = re.compile(r"([A-Za-z0-9_\[\]]+)\s+=(?: (.*))?\Z", re.ASCII)
_NUMBER: Final = re.compile(r"\(\d+\)\Z")
"""After a user's name, as ``scontrol`` prints it."""
_SWITCHES: Final = {**dict.fromkeys(_YES, "yes"), **dict.fromkeys(_NO, "no")}
_HEADER: Final = "Configuration data as of"
_WELL_KNOWN: Final = frozenset(
    {
        "password", "passwd", "pass", "secret", "changeme", "change_me", "changeit", "slurm",
        "slurmdbd", "slurmdb", "slurmdbpass", "slurmdb_password", "slurm_password", "slurmpass",
        "some_pass", "storage_pass", "storagepass", "dbpass", "mysql", "mariadb", "root", "admin",
        "test", "default", "letmein", "123456", "12345678", "hunter2", "xxxx", "mypassword",
        "none",
    }
)  # fmt: skip
"""Passwords of guides, containers and roles that people copy."""
_SHORT: Final = 12
_IMPLIED: Final = (
    ({"all"}, {"associations", "limits", "qos", "safe", "wckeys"}),
    ({"safe"}, {"limits"}),
    ({"limits", "qos", "wckeys", "association"}, {"associations"}),
    ({"limit"}, {"limits", "associations"}),
)
"""Words of AccountingStorageEnforce, and what one of them implies."""
_PRIVATE: Final = (
    "accounts", "events", "jobs", "nodes", "partitions", "reservations", "usage", "users",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """One configuration file, read or not."""

    path: str
    conf: Conf | None
    version: Version | None = None
    """The release that reads it; None when that is not known."""
    reason: str = ""
    """The reason why it was not read; empty for a file that is known not to be there."""

    def known(self) -> Conf:
        """The settings in it.

        Raises:
            NotHereError: when it was not read.
        """
        if self.conf is None:
            raise NotHereError(self.reason)
        return self.conf


@dataclass(frozen=True, slots=True)
class Running:
    """The output of ``scontrol show config``."""

    path: str = ""
    values: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """By name in lower case: the value and its line."""

    def get(self, *names: str) -> Reading[str] | None:
        """The first of these settings that it has."""
        for name in names:
            if found := self.values.get(name.lower()):
                value, line = found
                return ok(value, Location(path=self.path, line=line))
        return None


NOT_RUNNING: Final = Running()


def is_running(text: str) -> bool:
    """Return whether a text is what ``scontrol show config`` prints."""
    return _HEADER in text[:4096]


def running(text: str, path: str) -> Running:
    """Parse the output of ``scontrol show config``; the first of a name counts."""
    values: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if found := _RUNNING.match(line.strip()):
            name, value = found.groups()
            plain = (value or "").strip()
            values.setdefault(name.lower(), ("" if plain == "(null)" else plain, number))
    return Running(path, values)


def _raw(source: Source, default: "Default", running: Running) -> Reading[str]:
    """The text of a setting."""
    said = _said(source, default)
    live = running.get(*default.names)
    if live is None:
        return said
    if said.outcome is not Outcome.OK or said.reason:
        return live  # the daemon knows its own default
    file, daemon = _words(said.value), _words(live.value)
    if file == daemon or (file and file < daemon):  # with words that others imply
        return said
    name = default.names[0]
    reason = f"the file says {name}={said.value or 'nothing'}, and {live.value!r} is running"
    return failed(reason, said.at)


def _words(value: str | None) -> frozenset[str]:
    """For comparing what a file says with what a daemon prints of it."""
    plain = (_NUMBER.sub("", part.strip().lower()) for part in (value or "").split(","))
    words = frozenset(part.rpartition("/")[2] for part in plain)
    return frozenset(_SWITCHES.get(word, word) for word in words - _NONE)


def _said(source: Source, default: "Default") -> Reading[str]:
    name, top = default.names[0], Location(path=source.path)
    unset = f"{name} is not set (Slurm's default: {default.value or 'nothing'})"
    if source.conf is None:
        if source.reason:
            return failed(f"{name}: {source.reason}", top)
        return ok(default.value, top, f"there is no {source.path}: {unset}")
    found = source.conf.last(*default.names)
    if trouble := source.conf.trouble_after(found):
        reason = f"{name}: {trouble.reason}"
        return Reading(outcome=trouble.outcome, reason=reason, at=trouble.at)
    if source.version is not None:
        shown = f"Slurm {source.version[0]}.{source.version[1]:02}"
        if found is not None and source.version < default.since:
            return failed(f"{shown} does not know {name}, and refuses the file", found.at)
        if found is None and source.version > NEWEST:
            return failed(f"{name} is not set, and the defaults of {shown} are not known here", top)
    if found is None:
        return ok(default.value, top, unset)
    if found.open_by:
        return opened(f"{name}: the template's {found.open_by!r}", found.at)
    return ok(found.value, found.at)


def word(value: str) -> str:
    """A plug-in's name; ``none`` of the plug-ins that may be left out is nothing."""
    plain = value.strip().lower()
    return "" if plain.rpartition("/")[2] in _NONE else plain


def plugin(kind: str) -> Callable[[str], str]:
    """A plug-in of a kind, under its whole name; one may be called ``none``."""

    def named(value: str) -> str:
        plain = value.strip().lower().replace("crypto/", "cred/")
        return plain if "/" in plain else f"{kind}/{plain}"

    return named


def words(value: str) -> tuple[str, ...]:
    """A list of words."""
    found = (part.strip().lower() for part in value.split(","))
    return tuple(part for part in found if part not in _NONE and part != "task/none")


def plugins(kind: str) -> Callable[[str], tuple[str, ...]]:
    """A list of plug-ins of a kind, under their whole names."""
    named = plugin(kind)
    return lambda value: tuple(map(named, words(value)))


def private(value: str) -> tuple[str, ...]:
    """The words of PrivateData, which Slurm finds anywhere in its text."""
    return tuple(word for word in _PRIVATE if word[:4] in value.lower())


def enforced(value: str) -> tuple[str, ...]:
    """The words of AccountingStorageEnforce, with those that others imply."""
    found = set(words(value))
    for some, implied in _IMPLIED:
        found |= implied if found & some else set()
    return tuple(sorted(found))


def switch(value: str) -> bool:
    """A yes or no.

    Raises:
        ValueError: when it is neither.
    """
    plain = value.strip().lower()
    if plain not in _SWITCHES:
        raise ValueError(f"{plain[:40]!r} is neither yes nor no")
    return plain in _YES


def user(value: str) -> str:
    """A user; the number 0 is root."""
    name = _NUMBER.sub("", value)
    return "root" if name == "0" else name


@dataclass(frozen=True, slots=True)
class Default:
    """One setting of a file."""

    names: tuple[str, ...]
    """Its name, and older or newer ones; the first that is set counts."""
    value: str = ""
    """The value that Slurm takes without it: words for a list, ``yes`` or ``no`` for a switch."""
    read: Callable[[str], Any] = words
    """The meaning of a value, or `ValueError`."""
    since: Version = OLDEST
    """Before, Slurm does not know the name and refuses the file."""


SLURM_CONF: Final = {
    "auth_type": Default(("AuthType",), "auth/munge", plugin("auth")),
    "auth_alt_types": Default(("AuthAltTypes",), read=plugins("auth")),
    "cred_type": Default(("CredType", "CryptoType"), "cred/munge", plugin("cred")),
    "tls_type": Default(("TLSType",), "tls/none", plugin("tls"), since=(24, 5)),
    "slurm_user": Default(("SlurmUser",), "root", user),
    "disable_root_jobs": Default(("DisableRootJobs",), "no", switch),
    "private_data": Default(("PrivateData",), read=private),
    # A Slurm that was built without cgroups has proctrack/pgid here, and no task/cgroup either.
    "proctrack_type": Default(("ProctrackType",), "proctrack/cgroup", plugin("proctrack")),
    "task_plugin": Default(("TaskPlugin",), read=plugins("task")),
    "namespace_type": Default(("NamespaceType", "JobContainerType"), read=word),
    "prolog_flags": Default(("PrologFlags",)),
    "gres_types": Default(("GresTypes",)),
    "accounting_storage_type": Default(("AccountingStorageType",), read=word),
    "accounting_storage_enforce": Default(("AccountingStorageEnforce",), read=enforced),
    "propagate_resource_limits": Default(("PropagateResourceLimits",), "all"),
    "propagate_resource_limits_except": Default(("PropagateResourceLimitsExcept",)),
    "metrics_type": Default(("MetricsType",), read=word, since=(25, 11)),
    "metrics_auth_users": Default(("MetricsAuthUsers",), since=(26, 5)),
    "metrics_parameters": Default(("MetricsParameters",), since=(26, 5)),
}
CGROUP_CONF: Final = {
    "constrain_cores": Default(("ConstrainCores",), "no", switch),
    "constrain_devices": Default(("ConstrainDevices",), "no", switch),
    "constrain_ram_space": Default(("ConstrainRAMSpace",), "no", switch),
}
SLURMDBD_CONF: Final = {"dbd_private_data": Default(("PrivateData",), read=private)}
STORAGE_PASS: Final = tuple(
    Default((name,), value, str)
    for name, value in (("StoragePassScript", ""), ("StoragePass", ""), ("StorageUser", "root"))
)


def read_setting(source: Source, default: Default, running: Running = NOT_RUNNING) -> Reading[Any]:
    """The value of a setting."""
    return meant(_raw(source, default, running), default.read)


def meant(reading: Reading[str], read: Callable[[str], Any]) -> Reading[Any]:
    """The meaning of a text; one that means nothing is an error."""
    if reading.value is None:
        return reading
    try:
        return msgspec.structs.replace(reading, value=read(reading.value))
    except ValueError as error:
        return failed(str(error), reading.at)


def storage_pass(source: Source) -> Reading[Any]:
    """The class of the database's password; never the password."""
    script, said, account = (_said(source, default) for default in STORAGE_PASS)
    if script.value:
        return ok(PasswordClass.SCRIPT, script.at)
    known = _WELL_KNOWN | {(account.value or "").lower()}
    return meant(said, lambda value: _strength(value, known))


def _strength(value: str, known: frozenset[str]) -> PasswordClass:
    match value:
        case "":
            return PasswordClass.NONE
        case _ if value.lower() in known:
            return PasswordClass.DEFAULT
        case _ if len(value) < _SHORT:
            return PasswordClass.SHORT
        case _:
            return PasswordClass.OTHER
