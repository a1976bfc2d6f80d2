# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed directories in object stores (``s3://``, ``gs://`` and ``az://bucket/run/step-100``).

They have no directories and no rename, and put an object on a condition. Rules of a save, in order:

1. the object `STATEMENT` decides. Whoever saves puts a claim there first, where nothing lies;
   nothing that reads takes a claim for a statement;
2. other files are put where nothing lies, each with a word of its writer: no save writes over
   another's file;
3. the statement takes the claim's place on the condition that it is still this one. That request is
   the commit: before it there is nothing to load, after it everything is there;
4. a claim is taken over when its maker is dead: a process of this machine and container that no
   longer runs, or any other after `lease.OLD` by the store's clock. To take it over is to put a
   claim in its place on the same condition, so that whoever was taken for dead and lives cannot
   commit any more; then what it left is removed, parts of files included;
5. a save that failed puts an end to its claim in the same way before it removes a file: a commit
   that is still on its way finds its condition gone.

Files without claim and statement are never removed: a person has to look at them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from securetrain.artifacts.tree import lease
from securetrain.artifacts.tree.directory import Sink, Source, Staging, Storage
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.artifacts.tree.objects import (
    ConditionError,
    Found,
    Requests,
    Upload,
    joined,
    new_writer,
    part_name,
    requests_of,
)
from securetrain.core.errors import UsageError
from securetrain.core.files import FileEntry, UnsafeEntry, unsafe_name

