# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The additions that signing a proof would make to the reference values beside the node itself.

Rules:

1. a proof is enrolled on trial, with the code that signs it, and the two editions are compared in
   every field: what a machine measures in PCR 11 to 15, a guest of a CPU and a lower firmware count
   as much as a kernel does, and so does a field that is added to the schema next year;
2. the node's own entry teaches nobody anything, and the numbers of chips and devices name hardware
   and accept nothing (`IDENTITIES`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from securetrain.attest.fleet.compare_values import compare
from securetrain.attest.fleet.enrollment import Enrollment, Roots, enroll, pinned
from securetrain.attest.fleet.entrants import Proven
from securetrain.core.errors import SecureTrainError
from securetrain.evidence import ImageGroup, ReferenceValues
from securetrain.evidence.tpm import LateReference

IDENTITIES: Final = frozenset({"snp.chip_ids", "tdx.ppids", "gpu.devices"})
_NOT_TAUGHT: Final = IDENTITIES | {"version", "issued", "expires"}
_TRIAL: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The outcome of one trial."""

    proven: Proven
    values: ReferenceValues
    """The edition that signing it would make, with this node alone."""
    adds: Mapping[str, tuple[str, ...]]
    """The values that would come or change, by field; fields of its image group by their own
    names."""
    of_fleet: tuple[str, ...] = ()
    """Those fields that hold for every image group."""
    refused: str = ""
    """The reason why it cannot be signed."""


def enrollment_of(proven: Proven) -> Enrollment:
    """A proof as it is enrolled."""
    return Enrollment(
        bundle=proven.bundle,
        learn_boot=True,
        secret=proven.secret,
        group=proven.group,
        replace=proven.replace,
        answered=proven.answered,
    )


def lesson(values: ReferenceValues | None, proven: Proven, roots: Roots, now: datetime) -> Lesson:
    """Enroll a proof on trial.

    Args:
        values: the last edition; None before the first.
        proven: the proof.
        roots: certificates that the desk pins.
        now: the time, timezone-aware.
    """
    old = values or ReferenceValues(version=1, issued=now, expires=now + _TRIAL)
    known = old.nodes.get(proven.node)
    old = msgspec.structs.replace(
        old,
        nodes={} if known is None else {proven.node: known},
        pages=None,
        tpm=pinned(old.tpm, roots),
    )
    try:
        made = enroll(old, [enrollment_of(proven)], roots=roots, now=now, lifetime=_TRIAL).values
    except SecureTrainError as error:
        why = f"{error.code}: {error.what}"
        return Lesson(proven=proven, values=old, adds={}, refused=why)
    adds: dict[str, tuple[str, ...]] = {}
    of_fleet: dict[str, None] = {}
    before, after = _with_group(old, proven.group), made.group(proven.group)
    if before.group(proven.group).late is None and after.late is not None:
        adds["late"] = ("PCR 11 to 15 are judged from now on",)
        before = _with_late(before, proven.group)
    for change in compare(before, made):
        if change.where in _NOT_TAUGHT or change.where.startswith("nodes."):
            continue
        name = _own_name(change.where, proven.group)
        adds[name] = (*adds.get(name, ()), change.new or f"without {change.old}")
        if not _of_group(change.where, proven.group):
            of_fleet[change.where] = None
    return Lesson(proven=proven, values=made, adds=adds, of_fleet=tuple(of_fleet))


def _with_group(values: ReferenceValues, name: str) -> ReferenceValues:
    """The values with an image group of that name, which accepts nothing if it is new."""
    if not name or name in values.groups:
        return values
    return msgspec.structs.replace(values, groups={**values.groups, name: ImageGroup()})


def _with_late(values: ReferenceValues, name: str) -> ReferenceValues:
    if not name:
        return msgspec.structs.replace(values, late=LateReference())
    group = msgspec.structs.replace(values.groups[name], late=LateReference())
    return msgspec.structs.replace(values, groups={**values.groups, name: group})


def _of_group(where: str, group: str) -> bool:
    if group:
        return where.startswith(f"groups.{group}.")
    return where.split(".", 1)[0] in ImageGroup.__struct_fields__


def _own_name(where: str, group: str) -> str:
    """The name of a field for people, as `attest values show` has it below its image group."""
    name = where.removeprefix(f"groups.{group}.") if group else where
    return name.removeprefix("boot.")
