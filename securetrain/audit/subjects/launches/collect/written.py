# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Secrets that stand in commands and assignments: found by name and by form, never kept."""

import re
from collections.abc import Iterator
from typing import Final

from securetrain.audit.facts import SecretKind
from securetrain.audit.shell.evaluator import Call, Commands
from securetrain.audit.shell.programs import SHELLS
from securetrain.audit.shell.values import HOLE, Arg
from securetrain.audit.subjects.launches.collect.options import options_of
from securetrain.audit.subjects.launches.collect.secrets import secret_kind, shaped
from securetrain.audit.subjects.launches.facts import WrittenSecret

_SHORT: Final = {"docker": "p", "podman": "p", "sshpass": "p", "mysql": "p"}
_HEX: Final = re.compile(r"[0-9a-f]{32,}\Z")
_MIN: Final = 6


def secrets_of(commands: Commands) -> list[WrittenSecret]:
    """The secrets in these commands, one of each line."""
    lines: dict[tuple[str, int], WrittenSecret] = {}
    for one in (*_in_settings(commands), *_in_calls(commands)):
        lines.setdefault((one.at.path, one.at.line), one)
    return list(lines.values())


def _in_settings(commands: Commands) -> Iterator[WrittenSecret]:
    for name, value in commands.settings:
        if not value.opens and (kind := _kind(name, value)):
            yield _secret(value, name, kind)


def _in_calls(commands: Commands) -> Iterator[WrittenSecret]:
    for call in commands.calls:
        if call.program in SHELLS and call.opened:
            continue
        if not call.opened or call.program == "sshpass":
            yield from _named(call)
        yield from _shaped(call)


def _named(call: Call) -> Iterator[WrittenSecret]:
    for option in options_of(call):
        value = option.value
        if value is None or value.opens:
            continue
        is_short = option.name == _SHORT.get(call.program) and _takes_password(call)
        name = call.program if is_short else option.name
        if _kind("password" if is_short else name, value) is SecretKind.NAME:
            yield _secret(value, name, SecretKind.NAME)
    texts = [arg.text for arg in call.args]
    if "login" in texts[:2] and call.args and _HEX.match(texts[-1]):
        yield _secret(call.args[-1], call.program, SecretKind.PATTERN)


def _takes_password(call: Call) -> bool:
    if call.program in {"docker", "podman"}:
        return bool(call.args) and call.args[0].text == "login"
    return True


def _shaped(call: Call) -> Iterator[WrittenSecret]:
    for arg in call.args:
        for found, kind in shaped(arg.text):
            if HOLE not in found[0]:
                at, length = arg.place(found.start()), len(found[0])
                name = call.program
                yield WrittenSecret(at=at, program=name, name=name, kind=kind, length=length)
                break


def _secret(value: Arg, name: str, kind: SecretKind) -> WrittenSecret:
    return WrittenSecret(at=value.at, program=name, name=name, kind=kind, length=len(value.text))


def _kind(name: str, value: Arg) -> SecretKind | None:
    kind = secret_kind(name, value.text)
    return None if kind is SecretKind.NAME and len(value.text) < _MIN else kind
