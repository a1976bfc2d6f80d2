# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Token counts of documents: counted once, kept in the run directory, checked when used.

Packing must know where documents lie in the stream of tokens, which only tokenizing all of them can
say. Rules for what was counted, in order:

1. it belongs to one dataset (its digest), split, format and tokenizer (its digest); an index of
   anything else, or that was damaged, is not read but counted again;
2. its sizes must fit the split exactly (`Documents.set_sizes`), so that it can leave nothing out;
3. its counts are compared with the document's own tokens whenever one is read (`packing`);
4. it is written whole or not at all, and holds at most 2**26 documents.

So a false index cannot change what is trained on without being noticed at the first document that
it is false about. Its digest goes into the ledger; whoever counts again gets the same.
"""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from securetrain.core import canonical
from securetrain.core.errors import UsageError
from securetrain.core.files import PRIVATE_FILE, read_file, write_atomic
from securetrain.train.data.documents import BLANK, Documents, false_index, not_in_format
from securetrain.train.tokenizer import Tokenizer

VERSION: Final = 1
MAX_DOCUMENTS: Final = 1 << 26
BATCH: Final = 256
BATCH_TEXT: Final = 4 << 20
"""Documents, and characters, that are tokenized at once."""
_HEADER_LIMIT: Final = 64 << 10
_WIDTH: Final = 8
SUFFIX: Final = ".counts"

Counts = NDArray[np.uint32]


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The dataset, split, format and tokenizer of a count."""

    version: int = VERSION
    dataset: str
    split: str
    format: str
    tokenizer: str

    @property
    def file(self) -> str:
        """The name of its index."""
        return hashlib.sha256(canonical.encode(self)).hexdigest()[:32] + SUFFIX


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    subject: Subject
    count: Annotated[int, Meta(ge=0, le=MAX_DOCUMENTS)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """SHA-256 of what follows the header."""


@dataclass(frozen=True, slots=True)
class Index:
    """Sizes and numbers of tokens, by document."""

    sizes: Counts
    """Bytes, as `Documents.scan` gives them."""
    tokens: Counts
    """With the end token; 0 where there is no document."""
    digest: str

    @classmethod
    def of(cls, sizes: Counts, tokens: Counts) -> "Index":
        """An index of these numbers."""
        return cls(sizes, tokens, hashlib.sha256(_body(sizes, tokens)).hexdigest())


def count(documents: Documents, tokenizer: Tokenizer) -> Iterator[Index | None]:
    """Tokenize everything; yields None now and then, and the index at the end.

    Raises:
        UsageError: ST-USAG-015 when a document is not in the format.
        IntegrityError: as the dataset's `read`.
    """
    sizes, tokens = array("I"), array("I")
    for group in _groups(documents):
        lengths = iter(tokenizer.encode([text for _, text in group if text is not None]))
        for size, text in group:
            sizes.append(size)
            tokens.append(0 if text is None else len(next(lengths)) + 1)
        if len(sizes) > MAX_DOCUMENTS:
            what = f"more than {MAX_DOCUMENTS} documents"
            raise not_in_format(what, documents.where, documents.name)
        yield None
    yield Index.of(np.array(sizes, dtype="<u4"), np.array(tokens, dtype="<u4"))


def _groups(documents: Documents) -> Iterator[list[tuple[int, str | None]]]:
    """Documents in batches."""
    group: list[tuple[int, str | None]] = []
    room = BATCH_TEXT
    for size, text in documents.scan():
        group.append((size, text))
        room -= len(text or "")
        if room <= 0 or len(group) == BATCH:
            yield group
            group, room = [], BATCH_TEXT
    if group:
        yield group


def save(index: Index, subject: Subject, path: Path) -> None:
    """Write an index, replacing an older one.

    Raises:
        UsageError: ST-USAG-002 or 006 on I/O errors.
    """
    header = _Header(subject=subject, count=len(index.sizes), digest=index.digest)
    data = canonical.encode(header) + b"\n" + _body(index.sizes, index.tokens)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data, mode=PRIVATE_FILE)


def load(subject: Subject, path: Path) -> Index | None:
    """Read an index; None when there is none of this subject, or it was damaged.

    Raises:
        UsageError: ST-USAG-002 when there is one that cannot be read.
    """
    if not path.exists():
        return None
    data = read_file(path, _HEADER_LIMIT + MAX_DOCUMENTS * _WIDTH)
    end = data.find(b"\n", 0, _HEADER_LIMIT)
    try:
        header = canonical.decode(data[: max(end, 0)], _Header, limit=_HEADER_LIMIT, canonical=True)
    except UsageError:
        return None
    body = memoryview(data)[end + 1 :]
    if header.subject != subject or len(body) != header.count * _WIDTH:
        return None
    if hashlib.sha256(body).hexdigest() != header.digest:
        return None
    numbers = np.frombuffer(body, dtype="<u4")
    return Index(numbers[: header.count], numbers[header.count :], header.digest)


def check(index: Index, documents: Documents) -> None:
    """Refuse an index that cannot be of these documents, and take the others' sizes over.

    Raises:
        IntegrityError: ST-DATA-133.
    """
    documents.set_sizes(index.sizes)
    # A line without a document must be empty: nothing can be left out by calling it one.
    empty = index.tokens == 0
    if bool(np.any(index.sizes[empty] > BLANK)) or (bool(empty.any()) and documents.groups):
        raise false_index("it leaves documents out", documents.where)


def find(subject: Subject, documents: Documents, folder: Path | None) -> Index | None:
    """The index that was kept, if there is one that can be true.

    Raises:
        IntegrityError: ST-DATA-133 when it is whole and cannot be true.
    """
    index = None if folder is None else load(subject, folder / subject.file)
    if index is not None:
        check(index, documents)
    return index


def make(
    subject: Subject, documents: Documents, tokenizer: Tokenizer, folder: Path | None
) -> Iterator[Index | None]:
    """Count and keep; yields as `count`.

    Raises:
        SecureTrainError: see `count` and `save`.
    """
    for index in count(documents, tokenizer):
        if index is not None:
            check(index, documents)
            if folder is not None:
                save(index, subject, folder / subject.file)
        yield index


def _body(sizes: Counts, tokens: Counts) -> bytes:
    return sizes.astype("<u4").tobytes() + tokens.astype("<u4").tobytes()
