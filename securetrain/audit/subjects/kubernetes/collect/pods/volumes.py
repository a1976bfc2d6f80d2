# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Volumes of a pod, and where its containers mount them."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import (
    NotOfTypeError,
    Scope,
    absent,
    failed,
    is_known,
    ok,
    opened,
)
from securetrain.audit.subjects.kubernetes.facts.workload import Mount, Volume

_NO_KIND: Final = frozenset({"name"})
_MAX_VOLUMES: Final = 500


@dataclass(frozen=True, slots=True)
class Volumes:
    """The volumes of a pod, by name, with their mounts."""

    records: tuple[Volume, ...]
    rest: str
    """What may add a volume; empty when nothing does."""

    def named(self, name: str) -> Volume | None:
        """The volume of a name."""
        return next((one for one in self.records if one.name.value == name), None)


def as_path(node: Node) -> str:
    """An absolute path without ``..``, ``//`` and a slash at the end."""
    text = node.text
    if text is None or not text.startswith("/"):
        raise NotOfTypeError("an absolute path")
    return "/" + posixpath.normpath(text).lstrip("/")


def volumes(scope: Scope, spec: Node) -> Volumes:
    """The volumes of a pod spec."""
    found: list[Volume] = []
    rest = ""
    for item, reason in scope.elements(spec, "volumes"):
        if len(found) >= _MAX_VOLUMES:
            break
        if reason or item.entries is None:
            rest = rest or reason
            found.append(_open(scope.source.at(item), reason or "it is no mapping"))
        else:
            found.append(_volume(scope, item))
    return Volumes(tuple(found), rest)


def mounts_of(scope: Scope, item: Node, known: Volumes) -> Iterator[Mount]:
    """Yield the mounts of a container, and the devices of raw block volumes are none."""
    for node, reason in scope.elements(item, "volumeMounts"):
        at = scope.source.at(node)
        if reason or node.entries is None:
            why: Reading[str] = opened(reason or "it is no mapping", at)
            yield Mount(at=at, path=why, host_path=why)
            continue
        path = scope.read(node, "mountPath", as_path)
        yield Mount(at=at, path=path, host_path=_host_path_of(scope, node, known))


def _host_path_of(scope: Scope, node: Node, known: Volumes) -> Reading[str]:
    at = scope.source.at(node)
    volume = scope.string(node, "name")
    if not is_known(volume):
        return Reading(outcome=volume.outcome, reason=volume.reason, at=volume.at)
    found = known.named(volume.value or "")
    if found is None:
        if known.rest or any(not is_known(one.name) for one in known.records):
            return opened(known.rest or "a template", at)
        return failed("the pod has no volume of this name", at)
    host_path = found.host_path
    below = node.get("subPath")
    if is_known(host_path) and below is not None:
        sub = scope.value(below, lambda one: one.text or "")
        if is_known(sub):
            joined = posixpath.normpath(f"{host_path.value}/{sub.value}")
            host_path = ok("/" + joined.lstrip("/"), host_path.at)
    return host_path


def _open(at: Location, reason: str) -> Volume:
    return Volume(
        at=at,
        name=opened(reason, at),
        kind=opened(reason, at),
        host_path=opened(reason, at),
        medium=opened(reason, at),
        size_limit=opened(reason, at),
    )


def _volume(scope: Scope, item: Node) -> Volume:
    at = scope.source.at(item)
    whole = scope.opened(item)
    keys = [key for key in item.entries or {} if key not in _NO_KIND and "\ue002" not in key]
    set_keys = [key for key in keys if item.get(key) is not None or key == "emptyDir"]
    kind: Reading[str]
    if whole:
        kind = opened(whole, at)
    elif len(set_keys) == 1:
        node = (item.entries or {})[set_keys[0]]
        reason = scope.opened(node) if node.text is None else ""
        kind = opened(reason, at) if reason else ok(set_keys[0], scope.source.at(node))
    elif set_keys:
        conditional = next(
            (why for key in set_keys if (why := scope.opened((item.entries or {})[key]))), ""
        )
        kind = opened(conditional, at) if conditional else failed("it has two kinds", at)
    elif rest := scope.rest(item):
        kind = opened(rest, at)
    else:
        kind = ok("emptyDir", at, "not set")
    claim = item.get("spec") is not None and item.get("metadata") is not None
    if claim:
        kind = ok("persistentVolumeClaim", at)
    return Volume(
        at=at,
        name=scope.string(item.get("metadata") if claim else item, "name"),
        kind=kind,
        host_path=_host_path(scope, item, kind, set_keys),
        medium=_field(scope, item, kind, ("emptyDir", "medium"), ""),
        size_limit=_field(scope, item, kind, ("emptyDir", "sizeLimit")),
    )


def _host_path(scope: Scope, item: Node, kind: Reading[str], set_keys: list[str]) -> Reading[str]:
    at = scope.source.at(item)
    if not is_known(kind):
        if kind.outcome is Outcome.ERROR and "hostPath" in set_keys:
            return scope.read(scope.child(item, "hostPath"), "path", as_path, lacks=at)
        return Reading(outcome=kind.outcome, reason=kind.reason, at=at)
    if kind.value != "hostPath":
        return absent(at, f"it is of kind {kind.value}")
    return scope.read(scope.child(item, "hostPath"), "path", as_path)


def _field(
    scope: Scope, item: Node, kind: Reading[str], way: tuple[str, str], default: str | None = None
) -> Reading[str]:
    """Read what only one kind of volume has: `way` is the kind, and the key in it."""
    at = scope.source.at(item)
    wanted, key = way
    if not is_known(kind):
        return Reading(outcome=kind.outcome, reason=kind.reason, at=at)
    if kind.value != wanted:
        return absent(at, f"it is of kind {kind.value}")
    node = scope.child(item, wanted)
    place = scope.source.at(node) if node is not None else at
    return scope.read(
        node,
        key,
        lambda one: one.text if one.text is not None else "",
        default=default,
        lacks=place,
    )
