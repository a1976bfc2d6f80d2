# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Gather what proves a checkpoint, for one file that leads back by signatures alone.

Rules:

1. a pack holds the statements of the checkpoint, of all its ancestors and of their datasets, the
   proofs that they were logged, the records that they were set aside and the waivers of that, the
   head of its run, their runs' ledgers, and every piece of evidence that the statements bind or
   that such a piece names;
2. whoever packs judges nothing but the statements' own signatures; the verifier judges;
3. what is not at hand is left out and said (`Gathered.missing`). It is never made up, and the
   verifier finds it missing.

`PackPieces` hands the judges of links the evidence in a pack: by digest, and nothing else.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.artifacts import kinds, read_statement
from securetrain.artifacts.lineage import folder, machine, proof_name, quarantine, waivers, walk
from securetrain.artifacts.statement.statements import Bound, CheckpointPredicate, Opened
from securetrain.chain import container, documents, held, records, tables
from securetrain.chain.container import Pack
from securetrain.chain.store import PIECE_LIMIT, Pieces, Places, documents_at_hand
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError, os_error, reason
from securetrain.identity.trust import TrustRoot

STATEMENT_TYPE: Final = "application/vnd.dsse.envelope.v1+json"
PROOF_TYPE: Final = "text/vnd.c2sp.tlog-proof"
LEDGER_TYPE: Final = "application/vnd.securetrain.ledger+jsonl"
TAKEN_TYPE: Final = "application/vnd.securetrain.pack.taken.v1+json"
"""The run's head, a waiver, or the record that a checkpoint was set aside."""
TAKEN_LIMIT: Final = 1 << 20
PIECE_TYPE: Final = "application/octet-stream"
TABLE_TYPE: Final = "application/vnd.securetrain.guard.table"
"""What ranks said in a step, and what that leads to."""
CONTENTS_TYPE: Final = "application/vnd.securetrain.pack.contents.v1+json"
LEDGER_LIMIT: Final = 1 << 30
LEDGER: Final = "ledger.jsonl"

Hex32: TypeAlias = documents.Hex32


@dataclass(frozen=True, slots=True)
class PackPieces:
    """The evidence in a pack (`store.Pieces`)."""

    pack: Pack

    def get(self, digest: str) -> bytes | None:
        """See `Pieces.get`."""
        return self.pack.read(digest, PIECE_LIMIT) if digest in self.pack else None

    def names(self) -> Iterator[str]:
        """See `Pieces.names`; what is no statement, nothing that lay with one, and no ledger."""
        others = {STATEMENT_TYPE, PROOF_TYPE, LEDGER_TYPE, TAKEN_TYPE}
        return (digest for digest, one in self.pack.layers.items() if one.media_type not in others)


class Entry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """A statement of a pack, and what belongs to it. Hints: nothing counts for standing here."""

    statement: Hex32
    """SHA-256 of its envelope."""
    proof: Hex32 | None = None
    head: Hex32 | None = None
    """The head of the run, as it lay beside the checkpoint that the pack is about."""
    record: Hex32 | None = None
    """The record that the checkpoint was set aside."""
    waivers: Annotated[tuple[Hex32, ...], Meta(max_length=64)] = ()
    """Operators' waivers for it, as they lay in the directory of its run (`MAX_WAIVERS`)."""
    ledger: Hex32 | None = None
    holds: Hex32 | None = None
    """A `Held`: bytes of the artifact itself that are in the pack."""


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The statements of a pack; the first is the one that it is about."""

    statements: Annotated[tuple[Entry, ...], Meta(min_length=1, max_length=1 << 17)]


@dataclass(slots=True)
class Gathered:
    """The documents of a pack that is being made."""

    subject: container.Document
    documents: dict[str, container.Document] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """What was not at hand, a line each."""
    num_statements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The bytes that go into a pack besides proofs."""

    weights: bool = False
    """The checkpoint's own."""
    since: int | None = None
    """Those of the checkpoints of its run, from this step on, that it goes on from, too."""
    dataset: bool = False
    """All of its dataset."""
    rows: tuple[int, int] | None = None
    """Of its dataset, the rows of the steps from the first to the last."""
    tables: bool = False
    """What the ranks said of their gradients in every step of its run."""


