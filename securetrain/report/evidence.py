# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The pages of ``securetrain attest``: bundles, verdicts, reference values, caches.

In an overview, tables are fitted with their digests shortened; asked for by name (``--section``) a
section comes in full.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.text import Text

from securetrain.attest.fleet import (
    Collected,
    Edition,
    FileListing,
    Judgement,
    Listing,
    Section,
    Table,
    describe_verdict,
)
from securetrain.attest.session import Revocation
from securetrain.core import ExitCode
from securetrain.core.vocabulary import UNATTESTED
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tpm import key_id_of
from securetrain.report.document import Document
from securetrain.report.pieces import (
    bare_table,
    facts,
    indented,
    lines,
    plain,
    safe,
    say,
    title,
    warn,
)

LONG: Final = frozenset({"boot", "ima", "tee-boot"})
"""Sections whose rows are only counted in the overview."""
SHORT: Final = 16
_DIGEST: Final = re.compile(r"(?:[a-z0-9-]+:)?([0-9a-f]{40,})")
_DEVICES: Final = re.compile(r"[0-9a-f]{16}(, [0-9a-f]{16})+")
"""Ids of more than one device: only their number fits into a table."""


def new_key(path: Path, key_id: str, signed_by: str) -> Document:
    """A new key."""

    def text() -> None:
        title(f"{path}: a new private key; keep it private")
        facts([("key id", key_id), ("signed_by", signed_by)])

    data = {"file": str(path), "key_id": key_id, "signed_by": signed_by}
    return Document(data=data, text=text)


def collected(found: Collected, path: Path) -> Document:
    """The evidence that was collected, and what is missing."""
    bundle = found.bundle

    def text() -> None:
        title(f"{path}: evidence of {bundle.node}", UNATTESTED if found.unattested else "")
        new = ", made just now" if found.key_is_new else ""
        asked = "nobody: it asked itself" if bundle.asked_itself else "a verifier"
        facts(
            [
                ("speaks", found.speakers),
                ("node key", f"{found.key_file}{new}"),
                ("asked by", asked),
                ("size", f"{len(bundle.body):,} bytes"),
                *(("missing", note) for note in found.notes),
            ]
        )
        if found.unattested:
            say("No hardware speaks for this node. Whoever is root there can make it say anything.")

    data = {
        "file": str(path),
        "node": bundle.node,
        "media_type": bundle.media_type,
        "speaks": found.speakers,
        "unattested": found.unattested,
        "asked_itself": bundle.asked_itself,
        "key": str(found.key_file),
        "missing": list(found.notes),
    }
    return Document(data=data, text=text)


def bundle_page(path: Path, sections: Sequence[Section], *, full: bool) -> Document:
    """The content of a bundle.

    Args:
        path: the bundle's file.
        sections: of `attest.fleet.description`.
        full: whether these sections were asked for by name.
    """

    def text() -> None:
        for number, section in enumerate(sections):
            if number:
                click.echo()
            _section(section, full=full)
        if not full:
            click.echo()
            say("One section in full: --section NAME. Everything: --json.")

    data = {"file": str(path), "sections": [one.to_dict() for one in sections]}
    return Document(data=data, text=text)


def question(node: str, path: Path, secret: Path, until: str) -> Document:
    """A question to a node, and the way to its answer."""

    def text() -> None:
        title(f"{path}: a question to {node}")
        facts([("secret", f"{secret}, which stays here"), ("answer by", until)])
        say("On the node, and then bring the answer back:")
        click.echo(f"  securetrain attest collect --node {safe(node)} \\")
        click.echo(f"      --question {path.name} --out answer.json")

    data = {"question": str(path), "secret": str(secret), "node": node, "answer_by": until}
    return Document(data=data, text=text)


def judgement(judged: Judgement, ear: str) -> Document:
    """A verdict or a refusal; `ear` says what became of the signed result."""
    verdict, refusal = judged.verdict, judged.refusal
    data = {
        "node": judged.bundle.node,
        "ok": judged.proven,
        "exit": int(judged.exit_code),
        "result": msgspec.to_builtins(verdict.result) if verdict is not None else None,
        "open": list(verdict.open) if verdict is not None else [],
        "exception": judged.exception,
        "error": refusal.to_dict() if refusal is not None else None,
    }
    text = partial(_judgement, judged, ear)
    return Document(data=data, text=text, exit_code=int(judged.exit_code))


