# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``attest``: bundles, verdicts, refusals in words, caches.

In an overview, tables are fitted with their digests shortened; asked for by name (``--section``) a
section comes in full.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.attest.fleet import (
    Collected,
    Edition,
    Explained,
    FileListing,
    Judgement,
    Listing,
    describe_verdict,
)
from securetrain.attest.fleet import Section as Described
from securetrain.attest.session import Revocation
from securetrain.core import ExitCode
from securetrain.core.vocabulary import UNATTESTED
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tpm import key_id_of
from securetrain.report.document import (
    Document,
    Row,
    Section,
    done,
    facts,
    notes,
    picked,
    said,
    table,
    verbatim,
)

LONG: Final = frozenset({"boot", "ima", "tee-boot"})
"""Sections whose rows are only counted in the overview."""
SHOWN: Final = 20
NO_HARDWARE: Final = (
    "No hardware speaks for this node. Whoever is root there can make it say anything."
)


def new_key(path: Path, key_id: str, signed_by: str) -> Document:
    """A new key."""
    rows = [("key id", key_id), ("signed_by", signed_by)]
    data = {"file": path, "key_id": key_id, "signed_by": signed_by}
    return done(rows, data, title=f"{path}: a new private key; keep it private")


def collected(found: Collected, path: Path) -> Document:
    """The evidence that was collected, and what is missing."""
    bundle, label = found.bundle, UNATTESTED if found.unattested else ""
    new = ", made just now" if found.key_is_new else ""
    rows = [
        ("speaks", found.speakers),
        ("node key", f"{found.key_file}{new}"),
        ("asked by", "nobody: it asked itself" if bundle.asked_itself else "a verifier"),
        ("size", f"{len(bundle.body):,} bytes"),
        *(("missing", note) for note in found.notes),
    ]
    head = facts(rows, title=f"{path}: evidence of {bundle.node}", label=label)
    told = {"file": path, "speaks": found.speakers, "key": found.key_file, "missing": found.notes}
    data = picked(bundle, "node media_type asked_itself", unattested=found.unattested, **told)
    words = said(NO_HARDWARE if found.unattested else "")
    return Document(sections=[head, words], data=data)


def bundle_page(path: Path, sections: Sequence[Described], *, full: bool) -> Document:
    """The content of a bundle.

    Args:
        path: the bundle's file.
        sections: of `attest.fleet.description`.
        full: whether these sections were asked for by name.
    """
    shown = [part for one in sections for part in _described(one, full=full)]
    if not full:
        shown.append(said("One section in full: --section NAME. Everything: --json."))
    data = {"file": path, "sections": [one.to_dict() for one in sections]}
    return Document(sections=shown, data=data, code=ExitCode.OK)


def question(node: str, path: Path, secret: Path, until: str) -> Document:
    """A question to a node, and the way to its answer."""
    rows = [("secret", f"{secret}, which stays here"), ("answer by", until)]
    copied = verbatim(
        f"  securetrain attest collect --node {node} \\",
        f"      --question {path.name} --out answer.json",
    )
    head = facts(rows, title=f"{path}: a question to {node}")
    words = said("On the node, and then bring the answer back:")
    data = {"question": path, "secret": secret, "node": node, "answer_by": until}
    return Document(sections=[head, words, copied], data=data)


