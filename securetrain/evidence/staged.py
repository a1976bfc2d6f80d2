# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Boots that are accepted until a day: an old kernel beside its successor, and no longer than that.

The day stands in the reference values (`ReferenceValues.until`). At that instant what ends there is
as if it had never been listed; nobody has to sign a new edition for it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from securetrain.evidence.reference import ImageGroup, ReferenceValues
from securetrain.evidence.tpm.bootrules import BootReference

_LISTS: Final = (
    "firmware",
    "authorities",
    "boot_applications",
    "boot_commands",
    "kernel_command_lines",
    "loaded_files",
    "owner_keys",
)
_MAPS: Final = ("registers", "variables")


def in_force(values: ReferenceValues, now: datetime) -> ReferenceValues:
    """The values without what has ended by `now`."""
    for group, ends in values.until.items():
        over = {entry for entry, end in ends.items() if now >= end}
        if over:
            values = without_entries(values, over, (group,))
    return values


def next_end(values: ReferenceValues, now: datetime) -> datetime | None:
    """The next instant at which something ends; None when nothing will."""
    ends = [end for held in values.until.values() for end in held.values() if end > now]
    return min(ends, default=None)


def entries_of(group: ImageGroup) -> set[str]:
    """Everything that a group's boots list: digests, commands and command lines."""
    found: set[str] = set()
    for boot in (group.boot, group.tdx_boot):
        found.update(entry for name in _LISTS for entry in getattr(boot, name))
        maps: Iterable[Mapping[str, Sequence[str]]] = (getattr(boot, name) for name in _MAPS)
        found.update(entry for held in maps for entries in held.values() for entry in entries)
    return found


def without_entries(
    values: ReferenceValues, gone: Collection[str], groups: Iterable[str]
) -> ReferenceValues:
    """The values without these entries in the boots of these groups.

    A map's key stays when its last entry goes: what is listed as nothing accepts nothing.
    """
    for name in groups:
        group = values.group(name)
        boot, tdx_boot = _without(group.boot, gone), _without(group.tdx_boot, gone)
        if name:
            left = {**values.groups, name: ImageGroup(boot=boot, tdx_boot=tdx_boot)}
            values = msgspec.structs.replace(values, groups=left)
        else:
            values = msgspec.structs.replace(values, boot=boot, tdx_boot=tdx_boot)
    return values


def _without(boot: BootReference, gone: Collection[str]) -> BootReference:
    def kept(entries: Sequence[str]) -> tuple[str, ...]:
        return tuple(entry for entry in entries if entry not in gone)

    fields: dict[str, Any] = {name: kept(getattr(boot, name)) for name in _LISTS}
    for name in _MAPS:
        fields[name] = {one: kept(entries) for one, entries in getattr(boot, name).items()}
    return msgspec.structs.replace(boot, **fields)
