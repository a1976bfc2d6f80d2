# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read a signed dataset: every byte that is handed out has been verified.

Rules, in order:

1. opening verifies the statement (trust role ``dataset``), the policy and the directory's listing,
   and reads no data;
2. a read loads the page hashes of its file once, checks them against the signed root, and that a
   file which has grown begins with what it was in earlier versions; it loads the page of leaf
   hashes that it needs and checks that against the page hashes, and checks each leaf that it
   touches against the page;
3. leaves are read once into private memory and served from there (`arena`; bounded): what changes
   on disk afterwards changes nothing that was verified, and a leaf that was dropped is verified
   again.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final, Self

from securetrain.artifacts.dataset.arena import Kept, Layout, OwnArena, SharedArena, room
from securetrain.artifacts.dataset.versions import Removals, check_growth
from securetrain.artifacts.dataset.write import Document, sign_dataset, sign_documents
from securetrain.artifacts.given import (
    Folder,
    Moment,
    PolicyName,
    Trust,
    checked,
    demands,
    moment,
    open_trust,
)
from securetrain.artifacts.lineage.judging import Floors
from securetrain.artifacts.lineage.machine import Floor
from securetrain.artifacts.statement import expectation, rules
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.reading import (
    SignedFile,
    check_listing,
    open_data,
    read_statement,
)
from securetrain.artifacts.statement.statements import DataFile, DatasetPredicate, open_statement
from securetrain.artifacts.tree.layout import (
    PAGE_BYTES,
    Kind,
    Problem,
    most_telling,
    num_pages,
    table_problem,
)
from securetrain.artifacts.tree.storage import storage_of
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.hashtree import DIGEST_SIZE, PAGE_LEAVES, TreeParams
from securetrain.identity.trust import TrustRole, TrustRoot

MAX_OPEN: Final = 32
MAX_PAGES: Final = 32
DOCUMENTS_LIMIT: Final = 1 << 30

__all__ = [
    "Dataset",
    "Document",
    "sign_dataset",
    "sign_documents",
]


