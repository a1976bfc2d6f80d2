# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Secrets that stand in Secret and ConfigMap objects and in Ansible's variables.

Key, class and length of each, never the value.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Final

from securetrain.audit.facts import Location, Reading
from securetrain.audit.parser.objects import Object, strings
from securetrain.audit.parser.secrets import (
    is_public,
    secret_kind,
    secrets_in,
)
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope, Source, ok, opened
from securetrain.audit.subjects.kubernetes.facts.cluster import StoredSecret

_MAX: Final = 200
_MAX_SCAN: Final = 256 << 10
_VARIABLES: Final = re.compile(r"(?:^|/)(?:defaults|vars|group_vars|host_vars)/.+\.ya?ml\Z")
_SHORT: Final = re.compile(r"(?:^|_)(?:pass|munge_?key)\Z", re.IGNORECASE)
"""Names of passwords of databases and of munge's key that no other tool has."""
_OPEN: Final = re.compile(r"\{[{%]|^(?:/|\$ANSIBLE_VAULT|$)")
"""A value that something else decides, the path of a file, or what is encrypted."""


def stored_secrets(one: Object) -> Iterator[StoredSecret]:
    """Yield the secrets of one object."""
    if one.group or one.kind not in {"Secret", "ConfigMap"}:
        return
    scope = Scope(one.source, one.node.at)
    name = f"{one.kind}/{one.said('namespace') or 'default'}/{one.said('name')}"
    count = 0
    for part in ("data", "stringData", "binaryData"):
        block = one.node.get(part)
        for key, node in (block.entries or {}).items() if block is not None else ():
            if node.text is None or count >= _MAX:
                continue
            found = (
                _of_secret(scope, key, node, encoded=part == "data")
                if one.kind == "Secret"
                else _of_config(scope, key, node)
            )
            if found is None:
                continue
            kind, length, at = found
            count += 1
            yield StoredSecret(at=at, name=name, key=key[:200], kind=kind, length=length)


def _of_secret(
    scope: Scope, key: str, node: Node, *, encoded: bool
) -> tuple[Reading[str], int, Location] | None:
    at = scope.source.at(node)
    if reason := scope.opened(node):
        return opened(reason, at), 0, at
    text = node.text or ""
    if encoded:
        try:
            text = base64.b64decode("".join(text.split()), validate=True).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            text = node.text or ""
    name = "" if is_public(key) else "PASSWORD"
    kind = secret_kind(name, text) and secret_kind(name, node.text or "")
    return (ok(str(secret_kind(key, text) or "secret"), at), len(text), at) if kind else None


def _of_config(scope: Scope, key: str, node: Node) -> tuple[Reading[str], int, Location] | None:
    at = scope.source.at(node)
    text = node.text or ""
    if scope.opened(node) or "\n" in text.strip():
        for literal in secrets_in(text[:_MAX_SCAN], scope.source.template):
            line = node.at
            if node.literal:
                line = node.line + 1 + text.count("\n", 0, literal.start)
            place = Location(path=scope.source.path, line=line)
            return ok(str(literal.kind), place), literal.length, place
        return None
    kind = secret_kind(key, text)
    return None if kind is None else (ok(str(kind), at), len(text), at)


def ansible_secrets(root: Node, source: Source) -> Iterator[StoredSecret]:
    """Yield the secrets of a document with variables of Ansible."""
    scope = Scope(source, root.at)
    count = 0
    for way, node in strings(root) if _VARIABLES.search(source.path) else ():
        key = next((name for name in reversed(way) if not name.isdecimal()), "")
        text = node.text or ""
        if count == _MAX or scope.opened(node) or node.tag.startswith("!") or _OPEN.search(text):
            continue
        if kind := secret_kind("PASSWORD" if _SHORT.search(key) else key, text):
            count += 1
            at = source.at(node)
            name, said = f"Ansible {source.path}"[:200], ok(str(kind), at)
            yield StoredSecret(at=at, name=name, key=key[:200], kind=said, length=len(text))
