# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The run's ledger: a signed, append-only log of every decision at a boundary.

Rules:

1. one JSON line an entry: the body in canonical form, the writer's key id and its signature;
2. a body carries its sequence number and the SHA-256 of the line before it, so that removing,
   editing or reordering lines breaks the chain;
3. several processes of a node may append: the file is locked while one reads the last line and
   writes the next; refusals and closing entries are fsynced;
4. a death in the middle of a line leaves a part of it. Whoever appends next holds the lock, so that
   nobody is still writing it: the part is cut off, and the next entry says so. A whole line that is
   no entry is no work of a death, and nothing is appended to it. What `DURABLE` names is on the
   disk before a caller goes on, and so is everything before it;
5. a ledger begins once (`Ledger.begin`): its first line names the run and the trust root. A file
   that is missing, empty or begun as another's is never appended to, and never a beginning;
6. a process remembers where its last line ends, and appends only behind that; what it wrote is also
   kept outside of the run directory (`Ledger.kept`), so that the next process knows. What no longer
   holds that line is refused, and nothing is written;
7. a ledger that was closed ends with a ``close`` entry, so that cutting lines off its end shows;
8. verifying needs only the file and the public keys (the trust root's role ``ledger``).
"""

import base64
import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Self, TypeAlias

import msgspec

from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, os_error, reason
from securetrain.core.files import (
    PRIVATE_FILE,
    make_private_dir,
    open_regular,
    read_file,
    write_atomic,
)
from securetrain.core.vocabulary import Decision
from securetrain.identity.keys import PublicKey, Signer
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import events
from securetrain.ledger.events import Closed, LedgerEvent, encode_event
from securetrain.ledger.wire import Body, Entry, Event

LINE_LIMIT: Final = 64 << 10
GENESIS: Final = "0" * 64
DURABLE: Final = frozenset(
    kind.NAME
    for kind in (
        events.CheckpointSigned,
        events.CheckpointSeen,
        events.CheckpointRecovered,
        events.CheckpointRemoved,
        events.RolledBack,
        events.RestartPoint,
        events.MachineProven,
        events.MachineEnrolled,
        Closed,
    )
)
"""Events by which a run finds its way after a death, or a machine gets into a fleet; refusals are
durable, too."""
Clock: TypeAlias = Callable[[], datetime]


class LastEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The last line that somebody knows of a ledger."""

    end: int = 0
    """Bytes of the file up to its end; 0 for no line."""
    digest: str = ""
    """SHA-256 of the line, hex."""

    @classmethod
    def at(cls, fd: int, end: int | None = None) -> "LastEntry":
        """The line that ends at `end`, or with the file; none where no line does."""
        size = os.fstat(fd).st_size
        end = size if end is None else end
        start = max(0, end - LINE_LIMIT - 1)
        read = os.pread(fd, end - start, start) if end <= size else b""
        if not read.endswith(b"\n"):
            return cls()
        line = read[:-1].rsplit(b"\n", 1)[-1]
        return cls(end=end, digest=hashlib.sha256(line).hexdigest())

    def check(self, fd: int, where: str) -> None:
        """Refuse a file without this line.

        Raises:
            IntegrityError: ST-LEDG-004.
        """
        if self.end and self.at(fd, self.end) != self:
            what = "its last known entry is missing, or is another one"
            raise IntegrityError("ST-LEDG-004", what, where)


_WRITTEN: Final[dict[str, LastEntry]] = {}
"""The last line of each ledger that this process has written, by the file's name (rule 6)."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Appends to a ledger file as one writer."""

    path: Path
    key: Signer
    writer: str
    """Who writes: agent, coordinator, rank-0 and so on."""
    clock: Clock
    kept: Path | None = None
    """Where the last durable line is kept, outside of the run directory (rule 6)."""

    def begin(self, run_id: str = "", trust: TrustRoot | None = None) -> Self:
        """Begin the ledger, or show that it is this run's and goes on where it ended.

        Args:
            run_id: The run.
            trust: Its trust root; None for a ledger that is read without one.

        Raises:
            UsageError: ST-USAG-002 or ST-USAG-006 on I/O errors.
            IntegrityError: ST-LEDG-005 for the ledger of something else, or for none where there
                was one; ST-LEDG-004 for one that lacks a line which is known here.
        """
        roots = "" if trust is None else root_keys(trust)
        said = encode_event(events.LedgerStarted(subject=run_id, roots=roots))
        known = self._known()
        with self._opened(0 if known.end else os.O_CREAT) as fd:
            cut = _cut_unfinished(fd, str(self.path))
            if os.fstat(fd).st_size == 0:
                if known.end:
                    raise IntegrityError("ST-LEDG-005", "it was begun before", str(self.path))
                self._append(fd, said)
            elif _first(fd, str(self.path)).body.event != said:
                raise IntegrityError("ST-LEDG-005", "it begins as another's", str(self.path))
            known.check(fd, str(self.path))
            if cut:
                self._append(fd, _mended(cut))
            os.fsync(fd)
            self._keep(fd)
        return self

    def append(self, event: Event) -> None:
        """Sign and append one event in its form on disk; `write` is what writers call.

        Raises:
            UsageError: ST-USAG-002 or ST-USAG-006 on I/O errors.
            IntegrityError: ST-LEDG-001 when the last line is not an entry, ST-LEDG-004 when the
                last one that was written from here is missing, ST-LEDG-005 when nothing has begun.
        """
        with self._opened() as fd:
            cut = _cut_unfinished(fd, str(self.path))
            if os.fstat(fd).st_size == 0:
                raise IntegrityError("ST-LEDG-005", "it is empty", str(self.path))
            _WRITTEN.get(str(self.path), LastEntry()).check(fd, str(self.path))
            if cut:
                self._append(fd, _mended(cut))
            self._append(fd, event)
            if event.decision is Decision.REFUSE or event.event in DURABLE:
                os.fsync(fd)
                self._keep(fd)
            _WRITTEN[str(self.path)] = LastEntry.at(fd)

    @contextmanager
    def _opened(self, flags: int = 0) -> Iterator[int]:
        try:
            fd = open_regular(self.path, os.O_RDWR | os.O_APPEND | flags)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield fd
            finally:
                os.close(fd)
        except FileNotFoundError as error:
            raise IntegrityError("ST-LEDG-005", "there is none", str(self.path)) from error
        except OSError as error:
            raise os_error(error, str(self.path)) from error

    def _known(self) -> LastEntry:
        """The last line that is kept of this ledger."""
        if self.kept is None or not self.kept.exists():
            return LastEntry()
        data = read_file(self.kept, LINE_LIMIT)
        return canonical.decode(data, LastEntry, limit=LINE_LIMIT, where=str(self.kept))

    def _keep(self, fd: int) -> None:
        last = LastEntry.at(fd)
        _WRITTEN[str(self.path)] = last
        if self.kept is not None:
            make_private_dir(self.kept.parent)
            write_atomic(self.kept, canonical.encode(last), mode=PRIVATE_FILE)

    def _append(self, fd: int, event: Event) -> None:
        seq, prev = _tail(fd, str(self.path))
        body = Body(seq=seq, prev=prev, time=self.clock(), writer=self.writer, event=event)
        signature = self.key.sign(canonical.encode(body))
        entry = Entry(body, self.key.key_id, base64.b64encode(signature).decode())
        _write_whole(fd, canonical.encode(entry) + b"\n")

    def write(self, said: LedgerEvent) -> None:
        """Sign and append one typed event; see `append`."""
        self.append(encode_event(said))

    def close(self) -> None:
        """Append the closing entry: from here on, a shorter file shows as cut."""
        self.write(Closed())


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLedger:
    """A ledger whose chain and signatures hold."""

    entries: tuple[Entry, ...]
    head: str
    """SHA-256 of the last line, hex."""
    closed: bool
    counts: Mapping[Decision, int] = field(default_factory=dict)


def verify_ledger(
    data: bytes, keys: Mapping[str, PublicKey], *, require_closed: bool = False, where: str = ""
) -> VerifiedLedger:
    """Check every line of a ledger.

    Raises:
        IntegrityError: ST-LEDG-001 malformed, ST-LEDG-002 chain broken, ST-LEDG-003 signature,
            ST-LEDG-004 cut short (no closing entry although one is required).
    """
    entries: list[Entry] = []
    head = GENESIS
    for number, line in enumerate(_lines(data, where), start=1):
        entry = check_line(line, len(entries), head, keys, f"{where}:{number}")
        entries.append(entry)
        head = hashlib.sha256(line).hexdigest()
    closed = bool(entries) and entries[-1].body.event.event == Closed.NAME
    if require_closed and not closed:
        raise IntegrityError("ST-LEDG-004", "no closing entry at the end", where)
    counts = {d: sum(e.body.event.decision is d for e in entries) for d in Decision}
    return VerifiedLedger(entries=tuple(entries), head=head, closed=closed, counts=counts)


def check_line(
    line: bytes, seq: int, head: str, keys: Mapping[str, PublicKey], where: str
) -> Entry:
    """Check one line, without its end, that is to be number `seq` and to follow the line `head`.

    Raises:
        IntegrityError: ST-LEDG-001 to 003; see `verify_ledger`.
    """
    try:
        entry = canonical.decode(line, Entry, limit=LINE_LIMIT, where=where)
        if canonical.encode(entry) != line:
            raise IntegrityError("ST-LEDG-001", "not in canonical form", where)
        signature = base64.b64decode(entry.sig, validate=True)
    except (SecureTrainError, ValueError) as error:
        raise IntegrityError(
            "ST-LEDG-001", f"not a ledger entry: {reason(error)}", where
        ) from error
    if entry.body.seq != seq or entry.body.prev != head:
        raise IntegrityError(
            "ST-LEDG-002", f"entry {entry.body.seq} does not follow entry {seq - 1}", where
        )
    key = keys.get(entry.keyid)
    if key is None:
        raise IntegrityError("ST-LEDG-003", f"signed by the unknown key {entry.keyid[:16]}", where)
    try:
        key.verify(signature, canonical.encode(entry.body))
    except SecureTrainError as error:
        raise IntegrityError("ST-LEDG-003", "the signature does not verify", where) from error
    return entry


def _lines(data: bytes, where: str) -> Iterable[bytes]:
    if data and not data.endswith(b"\n"):
        raise IntegrityError("ST-LEDG-004", "the last line is incomplete", where)
    return data.split(b"\n")[:-1]


def root_keys(trust: TrustRoot) -> str:
    """The keys of a trust root's own role, as a ledger's beginning names them."""
    return " ".join(sorted(trust.document.roles[TrustRole.ROOT].keys))


def _mended(cut: bytes) -> Event:
    digest = hashlib.sha256(cut).hexdigest()
    return encode_event(events.LedgerMended(subject="last line", bytes=len(cut), digest=digest))


def _first(fd: int, where: str) -> Entry:
    """The first entry; whoever reads the ledger verifies it."""
    line = os.pread(fd, LINE_LIMIT + 1, 0).split(b"\n", 1)[0]
    return canonical.decode(line, Entry, limit=LINE_LIMIT, where=where)


def _write_whole(fd: int, line: bytes) -> None:
    """Append a line or nothing: half a line would make every later entry be refused."""
    size = os.fstat(fd).st_size
    try:
        if os.write(fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(fd, size)
        raise


def _cut_unfinished(fd: int, where: str) -> bytes:
    """Cut off the part of a line that a death has left (rule 4); returns it."""
    size = os.fstat(fd).st_size
    block = _end(fd, size)
    rest = block[block.rfind(b"\n") + 1 :]
    if rest:
        if len(rest) > LINE_LIMIT:
            raise IntegrityError("ST-LEDG-004", "the last line is incomplete", where)
        if len(rest) < size:
            _tail(fd, where, size - len(rest))  # nothing is cut where the line before is no entry
        os.ftruncate(fd, size - len(rest))
    return rest


def _end(fd: int, size: int) -> bytes:
    start = max(0, size - LINE_LIMIT - 1)
    return os.pread(fd, size - start, start)


def _tail(fd: int, where: str, size: int | None = None) -> tuple[int, str]:
    """The next sequence number and the hash of the last line, of the first `size` bytes."""
    size = os.fstat(fd).st_size if size is None else size
    if size == 0:
        return 0, GENESIS
    last = _end(fd, size)[:-1].rsplit(b"\n", 1)[-1]
    entry = canonical.decode(last, Entry, limit=LINE_LIMIT, where=where)
    return entry.body.seq + 1, hashlib.sha256(last).hexdigest()