def gather(chain: walk.Link, pieces: Pieces, wanted: Wanted | None = None) -> Gathered:
    """Gather everything that a chain leads to.

    Args:
        chain: The checkpoint and all that it was made from (`lineage.chain_of`).
        pieces: The evidence of its runs.
        wanted: Bytes that are asked for besides.

    Raises:
        IntegrityError: The checkpoint's own statement cannot be read.
        ValueError: The chain's first link was not opened.
        UsageError: See `held_of`.
    """
    if chain.opened is None or chain.path is None:
        raise ValueError("a chain begins with a checkpoint whose statement verified")
    found = Gathered(_statement(chain))
    entries: dict[str, Entry] = {}
    holds = held_of(chain, pieces, wanted or Wanted())
    ledgers: dict[str, str | None] = {}
    for link in chain.every():
        if link.opened is None or link.path is None:
            found.missing.append(f"{link.role} {link.digest[:16]}: {link.problem}")
            continue
        try:
            envelope = _statement(link)
        except IntegrityError as error:
            found.missing.append(f"{link.role} {link.digest[:16]}: {reason(error)}")
            continue
        if envelope.digest in entries:
            continue
        _keep(found, envelope)
        beside = link.beside
        entries[envelope.digest] = Entry(
            statement=envelope.digest,
            proof=_taken(found, beside.above(), proof_name(beside.base), PROOF_TYPE),
            head=_taken(found, beside.above(), machine.HEAD) if link is chain else None,
            record=_taken(found, beside, quarantine.RECORD),
            waivers=tuple(_waivers(found, link)),
            ledger=_ledger(found, link, ledgers),
            holds=_hold(found, holds.get(link.opened.statement)),
        )
        if isinstance(link.said, CheckpointPredicate):
            _follow(found, link.said.bound, pieces, f"step {link.said.step}")
            if wanted is not None and wanted.tables:
                _add_tables(found, link.said.bound, pieces, f"step {link.said.step}")
    contents = Contents(statements=tuple(entries.values()))
    _keep(found, container.Document.of(CONTENTS_TYPE, canonical.encode(contents)))
    found.num_statements = len(entries)
    return found


def held_of(chain: walk.Link, pieces: Pieces, wanted: Wanted) -> dict[str, held.Made]:
    """The bytes that are asked for, by the statement of the artifact that they are of.

    Raises:
        UsageError: ST-USAG-001 when something lies in an object store, is not at hand, or rows are
            no bytes of the dataset.
        IntegrityError: Bytes are not what was signed; ST-CHAN-016 when a step was not recorded.
    """
    assert chain.opened is not None
    opened = [one for one in chain.every() if one.opened is not None]
    paths = {one.opened.statement: one.path for one in opened if one.opened is not None}
    known = [one.opened for one in opened if one.opened is not None]
    line = held.main_line(chain.opened, [one for one in known if _is_checkpoint(one)])
    found: dict[str, held.Made] = {}
    if wanted.weights or wanted.since is not None:
        for number, one in enumerate(line):
            if number == 0 or (wanted.since is not None and one.checkpoint.step >= wanted.since):
                found[one.statement] = held.hold_whole(_local(paths[one.statement]), one)
    if wanted.dataset or wanted.rows is not None:
        digest = chain.opened.checkpoint.dataset.digest
        dataset = next((one for one in known if one.digest == digest), None)
        if dataset is None or not digest:
            raise UsageError(
                "ST-USAG-001",
                "the checkpoint's dataset is not at hand",
                "--rows" if wanted.rows else "--dataset",
                "name the folder that it is in: --walk-in DIR",
            )
        root = _local(paths[dataset.statement])
        if wanted.rows is None:
            found[dataset.statement] = held.hold_whole(root, dataset)
        else:
            leaves = held.rows_wanted(line, dataset, pieces, wanted.rows)
            found[dataset.statement] = held.hold_rows(root, dataset, leaves, wanted.rows)
    return found


def _is_checkpoint(opened: Opened) -> bool:
    return isinstance(opened.predicate, CheckpointPredicate)


