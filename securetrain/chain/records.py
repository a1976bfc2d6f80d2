# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The records of a run's steps: one line each, in a tree whose root every rank signs. No torch.

Rules:

1. a record says only what all ranks of a step have computed alike, so that every rank makes the
   same bytes and signs the same digest; numbers are hexadecimal, so that none is rounded;
2. the records of a checkpoint are those of the steps since the one that it goes on from: their
   numbers follow each other, and none is left out. Refused steps are among them;
3. records are kept in pages of `PAGE` lines. A `StepRecords` names the pages, and the root of the
   tree of RFC 6962 over the lines: one record is shown by its page alone, or by a proof;
4. a reader counts sizes before it parses, and takes no record before root, numbers and pages hold.

The signed result of steps that were done again: an in-toto statement about the checkpoints.

Whoever did them signs with a key of the role ``ci`` of the trust root by which the statement is
read. The result is that party's word; what it is about is said by digest: each checkpoint's tree
and statement, and the checkpoint that its steps began with.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from securetrain import __version__
from securetrain.artifacts import context
from securetrain.chain import documents
from securetrain.chain.documents import BASE, Count, Document, Hex32, Name, Text, Time
from securetrain.chain.rows import RowOrder, tree_root
from securetrain.chain.store import Pieces
from securetrain.core import canonical
from securetrain.core.errors import IdentityError, IntegrityError, UsageError, reason
from securetrain.core.files import read_file
from securetrain.identity import dsse, statement
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot

if TYPE_CHECKING:
    from securetrain.guard import Judged, Layout


PAGE: Final = 4096
"""Records of a page; the last one may have fewer."""
MAX_PAGES: Final = 1 << 12
RECORD_LIMIT: Final = 16 << 10
"""Bytes of one record: excluded ranks are named in it."""
PAGE_LIMIT: Final = 8 << 20
MALFORMED: Final = documents.MALFORMED

Number = Annotated[
    str, Meta(max_length=32, pattern=r"^(nan|-?inf|-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4})\Z")
]
"""A float of Python in hexadecimal."""


class StepVerdict(StrEnum):
    """The word on a step."""

    CLEAN = "clean"
    SETTLED = "settled"
    """Something was found, and the step was made again without it."""
    OBSERVED = "observed"
    """Something was found, and the step was applied all the same."""
    REFUSED = "refused"
    """Its gradients were dropped."""
    UNWATCHED = "unwatched"


_APPLIED: Final = (StepVerdict.CLEAN, StepVerdict.SETTLED, StepVerdict.OBSERVED)


