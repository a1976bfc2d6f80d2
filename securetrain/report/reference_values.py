# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values, what changed in them, and what two editions differ in, for people."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final

import msgspec

from securetrain.attest.fleet import Difference, compare
from securetrain.core import ExitCode
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tpm import BootReference, LateReference
from securetrain.report.document import Document
from securetrain.report.pieces import facts, say, title, warn

SHOWN_NODES: Final = 1000
"""More of them are only counted on a terminal."""
SOON: Final = timedelta(days=14)
"""Values that end so soon should be signed again."""


SHOWN: Final = 20
"""More lines of what changed, or of rules, are only counted."""


def values_page(values: ReferenceValues, path: Path, now: datetime) -> Document:
    """Reference values: who is enrolled, and what a boot may have measured."""
    left = values.expires - now
    by_group = {name: values.group(name) for name in ("", *sorted(values.groups))}

    def text() -> None:
        title(f"{path}: version {values.version}, good until {values.expires:%Y-%m-%d}")
        if left < SOON:
            warn(f"it ends in {max(0, left.days)} days: sign it again, with more --days")
        for name, nodes in values.unproven.items():
            of = f"of the image group {name}" if name else "of no image group"
            warn(f"UNPROVEN: boots {of} are the word of {', '.join(nodes)} alone")
        first = list(islice(values.nodes.items(), SHOWN_NODES))
        facts(
            [
                (name, ", ".join((*node.ek_names, *([node.group] if node.group else []))))
                for name, node in sorted(first)
            ]
        )
        if len(values.nodes) > len(first):
            say(f"... and {len(values.nodes) - len(first):,} nodes more: --json has all of them")
        _until(values)
        _rules(values)
        for name, group in by_group.items():
            if name:
                title(f"image group {name}")
            _boot(group.boot)
            _boot(group.tdx_boot)
            if group.late is not None:
                _late(group.late)

    return Document(
        data={
            "file": str(path),
            **msgspec.to_builtins(msgspec.structs.replace(values, nodes={})),
            "nodes": {name: msgspec.to_builtins(node) for name, node in values.nodes.items()},
        },
        text=text,
        exit_code=int(ExitCode.INCOMPLETE if left < SOON else ExitCode.OK),
    )


def changed_page(
    found: Sequence[Difference], values: ReferenceValues, path: Path, now: datetime
) -> Document:
    """A new edition: on a terminal what is another now, and as data all of it."""
    page = values_page(values, path, now)

    def text() -> None:
        title(f"{path}: version {values.version}, good until {values.expires:%Y-%m-%d}")
        _until(values)
        told = [one for one in found if one.where not in _EACH_EDITION]
        for line in told[:SHOWN]:
            _difference(line)
        if len(told) > SHOWN:
            say(f"... and {len(told) - SHOWN:,} lines more: 'attest values diff' has all of them")
        if not told:
            say("nothing else is another: what was asked for held already")

    return Document(data=page.data, text=text, exit_code=page.exit_code)


_EACH_EDITION: Final = frozenset({"version", "issued", "expires"})
_IN_GROUPS: Final = frozenset({"boot", "tdx_boot", "late", "groups", "nodes", "pages"})
_APART: Final = frozenset({"until", "unproven"})


def _until(values: ReferenceValues) -> None:
    for name, ends in values.until.items():
        for entry, end in sorted(ends.items(), key=itemgetter(1)):
            of = f"of {name} " if name else ""
            warn(f"accepted until {end:%Y-%m-%d %H:%M} {of}and no longer: {entry}")


def _rules(values: ReferenceValues) -> None:
    """The demands on every node beside its boot, where they are not the defaults."""
    default = ReferenceValues(version=1, issued=values.issued, expires=values.expires)
    bare = msgspec.structs.replace(values, nodes={}, pages=None)
    left_out = _EACH_EDITION | _IN_GROUPS | _APART
    rules = [one for one in compare(default, bare) if one.where.split(".", 1)[0] not in left_out]
    if rules:
        title("rules of the fleet")
        facts([(one.where, _in_a_line(one.new or f"without {one.old}")) for one in rules[:SHOWN]])
    if len(rules) > SHOWN:
        say(f"... and {len(rules) - SHOWN:,} more: --json has all of them")


def _in_a_line(text: str) -> str:
    """A value in a line; a certificate or a document by its digest."""
    if "\n" in text or len(text) > _LINE:
        kind = "certificate" if text.startswith("-----BEGIN CERT") else f"{len(text):,} characters"
        return f"{kind}, SHA-256 of the text {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return text


_LINE: Final = 200


def differences(found: Sequence[Difference], path: Path) -> Document:
    """The lines in which two editions differ."""

    def text() -> None:
        title(f"{path}: {len(found)} difference{'' if len(found) == 1 else 's'}")
        for one in found:
            _difference(one)

    data = {"file": str(path), "differences": [asdict(one) for one in found]}
    return Document(data=data, text=text)


def _difference(one: Difference) -> None:
    if one.old and one.new:
        say(f"~ {one.where}: {one.old} -> {one.new}")
    else:
        say(f"{'+' if one.new else '-'} {one.where}: {one.new or one.old}")


def _boot(boot: BootReference) -> None:
    """The reference values of a boot, one a line."""
    facts(
        (name, entry)
        for name, entries in msgspec.to_builtins(boot).items()
        if isinstance(entries, list | tuple)
        for entry in map(str, entries)
    )
    for name, held in (*boot.registers.items(), *boot.variables.items()):
        facts([(str(name), entry) for entry in held])


def _late(late: LateReference) -> None:
    """The reference values of PCR 11 to 15, one a line."""
    for kind, said in msgspec.to_builtins(late).items():
        if isinstance(said, dict):
            facts((f"{kind} {name}", str(entry)) for name, held in said.items() for entry in held)
        elif isinstance(said, list | tuple):
            facts((kind, str(entry)) for entry in said)
        elif said:
            facts([(kind, str(said))])
