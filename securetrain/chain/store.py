# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The evidence of a run on disk: one file for each piece, named by the SHA-256 of its bytes.

Rules:

1. a piece is whole or absent: temporary, fsync, rename. It is the launcher's or coordinator's
   alone (0600 in a folder of 0700), and workers may not write there;
2. nothing is replaced. What is there already is left; a file that is not of its name is refused
   when it is read, and put right when its true bytes are kept again;
3. a reader takes nothing by its name: bytes count only if they hash to it. Sizes, numbers and the
   sum of the bytes are bounded before anything is read.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

from securetrain.artifacts import storage
from securetrain.chain import documents
from securetrain.core.errors import IntegrityError, SecureTrainError, reason
from securetrain.core.files import PRIVATE_FILE, make_private_dir, read_file, write_atomic

EVIDENCE: Final = "evidence"
"""Of a run directory: the folder of evidence."""
TABLES: Final = "tables"
"""Of a run directory: the workers' own folder of tables."""
PIECE_LIMIT: Final = 64 << 20
"""Bytes of one piece."""
MAX_PIECES: Final = 1 << 20
SMALL: Final = 64 << 10
"""Bytes of a document that is looked for without its digest."""
_NAME: Final = re.compile(r"[0-9a-f]{64}")

D = TypeVar("D", bound=documents.Document)


class Pieces(Protocol):
    """Something that gives evidence by digest: a folder, several, or a pack."""

    def get(self, digest: str) -> bytes | None:
        """The piece with a digest, which its bytes have; None when it is not there.

        Raises:
            IntegrityError: ST-CHAN-001 when what is there has another digest.
        """

    def names(self) -> Iterator[str]:
        """The digests of what is there."""


class Shelf(Pieces, Protocol):
    """Something that keeps evidence, too."""

    def put(self, data: bytes) -> str:
        """Keep a piece; its digest (hex).

        Raises:
            IntegrityError: ST-CHAN-002 when it cannot be kept.
        """

    def keep(self, document: documents.Document) -> str:
        """Keep a document; its digest."""


@dataclass(frozen=True, slots=True)
class EvidenceStore:
    """A folder of evidence; of one in a store, nothing but a verifier reads."""

    folder: Path
    at: storage.Storage | None = None
    """The store in which it lies; None for a folder of this machine."""

    def put(self, data: bytes) -> str:
        """Keep a piece; its digest (hex).

        Raises:
            IntegrityError: ST-CHAN-002 when it cannot be kept.
        """
        assert self.at is None, "nobody keeps evidence in a store"
        digest = hashlib.sha256(data).hexdigest()
        if len(data) > PIECE_LIMIT:
            raise IntegrityError(
                "ST-CHAN-002",
                f"{len(data)} bytes, the limit of one piece is {PIECE_LIMIT}",
                str(self.folder / digest),
            )
        try:
            path = make_private_dir(self.folder) / digest
            if not self._is_whole(path, len(data)):
                write_atomic(path, data, mode=PRIVATE_FILE)
        except SecureTrainError as error:
            raise IntegrityError("ST-CHAN-002", reason(error), str(self.folder)) from error
        return digest

    def keep(self, document: documents.Document) -> str:
        """Keep a document; its digest.

        Raises:
            IntegrityError: ST-CHAN-001 when it breaks its own schema, ST-CHAN-002.
        """
        return self.put(documents.encode(document))

    def get(self, digest: str) -> bytes | None:
        """See `Pieces.get`."""
        if not _NAME.fullmatch(digest):
            raise IntegrityError(documents.MALFORMED, f"{digest[:80]!r} is no digest", "evidence")
        folder = self.at or storage.LocalStorage(self.folder)
        where = f"{folder.name}/{digest}"
        try:
            if not folder.has(digest):
                return None
            data = folder.read(digest, PIECE_LIMIT)
        except (SecureTrainError, OSError) as error:
            raise IntegrityError(documents.MALFORMED, reason(error), where) from error
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            what = f"its bytes have the digest {found[:16]}"
            raise IntegrityError(documents.MALFORMED, what, where)
        return data

    def names(self) -> Iterator[str]:
        """See `Pieces.names`; in order, at most `MAX_PIECES`."""
        folder = self.at or storage.LocalStorage(self.folder)
        try:
            files = folder.survey()[0] if folder.exists() else []
        except OSError as error:
            raise IntegrityError(documents.MALFORMED, str(error), folder.name) from error
        found = sorted(one.name for one in files if _NAME.fullmatch(one.name))
        if len(found) > MAX_PIECES:
            what = f"{len(found)} pieces, the limit is {MAX_PIECES}"
            raise IntegrityError(documents.MALFORMED, what, folder.name)
        yield from found

    @staticmethod
    def _is_whole(path: Path, size: int) -> bool:
        """Tell whether a piece is there; one of another size was damaged, and is put right."""
        try:
            data = read_file(path, PIECE_LIMIT) if path.lstat().st_size == size else b""
        except (OSError, SecureTrainError):
            return False
        return hashlib.sha256(data).hexdigest() == path.name


