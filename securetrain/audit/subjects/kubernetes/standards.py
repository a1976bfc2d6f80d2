# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The Pod Security Standards: a table of Kubernetes' own (``policies/standards``), and its fields.

Rules:

1. the collector reads each field of the table where it stands, and judges nothing;
2. a field that has to be set is ``absent`` at the block that lacks it, unless the pod passes it on;
3. what leaves a mapping open leaves every field below it open that does not stand there.
"""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.audit.facts import Outcome
from securetrain.audit.parser.files import read_document
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import (
    Scope,
    absent,
    as_bool,
    as_int,
    as_text,
    failed,
    ok,
    opened,
)
from securetrain.audit.subjects.kubernetes.facts.workload import Setting
from securetrain.policy.load import bundled_dir

LIMIT: Final = 256 << 10
EXEMPTIONS: Final = {"windows": ("os.name", "windows"), "user-namespace": ("hostUsers", "false")}
"""What spares a pod: its field, and the value."""


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


class Row(_Base, frozen=True, kw_only=True):
    """One restricted field, and the values that a control takes."""

    of: Literal["pod", "container", "annotation", "volume"]
    path: str
    """Of a volume: empty, for its kind is the value; a pattern of an annotation's name."""
    type: Literal["boolean", "integer", "capability", "text"] = "text"
    undefined: Literal["allowed", "inherited", "refused"] = "allowed"
    allowed: tuple[str, ...] | None = None
    refused: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    """Elements that the list must have."""

    def takes(self, value: str) -> bool:
        """Return whether a value is as the control wants it."""
        if self.contains or value in self.refused:
            return value in self.contains
        return self.allowed is None or any(fnmatchcase(value, one) for one in self.allowed)


class Control(_Base, frozen=True, kw_only=True):
    """A control of the standards."""

    id: str
    level: Literal["baseline", "restricted"]
    since: str
    """The version of Kubernetes that brought it."""
    exempt: tuple[Literal["windows", "user-namespace"], ...]
    settings: Annotated[tuple[Row, ...], Meta(min_length=1)]


class _File(_Base, frozen=True, kw_only=True):
    apiVersion: Literal["securetrain.dev/policy/v1"]  # noqa: N815 - the field's name in the file
    kind: Literal["PodSecurityStandards"]
    metadata: dict[Literal["id", "version"], str]
    source: dict[Literal["commit", "license", "facts"], str]
    controls: Annotated[tuple[Control, ...], Meta(min_length=1)]


@cache
def controls() -> Mapping[str, Control]:
    """The controls by their ids.

    Raises:
        AuditError: ST-AUDT-001 when the shipped table is none.
    """
    path = bundled_dir("policies") / "standards" / "pod-security.yaml"
    file = read_document(
        path, _File, limit=LIMIT, code="ST-AUDT-001", fix="install the package again"
    )
    return {one.id: one for one in file.controls}


def rows(of: str) -> dict[str, Row]:
    """The fields of pods, containers or annotations, with the row that asks most of each."""
    found: dict[str, Row] = {}
    if of == "pod":
        found |= {path: Row(of="pod", path=path) for path, _ in EXEMPTIONS.values()}
    for row in (row for one in controls().values() for row in one.settings if row.of == of):
        if row.path not in found or row.undefined != "allowed":
            found[row.path] = row
    return found


# --- fields, each read once at its place ----------------------------------------------------------

Branch: TypeAlias = "dict[str, Branch | Row]"
"""Fields by the keys on their way."""
_MAX: Final = 500
_PRIVILEGED: Final = ("securityContext.privileged", "true")
_IMPLIED: Final = {
    "securityContext.allowPrivilegeEscalation": "true",
    "securityContext.seccompProfile.type": "Unconfined",
}
"""What a privileged container has, whatever else is said."""


@cache
def _fields(of: str) -> Branch:
    found: Branch = {}
    for path, row in rows(of).items():
        *way, last = path.split(".")
        branch = found
        for step in way:
            below = branch.setdefault(step, {})
            assert isinstance(below, dict), path
            branch = below
        branch[last] = row
    return found