def _local(path: Path | str | None) -> Path:
    if not isinstance(path, Path):
        raise UsageError(
            "ST-USAG-001",
            "weights and rows are packed from a disk only",
            str(path),
            "fetch the directory first",
        )
    return path


def _hold(found: Gathered, made: held.Made | None) -> str | None:
    if made is None:
        return None
    for one in made.documents:
        _keep(found, one)
    data = documents.encode(made.held)
    return _keep(found, container.Document.of(held.HELD_TYPE, data))


def _keep(found: Gathered, document: container.Document) -> str:
    found.documents.setdefault(document.digest, document)
    return document.digest


def _statement(link: walk.Link) -> container.Document:
    assert link.opened is not None
    assert link.path is not None
    data = read_statement(link.path, link.opened.kind)
    return container.Document.of(STATEMENT_TYPE, data)


def _taken(
    found: Gathered,
    storage: folder.CheckpointFiles,
    name: str,
    kind: str = TAKEN_TYPE,
    limit: int = TAKEN_LIMIT,
) -> str | None:
    """A file that speaks of an artifact. One that cannot be read stops the packing: it may be what
    speaks against it.
    """
    try:
        there = storage.has(name)
        data = storage.read(name, limit) if there else b""
    except OSError as error:
        raise os_error(error, f"{storage.name}/{name}") from error
    return _keep(found, container.Document.of(kind, data)) if there else None


def _waivers(found: Gathered, link: walk.Link) -> Iterator[str]:
    """The waivers that say that they are about a checkpoint; the verifier asks whether they are."""
    assert link.opened is not None
    for data in waivers.lying(link.beside) if _is_checkpoint(link.opened) else ():
        with suppress(IntegrityError):  # it is none, and excuses nothing where it lies, either
            if waivers.read_unverified(data).digest == link.opened.digest:
                yield _keep(found, container.Document.of(TAKEN_TYPE, data))


def _ledger(found: Gathered, link: walk.Link, ledgers: dict[str, str | None]) -> str | None:
    """The ledger of the run whose directory holds a checkpoint; read once."""
    if not isinstance(link.said, CheckpointPredicate):
        return None
    run = link.beside.above().above()
    if run.name not in ledgers:
        ledgers[run.name] = _taken(found, run, LEDGER, LEDGER_TYPE, LEDGER_LIMIT)
    if ledgers[run.name] is None and link.said.bound.ledger_head is not None:
        found.missing.append(f"step {link.said.step}: the run's ledger")
    return ledgers[run.name]


Schema: TypeAlias = type[documents.Document] | None
"""Of a piece: its schema; None for bytes that this version does not look into."""


def _follow(found: Gathered, bound: Bound, pieces: Pieces, whose: str) -> None:
    """Everything that a statement binds, and that this names."""
    waiting: list[tuple[str, str, Schema]] = [
        (name, digest, kind)
        for name, digest, kind in (
            ("policy", bound.policy, None),
            ("job", bound.job, documents.Job),
            ("code", bound.code, documents.Code),
            ("environment", bound.environment, documents.Environment),
            ("membership", bound.membership, documents.Membership),
            ("step records", bound.step_records, records.StepRecords),
        )
        if digest is not None
    ]
    while waiting:
        name, digest, kind = waiting.pop()
        if digest in found.documents:
            continue
        try:
            data = pieces.get(digest)
            if data is None:
                found.missing.append(f"{whose}: {name} {digest[:16]}")
                continue
            if kind is None:
                _keep(found, container.Document.of(PIECE_TYPE, data))
            else:
                parsed = _parsed(data, kind)
                _keep(found, container.Document.of(_media_type(type(parsed)), data))
                waiting += _named_by(parsed)
                if isinstance(parsed, documents.Membership):
                    waiting += _coordinators_own(parsed, pieces)
        except IntegrityError as error:
            found.missing.append(f"{whose}: {name} {digest[:16]}: {reason(error)}")


