# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values, what changed in them, and what two editions differ in."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Final

import msgspec

from securetrain.attest.fleet import Difference, compare
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tpm import BootReference, LateReference
from securetrain.report.document import Document, Section, facts, notes, plural, said
from securetrain.report.pages.evidence import headline, incomplete

SHOWN: Final = 20
"""More lines of what changed, or of rules, are only counted."""
SHOWN_NODES: Final = 1000
"""More of them are only counted on a terminal."""
SOON: Final = timedelta(days=14)
"""Values that end so soon should be signed again."""
_LINE: Final = 200
_EACH_EDITION: Final = frozenset({"version", "issued", "expires"})
_IN_GROUPS: Final = frozenset({"boot", "tdx_boot", "late", "groups", "nodes", "pages"})
_APART: Final = frozenset({"until", "unproven"})


def values_page(values: ReferenceValues, path: Path, now: datetime) -> Document:
    """Reference values: who is enrolled, and what a boot may have measured."""
    left = values.expires - now
    ends = f"it ends in {max(0, left.days)} days: sign it again, with more --days"
    nodes = [
        (name, ", ".join((*node.ek_names, *([node.group] if node.group else []))))
        for name, node in values.nodes.items()
    ]
    sections = [
        headline(path, values),
        notes([ends] if left < SOON else []),
        notes(_unproven(values)),
        facts(sorted(nodes[:SHOWN_NODES]) + nodes[SHOWN_NODES:], most=SHOWN_NODES),
        notes(_until(values)),
        _rules(values),
    ]
    for name in ("", *sorted(values.groups)):
        group = values.group(name)
        rows = [*_boot(group.boot), *_boot(group.tdx_boot), *_late(group.late)]
        sections.append(facts(rows, title=f"image group {name}" if name else ""))
    return Document(
        sections=sections,
        data={
            "file": str(path),
            **msgspec.to_builtins(msgspec.structs.replace(values, nodes={})),
            "nodes": {name: msgspec.to_builtins(node) for name, node in values.nodes.items()},
        },
        code=incomplete(left < SOON),
    )


def changed_page(
    found: Sequence[Difference], values: ReferenceValues, path: Path, now: datetime
) -> Document:
    """A new edition: on a terminal what is another now, and as data all of it."""
    page = values_page(values, path, now)
    rows = [_difference(one) for one in found if one.where not in _EACH_EDITION]
    nothing = "" if rows else "nothing else is another: what was asked for held already"
    shown = said(*rows, most=SHOWN)
    return replace(
        page, sections=[headline(path, values), notes(_until(values)), shown, said(nothing)]
    )


def differences(found: Sequence[Difference], path: Path) -> Document:
    """The lines in which two editions differ."""
    title = f"{path}: {plural(len(found), 'difference')}"
    head = said(*map(_difference, found), title=title)
    data = {"file": str(path), "differences": [asdict(one) for one in found]}
    return Document(sections=[head], data=data)


def _difference(one: Difference) -> str:
    if one.old and one.new:
        return f"~ {one.where}: {one.old} -> {one.new}"
    return f"{'+' if one.new else '-'} {one.where}: {one.new or one.old}"


def _unproven(values: ReferenceValues) -> Iterator[str]:
    for name, nodes in values.unproven.items():
        of = f"of the image group {name}" if name else "of no image group"
        yield f"UNPROVEN: boots {of} are the word of {', '.join(nodes)} alone"


def _until(values: ReferenceValues) -> Iterator[str]:
    for name, ends in values.until.items():
        for entry, end in sorted(ends.items(), key=itemgetter(1)):
            of = f"of {name} " if name else ""
            yield f"accepted until {end:%Y-%m-%d %H:%M} {of}and no longer: {entry}"


def _rules(values: ReferenceValues) -> Section:
    """The demands on every node beside its boot, where they are not the defaults."""
    default = ReferenceValues(version=1, issued=values.issued, expires=values.expires)
    bare = msgspec.structs.replace(values, nodes={}, pages=None)
    left_out = _EACH_EDITION | _IN_GROUPS | _APART
    rules = [one for one in compare(default, bare) if one.where.split(".", 1)[0] not in left_out]
    rows = [(one.where, _in_a_line(one.new or f"without {one.old}")) for one in rules]
    return facts(rows, title="rules of the fleet" if rules else "", most=SHOWN)


def _in_a_line(text: str) -> str:
    """A value in a line; a certificate or a document by its digest."""
    if "\n" in text or len(text) > _LINE:
        kind = "certificate" if text.startswith("-----BEGIN CERT") else f"{len(text):,} characters"
        return f"{kind}, SHA-256 of the text {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return text


def _boot(boot: BootReference) -> Iterator[tuple[str, str]]:
    """The reference values of a boot, one a line."""
    for name, entries in msgspec.to_builtins(boot).items():
        if isinstance(entries, list | tuple):
            yield from ((name, str(entry)) for entry in entries)
    for number, held in (*boot.registers.items(), *boot.variables.items()):
        yield from ((str(number), entry) for entry in held)


def _late(late: LateReference | None) -> Iterator[tuple[str, str]]:
    """The reference values of PCR 11 to 15, one a line."""
    for kind, found in msgspec.to_builtins(late).items() if late is not None else ():
        if isinstance(found, dict):
            for name, held in found.items():
                yield from ((f"{kind} {name}", str(entry)) for entry in held)
        else:
            those = found if isinstance(found, list | tuple) else [found] if found else []
            yield from ((kind, str(entry)) for entry in those)
