# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Secrets that stand in commands and assignments: found by name and by form, never kept."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from securetrain.audit.shell.evaluator import Call, Commands
from securetrain.audit.shell.programs import SHELLS
from securetrain.audit.shell.values import HOLE, Arg
from securetrain.audit.subjects.kubernetes.facts.workload import SecretKind
from securetrain.audit.subjects.launches.collect.options import options_of
from securetrain.audit.subjects.launches.facts import WrittenSecret
from securetrain.audit.subjects.node.collect.access.accounts import is_secret
from securetrain.network import variables

if TYPE_CHECKING:
    from securetrain.audit.documents.facts import Location

_FORMS: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{15,}"
    r"|sk-(?:proj-|ant-)?[A-Za-z0-9_-]{20,}|xox[abprs]-[\w-]{10,}|dckr_pat_[\w-]{15,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|nvapi-[\w-]{20,}|npm_[A-Za-z0-9]{30,})",
    re.ASCII,
)
_OPTIONS: Final = re.compile(
    r"(?:^|-)(?:token|password|passwd|secret|api-key|apikey|access-key|secret-key|auth-key)\Z"
)
_SHORT: Final = {"docker": "p", "podman": "p", "sshpass": "p", "mysql": "p"}
_PLACEHOLDER: Final = re.compile(
    r"<.*>|\.\.\.|your[-_ ]|x{6,}|\*{3,}|changeme\Z|\[.*\]\Z|example\Z|none\Z|null\Z",
    re.IGNORECASE,
)
_HEX: Final = re.compile(r"[0-9a-f]{32,}\Z")
_MIN: Final = 6
_SHAPES: Final = (
    (_FORMS, SecretKind.PATTERN),
    (variables.SECRET_VALUE, SecretKind.URL),
)


def secrets_of(commands: Commands) -> list[WrittenSecret]:
    """The secrets in these commands, each once for its place."""
    found: dict[tuple[Location, str], WrittenSecret] = {}
    for one in (*_in_settings(commands), *_in_calls(commands)):
        found.setdefault((one.at, one.name), one)
    lines: dict[tuple[str, int], WrittenSecret] = {}
    for one in found.values():
        lines.setdefault((one.at.path, one.at.line), one)
    return list(lines.values())


def _in_settings(commands: Commands) -> Iterator[WrittenSecret]:
    for name, value in commands.settings:
        if value.opens or _placeholder(value.text):
            continue
        if _FORMS.search(value.text):
            yield _secret(value, name, SecretKind.PATTERN)
        elif variables.SECRET_VALUE.search(value.text):
            yield _secret(value, name, SecretKind.URL)
        elif is_secret(name, value.text) and _may_be(value.text):
            yield _secret(value, name, SecretKind.NAME)


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
        if value is None or value.opens or not _may_be(value.text) or _placeholder(value.text):
            continue
        if _OPTIONS.search(option.name) and not re.match(r"/|\d+\Z", value.text):
            yield _secret(value, option.name, SecretKind.NAME)
        elif option.name == _SHORT.get(call.program) and _takes_password(call):
            yield _secret(value, call.program, SecretKind.NAME)
    texts = [arg.text for arg in call.args]
    if "login" in texts[:2] and call.args and _HEX.match(texts[-1]):
        yield _secret(call.args[-1], call.program, SecretKind.PATTERN)


def _takes_password(call: Call) -> bool:
    if call.program in {"docker", "podman"}:
        return bool(call.args) and call.args[0].text == "login"
    return True


def _shaped(call: Call) -> Iterator[WrittenSecret]:
    for arg in call.args:
        for pattern, kind in _SHAPES:
            found = pattern.search(arg.text)
            if found and not {"$", HOLE} & set(found[0]) and not _placeholder(found[0]):
                at = arg.place(found.start())
                yield WrittenSecret(
                    at=at, program=call.program, name=call.program, kind=kind, length=len(found[0])
                )
                break


def _secret(value: Arg, name: str, kind: SecretKind) -> WrittenSecret:
    return WrittenSecret(at=value.at, program=name, name=name, kind=kind, length=len(value.text))


def _may_be(text: str) -> bool:
    return len(text) >= _MIN and not re.match(r"/|~|\./|file:", text)


def _placeholder(text: str) -> bool:
    return bool(_PLACEHOLDER.search(text)) and not _FORMS.search(text)