def judgement(judged: Judgement, ear: str) -> Document:
    """A verdict or a refusal; `ear` says what became of the signed result."""
    verdict, refusal = judged.verdict, judged.refusal
    node, code = judged.bundle.node, judged.exit_code
    data = picked(judged, "exception", node=node, ok=judged.proven, exit=int(code))
    data["result"] = msgspec.to_builtins(verdict.result) if verdict is not None else None
    data["open"] = list(verdict.open) if verdict is not None else []
    data["error"] = refusal.to_dict() if refusal is not None else None
    if refusal is not None:
        rows = [("where", refusal.where), ("found", refusal.what), ("fix", refusal.fix)]
        word, about = "REFUSED", f"{node}: {refusal.code}, {refusal.definition.title}"
        sections = [facts(rows)]
    else:
        assert verdict is not None, "a judgement is a verdict or a refusal"
        word, about = "PROVEN" if judged.proven else "OPEN", f"{node}: {verdict.result.label}"
        exception = f"the policy's exception: {judged.exception}" if judged.exception else ""
        proven = [_proven(one) for one in describe_verdict(verdict)]
        sections = [facts([("let in by", exception)]), *proven, said(ear)]
    return Document(
        verb="attest verify", word=word, about=about, sections=sections, data=data, code=code
    )


def explained(found: Explained) -> Document:
    """Every refusal of a result in words."""
    unsigned = f"{found.source} is not signed: it says what its writer says"
    sections = [notes([unsigned] if not found.signed and found.refusals else [])]
    for one in found.refusals:
        rows = [
            ("node", one.node),
            ("when", one.at),
            ("about", one.about),
            ("where", one.where),
            ("found", one.found),
            ("follows", f"{one.follows}; {one.again}"),
            *(("do" if not number else "", step) for number, step in enumerate(one.steps)),
        ]
        sections.append(facts(rows, title=f"{one.code}: {one.rule}", label=one.severity.upper()))
    if not found.refusals:
        sections.append(said(f"{found.source}: no evidence was refused"))
    sections.append(notes(found.open, state="open"))
    return Document(sections=sections, data=asdict(found))


def edition(made: Edition, path: Path, signed_by: str) -> Document:
    """The nodes that were enrolled, and the lines for the policy."""
    values = made.values
    sections = [headline(path, values)]
    for one in made.nodes:
        rows = [
            *(("TPM", name) for name in one.entry.ek_names),
            ("worth", one.endorsement),
            ("image group", one.entry.group),
            *(("chip", chip) for chip in one.entry.chips),
            *(("device", pdi) for pdi in one.entry.devices),
            *(("learned", text) for text in one.learned),
        ]
        sections += [facts(rows, title=one.name), notes(one.notes)]
    named = (f"      file: {path.name}", f"      signed_by: [{signed_by}]")
    sections.append(said("In the policy, which lies beside that file:"))
    sections.append(verbatim("  node:", "    reference_values:", *named))
    nodes, expires = [msgspec.to_builtins(one) for one in made.nodes], values.expires.isoformat()
    told = {"file": path, "expires": expires, "signed_by": signed_by, "nodes": nodes}
    data = picked(values, "version", **told)
    return Document(sections=sections, data=data, code=incomplete(made.notes))


def headline(path: Path, values: ReferenceValues) -> Section:
    """The head of every answer about reference values."""
    return Section(title=f"{path}: version {values.version}, good until {values.expires:%Y-%m-%d}")


def ima_list_page(listing: FileListing, path: Path, data: bytes) -> Document:
    """A runtime policy that was made of packages."""
    digest = hashlib.sha256(data).hexdigest()
    head = f"{path}: {len(listing.files)} files of {len(listing.packages)} packages"
    signers = (
        f"{files} files are signed by the key {key_id}: attest ima-set --ima-key"
        for key_id, files in sorted(listing.signed_by.items())
    )
    more = f"{listing.left_out - SHOWN} more are named in {path.name}.packages.json"
    sections = [
        facts([("SHA-256", digest), ("bytes", str(len(data)))], title=head),
        said(*signers),
        notes([*listing.notes[:SHOWN], *([more] if listing.left_out > SHOWN else [])]),
    ]
    numbers = {"files": len(listing.files), "packages": len(listing.packages)}
    told = {"file": path, "sha256": digest, "signed_by": dict(listing.signed_by), **numbers}
    code = incomplete(listing.left_out)
    return Document(sections=sections, data=picked(listing, "left_out", **told), code=code)


