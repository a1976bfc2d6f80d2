# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signed directories in S3 (``s3://bucket/run/step-100``).

S3 has no directories and no rename, and it puts an object on a condition. Rules of a save, in
order:

1. the object `STATEMENT` decides. Whoever saves puts a claim there first, where nothing lies;
   nothing that reads takes a claim for a statement;
2. other files are put where nothing lies, each with a word of its writer: no save writes over
   another's file;
3. the statement takes the claim's place on the condition that it is still this one. That request is
   the commit: before it there is nothing to load, after it everything is there;
4. a claim is taken over when its maker is dead: a process of this machine and container that no
   longer runs, or any other after `lease.OLD` by the store's clock. To take it over is to put a
   claim in its place on the same condition, so that whoever was taken for dead and lives cannot
   commit any more; then what it left is removed, parts of uploads included;
5. a save that failed puts an end to its claim in the same way before it removes a file: a commit
   that is still on its way finds its condition gone.

Files without claim and statement are never removed: a person has to look at them.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from securetrain.artifacts.tree import lease
from securetrain.artifacts.tree.directory import Sink, Source, Staging, Storage
from securetrain.artifacts.tree.layout import STATEMENT
from securetrain.artifacts.tree.s3_client import ConditionError, Found, Requests, requests_of
from securetrain.artifacts.tree.s3_upload import Upload, new_writer
from securetrain.core.errors import UsageError
from securetrain.core.files import FileEntry, UnsafeEntry, unsafe_name

SCHEME: Final = "s3"
CLAIM: Final = "application/vnd.securetrain.claim+json"
"""The content type of a claim."""
CLAIM_LIMIT: Final = 4096
ENTRIES: Final = 200_000
"""Objects of one signed directory."""


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
    """Ranged reads of one object."""

    requests: Requests
    key: str
    size: int
    linked: bool = False
    whole: bool = True

    def read_into(self, view: memoryview, offset: int) -> None:
        """See `Source`."""
        self.requests.read_into(self.key, view, offset)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class S3Staging:
    """A save (rules 1 to 5). The coordinator begins and ends it; every rank puts its own files."""

    storage: "S3Storage"
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
        if not stale and self._requests.any_below(self.storage.prefix):
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
            self._clear_uploads()
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
        try:
            return self._requests.head(self.storage.key(name)).size
        except FileNotFoundError:
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
        self._clear_uploads()
        for name, _ in list(self._requests.listed(self.storage.prefix)):
            if name != STATEMENT:
                self._requests.delete(self.storage.key(name))

    def _clear_uploads(self) -> None:
        """Abort the uploads that somebody left, where the store lets this be done."""
        with suppress(OSError):
            for key, upload in self._requests.uploads(self.storage.prefix):
                self._requests.abort_parts(key, upload)


@dataclass(frozen=True, slots=True)
class S3Storage:
    """A prefix in a bucket. It holds no connection, so that it may go to another process."""

    bucket: str
    root: str
    """The prefix, without a slash at its end; empty for the whole bucket."""

    @classmethod
    def open_url(cls, url: str) -> "S3Storage":
        """The storage of a URL.

        Raises:
            UsageError: ST-USAG-001, ST-USAG-004, ST-USAG-023.
        """
        parts = urlsplit(url)
        root = parts.path.strip("/")
        if parts.query or parts.fragment or parts.username or parts.port or not parts.netloc:
            raise UsageError(
                "ST-USAG-001", "not a bucket and a prefix", url, "write it like s3://b/x"
            )
        if root != unquote(root) or any(unsafe_name(part) for part in root.split("/") if root):
            raise UsageError("ST-USAG-001", "a prefix of odd names", url, "write it like s3://b/x")
        requests_of(parts.netloc)
        return cls(parts.netloc, root)

    @property
    def requests(self) -> Requests:
        """The requests of this process."""
        return requests_of(self.bucket)

    @property
    def name(self) -> str:
        """See `Storage`."""
        return f"{SCHEME}://{self.bucket}/{self.root}".rstrip("/")

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
        names = [name for name, _ in self._first()]
        if names != [STATEMENT]:
            return bool(names)
        return self.has(STATEMENT)

    def _first(self) -> list[tuple[str, Any]]:
        found = []
        for entry in self.requests.listed(self.prefix):
            found.append(entry)
            if len(found) == 2:
                break
        return found

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
        for name, info in self.requests.listed(self.prefix):
            size = info.get("Size")
            if not name and size == 0:
                continue  # what consoles put to show a folder
            if len(folded) == ENTRIES:
                raise OSError(f"more than {ENTRIES} objects")
            reason = next(filter(None, map(unsafe_name, name.split("/"))), "")
            if name.casefold() in folded:
                reason = "two names that differ in case only, or one that was listed twice"
            folded.add(name.casefold())
            if not reason and (not isinstance(size, int) or size < 0):
                reason = "something that is not a file"
            if reason:
                unsafe.append(UnsafeEntry(name, reason))
            else:
                assert isinstance(size, int)
                files.append(FileEntry(name, size))
        return files, unsafe

    def open(self, name: str) -> Source:
        """See `Storage`."""
        key = self.key(name)
        return _ObjectSource(self.requests, key, self.requests.head(key).size)

    def read(self, name: str, limit: int) -> bytes:
        """See `Storage`."""
        where = f"{self.name}/{name}"
        try:
            source = self.open(name)
            if source.size > limit:
                raise UsageError(
                    "ST-USAG-002",
                    f"larger than the limit of {limit} bytes",
                    where,
                    "check that it is the right file",
                )
            data = bytearray(source.size)
            source.read_into(memoryview(data), 0)
        except (OSError, EOFError) as error:
            raise UsageError("ST-USAG-002", str(error) or "it ends early", where) from error
        return bytes(data)

    def staging(self, save_id: str) -> Staging:
        """See `Storage`."""
        return S3Staging(self, save_id)

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

    def siblings(self) -> list[Storage]:
        """See `Storage`."""
        above = self.above()
        names = {name for name in self.requests.folders(above.prefix) if name}
        return [S3Storage(self.bucket, above.key(name)) for name in sorted(names - {self.base})]

    def above(self) -> "S3Storage":
        """See `Storage`."""
        return S3Storage(self.bucket, self.root.rpartition("/")[0])