def _add_tables(found: Gathered, bound: Bound, pieces: Pieces, whose: str) -> None:
    """Add the words of the ranks in the steps whose records a statement binds."""
    read = None
    try:
        if bound.step_records is not None:
            read = records.records_of(pieces, bound.step_records)
        names = [] if read is None else list(tables.names_of(pieces, read[1]))
    except IntegrityError as error:
        found.missing.append(f"{whose}: its tables: {reason(error)}")
        return
    lost = 0 if names else 1
    for name in names:
        if name in found.documents:
            continue
        data = pieces.get(name)
        if data is None:
            lost += 1
            continue
        path = pieces.path_of(name) if isinstance(pieces, Places) else None
        made = container.Document(
            media_type=TABLE_TYPE, digest=name, size=len(data), source=path or data
        )
        _keep(found, made)
    if lost:
        found.missing.append(f"{whose}: {lost} of its tables (checkpoint.tables in the job)")


def _coordinators_own(
    membership: documents.Membership, pieces: Pieces
) -> Iterator[tuple[str, str, Schema]]:
    """Evidence of a coordinator elsewhere, which a launcher that joined it cannot name."""
    if not (membership.credentials and membership.appraised):
        for kind in (documents.Credential, documents.Appraised):
            for one in documents_at_hand(pieces, kind):
                yield "evidence", documents.digest_of(one), kind


def _parsed(data: bytes, kind: type[documents.Document]) -> documents.Document:
    if kind is records.StepRecords:
        return records.read_document(data)
    return documents.decode(data, kind)


def _named_by(document: documents.Document) -> Iterator[tuple[str, str, Schema]]:
    """The pieces that a document names."""
    match document:
        case documents.Membership():
            yield "signed membership", document.envelope, None
            for digest in document.credentials:
                yield "coordinator's certificate", digest, documents.Credential
            for digest in document.appraised:
                yield "result", digest, documents.Appraised
        case documents.Appraised():
            yield "signed result", document.token, None
            yield "evidence", document.presented.body, None
            if document.presented.keys is not None:
                yield "TPM keys", document.presented.keys, None
            for digest in document.documents:
                yield "reference values", digest, None
        case records.StepRecords():
            for digest in document.pages:
                yield "page of step records", digest, None
        case documents.Job(declared=str() as declared):
            yield "declared settings", declared, documents.Declared
        case _:
            return


def _media_type(kind: Schema) -> str:
    return PIECE_TYPE if kind is None else str(kind.__struct_config__.tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A pack that was written."""

    path: Path
    size: int
    manifest: str
    """SHA-256 of its manifest: the same for the same documents."""
    num_statements: int
    num_documents: int
    missing: tuple[str, ...]
    """What was not at hand, a line each."""


def pack(
    checkpoint: Path,
    out: Path,
    *,
    trust: TrustRoot,
    data: TrustRoot | None = None,
    places: Sequence[Path] = (),
    evidence: Sequence[Path] = (),
    wanted: Wanted | None = None,
) -> Packed:
    """Put what proves a checkpoint into one file.

    Args:
        checkpoint: Its directory.
        out: The new file.
        trust: The keys that may sign it and its ancestors.
        data: The keys that may sign its datasets; by default `trust` names them, too.
        places: Directories below which ancestors and datasets are looked for, besides the run
            directory around it.
        evidence: Run directories with evidence besides that one: a coordinator's, above all.
        wanted: Weights and rows that go into it; None for none.

    Raises:
        IntegrityError: The checkpoint's statement does not verify, or bytes that were asked for are
            not what was signed; ST-PACK-130, ST-PACK-140.
        UsageError: `out` cannot be written, or is there; ST-USAG-001 for what a script has saved.
    """
    if kinds.guess(checkpoint).kind is kinds.TargetKind.SAVED:
        raise UsageError(
            "ST-USAG-001",
            "a script has saved it, and it is signed as files: nothing is bound to it that a pack"
            " could hold",
            str(checkpoint),
            "verify it where it lies (securetrain verify), or save it with securetrain.artifacts",
        )
    run = checkpoint.absolute().parent.parent
    chain = walk.chain_of(checkpoint, trust, (run, *places), data)
    gathered = gather(chain, Places.of((run, *evidence)), wanted)
    manifest = container.write_pack(out, gathered.subject, gathered.documents.values())
    return Packed(
        path=out,
        size=out.stat().st_size,
        manifest=manifest,
        num_statements=gathered.num_statements,
        num_documents=len(gathered.documents),
        missing=tuple(gathered.missing),
    )