def ima_values_page(values: ReferenceValues, path: Path, now: datetime) -> Document:
    """The part about measured files of reference values, without the policy's files."""
    ima, before, until = values.ima, "", None
    policy = ima.policy_sha256 or ("in this file" if ima.policy is not None else "none")
    if (former := ima.former) is not None:
        over, until = "" if now < former.until else ": it is over", former.until.isoformat()
        before = f"until {former.until:%Y-%m-%d %H:%M} UTC{over}"
    keys = [
        (f"key {key_id_of(key.key)}", f"{key.keyring} {' '.join(key.paths)}".strip() or "-")
        for key in ima.keys
    ]
    rows = [("policy", policy), ("the one before", before), *keys]
    rows += [(rule.mode, rule.paths) for rule in ima.violations]
    told = {
        "keys": [picked(key, "keyring paths", id=key_id_of(key.key)) for key in ima.keys],
        "violations": [msgspec.to_builtins(rule) for rule in ima.violations],
    }
    data = picked(values, "version", file=path, policy=policy, former_until=until, **told)
    return Document(sections=[facts(rows, title=headline(path, values).title)], data=data)


def cache_page(
    listing: Listing, folder: Path, problems: Sequence[str] = (), *, incomplete: bool = False
) -> Document:
    """The documents of a cache, and those that could not be had."""
    ended, index, rows = listing.ended(), listing.index, []
    told = {"folder": folder, "expired": listing.expired, "ended": ended, "problems": problems}
    for entry in index.entries:
        until = f"{entry.expires:%Y-%m-%d}" if entry.expires else "as long as the cache"
        if f"{entry.kind} {entry.id}" in ended:
            until += " EXPIRED"
        rows.append((entry.kind.value, entry.id, f"{entry.size:,}", until))
    head = table(
        ("kind", "id", "bytes", "good until"),
        rows,
        title=f"{folder}: version {index.version}, good until {index.expires:%Y-%m-%d %H:%M}",
        empty="no documents",
        label="EXPIRED" if listing.expired else "",
        verbatim=True,
    )
    data = msgspec.to_builtins(index) | told
    code = ExitCode.INCOMPLETE if incomplete else ExitCode.OK
    return Document(sections=[head, notes(problems)], data=data, code=code)


def revocations(entries: Sequence[Revocation], place: str) -> Document:
    """The subjects that are not let in."""
    sections = [
        facts([("since", one.since), ("reason", one.reason)], title=one.subject) for one in entries
    ]
    data: Any = {"state": place, "revoked": [asdict(entry) for entry in entries]}
    return Document(sections=sections or [said(f"Nobody is revoked in {place}.")], data=data)


def incomplete(missing: object) -> ExitCode:
    """The exit code of an answer of which something is missing."""
    return ExitCode.INCOMPLETE if missing else ExitCode.OK


def _described(section: Described, *, full: bool) -> Iterator[Section]:
    long = section.name in LONG
    rows = []
    for fact in () if full and long else section.facts:
        state, head = ("fail", f"{fact.code}: ") if fact.code else ("", "")
        rows.append(Row(state=state, name=fact.name, text=f"{head}{fact.value}"))
    yield Section(title=section.title, label=section.label, rows=rows)
    if (found := section.table) is not None and found.rows:
        all_of_it = f"--section {section.name} lists all {len(found.rows)} entries."
        short = long and not full
        yield said(all_of_it) if short else table(found.columns, found.rows, verbatim=full)


def _proven(section: Described) -> Section:
    """A section of a verdict: its vector in a line."""
    rows = [(fact.name, fact.value) for fact in section.facts]
    if section.table is not None:
        affirmed = [claim for claim, what in section.table.rows if what == "affirmed"]
        rows.insert(0, ("affirmed", ", ".join(affirmed) or "nothing"))
    return facts(rows, title=section.title, label=section.label)
