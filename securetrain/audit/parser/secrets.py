# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Secrets among literals: by a name, a provider's form, a URL's password, a key's first line.

Values are looked at and never kept.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from securetrain.audit.facts import SecretKind
from securetrain.audit.parser.templates import Template
from securetrain.network import variables

_TOKENS: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|"
    r"glpat-[A-Za-z0-9_-]{16,}|A(?:KIA|SIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|"
    r"sk-[A-Za-z0-9_-]{20,}|nvapi-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|"
    r"npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|dckr_pat_[A-Za-z0-9_-]{20,}|"
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}|"
    r"ya29\.[A-Za-z0-9_-]{20,}|wandb_v1_[A-Za-z0-9]{20,})"
)
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_ASSIGNMENT: Final = re.compile(
    r"(?<![\w-])(?:(--[A-Za-z][\w-]{1,80})(?:=|[ \t]+)|([A-Za-z_]\w{1,80})=)"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"';|&]+)"
)
_NOT_SECRET: Final = re.compile(
    r"_(?:FILE|PATH|DIR|SOCK|URL|URI|ENDPOINT|NAME|MODE|MIN|MAX|LEN|LENGTH|POLICY|TTL|TIMEOUT|"
    r"EXPIRY|EXPIRES?|ENABLED|TYPE|COUNT|SIZE|LIMIT|ID|INDEX|INTERVAL|PERIOD|DURATION|REFRESH|"
    r"HEADER|FIELD|PREFIX|SUFFIX|PROVIDER|SOURCE|ISSUER|STORE|BACKEND|ALGORITHM|VERSION|FORMAT)$|"
    r"(?:^|_)(?:NO|SKIP|WITHOUT|REQUIRE|ENABLE|DISABLE|ALLOW|USE)_|(?:^|_)(?:LABEL|ANNOTATION|SORT|"
    r"PARTITION|PRIMARY|PUBLIC|PUB|CACHE|OBJECT|ROUTING|TOPOLOGY|GROUP|NODE|TAINT)_KEY|"
    r"^TOKENIZERS_|^(?:MAX|NUM|N)_|(?:MAX|NUM|NEW|PAD|EOS|BOS|UNK|SPECIAL|PER)_TOKENS?",
    re.IGNORECASE,
)
_PUBLIC: Final = re.compile(
    r"(?:^|[-_.])(?:user|username|login|email|db|database|bucket|region|host|hostname|port|server|"
    r"endpoint|url|namespace|project|(?:ca|tls|client|server)[.-](?:crt|cert|pem)|config)\Z",
    re.IGNORECASE,
)
"""Keys of Secrets whose values are none, unless their form says so."""
_SWITCHES: Final = frozenset(
    {
        *("", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null", "nil", "auto"),
        *("prompt", "stdin", "ask", "default", "enabled", "disabled", "required", "optional"),
    }
)
_PLACEHOLDER: Final = re.compile(
    r"<.*>|\[.*\]|\$.*|x{3,}|\*+|\.+|/.*|~/.*|file:.*|.*example\Z|"
    r"(?:enter|insert|add|put)?[-_ ]?your.*|.*(?:replace|placeholder|change[-_]?me|todo).*|"
    r"\{\{.*\}\}|%.*%|(?:[0-9.]+ ?(?:ms|s|m|h|d|w|%|[kmgt]i?b?))+",
    re.IGNORECASE | re.DOTALL,
)
_PUBLIC_FORM: Final = re.compile(r"\s*(?:-----BEGIN (?:CERTIFICATE|PUBLIC KEY)|ssh-\w+ AAAA)")
_CHOSEN: Final = re.compile(
    r"PASS|PWD|CREDENTIAL|ACCESS_?KEY|SECRET_?KEY|CLIENT_SECRET", re.IGNORECASE
)
"""Names of what people choose: any word is one."""
_WORD: Final = r"(?:[A-Z]?[a-z]{1,14}|[A-Z]{1,14}|[A-Za-z]{1,5}[0-9]{1,2})"
_WORDS: Final = re.compile(rf"{_WORD}(?:[-_./: ]{_WORD})*")
"""Names of headers, labels, modes, programs; a generated token is none."""
_SHAPES: Final = (
    (_PRIVATE_KEY, SecretKind.PRIVATE_KEY),
    (_TOKENS, SecretKind.PATTERN),
    (variables.SECRET_VALUE, SecretKind.URL),
)
_UNSET: Final = re.compile(
    r"<|\{|\[|your[-_ ]|x{6,}|\*{3,}|changeme|example|\.\.\.|:pass(?:word)?@", re.IGNORECASE
)
"""In a URL, in place of a password."""
_MAX_SCAN: Final = 1 << 20
_MAX_FOUND: Final = 50


@dataclass(frozen=True, slots=True)
class Literal:
    """A secret that stands in a text."""

    name: str
    kind: SecretKind
    length: int
    start: int
    """The number of its first character in the text."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable's or option's name is one of secrets."""
    plain = name.lstrip("-").replace("-", "_").replace(".", "_")
    if plain in variables.SECRET_NAME_KEEP or _NOT_SECRET.search(plain):
        return False
    return variables.SECRET_NAME.search(plain) is not None


def shaped(text: str) -> Iterator[tuple[re.Match[str], SecretKind]]:
    """Yield what is a secret by its form: a key, a provider's token, a URL with a password."""
    for pattern, kind in _SHAPES:
        for found in pattern.finditer(text):
            if "$" not in found[0] and not (kind is SecretKind.URL and _UNSET.search(found[0])):
                yield found, kind


def may_be_secret(name: str, value: str) -> bool:
    """Return whether a variable's value is not kept: rather one too many than one too few."""
    if name in variables.SECRET_NAME_KEEP:
        return False
    if variables.SECRET_VALUE.search(value) or next(shaped(value), None):
        return True
    return is_secret_name(name) and value.strip().lower() not in _SWITCHES


def secret_kind(name: str, value: str) -> SecretKind | None:
    """Return why a literal is taken for a secret."""
    for _, kind in shaped(value):
        return kind
    return SecretKind.NAME if is_secret_name(name) and _may_be_one(name, value.strip()) else None


def is_public(key: str) -> bool:
    """Return whether a key of a Secret is of something that is none."""
    return bool(_PUBLIC.search(key) or _NOT_SECRET.search(key))


def _may_be_one(name: str, text: str) -> bool:
    if text.lower() in _SWITCHES or _PLACEHOLDER.fullmatch(text) or _PUBLIC_FORM.match(text):
        return False
    return bool(_CHOSEN.search(name.replace("-", "_"))) or not _WORDS.fullmatch(text)


def secrets_in(text: str, template: Template) -> Iterator[Literal]:
    """Yield secrets in a word or script: by form, and behind ``NAME=`` or ``--name``."""
    text = text[:_MAX_SCAN]
    taken: set[int] = set()
    count = 0
    for match, kind in shaped(text):
        if template.holes_of(match[0]):
            continue
        count += 1
        taken.update((match.start(), text.rfind("\n", 0, match.start())))
        yield Literal(kind.value, kind, len(match[0]), match.start())
        if count >= _MAX_FOUND:
            return
    for match in _ASSIGNMENT.finditer(text):
        name, value = match[1] or match[2], match[3].strip("\"'")
        is_option = match[1] is not None
        if not is_secret_name(name) or value.startswith("-"):
            continue
        if any(match.start() <= one < match.end() for one in taken) or template.holes_of(value):
            continue
        if secret_kind(name, value) is SecretKind.NAME and len(value) >= (8 if is_option else 6):
            count += 1
            yield Literal(name, SecretKind.NAME, len(value), match.start())
            if count >= _MAX_FOUND:
                return
