# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The rows that a step reads, and their bytes, worked out again from a job's settings. No torch.

The bytes are known only where a byte, or so many bytes, are a token: rows that are cut from
documents depend on a tokenizer, and on the whole of the split. What was removed from the dataset is
left out of a split, as the trainer leaves it out (`train.data.source`); this is written down a
second time, because a verifier trusts no trainer. Tests compare its bytes with those that were
signed.

The order of rows is that of `train.data.order`, written down a second time: a verifier trusts no
trainer. Both are pure functions of (seed, split, step, row), and a test compares them.
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from securetrain.artifacts import dataset_predicate
from securetrain.artifacts.dataset import Removals
from securetrain.artifacts.statement.statements import DatasetPredicate
from securetrain.chain import documents
from securetrain.chain.documents import Count, Name, Part
from securetrain.chain.store import Pieces, document
from securetrain.core.errors import IntegrityError

WIDTH: Final = "token_bytes"
"""Metadata of a dataset of tokens, which says how wide they are."""
BYTES: Final = "bytes"
TOKENS: Final = "tokens"
DOCUMENTS: Final = frozenset({"text", "jsonl", "parquet"})
"""Formats whose rows are cut from documents, which the trainer shuffles and packs itself."""


ROUNDS: Final = 6
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1
MAX_ROWS: Final = 1 << 20
Positive = Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]


class RowOrder(Part, frozen=True):
    """Everything that decides where the rows of a job begin."""

    kind: Literal["random", "epochs"]
    seed: Count
    split: Name
    starts: Positive
    """Of a random order: the places to begin; of epochs: the windows."""
    seq_len: Positive
    """Tokens of a row."""
    batch_rows: Annotated[int, Meta(ge=1, le=MAX_ROWS)]
    """Rows of a step, over all ranks."""
    epochs: Count = 0
    """How often the windows may be gone through; 0 for a random order."""
    sequential: bool = False
    """Whether windows come one after the other, because the stream has shuffled already."""

    def start(self, step: int, row: int) -> tuple[int, int]:
        """The epoch, and the token of it with which a row of a step (from 1) begins.

        Raises:
            ValueError: The data has ended before that.
        """
        if self.kind == "random":
            name = f"securetrain/row/1:{self.seed}:{self.split}:{step}:{row}"
            return 0, _number_of(name) % self.starts
        epoch, number = divmod((step - 1) * self.batch_rows + row, self.starts)
        if epoch >= self.epochs:
            raise ValueError(f"step {step} comes after the last row of {self.epochs} epochs")
        if not self.sequential:
            number = _permute(number, self.starts, _key(self.seed, self.split, epoch))
        return epoch, number * self.seq_len

    def rows(self, step: int) -> list[bytes]:
        """The rows of a step as entries of a tree: epoch and first token."""
        if self.kind != "random":
            places = (self.start(step, row) for row in range(self.batch_rows))
            return [b"%d:%d" % place for place in places]
        # As `start` says, but what all rows begin with is hashed once.
        name = f"securetrain/row/1:{self.seed}:{self.split}:{step}:".encode()
        begun = hashlib.blake2b(name, digest_size=8).copy
        drawn, starts = [], self.starts
        for row in range(self.batch_rows):
            state = begun()
            state.update(b"%d" % row)
            drawn.append(state.digest())
        numbers = struct.unpack(f">{len(drawn)}Q", b"".join(drawn))
        return [b"0:%d" % (number % starts) for number in numbers]

    def root(self, step: int) -> str:
        """The root (hex) of the tree over the rows of a step.

        Raises:
            ValueError: As `start`.
        """
        return tree_root(self.rows(step)).hex()


def tree_root(entries: Iterable[bytes]) -> bytes:
    """The root of the tree of RFC 6962 over some entries.

    Level by level, the last node of an odd level goes up as it is: the same tree as the RFC's,
    whose left half is the largest power of two.
    """
    sha256 = hashlib.sha256
    level = [sha256(b"\0" + entry).digest() for entry in entries]
    if not level:
        return sha256().digest()
    while (count := len(level)) > 1:
        each = iter(level)
        paired = zip(each, each, strict=False)
        above = [sha256(b"\1" + left + right).digest() for left, right in paired]
        if count % 2:
            above.append(level[-1])
        level = above
    return level[0]


def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


@lru_cache(maxsize=64)
def _key(seed: int, split: str, epoch: int) -> int:
    return _number_of(f"securetrain/epoch/1:{seed}:{split}:{epoch}")