CLAIM: Final = "application/vnd.securetrain.claim+json"
"""The content type of a claim."""
CLAIM_LIMIT: Final = 4096
_BUCKET: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,221}")


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A save that has begun, at the place of its statement."""

    save_id: str
    writer: str
    maker: lease.Maker | None
    """None when it has ended."""


_making: Final[set[str]] = set()
"""The ids of the saves that this process has begun and not ended."""


@dataclass(slots=True)
class _ObjectSource:
    """Ranged reads of one file: of one object, or of its parts."""

    requests: Requests
    key: str
    size: int
    part: int
    """The size of each part but the last; that of the file when it has none."""
    linked: bool = False
    whole: bool = True

    def read_into(self, view: memoryview, offset: int) -> None:
        """See `Source`."""
        while len(view):
            number, start = divmod(offset, self.part) if self.part < self.size else (0, offset)
            piece = view[: self.part - start] if self.part < self.size else view
            self.requests.read_into(part_name(self.key, number), piece, start)
            view, offset = view[len(piece) :], offset + len(piece)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class BucketStaging:
    """A save (rules 1 to 5). The coordinator begins and ends it; every rank puts its own files."""

    storage: "BucketStorage"
    save_id: str
    _claim: str = ""
    """The version of this save's claim."""
    _committed: bool = field(default=False)

    @property
    def name(self) -> str:
        """See `Staging`."""
        return self.storage.name

    @property
    def _requests(self) -> Requests:
        return self.storage.requests

    @property
    def _statement(self) -> str:
        return self.storage.key(STATEMENT)

    def begin(self) -> None:
        """See `Staging`."""
        stale = self._abandoned()
        if not stale and any(self._requests.listed(self.storage.prefix)):
            raise FileExistsError(self.name)
        _making.add(self.save_id)
        try:
            self._claim = self._put_claim(lease.this_process(), over=stale)
            self._requests.check_conditions(self._statement)
            if stale:
                self._clear()
        except BaseException as error:
            self.discard()
            if isinstance(error, ConditionError):
                raise FileExistsError(self.name) from error
            raise

    def _abandoned(self) -> str:
        """The version of a dead maker's claim at the statement's place; empty where nothing lies.

        Raises:
            OSError: FileExistsError when something else does.
        """
        try:
            found = self._requests.head(self._statement)
        except FileNotFoundError:
            return ""
        if found.kind != CLAIM:
            raise FileExistsError(self.name)
        claim = self._read_claim(found)
        here = lease.this_process()
        if claim.maker is None:
            dead = True
        elif claim.maker == here:
            dead = claim.save_id not in _making  # a save of this process that failed
        elif (claim.maker.boot, claim.maker.pids) == (here.boot, here.pids):
            dead = lease.abandoned(claim.maker, here, locked=True, age=found.age)
        else:
            dead = found.age >= lease.OLD  # nothing but time says whether it lives
        if not dead:
            raise FileExistsError(self.name)
        return found.version

    def _read_claim(self, found: Found) -> Claim:
        if found.size > CLAIM_LIMIT:
            raise FileExistsError(self.name)
        data = bytearray(found.size)
        self._requests.read_into(self._statement, memoryview(data), 0)
        try:
            return msgspec.json.decode(data, type=Claim)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise FileExistsError(self.name) from None

    def _put_claim(self, maker: lease.Maker | None, over: str) -> str:
        claim = Claim(save_id=self.save_id, writer=new_writer(self.save_id), maker=maker)
        data = msgspec.json.encode(claim)
        return self._requests.put(self._statement, data, claim.writer, over=over, kind=CLAIM)

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """See `Staging`."""
        with Upload.create(self._requests, self.storage.key(name), self.save_id) as upload:
            yield upload
        self._check(name, upload.size)

    def put(self, name: str, data: bytes) -> None:
        """See `Staging`; the statement is the commit (rule 3)."""
        writer = new_writer(self.save_id)
        if name == STATEMENT:
            if not self._claim:
                raise FileExistsError(f"{self.name}: this save's claim has ended")
            try:
                self._requests.put(self._statement, data, writer, over=self._claim)
            except ConditionError as error:
                raise FileExistsError(f"{self.name}: another save took the place") from error
            self._committed = True
            _making.discard(self.save_id)
            return
        try:
            self._requests.put(self.storage.key(name), data, writer)
        except ConditionError as error:
            raise FileExistsError(f"{self.name}/{name}: somebody else has put it") from error
        self._check(name, len(data))

    def _check(self, name: str, size: int) -> None:
        """Tell whether the store has at least as many bytes as were put."""
        found = self.size(name)
        if found != size:
            raise OSError(f"{name}: the store says {found} bytes, {size} were put")

    def size(self, name: str) -> int | None:
        """See `Staging`."""
        with suppress(FileNotFoundError):
            return self.storage.open(name).size
        return None

    def commit(self) -> None:
        """The statement, put just before, has committed it."""

    def discard(self) -> None:
        """See `Staging` (rule 5). Every rank's files go; whoever did not begin removes nothing."""
        _making.discard(self.save_id)
        if not self._claim or self._committed:
            return
        claim, self._claim = self._claim, ""
        with suppress(OSError):
            # ConditionError: the statement is there after all, or another save is.
            ended = self._put_claim(None, over=claim)
            self._clear()
            if self._requests.head(self._statement).version == ended:
                self._requests.delete(self._statement)

    def _clear(self) -> None:
        """Remove what a save has put, all but the claim."""
        for name, _ in list(self._requests.listed(self.storage.prefix)):
            if name != STATEMENT:
                self._requests.delete(self.storage.key(name))


