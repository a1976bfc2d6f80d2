# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answers of ``sign``, ``convert``, ``waive``, ``catalogue`` and ``replay``."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from securetrain.artifacts.lineage import waivers
from securetrain.artifacts.statement.statements import DatasetPredicate
from securetrain.chain import records
from securetrain.core import CODES, ExitCode
from securetrain.report.document import (
    Document,
    Row,
    Section,
    done,
    facts,
    moment,
    notes,
    plural,
    table,
    told,
)

if TYPE_CHECKING:  # an extra's package is below it, and who signs needs none
    from securetrain.artifacts.catalogue import Editor, Entry

MAX_SHOWN: Final = 40
BROKEN: Final = "ST-CHAN-023"


def dataset(signed: DatasetPredicate, digest: str, path: Path) -> Document:
    """A signed dataset."""
    size = sum(file.size for file in signed.files)
    rows = [
        ("signed", f"{path}, version {signed.seq} of {signed.name}"),
        ("digest", digest),
        ("data", f"{len(signed.files)} files, {size:,} bytes, {signed.format}"),
    ]
    if signed.samples is not None:
        rows.append(("samples", f"{signed.samples.count:,}, tree {signed.samples.root[:16]}"))
    gone = f"{len(signed.removed)} stretches, which are not served any more"
    rows.append(("removed", gone if signed.removed else ""))
    rows += [
        ("grown", f"{file.name}, by {file.size - file.before[-1].size:,} bytes")
        for file in signed.files
        if file.before and file.added == signed.seq
    ]
    rows += [("split", f"{split.name}: {len(split.files)} files") for split in signed.splits]
    return done(rows)


def signed_as(path: Path, digest: str) -> Document:
    """A directory that was signed as a checkpoint, or as what was saved."""
    return done([("signed", str(path)), ("digest", digest)])


def guessed(page: Document, kind: str, way: str) -> Document:
    """The page of what was signed by a guess, which comes first."""
    return Document(sections=(facts([("kind", f"{kind}: as with --{way}")]), *page.sections))


def model(path: Path, bundle: Path, resources: int, remarks: Sequence[str]) -> Document:
    """A model with a bundle of OpenSSF Model Signing, and what is not in it."""
    head = facts([("signed", f"{resources} files or shards of {path}"), ("bundle", str(bundle))])
    return Document(sections=[head, notes(remarks)])


def converted(old: Path, new: Path, digest: str, key_id: str) -> Document:
    """A checkpoint that was made from another one."""
    data = {"path": str(new), "digest": digest, "key_id": key_id}
    return done([("converted", f"{old} into {new}"), ("digest", digest)], data)


def waiver(signed: waivers.Waiver, path: Path) -> Document:
    """A waiver."""
    about = f"{signed.digest} of run {signed.run_id}"
    until = f"until {signed.expires.isoformat()}, once enough operators have signed"
    rows = [("waiver", str(path)), ("checkpoint", about)]
    return done([*rows, ("reason", signed.reason), ("counts", until)])


# --- catalogue -----------------------------------------------------------------------------------


def begun(folder: Path, root: Path, threshold: int, signers: int) -> Document:
    """A new catalogue."""
    return told(
        f"made an empty catalogue in {folder}; {threshold} of {signers} signers must sign",
        f"root {root}: give it to readers by another way than the catalogue",
    )


def changes(editor: "Editor") -> list[str]:
    """The changes that a draft makes, a line each."""
    before, after = editor.entries, editor.drafted
    if after is None:
        return ["nothing: what is published, for another term"]
    lines = [f"remove {name}" for name in sorted(before.keys() - after.keys())]
    for name, entry in sorted(after.items()):
        if before.get(name) != entry:
            verb = "change" if name in before else "add"
            lines.append(f"{verb} {name}: {entry.kind} {entry.digest} at {entry.location}")
    return lines or ["nothing: the same entries"]


def drafted(editor: "Editor", folder: Path) -> Document:
    """A draft that was changed."""
    data = {"folder": str(folder), "changes": (lines := changes(editor)), "signed_by": []}
    return told(*lines, f"a draft: {plural(editor.threshold, 'signature')} needed", data=data)


