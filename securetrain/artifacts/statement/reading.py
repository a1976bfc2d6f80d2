# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verified reads: bytes go from the file into private memory once, are hashed there, and are used
from there.

A file may change between a check and a second read, or under a memory map; so there is no second
read and no map. A leaf that does not verify is never handed out.

The listing of a signed directory against what its statement names.

Everything below the directory must be a file that the statement leads to, of the signed size:
missing, extra and resized files, links, special files and unsafe names are problems.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    Predicate,
    RankFile,
    kind_of,
)
from securetrain.artifacts.tree.layout import (
    INDEX,
    LEGACY_METADATA,
    QUARANTINE,
    STATEMENT,
    Kind,
    Problem,
    content_problem,
    table_problem,
)
from securetrain.artifacts.tree.storage import Place, Source, Storage, storage_of
from securetrain.core.errors import UsageError
from securetrain.core.hashtree import DIGEST_SIZE, TreeParams, root_of
from securetrain.identity.dsse import ENVELOPE_LIMIT

BLOCK: Final = 512 << 10
"""Bytes that are read at once and then hashed, while the processor's cache holds them."""

REQUEST: Final = 16 << 20
"""The same where each read is one request over a network."""

Namer: TypeAlias = Callable[[str, int, int], Sequence[str]]
"""(file, offset, length) to the names of the tensors there."""


def no_tensors(file: str, offset: int, length: int) -> Sequence[str]:
    """The namer of files that hold no tensors."""
    del file, offset, length
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedFile:
    """One open data file, its signed root and whose problems it reports."""

    source: Source
    name: str
    size: int
    params: TreeParams
    kind: Kind
    root: Storage
    namer: Namer = no_tensors

    def leaf_range(self, index: int) -> tuple[int, int]:
        """Offset and length of leaf number `index`."""
        start = index * self.params.leaf_size
        return start, min(self.params.leaf_size, self.size - start)

    def read_leaf(self, index: int, expected: bytes, view: memoryview) -> None:
        """Read one leaf into `view` (exactly its length) and verify it there.

        Raises:
            IntegrityError: 130, 131 (truncated) or 200, with file, bytes and tensors.
        """
        self.read_raw(self.leaf_range(index)[0], view)
        self.check_leaf(index, expected, view)

    def check_leaf(self, index: int, expected: bytes, view: memoryview) -> None:
        """Verify a leaf that was read into `view`.

        Raises:
            IntegrityError: 130.
        """
        if self.params.leaf(index, view) != expected:
            start, length = self.leaf_range(index)
            names = self.namer(self.name, start, length)
            raise content_problem(self.kind, self.name, start, length, names).error(self.root.name)

    def read_raw(self, offset: int, view: memoryview) -> None:
        """Read bytes that are not verified yet.

        Raises:
            IntegrityError: 131 (truncated) or 200.
        """
        try:
            self.source.read_into(view, offset)
        except EOFError as error:
            raise Problem(self.kind.code(131), "the file ends too early", self.name).error(
                self.root.name
            ) from error
        except OSError as error:
            raise Problem(self.kind.code(200), str(error.strerror or error), self.name).error(
                self.root.name
            ) from error

    def close(self) -> None:
        """Close the file."""
        self.source.close()


def read_whole(root: Place, name: str, size: int, kind: Kind) -> bytes:
    """A small signed file's bytes, not verified yet but of the signed size.

    Raises:
        IntegrityError: 140, 131, 142 or 200.
    """
    storage = storage_of(root)
    source = open_data(storage, name, size, kind)
    file = SignedFile(
        source=source, name=name, size=size, params=TreeParams(), kind=kind, root=storage
    )
    try:
        data = bytearray(size)
        file.read_raw(0, memoryview(data))
        return bytes(data)
    finally:
        file.close()


def read_digested(root: Place, entry: IndexFile, kind: Kind) -> bytes:
    """A small file's bytes, verified by their digest.

    Raises:
        IntegrityError: 132 when they are others; 140, 131, 142 or 200.
    """
    data = read_whole(root, entry.name, entry.size, kind)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        what = "the index is" if entry.name == INDEX else "it is"
        problem = Problem(kind.code(132), f"{what} not what was signed", entry.name)
        raise problem.error(storage_of(root).name)
    return data


