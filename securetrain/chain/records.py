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
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.statement import StepPieces
from securetrain.chain import documents
from securetrain.chain.documents import BASE, Count, Document, Hex32, Name
from securetrain.chain.row_order import RowOrder, tree_root
from securetrain.chain.store import Pieces, document
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError, reason

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


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Takes the records of one rank's steps between checkpoints."""

    run: str
    order: RowOrder
    after: int = 0
    _records: list[StepRecord] = field(default_factory=list)

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
        self._records.append(record)

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

    def taken(self) -> StepPieces:
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
        return recorded(self.run, self.after, lines, self.order)


def recorded(run: str, after: int, lines: Sequence[bytes], order: RowOrder) -> StepPieces:
    """Put records into pages, and name them."""
    pages = tuple(
        b"".join(line + b"\n" for line in lines[n : n + PAGE]) for n in range(0, len(lines), PAGE)
    )
    made = StepRecords(
        run=run,
        after=after,
        count=len(lines),
        root=tree_root(lines).hex(),
        pages=tuple(hashlib.sha256(page).hexdigest() for page in pages),
        order=order,
    )
    data = documents.encode(made)
    return StepPieces(hashlib.sha256(data).hexdigest(), data, pages)


def number(value: float) -> str:
    """A float as records write it."""
    return "nan" if math.isnan(value) else float(value).hex()


def read_page(data: bytes, where: str = "") -> Iterator[tuple[bytes, StepRecord]]:
    """The records of a page, each with its line.

    Raises:
        IntegrityError: ST-CHAN-001.
    """
    if len(data) > PAGE_LIMIT or not data.endswith(b"\n"):
        raise IntegrityError(MALFORMED, f"a page of {len(data)} bytes", where)
    lines = data[:-1].split(b"\n")
    if len(lines) > PAGE:
        raise IntegrityError(MALFORMED, f"{len(lines)} records in a page", where)
    for line in lines:
        try:
            said = canonical.decode(line, StepRecord, limit=RECORD_LIMIT, canonical=True)
        except UsageError as error:
            raise IntegrityError(MALFORMED, f"a record: {reason(error)}"[:500], where) from error
        yield line, said


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
        for line, record in read_page(data, where):
            found.append(record)
            lines.append(line)
        if len(found) - before != min(PAGE, said.count - before):
            raise IntegrityError(MALFORMED, "a page has other records than it should", where)
    for expected, record in enumerate(found, said.after + 1):
        if record.step != expected:
            raise IntegrityError(MALFORMED, f"step {record.step} in place of {expected}", where)
    if (root := tree_root(lines).hex()) != said.root:
        raise IntegrityError(MALFORMED, f"their root is {root[:16]}, not {said.root[:16]}", where)
    return found


def records_of(pieces: Pieces, digest: str) -> tuple[StepRecords, list[StepRecord]] | None:
    """A document of records with all of them; None when something of it is not there.

    Raises:
        IntegrityError: ST-CHAN-001.
    """
    said = document(pieces, digest, StepRecords)
    if said is None:
        return None
    records = read_records(pieces, said, f"evidence {digest[:16]}")
    return None if records is None else (said, records)