def _permute(number: int, count: int, key: int) -> int:
    """Walk a Feistel network until the number is inside (Black and Rogaway 2002)."""
    half = max(1, (max(1, count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [(key + n * _GOLDEN) & _MASK for n in range(1, ROUNDS + 1)]
    while True:
        left, right = number >> half, number & mask
        for one in keys:
            left, right = right, left ^ (_mix(right ^ one) & mask)
        number = (left << half) | right
        if number < count:
            return number


def _mix(x: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def settings_of(pieces: Pieces, job: str | None) -> Mapping[str, Any] | None:
    """The settings that a bound job declared; None when they are not there.

    Raises:
        IntegrityError: ST-CHAN-001.
    """
    found = None if job is None else document(pieces, job, documents.Job)
    if found is None or found.declared is None:
        return None
    declared = document(pieces, found.declared, documents.Declared)
    return None if declared is None else declared.settings


def format_of(dataset: DatasetPredicate, settings: Mapping[str, Any]) -> str | None:
    """The format that the trainer reads a dataset in: the job's choice, or what the dataset's own
    statement says (`train.data.open`, written down a second time); None where nobody can say.
    """
    data = settings.get("data")
    if not isinstance(data, dict):
        return None
    chosen = data.get("format")
    if chosen is not None:
        return chosen if chosen in {BYTES, TOKENS} | DOCUMENTS else None
    match dataset.format:
        case dataset_predicate.DataFormat.JSONL | dataset_predicate.DataFormat.PARQUET as signed:
            return signed.value
        case dataset_predicate.DataFormat.RAW if (
            data.get("token_bytes") is not None or WIDTH in dataset.metadata
        ):
            return TOKENS
        case dataset_predicate.DataFormat.RAW:
            return BYTES if data.get("tokenizer") == BYTES else "text"
        case _:
            return None


def width_of(dataset: DatasetPredicate, settings: Mapping[str, Any]) -> int | None:
    """Bytes of a token; None where tokens are made from documents.

    Raises:
        IntegrityError: ST-CHAN-016, the job and the dataset's statement say two widths, or none.
    """
    match format_of(dataset, settings):
        case "bytes":
            return 1
        case "tokens":
            said = {settings["data"].get("token_bytes"), dataset.metadata.get(WIDTH)}
            widths = {str(one) for one in said if one is not None}
            if widths not in ({"2"}, {"4"}):
                raise _refuse(f"tokens of {' or '.join(sorted(widths)) or 'unknown'} bytes")
            (width,) = widths
            return int(width)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class RowBytes:
    """The bytes of a split that rows are cut from."""

    order: RowOrder
    width: int
    _stretches: tuple[tuple[str, int, int], ...]
    _ends: tuple[int, ...]

    @classmethod
    def of(cls, dataset: DatasetPredicate, order: RowOrder, width: int) -> "RowBytes":
        """Lay out a split.

        Raises:
            IntegrityError: ST-CHAN-016 when the dataset has no such split.
        """
        split = next((one for one in dataset.splits if one.name == order.split), None)
        if split is None:
            raise _refuse(f"the dataset has no split {order.split!r}")
        sizes = {file.name: file.size for file in dataset.files}
        removals = Removals.of(dataset.removed)
        found: list[tuple[str, int, int]] = []
        for name in split.files:
            for begin, end in removals.kept(name, sizes[name]):
                first, last = -(-begin // width) * width, end // width * width
                if first < last:
                    found.append((name, first, last - first))
        return cls(order, width, tuple(found), tuple(accumulate(one[2] for one in found)))

    @property
    def num_tokens(self) -> int:
        """The tokens of the split, without what was removed."""
        return self._ends[-1] // self.width if self._ends else 0

    def of_step(self, step: int) -> Iterator[tuple[str, int, int]]:
        """File, offset and length of every stretch that the rows of a step are made from.

        Raises:
            IntegrityError: ST-CHAN-016 when a row ends behind the data.
        """
        length = (self.order.seq_len + 1) * self.width
        for row in range(self.order.batch_rows):
            try:
                _, token = self.order.start(step, row)
            except ValueError as error:
                raise _refuse(str(error)) from error
            yield from self._cut(token * self.width, length, step)

    def leaves(self, steps: Iterable[int], leaf_size: int) -> dict[str, set[int]]:
        """By file, the numbers of the leaves that hold the rows of some steps.

        Raises:
            IntegrityError: ST-CHAN-016, as `of_step`.
        """
        found: dict[str, set[int]] = {}
        for step in steps:
            for name, offset, length in self.of_step(step):
                first, last = offset // leaf_size, (offset + length - 1) // leaf_size
                found.setdefault(name, set()).update(range(first, last + 1))
        return found

    def _cut(self, at: int, length: int, step: int) -> Iterator[tuple[str, int, int]]:
        if not self._ends or at + length > self._ends[-1]:
            raise _refuse(f"a row of step {step} ends behind the data")
        number = bisect_right(self._ends, at)
        while length:
            name, offset, size = self._stretches[number]
            inside = at - (self._ends[number] - size)
            take = min(length, size - inside)
            yield name, offset + inside, take
            at, length, number = at + take, length - take, number + 1


def _refuse(what: str) -> IntegrityError:
    return IntegrityError("ST-CHAN-016", what, "rows")