@dataclass(slots=True)
class LeafReader:
    """Reads any byte range of one checkpoint file through its leaf table.

    Whole leaves are read straight into the caller's memory; the leaf at each edge is read into a
    buffer that is kept, so that reading a file from front to back reads and hashes each byte once.
    """

    file: SignedFile
    leaves: bytes
    _edge: memoryview
    _edge_index: int = -1

    @classmethod
    def open(cls, root: Place, entry: RankFile, params: TreeParams, namer: Namer) -> "LeafReader":
        """Open a file of a checkpoint and check its leaf table against the signed root.

        Raises:
            IntegrityError: ST-CKPT-130 to 142 and 200.
        """
        kind, storage = Kind.CHECKPOINT, storage_of(root)
        name, size = entry.name, entry.size
        table = kind.table_of(name)
        leaves = read_whole(storage, table, kind.table_size(params, size), kind)
        if root_of(params, size, leaves).hex() != entry.root:
            raise table_problem(kind, table).error(storage.name)
        file = SignedFile(
            source=open_data(storage, name, size, kind),
            name=name,
            size=size,
            params=params,
            kind=kind,
            root=storage,
            namer=namer,
        )
        return cls(file, leaves, memoryview(bytearray(min(params.leaf_size, size))))

    def split(self, offset: int, length: int) -> tuple[int, int, int, int]:
        """Split a range at its whole leaves.

        Returns:
            First whole leaf, number of whole leaves, bytes before them, bytes after them. The last
            leaf of the file counts as whole when the range reaches the end of the file.
        """
        leaf = self.file.params.leaf_size
        end = offset + length
        first = -(-offset // leaf)
        last = self.file.params.num_leaves(end) if end == self.file.size else end // leaf
        if last <= first:
            return first, 0, length, 0
        before = first * leaf - offset
        after = end - min(last * leaf, end)
        return first, last - first, before, after

    def read_edge(self, offset: int, view: memoryview) -> None:
        """Read a range by way of the kept buffer, leaf by leaf."""
        leaf = self.file.params.leaf_size
        done = 0
        while done < len(view):
            index, inside = divmod(offset + done, leaf)
            whole = self._load(index)
            piece = whole[inside : inside + len(view) - done]
            view[done : done + len(piece)] = piece
            done += len(piece)

    def read_leaves(self, first: int, count: int, view: memoryview) -> None:
        """Read whole leaves straight into `view` and verify them there. Safe in threads."""
        leaf = self.file.params.leaf_size
        step = count if self.file.source.whole else max(1, BLOCK // leaf)
        for start in range(0, count, step):
            block = view[start * leaf : (start + step) * leaf]
            self.file.read_raw((first + start) * leaf, block)
            for number in range(min(step, count - start)):
                index = first + start + number
                data = block[number * leaf : (number + 1) * leaf]
                self.file.check_leaf(index, self._digest(index), data)

    def _load(self, index: int) -> memoryview:
        _, length = self.file.leaf_range(index)
        if index != self._edge_index:
            self._edge_index = -1
            self.file.read_leaf(index, self._digest(index), self._edge[:length])
            self._edge_index = index
        return self._edge[:length]

    def _digest(self, index: int) -> bytes:
        return self.leaves[index * DIGEST_SIZE : (index + 1) * DIGEST_SIZE]


PICKLES: Final = (LEGACY_METADATA, ".distcp", ".pkl", ".pt", ".pth")


def expected_files(predicate: Predicate) -> dict[str, int]:
    """Name and size of every file that the statement leads to; the statement itself is left out."""
    kind = kind_of(predicate)
    params = predicate.tree.params
    sizes = {}
    for file in predicate.files:
        sizes[file.name] = file.size
        sizes[kind.table_of(file.name)] = kind.table_size(params, file.size)
    if isinstance(predicate, CheckpointPredicate):
        sizes[predicate.index.name] = predicate.index.size
        sizes.update((document.name, document.size) for document in predicate.documents)
    return sizes


def check_listing(root: Place, predicate: Predicate) -> list[Problem]:
    """Compare the directory with the statement.

    Raises:
        OSError: the directory cannot be listed.
    """
    kind = kind_of(predicate)
    expected = expected_files(predicate)
    files, unsafe = storage_of(root).survey()
    found = {entry.name: entry.size for entry in files}
    problems = [
        Problem(kind.code(142), f"{entry.reason}, which is never followed or read", entry.name)
        for entry in unsafe
    ]
    refused = {entry.name for entry in unsafe}
    problems += [
        Problem(kind.code(140), "a signed file is missing", name)
        for name in expected
        if name not in found and name not in refused
    ]
    for name, size in found.items():
        if name == STATEMENT or (name == QUARANTINE and kind is Kind.CHECKPOINT):
            continue  # judged by what is in it
        if name not in expected:
            problems.append(Problem(kind.code(141), _extra(name), name))
        elif size != expected[name]:
            problems.append(
                Problem(kind.code(131), f"{size} bytes, {expected[name]} were signed", name)
            )
    return problems


def _extra(name: str) -> str:
    if name.endswith(PICKLES):
        return "a file that was not signed, of a kind that torch would unpickle"
    return "a file that was not signed"


def read_statement(root: Place, kind: Kind) -> bytes:
    """The statement's bytes.

    Raises:
        IntegrityError: 100 when there is none, 142 when it is not a regular file, 200 when it
            cannot be read.
    """
    storage = storage_of(root)
    if reason := storage.unsafe():
        raise Problem(kind.code(142), f"the directory is {reason}").error(storage.name)
    try:
        there = storage.has(STATEMENT)
        legacy = not there and kind is Kind.CHECKPOINT and storage.has(LEGACY_METADATA)
    except OSError as error:
        raise Problem(kind.code(200), str(error), STATEMENT).error(storage.name) from error
    if not there:
        what = "there is no statement: nothing says who made this"
        if legacy:
            what += f"; {LEGACY_METADATA} is a pickle, which is never read"
        raise Problem(kind.code(100), what, STATEMENT).error(storage.name)
    source = open_file(storage, STATEMENT, kind)
    try:
        if source.size > ENVELOPE_LIMIT:
            what = f"larger than the limit of {ENVELOPE_LIMIT} bytes"
            raise Problem(kind.code(200), what, STATEMENT).error(storage.name)
        data = bytearray(source.size)
        source.read_into(memoryview(data), 0)
        return bytes(data)
    except (OSError, EOFError) as error:
        problem = Problem(kind.code(200), str(error) or "it ends early", STATEMENT)
        raise problem.error(storage.name) from error
    finally:
        source.close()


def open_file(storage: Storage, name: str, kind: Kind) -> Source:
    """Open a file that may hold signed bytes.

    Raises:
        IntegrityError: 140 missing, 142 a link or special file, 200 unreadable.
    """
    try:
        return storage.open(name)
    except FileNotFoundError as error:
        problem = Problem(kind.code(140), "a signed file is missing", name)
        raise problem.error(storage.name) from error
    except UsageError as error:
        raise Problem(kind.code(142), error.what, name).error(storage.name) from error
    except OSError as error:
        what = str(error.strerror or error)
        raise Problem(kind.code(200), what, name).error(storage.name) from error


def open_data(root: Place, name: str, size: int, kind: Kind) -> Source:
    """Open a signed file and check once more, on the open file, what it is.

    Raises:
        IntegrityError: 140 missing, 142 a link or special file, 131 another size, 200 unreadable.
    """
    storage = storage_of(root)
    source = open_file(storage, name, kind)
    problem = None
    if source.size != size:
        what = f"{source.size} bytes, {size} were signed"
        problem = Problem(kind.code(131), what, name)
    elif source.linked:
        problem = Problem(kind.code(142), "a hard link", name)
    if problem is not None:
        source.close()
        raise problem.error(storage.name)
    return source
