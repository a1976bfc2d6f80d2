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

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.session.reference_file import (
    editing,
    read_reference_values,
    write_reference_values,
)
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import UsageError
from securetrain.evidence import (
    EnrolledNode,
    ReferenceValues,
    entries_of,
    hardware_of,
    with_nodes,
    without_entries,
)
from securetrain.identity.keys import Signer

Change = Callable[[ReferenceValues], ReferenceValues]
_ONE_NAME: Final = "enroll the machine under one name: one machine is one node"


def retire(
    values: ReferenceValues, given: Sequence[str], *, until: datetime | None = None
) -> ReferenceValues:
    """The values without these digests, commands or command lines of a boot, wherever they stand.

    That is in image groups, and among what machines alone measure.

    Args:
        values: the last edition.
        given: what is taken out.
        until: accept it until then, and no longer; None takes it out now.

    Raises:
        UsageError: ST-USAG-001 when one of them stands nowhere, or nowhere that can end later.
    """
    gone = set(given)
    groups = {name: gone & entries_of(values.group(name)) for name in ("", *values.groups)}
    found = {entry for entries in groups.values() for entry in entries}
    if until is None:
        own, of_machines = _without_own(values.nodes, gone)
        found |= of_machines
        values = msgspec.structs.replace(
            without_entries(values, gone, groups), nodes=with_nodes(values.nodes, own)
        )
    if missing := sorted(gone - found):
        raise UsageError(
            "ST-USAG-001",
            f"no boot has {missing[0][:200]!r}",
            "VALUE",
            "name digests, commands or command lines as 'securetrain attest values show' does",
        )
    ends = {
        name: {entry: end for entry, end in held.items() if entry not in gone}
        for name, held in values.until.items()
    }
    if until is not None:
        for name, entries in groups.items():
            ends[name] = {**ends.get(name, {}), **dict.fromkeys(sorted(entries), until)}
    return msgspec.structs.replace(values, until={n: held for n, held in ends.items() if held})


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
    nodes = with_nodes(values.nodes, dict.fromkeys(names))
    gone = {ek for name in names for ek in values.nodes[name].ek_names}
    listed = tuple(ek for ek in values.tpm.allow_uncertified if ek not in gone)
    tpm = msgspec.structs.replace(values.tpm, allow_uncertified=listed)
    return msgspec.structs.replace(values, nodes=nodes, tpm=tpm)


def put_nodes(
    values: ReferenceValues, nodes: Mapping[str, EnrolledNode], *, replace: bool = False
) -> ReferenceValues:
    """The values with these nodes: their hardware, group, and what each alone measures.

    Args:
        values: the last edition.
        nodes: what is added, or put in the place of what is there.
        replace: whether a node that is there may be changed.

    Raises:
        UsageError: ST-USAG-005 for a node that is there, or hardware that is another node's;
            ST-USAG-001 for an image group that is not there.
    """
    added: dict[tuple[str, str], str] = {}
    for name, node in nodes.items():
        if not replace and name in values.nodes:
            raise _taken(f"{name} is enrolled", name, "use --replace to change it")
        if node.group and node.group not in values.groups:
            raise UsageError(
                "ST-USAG-001",
                f"there is no image group {node.group!r}",
                f"node {name}: group",
                "learn a boot for it, or name one of 'securetrain attest values show'",
            )
        for hard in hardware_of(node):
            if added.setdefault(hard, name) != name:
                raise _taken(f"{hard[1][:20]}... is {added[hard]} too", name, _ONE_NAME)
    for other, known in values.nodes.items() if added else ():
        for hard in hardware_of(known):
            if other not in nodes and hard in added:
                raise _taken(f"{hard[1][:20]}... is enrolled as {other}", added[hard], _ONE_NAME)
    return msgspec.structs.replace(values, nodes=with_nodes(values.nodes, nodes))


def _taken(what: str, name: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-005", what, f"node {name}", fix)


def change_values(
    path: Path,
    change: Change,
    *,
    key: Signer,
    signed_by: Sequence[str],
    now: datetime,
    lifetime: timedelta | None,
    state: StateStore,
    new: bool = False,
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
        new: begin a file that is not there yet; it is then good for `lifetime`.

    Raises:
        AttestationError: ST-ATTS-009, 018; ST-ATTS-015 or 017 about the state.
        UsageError: as `change`; ST-USAG-002 when the file cannot be written, or a new one is there.
    """
    with editing(path):
        if new:
            if path.exists():
                raise UsageError("ST-USAG-002", "it is there already", str(path), "leave out --new")
            old = ReferenceValues(version=0, issued=now, expires=now)
        else:
            old = read_reference_values(path, signed_by, state).values
        made = msgspec.structs.replace(
            change(old),
            version=old.version + 1,
            issued=now,
            expires=old.expires if lifetime is None else now + lifetime,
        )
        write_reference_values(path, made, key)
        return read_reference_values(path, (key_text(key.public),), state).values


def _without_own(
    nodes: Mapping[str, EnrolledNode], gone: set[str]
) -> tuple[dict[str, EnrolledNode], set[str]]:
    """Those nodes that lose something of their own, and what they lose."""
    changed, found = {}, set()
    for name, node in nodes.items():
        lost = gone & {digest for digests in node.own.values() for digest in digests}
        if lost:
            found |= lost
            own = {
                number: left
                for number, digests in node.own.items()
                if (left := tuple(digest for digest in digests if digest not in gone))
            }
            changed[name] = msgspec.structs.replace(node, own=own)
    return changed, found
