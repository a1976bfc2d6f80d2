# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Settings as Slurm would use them: what the files say, what runs, and Slurm's defaults.

Rules:

1. a setting that a later trouble may have changed is not known, and the reason names that place;
2. what ``scontrol show config`` printed stands in for files that are not there; where it differs
   from the file, the running daemon has not read the file yet, and the setting is not known;
3. a switch is one of the words that Slurm takes for yes and no, and nothing else.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.subjects.slurm.collect.defaults import Default, Version, unknown_to
from securetrain.audit.subjects.slurm.collect.parser import Conf, variable_of
from securetrain.audit.subjects.slurm.facts import PasswordClass

T = TypeVar("T")

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
_PRIVATE: Final = (
    "accounts", "events", "jobs", "nodes", "partitions", "reservations", "usage", "users",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One configuration file, read or not."""

    path: str
    conf: Conf | None
    version: Version | None = None
    """The release that reads it; None when that is not known."""
    reason: str = ""
    """The reason why it was not read; empty for a file that is known not to be there."""


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
                at = Location(path=self.path, line=line)
                return Reading(outcome=Outcome.OK, value=value, at=at)
        return None


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


def raw(source: Source, default: Default, running: Running) -> Reading[str]:
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
    return Reading(outcome=Outcome.ERROR, reason=reason, at=said.at)


def _words(value: str | None) -> frozenset[str]:
    """For comparing what a file says with what a daemon prints of it."""
    plain = (_NUMBER.sub("", part.strip().lower()) for part in (value or "").split(","))
    words = frozenset(part.rpartition("/")[2] for part in plain)
    return frozenset(_SWITCHES.get(word, word) for word in words - _NONE)


def _said(source: Source, default: Default) -> Reading[str]:
    name, top = default.names[0], Location(path=source.path)
    if source.conf is None:
        if source.reason:
            return Reading(outcome=Outcome.ERROR, reason=f"{name}: {source.reason}", at=top)
        shown = default.value or "nothing"
        reason = f"there is no {source.path}: {name} is not set (Slurm's default: {shown})"
        return Reading(outcome=Outcome.OK, value=default.value, reason=reason, at=top)
    found = source.conf.last(*default.names)
    if trouble := source.conf.trouble_after(found):
        outcome = trouble.outcome if trouble.outcome is not Outcome.ABSENT else Outcome.ERROR
        return Reading(outcome=outcome, reason=f"{name}: {trouble.reason}", at=trouble.at)
    if lacking := unknown_to(default, source.version, is_set=found is not None):
        return Reading(outcome=Outcome.ERROR, reason=lacking, at=found.at if found else top)
    if found is None:
        reason = f"{name} is not set (Slurm's default: {default.value or 'nothing'})"
        return Reading(outcome=Outcome.OK, value=default.value, reason=reason, at=top)
    if found.open_by:
        reason = f"{name}: the template's {found.open_by!r} decides"
        return Reading(outcome=Outcome.TEMPLATED, reason=reason, at=found.at)
    return Reading(outcome=Outcome.OK, value=found.value, at=found.at)


def word(reading: Reading[str]) -> Reading[str]:
    """A plug-in's name; ``none`` of the plug-ins that may be left out is nothing."""
    if reading.value is None:
        return reading
    value = reading.value.strip().lower()
    nothing = value.rpartition("/")[2] in _NONE
    return msgspec.structs.replace(reading, value="" if nothing else value)


def plugin(reading: Reading[str], kind: str) -> Reading[str]:
    """A plug-in of a kind, under its whole name; one may be called ``none``."""
    if reading.value is None:
        return reading
    value = reading.value.strip().lower().replace("crypto/", "cred/")
    return msgspec.structs.replace(reading, value=value if "/" in value else f"{kind}/{value}")


def words(reading: Reading[str], kind: str = "") -> Reading[tuple[str, ...]]:
    """A list; plug-ins of a `kind` under their whole names."""
    value = None
    if reading.value is not None:
        found = (part.strip().lower() for part in reading.value.split(","))
        value = tuple(
            f"{kind}/{part}" if kind and "/" not in part else part
            for part in found
            if part not in _NONE and part != "task/none"
        )
    return _typed(reading, value)


def private(reading: Reading[str]) -> Reading[tuple[str, ...]]:
    """The words of PrivateData, which Slurm finds anywhere in its text."""
    said = (reading.value or "").lower()
    found = tuple(word for word in _PRIVATE if word[:4] in said)
    return _typed(reading, None if reading.value is None else found)


def enforced(reading: Reading[str]) -> Reading[tuple[str, ...]]:
    """The words of AccountingStorageEnforce, with those that others imply."""
    listed = words(reading)
    if listed.value is None:
        return listed
    found = set(listed.value)
    if "all" in found:
        found |= {"associations", "limits", "qos", "safe", "wckeys"}
    if "safe" in found:
        found.add("limits")
    if found & {"limits", "qos", "wckeys", "association"}:
        found.add("associations")
    if "limit" in found:
        found |= {"limits", "associations"}
    return _typed(reading, tuple(sorted(found)))


def switch(reading: Reading[str]) -> Reading[bool]:
    """A yes or no."""
    value = (reading.value or "").strip().lower()
    if reading.outcome is Outcome.OK and value not in _YES | _NO:
        reason = f"{value[:40]!r} is neither yes nor no"
        return Reading(outcome=Outcome.ERROR, reason=reason, at=reading.at)
    return _typed(reading, None if reading.value is None else value in _YES)


def password(reading: Reading[str], account: str) -> Reading[PasswordClass]:
    """The class of a password; never the password."""
    value = reading.value
    if value is None:
        return _typed(reading, None)
    if variable_of(value):
        return Reading(outcome=Outcome.TEMPLATED, reason="the password is open", at=reading.at)
    match value:
        case "":
            found = PasswordClass.NONE
        case _ if value.lower() in _WELL_KNOWN | {account.lower()}:
            found = PasswordClass.DEFAULT
        case _ if len(value) < _SHORT:
            found = PasswordClass.SHORT
        case _:
            found = PasswordClass.OTHER
    return _typed(reading, found)


def user(reading: Reading[str]) -> Reading[str]:
    """A user; the number 0 is root."""
    if reading.value is None:
        return reading
    name = _NUMBER.sub("", reading.value)
    return msgspec.structs.replace(reading, value="root" if name == "0" else name)


def _typed(reading: Reading[Any], value: T | None) -> Reading[T]:
    return Reading(outcome=reading.outcome, reason=reading.reason, value=value, at=reading.at)