def _judgement(judged: Judgement, ear: str) -> None:
    node, error = safe(judged.bundle.node), judged.refusal
    if error is not None:
        head = click.style("REFUSED", fg="red", bold=True)
        click.echo(f"{head}  {node}: {error.code}, {error.definition.title}")
        facts([("where", error.where), ("found", error.what), ("fix", error.fix)])
        return
    assert judged.verdict is not None, "a judgement is a verdict or a refusal"
    word, colour = ("PROVEN", "green") if judged.proven else ("OPEN", "yellow")
    label = judged.verdict.result.label
    click.echo(f"{click.style(word, fg=colour, bold=True)}  {node}: {label}")
    if judged.exception:
        facts([("let in by", f"the policy's exception: {judged.exception}")])
    for section in describe_verdict(judged.verdict):
        click.echo()
        _proven(section)
    if ear:
        click.echo()
        say(ear)


def edition(made: Edition, path: Path, signed_by: str) -> Document:
    """The nodes that were enrolled, and the lines for the policy."""
    values = made.values

    def text() -> None:
        title(f"{path}: version {values.version}, good until {values.expires:%Y-%m-%d}")
        for one in made.nodes:
            click.echo()
            title(one.name)
            rows = [("TPM", name) for name in one.entry.ek_names]
            rows += [("worth", one.endorsement)] if one.endorsement else []
            rows += [("image group", one.entry.group)] if one.entry.group else []
            rows += [("chip", chip) for chip in one.entry.chips]
            rows += [("device", pdi) for pdi in one.entry.devices]
            facts(rows + [("learned", text) for text in one.learned])
            for note in one.notes:
                warn(note)
        click.echo()
        say("In the policy, which lies beside that file:")
        click.echo(
            "  node:\n    reference_values:\n"
            f"      file: {path.name}\n      signed_by: [{signed_by}]"
        )

    data = {
        "file": str(path),
        "version": values.version,
        "expires": values.expires.isoformat(),
        "signed_by": signed_by,
        "nodes": [msgspec.to_builtins(one) for one in made.nodes],
    }
    return Document(data=data, text=text, exit_code=_incomplete(bool(made.notes)))


def ima_list_page(listing: FileListing, path: Path, data: bytes) -> Document:
    """A runtime policy that was made of packages."""
    digest = hashlib.sha256(data).hexdigest()

    def text() -> None:
        title(f"{path}: {len(listing.files)} files of {len(listing.packages)} packages")
        facts([("SHA-256", digest), ("bytes", str(len(data)))])
        for key_id, files in sorted(listing.signed_by.items()):
            say(f"{files} files are signed by the key {key_id}: attest ima-set --ima-key")
        for note in listing.notes[:SHOWN]:
            warn(note)
        if listing.left_out > SHOWN:
            warn(f"{listing.left_out - SHOWN} more are named in {path.name}.packages.json")

    return Document(
        data={
            "file": str(path),
            "sha256": digest,
            "files": len(listing.files),
            "packages": len(listing.packages),
            "left_out": listing.left_out,
            "signed_by": dict(listing.signed_by),
        },
        text=text,
        exit_code=_incomplete(bool(listing.left_out)),
    )


SHOWN: Final = 20