class StepRecord(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """One step, as every rank has it."""

    step: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
    loss: Number
    """The mean over the step's tokens, in nats."""
    norm: Number
    """Of the whole gradient before it was clipped; nan where it was refused."""
    lr: Number
    verdict: StepVerdict
    rows: Hex32
    """The root of the tree over the rows that all ranks read (`RowOrder`)."""
    watched: bool = True
    """Whether a guard saw the gradients."""
    without: Annotated[tuple[Count, ...], Meta(max_length=1024)] = ()
    """Ranks whose gradients counted zero."""
    table: Hex32 | None = None
    """SHA-256 of what all ranks said of their gradients (`guard.StepTable`)."""
    seeds: Annotated[tuple[Hex32, ...], Meta(max_length=1024)] = ()
    """Under which they were sketched: each is the SHA-256 of the ranks' preimages."""
    anchors: Hex32 | None = None
    """Of what the ranks committed to since the step before; the preimages lead to it."""
    learned: Count | None = None
    """The steps that the guard had learned from by then."""
    anew: bool = False
    """Whether the guard went on from a checkpoint here."""


class StepRecords(Document, frozen=True, tag=f"{BASE}.step-records.v1+json"):
    """The records of the steps that led from one checkpoint to the next."""

    run: Name
    after: Count
    """The step before the first; 0 at the beginning."""
    count: Annotated[int, Meta(ge=0, le=MAX_PAGES * PAGE)]
    root: Hex32
    order: RowOrder
    pages: Annotated[tuple[Hex32, ...], Meta(max_length=MAX_PAGES)] = ()
    """SHA-256 of each page of records, in order."""

    @property
    def last(self) -> int:
        """The last step."""
        return self.after + self.count


class TabledRecords(StepRecords, frozen=True, tag=f"{BASE}.step-records.v2+json"):
    """The same, where records name tables. Version 1 has none."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Takes the records of one rank's steps between checkpoints."""

    run: str
    order: RowOrder
    after: int = 0
    keep: Callable[[str, bytes], None] | None = None
    """Keeps the bytes of tables and of what they name, by their SHA-256; None keeps none."""
    _records: list[StepRecord] = field(default_factory=list)
    _anew: bool = True
    _layout: "tuple[Layout, str] | None" = None
    """The last layout, with its digest."""

    def add(
        self,
        *,
        step: int,
        loss: float,
        norm: float,
        lr: float,
        verdict: str,
        watched: bool,
        without: Sequence[int] = (),
        table: "Judged | None" = None,
    ) -> None:
        """Take a step; the next after the last one.

        Raises:
            ValueError: It is another one.
        """
        if step != self.after + len(self._records) + 1:
            raise ValueError(f"step {step} after {self.after + len(self._records)}")
        record = StepRecord(
            step=step,
            loss=number(loss),
            norm=number(norm),
            lr=number(lr),
            verdict=StepVerdict(verdict),
            watched=watched,
            without=tuple(without),
            rows=self.order.root(step),
        )
        if table is not None:
            record = msgspec.structs.replace(record, **self._tabled(table))
        self._records.append(record)

    def _tabled(self, said: "Judged") -> dict[str, Any]:
        """Keep a table; return the fields of a record that name it."""
        if self._layout is None or self._layout[0] != said.table.layout:
            self._layout = said.table.layout, self._kept(said.table.layout_data)
        for opening in said.openings:
            self._kept(opening)
        anew, self._anew = self._anew, False
        return {
            "table": self._kept(said.table.data(self._layout[1])),
            "seeds": tuple(seed.hex() for seed in said.seeds),
            "anchors": self._kept(said.anchors) if said.anchors else None,
            "learned": said.learned,
            "anew": anew,
        }

    def _kept(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        if self.keep is not None:
            self.keep(digest, data)
        return digest

    @property
    def applied(self) -> bytes:
        """A letter for each step: which word a step that was applied and watched has; else 0."""
        return bytes(
            _APPLIED.index(one.verdict) + 1 if one.verdict in _APPLIED else 0
            for one in self._records
        )

    def say_as(self, applied: bytes) -> None:
        """Take over another rank's words on steps that were applied: groups that hold pieces of a
        model settle a step each for itself, and all have to say the same of it. Whether a step was
        applied, and watched, stays this rank's own word.

        Raises:
            ValueError: They are of other steps.
        """
        if len(applied) != len(self._records) or max(applied, default=0) > len(_APPLIED):
            raise ValueError(f"words on {len(applied)} steps, not on {len(self._records)}")
        for at, (mine, word) in enumerate(zip(self.applied, applied, strict=True)):
            if mine and word:
                changed = msgspec.structs.replace(self._records[at], verdict=_APPLIED[word - 1])
                self._records[at] = changed

    def begin(self, after: int) -> None:
        """Forget what was taken: the next step comes after this one."""
        self.after, self._records = after, []

    def begin_anew(self, after: int) -> None:
        """The same, where the guard goes on from a checkpoint."""
        self.begin(after)
        self._anew = True

    def taken(self) -> context.StepPieces:
        """Everything since `begin`.

        Raises:
            UsageError: ST-USAG-001, more steps than one checkpoint can have records of.
        """
        if len(self._records) > MAX_PAGES * PAGE:
            raise UsageError(
                "ST-USAG-001",
                f"{len(self._records)} steps since the last checkpoint",
                "checkpoint.every",
                f"save at least every {MAX_PAGES * PAGE} steps",
            )
        lines = [canonical.encode(one) for one in self._records]
        tabled = any(one.table is not None for one in self._records)
        return recorded(self.run, self.after, lines, self.order, tabled=tabled)


def recorded(
    run: str, after: int, lines: Sequence[bytes], order: RowOrder, *, tabled: bool = False
) -> context.StepPieces:
    """Put records into pages, and name them."""
    kind = TabledRecords if tabled else StepRecords
    pages = tuple(
        b"".join(line + b"\n" for line in lines[n : n + PAGE]) for n in range(0, len(lines), PAGE)
    )
    made = kind(
        run=run,
        after=after,
        count=len(lines),
        root=tree_root(lines).hex(),
        pages=tuple(hashlib.sha256(page).hexdigest() for page in pages),
        order=order,
    )
    data = documents.encode(made)
    return context.StepPieces(hashlib.sha256(data).hexdigest(), data, pages)


def table_digest(said: "Judged") -> str:
    """SHA-256 of a step's table, as a record names it."""
    layout = hashlib.sha256(said.table.layout_data).hexdigest()
    return hashlib.sha256(said.table.data(layout)).hexdigest()


def number(value: float) -> str:
    """A float as records write it."""
    return "nan" if math.isnan(value) else float(value).hex()


def read_page(data: bytes, where: str = "") -> tuple[list[bytes], list[StepRecord]]:
    """The lines of a page, and the record in each.

    Raises:
        IntegrityError: ST-CHAN-001.
    """
    if len(data) > PAGE_LIMIT or not data.endswith(b"\n"):
        raise IntegrityError(MALFORMED, f"a page of {len(data)} bytes", where)
    lines = data[:-1].split(b"\n")
    if len(lines) > PAGE:
        raise IntegrityError(MALFORMED, f"{len(lines)} records in a page", where)
    if max(map(len, lines)) <= RECORD_LIMIT:
        records = canonical.decode_lines(data, StepRecord)
        if records is not None:
            return lines, records
    return lines, [_read_line(line, where) for line in lines]


def _read_line(line: bytes, where: str) -> StepRecord:
    """A record that is not plain, or none."""
    try:
        return canonical.decode(line, StepRecord, limit=RECORD_LIMIT, canonical=True)
    except UsageError as error:
        raise IntegrityError(MALFORMED, f"a record: {reason(error)}"[:500], where) from error


def read_records(pieces: Pieces, said: StepRecords, where: str = "") -> list[StepRecord] | None:
    """All records that a document names, by rule 4; None when a page is not there.

    Raises:
        IntegrityError: ST-CHAN-001, they are not what it says.
    """
    if len(said.pages) != -(-said.count // PAGE):
        raise IntegrityError(MALFORMED, f"{said.count} records in {len(said.pages)} pages", where)
    found: list[StepRecord] = []
    lines: list[bytes] = []
    for digest in said.pages:
        if (data := pieces.get(digest)) is None:
            return None
        before = len(found)
        more, records = read_page(data, where)
        if len(records) != min(PAGE, said.count - before):
            raise IntegrityError(MALFORMED, "a page has other records than it should", where)
        lines += more
        found += records
    may_name = isinstance(said, TabledRecords)
    for expected, record in enumerate(found, said.after + 1):
        if not may_name and _names_tables(record):
            raise IntegrityError(MALFORMED, f"step {record.step} names a table", where)
        if record.step != expected:
            raise IntegrityError(MALFORMED, f"step {record.step} in place of {expected}", where)
    if (root := tree_root(lines).hex()) != said.root:
        raise IntegrityError(MALFORMED, f"their root is {root[:16]}, not {said.root[:16]}", where)
    return found


def read_document(data: bytes, where: str = "") -> StepRecords:
    """A document of records, of either version.

    Raises:
        IntegrityError: ST-CHAN-001.
    """
    kind = TabledRecords if str(TabledRecords.__struct_config__.tag).encode() in data else None
    return documents.decode(data, kind or StepRecords, where)


def _names_tables(record: StepRecord) -> bool:
    return bool(record.table or record.seeds or record.anchors or record.learned or record.anew)


def records_of(pieces: Pieces, digest: str) -> tuple[StepRecords, list[StepRecord]] | None:
    """A document of records with all of them; None when something of it is not there.

    Raises:
        IntegrityError: ST-CHAN-001.
    """
    data = pieces.get(digest)
    if data is None:
        return None
    said = read_document(data, f"evidence {digest[:16]}")
    records = read_records(pieces, said, f"evidence {digest[:16]}")
    return None if records is None else (said, records)


PREDICATE_TYPE: Final = f"{statement.PREDICATE_BASE}/replay/v1"
VERIFIER_ID: Final = "https://securetrain.dev/replay"
TREE: Final = "securetrainTree1"
LIMIT: Final = 16 << 20
MAX_SEGMENTS: Final = 4096


class Comparison(StrEnum):
    """The comparison of steps that were done again with the recorded ones."""

    EXACT = "exact"
    """Bit by bit: same mesh, same environment."""
    BOUND = "bound"
    """Within what another order of the same sums changes."""


class Word(StrEnum):
    """The result about one segment."""

    VERIFIED = "verified"
    """Its steps were done again, and gave the checkpoint."""
    PLAUSIBLE = "plausible"
    """Its steps were not done again; no weight went further than AdamW can carry it."""
    OPEN = "open"
    """Its steps cannot be done again."""
    BROKEN = "broken"


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the predicate."""


class ReplayedSegment(_Struct, frozen=True, kw_only=True):
    """The result about the steps that end with one checkpoint."""

    after: Count
    last: Count
    begin: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
    """The tree of the checkpoint that they began with; empty for the beginning of the run."""
    end: Hex32
    statement: Hex32
    """SHA-256 of what was signed about the checkpoint that they ended with."""
    word: Word
    problems: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    difference: Number = "0x0.0p+0"
    largest: Number = "0x0.0p+0"
    numbers: Number = "0x0.0p+0"
    reach: Number = "0x0.0p+0"


class Sample(_Struct, frozen=True, kw_only=True):
    """The draw of segments."""

    confidence: Number
    forged: Number
    drawn: Count
    of: Count
    log_checkpoint: Hex32
    """SHA-256 of the signed checkpoint of the log that drew them."""
    cosigned: Time
    """When the last of its witnesses cosigned it."""


class Verifier(_Struct, frozen=True, kw_only=True):
    """The program that did the steps again."""

    id: Name = VERIFIER_ID
    version: Name = __version__


class Replay(_Struct, frozen=True, kw_only=True):
    """The predicate."""

    verifier: Verifier = Verifier()
    run: Name
    at: Time
    comparison: Comparison
    why: Text = ""
    """Why it was not the exact one."""
    mesh: Text
    world: Count
    environment: Hex32
    sample: Sample | None = None
    segments: Annotated[tuple[ReplayedSegment, ...], Meta(min_length=1, max_length=MAX_SEGMENTS)]


def sign_replay(said: Replay, key: Signer) -> bytes:
    """The statement in a DSSE envelope."""
    subjects = [statement.Subject(f"step-{one.last:08d}", {TREE: one.end}) for one in said.segments]
    return statement.sign(subjects, PREDICATE_TYPE, said, key)


def read_replay(path: Path, trust: TrustRoot) -> Replay:
    """A signed result.

    Raises:
        IdentityError: ST-IDEN-001 to 006, it is signed by nobody who may, or malformed.
        UsageError: ST-USAG-002, the file cannot be read.
    """
    data = read_file(path, LIMIT)
    payload = trust.verify(data, dsse.IN_TOTO, TrustRole.CI, str(path))
    read = statement.parse(payload, PREDICATE_TYPE, Replay, str(path))
    said = read.predicate
    if [one.digest for one in read.subjects] != [{TREE: one.end} for one in said.segments]:
        raise IdentityError(
            "ST-IDEN-004", "its subjects are not its segments' checkpoints", str(path)
        )
    return said