def signed(editor: "Editor", folder: Path, changed: list[str], *, published: bool) -> Document:
    """A draft that was signed, and published if enough have."""
    have = editor.signed_by
    waiting = f"signed by {len(have)}, {editor.threshold} must; then a publisher signs"
    state = f"published in {folder}" if published else waiting
    data = {"folder": folder, "changes": changed, "signed_by": have, "published": published}
    return told(*changed, state, data=data)


def shown(entries: "Mapping[str, Entry]", folder: Path | str) -> Document:
    """Everything that a catalogue names."""
    named = sorted(entries.items())
    data: dict[str, Any] = {
        "catalogue": str(folder),
        "entries": {name: msgspec.to_builtins(entry) for name, entry in named},
    }
    rows = [(name, entry.kind, entry.digest[:16], entry.location) for name, entry in named]
    what = table(("name", "kind", "digest", "where"), rows, empty="it names nothing")
    return Document(sections=[what], data=data)


def exported(layout: Path) -> Document:
    """An OCI layout that was written."""
    return told(f"wrote {layout}")


# --- replay --------------------------------------------------------------------------------------


def planned(run: str, segments: int, drawn: int, confidence: float, forged: float) -> Document:
    """The cost of a sample, before anything is done again."""
    text = (
        f"{drawn} of {plural(segments, 'segment')} of {run} are done again: if {forged:g} of"
        f" them is forged, one is drawn with confidence {confidence:g}"
    )
    return told(text, data={"run": run, "segments": segments, "drawn": drawn})


def replayed(found: records.Replay, out: Path | None) -> Document:
    """The outcome of ``replay``."""
    words = [one.word for one in found.segments]
    code, verdict = ExitCode.OK, "HELD"
    if records.Word.BROKEN in words:
        code, verdict = CODES[BROKEN].exit, "BROKEN"
    elif records.Word.OPEN in words:
        code, verdict = ExitCode.INCOMPLETE, "OPEN"
    data: dict[str, Any] = msgspec.to_builtins(found)
    for one in data["segments"]:
        for name in ("difference", "largest", "numbers", "reach"):
            one[name] = float.fromhex(one.get(name, "0x0.0p+0"))
    data |= {"exit_code": int(code), "code": BROKEN if records.Word.BROKEN in words else ""}
    data["out"] = None if out is None else str(out)
    bad = [one for one in found.segments if one.word in {records.Word.BROKEN, records.Word.OPEN}]
    rows = []
    for one in (*bad, *(one for one in found.segments if one not in bad)):
        text = f"steps {one.after + 1} to {one.last} ({one.end[:16]}){_figures(found, one)}"
        rows.append(Row(state=str(one.word), text=text, detail=tuple(one.problems)))
    error = f"{BROKEN}: {CODES[BROKEN].title}" if records.Word.BROKEN in words else ""
    return Document(
        verb="replay",
        word=verdict,
        about=f"{found.run}, {found.mesh}, {moment(found.at)}",
        tally={str(word): words.count(word) for word in dict.fromkeys(words)},
        sections=[
            facts(_compared(found)),
            Section(rows=rows, most=MAX_SHOWN),
            facts([("error", error), ("signed", "" if out is None else str(out))]),
        ],
        data=data,
        code=code,
    )


def _compared(found: records.Replay) -> Iterator[tuple[str, str]]:
    yield "compared", "bit by bit" if not found.why else f"within bounds: {found.why}"
    if found.sample is not None:
        drawn = found.sample
        by = f"by a log checkpoint that was cosigned {moment(drawn.cosigned)}"
        sure, forged = float.fromhex(drawn.confidence), float.fromhex(drawn.forged)
        good = f"confidence {sure:g} that less than {forged:g} of them is forged"
        yield "drawn", f"{drawn.drawn} of {drawn.of} segments, {by}: {good}"


def _figures(found: records.Replay, one: Any) -> str:
    reach = f"weights went {float.fromhex(one.reach):.3f} of what AdamW can"
    if one.word is records.Word.PLAUSIBLE or not found.why:
        return f": {reach}"
    return f": {float.fromhex(one.difference):.2g} of the movement apart, {reach}"