def settings(
    scope: Scope, node: Node, of: str, left_to: str = "", passed_on: tuple[Setting, ...] = ()
) -> tuple[Setting, ...]:
    """The settings of a pod's spec or of a container.

    Args:
        scope: The record that they belong to.
        node: The spec or the container.
        of: ``pod`` or ``container``.
        left_to: Why what is not set here may be set all the same.
        passed_on: What the pod sets for its containers.
    """
    found = [*_read(scope, node, _fields(of), "")]
    privileged = [one for one in found if (one.field, one.text.value) == _PRIVILEGED]
    if privileged:
        at = privileged[0].at
        found = [one for one in found if one.field not in _IMPLIED]
        found += [Setting(at=at, field=to, text=ok(text, at)) for to, text in _IMPLIED.items()]
    given = {one.field for one in passed_on}
    if left_to:
        at = scope.source.at(node)
        found = [one for one in found if one.text.outcome is not Outcome.ABSENT]
        found.append(Setting(at=at, field="", text=failed(left_to, at)))
    own = (one for one in found if one.text.outcome is not Outcome.ABSENT or one.field not in given)
    return tuple(own)[:_MAX]


def annotations(scope: Scope, metadata: Node | None) -> Iterator[Setting]:
    """Yield the restricted annotations of a pod."""
    node = scope.child(metadata, "annotations")
    if node is not None:
        named: Branch = {
            key: row
            for pattern, row in rows("annotation").items()
            for key in node.entries or {}
            if fnmatchcase(key, pattern)
        }
        yield from _read(scope, node, named, "")


def _read(scope: Scope, node: Node, branch: Branch, done: str) -> Iterator[Setting]:
    """Yield what stands below a mapping, what leaves it open, and what it has to have."""
    at = scope.source.at(node)
    open_ = scope.opened(node) or scope.rest(node) or (scope.source.unplaced and "a template")
    if open_:
        yield Setting(at=at, field=done, text=opened(open_, at))
    if node.entries is None:
        if not open_ and not node.is_null:
            yield Setting(at=at, field=done, text=failed("it is no mapping", at))
        return
    for step, below in branch.items():
        path = f"{done}.{step}".lstrip(".")
        there = [*_there(scope, node, step, below, path)]
        yield from there
        if not there and not open_:
            yield from (Setting(at=at, field=one, text=absent(at)) for one in _needed(below, path))


def _there(
    scope: Scope, node: Node, step: str, below: "Branch | Row", path: str
) -> Iterator[Setting]:
    """Yield what stands under one key, which is a list where the step says so."""
    key = step.removesuffix("[*]")
    child = node.get(key)
    if child is None:
        return
    if key in (node.twice or ()):
        at = scope.source.at(child)
        yield Setting(at=at, field=path, text=failed(f"{key} stands twice", at))
    elif key == step:
        yield from _value(scope, child, below, path)
    else:
        for item, why in scope.elements(node, key):
            at = scope.source.at(item)
            if why:
                yield Setting(at=at, field=path, text=opened(why, at))
            else:
                yield from _value(scope, item, below, path)


def _value(scope: Scope, node: Node, below: "Branch | Row", path: str) -> Iterator[Setting]:
    if isinstance(below, Row):
        at = scope.source.at(node)
        yield Setting(at=at, field=path, text=scope.value(node, _CONVERT[below.type]))
    else:
        yield from _read(scope, node, below, path)


def _needed(below: "Branch | Row", path: str) -> Iterator[str]:
    """Yield the fields that have to be set, of those below one that is not there."""
    if isinstance(below, Row):
        if below.of == "container" and below.undefined != "allowed":
            yield path
    elif "[*]" not in path:
        for step, row in below.items():
            yield from _needed(row, f"{path}.{step}")


_CONVERT: Final[Mapping[str, Callable[[Node], str]]] = {
    "boolean": lambda node: "true" if as_bool(node) else "false",
    "integer": lambda node: str(as_int(node)),
    "capability": lambda node: as_text(node).upper().removeprefix("CAP_")[:60],
    "text": lambda node: as_text(node)[:200],
}