def ima_values_page(values: ReferenceValues, path: Path, now: datetime) -> Document:
    """The part about measured files of reference values, without the policy's files."""
    ima = values.ima
    policy = ima.policy_sha256 or ("in this file" if ima.policy is not None else "none")

    def text() -> None:
        title(f"{path}: version {values.version}, good until {values.expires:%Y-%m-%d}")
        facts([("policy", policy)])
        if ima.former is not None:
            over = "" if now < ima.former.until else ": it is over"
            facts([("the one before", f"until {ima.former.until:%Y-%m-%d %H:%M} UTC{over}")])
        facts(
            (f"key {key_id_of(key.key)}", f"{key.keyring} {' '.join(key.paths)}".strip())
            for key in ima.keys
        )
        facts((rule.mode, rule.paths) for rule in ima.violations)

    return Document(
        data={
            "file": str(path),
            "version": values.version,
            "policy": policy,
            "former_until": ima.former.until.isoformat() if ima.former is not None else None,
            "keys": [
                {"id": key_id_of(key.key), "keyring": key.keyring, "paths": list(key.paths)}
                for key in ima.keys
            ],
            "violations": [msgspec.to_builtins(rule) for rule in ima.violations],
        },
        text=text,
    )


def cache_page(
    listing: Listing, folder: Path, problems: Sequence[str] = (), *, incomplete: bool = False
) -> Document:
    """The documents of a cache, and those that could not be had."""
    ended = listing.ended()
    data = {
        "folder": str(folder),
        **msgspec.to_builtins(listing.index),
        "expired": listing.expired,
        "ended": list(ended),
        "problems": list(problems),
    }

    def text() -> None:
        index, over = listing.index, "EXPIRED" if listing.expired else ""
        title(f"{folder}: version {index.version}, good until {index.expires:%Y-%m-%d %H:%M}", over)
        rows = []
        for entry in index.entries:
            until = "as long as the cache"
            if entry.expires is not None:
                until = f"{entry.expires:%Y-%m-%d}"
            if f"{entry.kind} {entry.id}" in ended:
                until += " EXPIRED"
            rows.append((entry.kind.value, entry.id, f"{entry.size:,}", until))
        lines(("kind", "id", "bytes", "good until"), rows)
        for problem in problems:
            warn(problem)

    return Document(data=data, text=text, exit_code=_incomplete(incomplete))


def revocations(entries: Sequence[Revocation], place: str) -> Document:
    """The subjects that are not let in."""

    def text() -> None:
        for entry in entries:
            title(entry.subject)
            facts([("since", entry.since), ("reason", entry.reason)])
        if not entries:
            say(f"Nobody is revoked in {place}.")

    data: Any = {"state": place, "revoked": [asdict(entry) for entry in entries]}
    return Document(data=data, text=text)


def _incomplete(holds: bool) -> int:  # noqa: FBT001 - one truth value in, one code out
    return int(ExitCode.INCOMPLETE if holds else ExitCode.OK)


def _section(section: Section, *, full: bool) -> None:
    title(section.title, section.label)
    if not (full and section.name in LONG):
        found = section.facts
        rows = [(f.name, f"{f.code}: {f.value}" if f.code else f.value) for f in found]
        facts(rows, bad=lambda number: bool(found[number].code))
    if section.table is None or not section.table.rows:
        return
    if full:
        lines(section.table.columns, section.table.rows)
    elif section.name in LONG:
        say(f"  --section {section.name} lists all {len(section.table.rows)} entries.")
    else:
        _table(section.table)


def _proven(section: Section) -> None:
    """A section of a verdict: its vector in a line."""
    title(section.title, section.label)
    rows = [(fact.name, fact.value) for fact in section.facts]
    if section.table is not None:
        affirmed = [claim for claim, what in section.table.rows if what == "affirmed"]
        rows.insert(0, ("affirmed", ", ".join(affirmed) or "nothing"))
    facts(rows)


def _table(table: Table) -> None:
    """A table that fits, with its digests shortened."""
    shown = bare_table(*table.columns)
    for column in shown.columns:
        column.header_style = "dim"
    for row in table.rows:
        cells = (safe(_shortened(cell)) for cell in row)
        shown.add_row(*(Text(cell, "red bold" if _is_bad(cell) else "") for cell in cells))
    plain().print(indented(shown, 2))


def _shortened(cell: str) -> str:
    if _DEVICES.fullmatch(cell):
        return str(cell.count(",") + 1)
    return _DIGEST.sub(lambda match: match[1][:SHORT] + "...", cell)


def _is_bad(cell: str) -> bool:
    return cell in {"DIFFERS", "VIOLATION"} or cell.startswith("ST-")
