# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The Pod Security Standards: a table of Kubernetes' own (``policies/standards``).

Rules:

1. the collector reads each field of the table where it stands, and judges nothing;
2. a field that has to be set is ``absent`` at the block that lacks it, unless the pod passes it on;
3. what leaves a mapping open leaves every field below it open that does not stand there.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.audit.parser.files import read_document
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
