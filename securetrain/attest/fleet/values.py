# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Changes of reference values that a person orders: what is retired, who is removed.

Rules:

1. the next edition is the last one without what was named, with the next version; it is read back
   before it takes the last one's place (`reference_file`);
2. what is not there cannot be taken out: a typing error would leave a machine or a kernel in;
3. whether a node that is in is out depends on its coordinator: it judges by the new edition at the
   next renewal. `Revocation` is the way to throw a machine out of every fleet at once.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.session.reference_file import read_reference_values, write_reference_values
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import UsageError
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tpm import BootReference, LateReference
from securetrain.identity.keys import PrivateKey

Change = Callable[[ReferenceValues], ReferenceValues]
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
_LATE_MAPS: Final = ("registers", "sections", "words", "digests")


def retire(values: ReferenceValues, given: Sequence[str]) -> ReferenceValues:
    """The values without these digests, commands or command lines of a boot, wherever they stand.

    Raises:
        UsageError: ST-USAG-001 when one of them stands nowhere.
    """
    gone = set(given)
    found: set[str] = set()
    boots = {name: _without(getattr(values, name), gone, found) for name in ("boot", "tdx_boot")}
    groups = {
        name: msgspec.structs.replace(
            group,
            boot=_without(group.boot, gone, found),
            tdx_boot=_without(group.tdx_boot, gone, found),
            late=_late_without(group.late, gone, found),
        )
        for name, group in values.groups.items()
    }
    late = _late_without(values.late, gone, found)
    if missing := sorted(gone - found):
        raise UsageError(
            "ST-USAG-001",
            f"no boot has {missing[0][:200]!r}",
            "VALUE",
            "name digests, commands or command lines as 'securetrain attest values show' does",
        )
    return msgspec.structs.replace(values, groups=groups, late=late, **boots)


def remove(values: ReferenceValues, names: Sequence[str]) -> ReferenceValues:
    """The values without these nodes.

    Raises:
        UsageError: ST-USAG-001 when one of them is not enrolled.
    """
    for name in names:
        if name not in values.nodes:
            raise UsageError(
                "ST-USAG-001", f"{name} is not enrolled", "NODE", "name nodes as they are enrolled"
            )
    nodes = {name: node for name, node in values.nodes.items() if name not in names}
    gone = {ek for name in names for ek in values.nodes[name].ek_names}
    listed = tuple(ek for ek in values.tpm.allow_uncertified if ek not in gone)
    tpm = msgspec.structs.replace(values.tpm, allow_uncertified=listed)
    return msgspec.structs.replace(values, nodes=nodes, tpm=tpm)


def change_values(
    path: Path,
    change: Change,
    *,
    key: PrivateKey,
    signed_by: Sequence[str],
    now: datetime,
    lifetime: timedelta | None,
    state: StateStore,
) -> ReferenceValues:
    """Sign the next edition of a file.

    Args:
        path: the file.
        change: makes the next values of the last ones.
        key: signs the new edition.
        signed_by: keys (SPKI, base64) of which one must have signed what is there.
        now: the time, timezone-aware.
        lifetime: how long the edition is good; None leaves the day on which it ends.
        state: knows the editions that were accepted before; remembers this one.

    Raises:
        AttestationError: ST-ATTS-009, 018; ST-ATTS-015 or 017 about the state.
        UsageError: as `change`; ST-USAG-002 when the file cannot be written.
    """
    old = read_reference_values(path, signed_by, state).values
    made = msgspec.structs.replace(
        change(old),
        version=old.version + 1,
        issued=now,
        expires=old.expires if lifetime is None else now + lifetime,
    )
    write_reference_values(path, made, key)
    read_reference_values(path, (key_text(key.public),), state)
    return made


def _without(boot: BootReference, gone: set[str], found: set[str]) -> BootReference:
    def kept(entries: Sequence[str]) -> tuple[str, ...]:
        found.update(gone.intersection(entries))
        return tuple(entry for entry in entries if entry not in gone)

    fields: dict[str, Any] = {name: kept(getattr(boot, name)) for name in _LISTS}
    for name in _MAPS:
        fields[name] = {one: kept(entries) for one, entries in getattr(boot, name).items()}
    return msgspec.structs.replace(boot, **fields)


def _late_without(
    late: LateReference | None, gone: set[str], found: set[str]
) -> LateReference | None:
    """PCR 11 to 15 likewise. A signed prediction is retired by name: its signature stays good."""
    if late is None:
        return None
    fields: dict[str, Any] = {
        name: {
            one: tuple(entry for entry in entries if entry not in gone)
            for one, entries in getattr(late, name).items()
        }
        for name in _LATE_MAPS
    }
    for name in _LATE_MAPS:
        found.update(*(gone.intersection(entries) for entries in getattr(late, name).values()))
    return msgspec.structs.replace(late, **fields)