@dataclass(slots=True)
class Dataset:
    """An open dataset. Reads may come from several threads; close it when done.

    >>> with Dataset.open("data", trust="trust.json") as data:
    ...     data.files, data.read("train.bin", offset=5, length=4)
    ({'train.bin': 9}, b'rows')
    """

    path: Path | str
    """Its directory; a URL when it lies in an object store."""
    predicate: DatasetPredicate
    digest: str
    """What identifies it (hex): checkpoints name this."""
    key_ids: frozenset[str]
    cache_bytes: int
    removals: Removals = field(repr=False)
    _files: dict[str, DataFile] = field(repr=False)
    _open: "OrderedDict[str, _OpenFile]" = field(default_factory=OrderedDict, repr=False)
    _kept: Kept | None = field(default=None, repr=False)
    _leaf_size: int = field(default=0, repr=False)
    _split_starts: dict[str, list[int]] = field(default_factory=dict, repr=False)
    _arena: "OwnArena | SharedArena | None" = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    @checked
    def open(
        cls,
        path: Folder,
        *,
        trust: Trust,
        policy: PolicyName | None = None,
        now: Moment | None = None,
        floors: Floors | None = None,
        cache_bytes: int | None = None,
        expect: Expectation | None = None,
    ) -> "Dataset":
        """Verify the statement, the policy and the listing of a dataset.

        Args:
            path: the dataset's directory, or the URL of one in an object store.
            trust: the keys that may sign datasets: a trust root, or the path of its file or folder.
            policy: what is asked of it: a policy, a shipped one's name, or a path; None asks for
                nothing but integrity and signature.
            now: the time of the check, with its zone; by default that of this machine's clock.
            floors: what this node has seen before; an older version than that is refused, and this
                one is remembered.
            cache_bytes: how much verified data this process keeps in memory, taken as it is read;
                None for an eighth of the memory that is free, divided by the ranks of this node,
                and at least 64 MiB. There is never more than the dataset.
            expect: which dataset is wanted (name, digest, version, signer); None takes any that the
                trust root's keys have signed.

        Raises:
            IntegrityError: ST-DATA-100 to 150.
            UsageError: ST-USAG-001 or 002 when an argument is not what it may be.
        """
        kind, at, asks = Kind.DATASET, moment(now), demands(policy)
        root = open_trust(trust, at)
        opened = open_statement(read_statement(path, kind), kind, root, str(path))
        predicate = opened.predicate
        assert isinstance(predicate, DatasetPredicate)
        try:
            problems = check_listing(path, predicate)
        except OSError as error:
            raise Problem("ST-DATA-200", str(error)).error(str(path)) from error
        problems += expectation.check(opened, expect)
        if asks is not None:
            problems += rules.check(opened, asks, at, nodes=False)
        if problems:
            raise most_telling(problems).error(str(path))
        if floors is not None:
            check_floor(floors, predicate, opened.digest, root, str(path))
        return cls(
            path,
            predicate,
            opened.digest,
            opened.key_ids,
            room() if cache_bytes is None else cache_bytes,
            Removals.of(predicate.removed),
            {file.name: file for file in predicate.files},
        )

    def __post_init__(self) -> None:
        self._leaf_size = self.predicate.tree.leaf_size

    @property
    def files(self) -> dict[str, int]:
        """Name and size of every file."""
        return {name: file.size for name, file in self._files.items()}

    @property
    def splits(self) -> dict[str, tuple[str, ...]]:
        """Split name to its files in reading order."""
        return {split.name: tuple(split.files) for split in self.predicate.splits}

    def read(self, file: str, offset: int, length: int) -> bytes:
        """Verified bytes of a file.

        Raises:
            IntegrityError: ST-DATA-130 to 142 when they are not what was signed, ST-DATA-122 when
                some were removed, ST-DATA-160 when the range is not inside the file, ST-DATA-200
                on I/O errors.
        """
        entry = self._files.get(file)
        size = self._size(file) if entry is None else entry.size
        if offset < 0 or length < 0 or offset + length > size:
            raise IntegrityError(
                "ST-DATA-160",
                f"bytes {offset}..{offset + length} of a file of {size} bytes",
                f"{self.path}/{file}",
            )
        if length == 0:
            return b""
        if self.removals:
            self.removals.check(file, offset, length, str(self.path))
        leaf = self._leaf_size
        first, start = divmod(offset, leaf)
        if self._arena is not None:
            last = (offset + length - 1) // leaf
            self._arena.ensure(file, first, last - first + 1)
            return self._arena.arena.copy(file, offset, length)
        if start + length <= leaf:
            if self._kept is not None:
                found = self._kept.find(file, first, start, start + length)
                if found is not None:
                    return found
            return self._piece(file, first, start, start + length)
        end = start + length
        return b"".join(
            self._piece(file, first + n, start if n == 0 else 0, min(leaf, end - n * leaf))
            for n in range(-(-end // leaf))
        )

    def share(self) -> OwnArena:
        """Keep what is verified from now on where other processes of this node can read it.

        They call `join` with the path that ``served()`` gives. The memory grows up to the size of
        the dataset; the cache is not used any more.

        Raises:
            UsageError: ST-USAG-002 when the system has no sealed memory.
        """
        arena = OwnArena(self._layout, self.digest, self._fill)
        self._arena = arena
        return arena

    def join(self, path: Path) -> None:
        """Read from the arena that another process of this node owns.

        Raises:
            IntegrityError: ST-DATA-130 when it holds another dataset, ST-DATA-200 when it cannot be
                reached.
        """
        self._arena = SharedArena(self._layout, self.digest, path)

    def split_size(self, split: str) -> int:
        """The number of bytes of a split, its files taken one after the other."""
        return self._starts(split)[-1]

    def read_split(self, split: str, offset: int, length: int) -> bytes:
        """Verified bytes of a split, its files taken as one string of bytes.

        Raises:
            IntegrityError: as `read`.
        """
        names = self._split(split)
        starts = self._starts(split)
        if offset < 0 or length < 0 or offset + length > starts[-1]:
            raise IntegrityError(
                "ST-DATA-160",
                f"bytes {offset}..{offset + length} of a split of {starts[-1]} bytes",
                f"{self.path}: {split}",
                "read inside the split",
            )
        pieces = []
        at, end = offset, offset + length
        number = bisect_right(starts, at) - 1
        while at < end:
            stop = min(end, starts[number + 1])
            if at < stop:
                pieces.append(self.read(names[number], at - starts[number], stop - at))
            at, number = stop, number + 1
        return b"".join(pieces)

    def documents(self, split: str) -> tuple[Document, ...]:
        """The places of the documents of a split, in reading order (none without a signed table).

        Raises:
            IntegrityError: ST-DATA-101 when the table does not fit the data, else as `read`.
        """
        ends = dict.fromkeys(self._split(split), 0)
        table = next(s.documents for s in self.predicate.splits if s.name == split)
        if not table:
            return ()
        where = f"{self.path}/{table}"
        if self._size(table) > DOCUMENTS_LIMIT:
            raise _bad_table(f"{self._size(table)} bytes, the limit is {DOCUMENTS_LIMIT}", where)
        result = []
        for line in self.read(table, 0, self._size(table)).splitlines():
            try:
                document = canonical.decode(line, Document, limit=1 << 16, canonical=True)
            except UsageError as error:
                raise _bad_table(error.what, where) from error
            if document.offset != ends.get(document.file) or document.length < 0:
                raise _bad_table(f"document {document.name!r} is out of place", where)
            ends[document.file] += document.length
            result.append(document)
        if ends != {name: self._size(name) for name in ends}:
            raise _bad_table("it does not cover the split", where)
        return tuple(result)

    def close(self) -> None:
        """Close the files and drop what was cached."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._kept = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _size(self, name: str) -> int:
        if name not in self._files:
            raise IntegrityError(
                "ST-DATA-160",
                f"no file {name!r}",
                str(self.path),
                f"name one of {', '.join(list(self._files)[:10])}",
            )
        return self._files[name].size

    def _split(self, split: str) -> tuple[str, ...]:
        names = self.splits
        if split not in names:
            raise IntegrityError(
                "ST-DATA-160",
                f"no split {split!r}",
                str(self.path),
                f"name one of {', '.join(names)}",
            )
        return names[split]

    def _starts(self, split: str) -> list[int]:
        """The offset of each file of a split, and the end of the split; worked out once."""
        found = self._split_starts.get(split)
        if found is None:
            found = [0, *accumulate(self._size(name) for name in self._split(split))]
            self._split_starts[split] = found
        return found

    def _piece(self, name: str, index: int, start: int, end: int) -> bytes:
        """A part of a verified leaf, from memory or the disk."""

        def fill(slot: memoryview) -> None:
            file = self._opened(name)
            file.leaf_into(index, slot[: file.file.leaf_range(index)[1]])

        with self._lock:
            if self._kept is None:
                leaves = sum(self._params.num_leaves(file.size) for file in self._files.values())
                self._kept = Kept(self._leaf_size, leaves, self.cache_bytes)
            return self._kept.get(name, index, start, end, fill)

    def _fill(self, name: str, index: int, view: memoryview) -> None:
        """Read a leaf into the arena and verify it there."""
        with self._lock:
            self._opened(name).leaf_into(index, view)

    def _opened(self, name: str) -> "_OpenFile":
        """An open file with its verified page hashes. The lock is held."""
        opened = self._open.get(name)
        if opened is None:
            opened = self._open[name] = _OpenFile.open(self.path, self._files[name], self._params)
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(name)
        return opened

    @property
    def _layout(self) -> Layout:
        return Layout.of(self.files, self.predicate.tree.leaf_size)

    @property
    def _params(self) -> TreeParams:
        return self.predicate.tree.params


@dataclass(slots=True)
class _OpenFile:
    """An open data file with its verified page hashes and the pages read so far."""

    file: SignedFile
    table: SignedFile
    pages: bytes
    loaded: OrderedDict[int, bytes] = field(default_factory=OrderedDict)

    @classmethod
    def open(cls, root: Path | str, entry: DataFile, params: TreeParams) -> "_OpenFile":
        kind = Kind.DATASET
        name = kind.table_of(entry.name)
        size = kind.table_size(params, entry.size)
        storage = storage_of(root)
        table = SignedFile(
            source=open_data(storage, name, size, kind),
            name=name,
            size=size,
            params=params,
            kind=kind,
            root=storage,
        )
        try:
            # All page hashes of the file are read and checked at once: 32 bytes for 128 MiB.
            pages = bytearray(num_pages(params, entry.size) * DIGEST_SIZE)
            table.read_raw(0, memoryview(pages))
            if params.root(entry.size, pages).hex() != entry.root:
                raise table_problem(kind, name).error(str(root))
            source = open_data(storage, entry.name, entry.size, kind)
        except BaseException:
            table.close()
            raise
        file = SignedFile(
            source=source,
            name=entry.name,
            size=entry.size,
            params=params,
            kind=kind,
            root=storage,
        )
        opened = cls(file, table, bytes(pages))
        try:
            check_growth(entry, file, opened.pages, opened._page)
        except BaseException:
            opened.close()
            raise
        return opened

    def leaf_into(self, index: int, view: memoryview) -> None:
        """Read one leaf into memory and verify it there."""
        number, place = divmod(index, PAGE_LEAVES)
        page = self._page(number)
        expected = page[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE]
        self.file.read_leaf(index, expected, view)

    def _page(self, number: int) -> bytes:
        if number in self.loaded:
            self.loaded.move_to_end(number)
            return self.loaded[number]
        start = len(self.pages) + number * PAGE_BYTES
        page = bytearray(min(PAGE_BYTES, self.table.size - start))
        self.table.read_raw(start, memoryview(page))
        expected = self.pages[number * DIGEST_SIZE : (number + 1) * DIGEST_SIZE]
        if self.file.params.page(number, page) != expected:
            raise table_problem(Kind.DATASET, self.table.name).error(self.table.root.name)
        self.loaded[number] = bytes(page)
        if len(self.loaded) > MAX_PAGES:
            self.loaded.popitem(last=False)
        return self.loaded[number]

    def close(self) -> None:
        """Close data and table."""
        self.file.close()
        self.table.close()


def check_floor(
    floors: Floors, predicate: DatasetPredicate, digest: str, trust: TrustRoot, where: str
) -> None:
    """Refuse a version older than one that this node has seen; remember this one.

    Raises:
        IntegrityError: ST-DATA-151.
    """
    keys = trust.keys_for(TrustRole.DATASET)
    name = f"dataset {predicate.name}"
    floor = floors.floor(name, keys)
    if floor is not None and (
        predicate.seq < floor.seq or (predicate.seq == floor.seq and digest != floor.digest)
    ):
        raise IntegrityError(
            "ST-DATA-151",
            f"version {predicate.seq} ({digest[:16]}), this node has seen version {floor.seq}"
            f" ({floor.digest[:16]})",
            where,
        )
    floors.raise_to(name, Floor(seq=predicate.seq, digest=digest), keys)


def _bad_table(what: str, where: str) -> IntegrityError:
    return IntegrityError("ST-DATA-101", f"the table of documents is false: {what}", where)