@dataclass(frozen=True, slots=True)
class BucketStorage:
    """A prefix in a bucket. It holds no connection, so that it may go to another process."""

    scheme: str
    bucket: str
    root: str
    """The prefix, without a slash at its end; empty for the whole bucket."""

    @classmethod
    def open_url(cls, url: str) -> "BucketStorage":
        """The storage of a URL.

        Raises:
            UsageError: ST-USAG-001, ST-USAG-004, ST-USAG-023.
        """
        parts = urlsplit(url)
        root = parts.path.strip("/")
        if parts.query or parts.fragment or not _BUCKET.fullmatch(parts.netloc):
            raise UsageError(
                "ST-USAG-001",
                "not a bucket and a prefix",
                url,
                f"write it like {parts.scheme}://b/x",
            )
        if root != unquote(root) or any(unsafe_name(part) for part in root.split("/") if root):
            raise UsageError(
                "ST-USAG-001", "a prefix of odd names", url, f"write it like {parts.scheme}://b/x"
            )
        requests_of(parts.scheme, parts.netloc)
        return cls(parts.scheme, parts.netloc, root)

    @property
    def requests(self) -> Requests:
        """The requests of this process."""
        return requests_of(self.scheme, self.bucket)

    @property
    def name(self) -> str:
        """See `Storage`."""
        return f"{self.scheme}://{self.bucket}/{self.root}".rstrip("/")

    @property
    def base(self) -> str:
        """See `Storage`."""
        return self.root.rpartition("/")[2]

    @property
    def prefix(self) -> str:
        """The beginning of each file's key."""
        return f"{self.root}/" if self.root else ""

    def key(self, name: str) -> str:
        """The key of a file."""
        return f"{self.prefix}{name}"

    def unsafe(self) -> str:
        """See `Storage`."""
        return ""

    def exists(self) -> bool:
        """See `Storage`; a save that was interrupted is not there, and neither is its claim."""
        names = [name for name, _ in islice(self.requests.listed(self.prefix), 2)]
        return bool(names) if names != [STATEMENT] else self.has(STATEMENT)

    def has(self, name: str) -> bool:
        """See `Storage`; a claim is no statement (rule 1)."""
        try:
            found = self.requests.head(self.key(name))
        except FileNotFoundError:
            return False
        return name != STATEMENT or found.kind != CLAIM

    def survey(self) -> tuple[list[FileEntry], list[UnsafeEntry]]:
        """See `Storage`."""
        files: list[FileEntry] = []
        unsafe: list[UnsafeEntry] = []
        folded: set[str] = set()
        listed = list(self.requests.listed(self.prefix))
        twice = {name for name, times in Counter(name for name, _ in listed).items() if times > 1}
        for name, size in joined(listed).items():
            reason = next(filter(None, map(unsafe_name, name.split("/"))), "")
            if name.casefold() in folded or name in twice:
                reason = "two names that differ in case only, or one that was listed twice"
            folded.add(name.casefold())
            if reason:
                unsafe.append(UnsafeEntry(name, reason))
            else:
                files.append(FileEntry(name, size))
        return files, unsafe

    def open(self, name: str) -> Source:
        """See `Storage`."""
        key = self.key(name)
        found = self.requests.head(key)
        return _ObjectSource(self.requests, key, found.whole or found.size, found.size)

    def read(self, name: str, limit: int) -> bytes:
        """See `Storage`."""
        where = f"{self.name}/{name}"
        try:
            source = self.open(name)
            if source.size > limit:
                raise OSError(f"larger than the limit of {limit} bytes")
            data = bytearray(source.size)
            source.read_into(memoryview(data), 0)
        except (OSError, EOFError) as error:
            raise UsageError("ST-USAG-002", str(error) or "it ends early", where) from error
        return bytes(data)

    def staging(self, save_id: str) -> Staging:
        """See `Storage`."""
        return BucketStaging(self, save_id)

    def exchange(self, name: str, data: bytes, before: bytes | None) -> None:
        """See `Storage`."""
        key, version = self.key(name), ""
        if before is not None:
            found = self.requests.head(key)
            lies = bytearray(len(before))
            with suppress(EOFError):
                self.requests.read_into(key, memoryview(lies), 0)
            if found.size != len(before) or lies != before:
                raise FileExistsError(f"{self.name}/{name}: somebody else has replaced it")
            version = found.version
        try:
            self.requests.put(key, data, new_writer("file"), over=version)
        except ConditionError as error:
            raise FileExistsError(f"{self.name}/{name}: somebody else has put it") from error

    def names(self, folder: str) -> Sequence[str]:
        """See `Storage`."""
        return [f"{folder}/{name}" for name, _ in self.requests.listed(self.key(f"{folder}/"))]

    def siblings(self) -> list[Storage]:
        """See `Storage`."""
        above = self.above()
        names = {name for name in self.requests.folders(above.prefix) if name}
        return [
            BucketStorage(self.scheme, self.bucket, above.key(name))
            for name in sorted(names - {self.base})
        ]

    def above(self) -> "BucketStorage":
        """See `Storage`."""
        return BucketStorage(self.scheme, self.bucket, self.root.rpartition("/")[0])