@dataclass(frozen=True, slots=True)
class Places:
    """Several folders of evidence, asked in order: a run's, and its coordinator's."""

    stores: Sequence[EvidenceStore]
    tables: Sequence[EvidenceStore] = ()
    """Of what ranks said in each step: asked last, and not listed."""

    @classmethod
    def of(cls, folders: Sequence[Path]) -> "Places":
        """The stores in some folders; a run directory is asked for the folder inside it."""
        stores = [EvidenceStore(_inside(folder)) for folder in folders]
        tables = [folder / TABLES for folder in folders if (folder / TABLES).is_dir()]
        return cls(stores, [EvidenceStore(folder) for folder in tables])

    @classmethod
    def around(cls, root: storage.Storage, further: Sequence[Path]) -> "Places":
        """The evidence of the run in whose directory an artifact lies, and in further folders."""
        if isinstance(root, storage.LocalStorage):
            return cls.of([root.path.absolute().parent.parent, *further])
        try:
            beside = {one.base: one for one in root.above().siblings()}
        except OSError:
            beside = {}  # it may not be listed: what is not found there is missing
        local = cls.of(further)
        stores, tables = (
            [EvidenceStore(Path(name), one)] if (one := beside.get(name)) else []
            for name in (EVIDENCE, TABLES)
        )
        return cls([*stores, *local.stores], [*tables, *local.tables])

    def get(self, digest: str) -> bytes | None:
        """See `Pieces.get`; one that is damaged in a place may be whole in the next."""
        damaged: IntegrityError | None = None
        for store in (*self.stores, *self.tables):
            try:
                data = store.get(digest)
            except IntegrityError as error:
                damaged = damaged or error
                continue
            if data is not None:
                return data
        if damaged is not None:
            raise damaged
        return None

    def path_of(self, digest: str) -> Path | None:
        """The file that holds a piece; None without one."""
        mine = (one.folder for one in (*self.stores, *self.tables) if one.at is None)
        files = (folder / digest for folder in mine)
        return next((path for path in files if path.is_file() and not path.is_symlink()), None)

    def names(self) -> Iterator[str]:
        """See `Pieces.names`."""
        seen: set[str] = set()
        for store in self.stores:
            for name in store.names():
                if name not in seen:
                    seen.add(name)
                    yield name


@dataclass(frozen=True, slots=True)
class InMemory:
    """Evidence that was read already, for verifiers of a pack and for tests."""

    pieces: dict[str, bytes] = field(default_factory=dict)

    def put(self, data: bytes) -> str:
        """Keep a piece; its digest."""
        digest = hashlib.sha256(data).hexdigest()
        self.pieces[digest] = data
        return digest

    def keep(self, document: documents.Document) -> str:
        """Keep a document; its digest."""
        return self.put(documents.encode(document))

    def get(self, digest: str) -> bytes | None:
        """See `Pieces.get`."""
        data = self.pieces.get(digest)
        if data is not None and hashlib.sha256(data).hexdigest() != digest:
            raise IntegrityError(documents.MALFORMED, "its bytes have another digest", digest)
        return data

    def names(self) -> Iterator[str]:
        """See `Pieces.names`."""
        yield from sorted(self.pieces)


def document(pieces: Pieces, digest: str, kind: type[D]) -> D | None:
    """The document of a kind with a digest; None when it is not there.

    Raises:
        IntegrityError: ST-CHAN-001 when it is there, and is not one.
    """
    data = pieces.get(digest)
    return None if data is None else documents.decode(data, kind, f"evidence {digest[:16]}")


def documents_at_hand(pieces: Pieces, kind: type[D]) -> Iterator[D]:
    """Every document of a small kind, for those who do not know its digest.

    What is damaged, and what is of another kind, is left out: nothing counts by being there.
    """
    tag = str(kind.__struct_config__.tag).encode()
    for digest in pieces.names():
        try:
            data = pieces.get(digest)
            if data is not None and len(data) <= SMALL and tag in data:
                yield documents.decode(data, kind)
        except IntegrityError:
            continue


def _inside(folder: Path) -> Path:
    """The evidence of a run directory, or the folder itself."""
    inner = folder / EVIDENCE
    return inner if inner.is_dir() else folder
