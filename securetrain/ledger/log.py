# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The run's ledger: a signed, append-only log of every decision at a boundary.

Rules:

1. one JSON line an entry: the body in canonical form, the writer's key id and its signature;
2. a body carries its sequence number and the SHA-256 of the line before it, so that removing,
   editing or reordering lines breaks the chain; and how many entries its key had signed before, so
   that a writer whose entries were taken out says so with its next one. All three are signed: any
   line, a closing one above all, binds the number of those before it and their hash;
3. several processes of a node may append: the file is locked while one reads what the others have
   added, follows the chain there, and writes the next; refusals and closing entries are fsynced;
4. a death in the middle of a line leaves a part of it. Whoever appends next holds the lock, so that
   nobody is still writing it: the part is cut off, and the next entry says so. A whole line that is
   no entry is no work of a death, and nothing is appended to it. What `DURABLE` names is on the
   disk before a caller goes on, and so is everything before it;
5. a ledger begins once (`Ledger.begin`): its first line names the run, the trust root and the
   policy. A file that is missing, empty or begun as another's is never appended to, and never a
   beginning;
6. an opened ledger remembers its last entry for all its writers (`Ledger.by`), and appends only
   behind that; it is also kept outside of the run directory (`Ledger.kept`), so that the next
   process knows. What no longer holds that line is refused, and nothing is written;
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
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Self, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, os_error, reason
from securetrain.core.files import (
    PRIVATE_FILE,
    make_private_dir,
    open_own,
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
_KEPT_LIMIT: Final = 1 << 20
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
    """The last entry that somebody knows of a ledger, and what is counted up to it."""

    end: int = 0
    """Bytes of the file up to the end of its line; 0 for no entry."""
    digest: str = GENESIS
    """SHA-256 of the line, hex."""
    entries: int = 0
    """How many there are; 0 beside an end for what an earlier version kept."""
    counts: dict[str, int] = {}
    """The same, for each key."""

    def behind(self, line: bytes, key_id: str) -> "LastEntry":
        """The same with one more line, given without its end."""
        return LastEntry(
            end=self.end + len(line) + 1,
            digest=hashlib.sha256(line).hexdigest(),
            entries=self.entries + 1,
            counts={**self.counts, key_id: self.counts.get(key_id, 0) + 1},
        )

    def gap(self, seq: int, prev: str, count: int | UnsetType, key_id: str) -> str:
        """The reason why an entry does not follow; empty when it does.

        Without a count there are entries of earlier versions, and only before the first with one.
        """
        if seq > self.entries:
            return f"entries {self.entries} to {seq - 1} are missing"
        if (seq, prev) != (self.entries, self.digest):
            return f"entry {seq} does not follow entry {self.entries - 1}"
        known = self.counts.get(key_id, 0)
        if isinstance(count, int) and count != known:
            return f"its key has signed {count} entries before it, and {known} are here"
        return ""

    def check(self, fd: int, where: str) -> None:
        """Refuse a file without this entry.

        Raises:
            IntegrityError: ST-LEDG-004.
        """
        if not self.end:
            return
        start = max(0, self.end - LINE_LIMIT - 1)
        read = os.pread(fd, self.end - start, start)
        line = read[:-1].rsplit(b"\n", 1)[-1]
        whole = len(read) == self.end - start and read.endswith(b"\n")
        if not whole or hashlib.sha256(line).hexdigest() != self.digest:
            what = "its last known entry is missing, or is another one"
            raise IntegrityError("ST-LEDG-004", what, where)

    def followed(self, fd: int, where: str) -> tuple["LastEntry", bytes]:
        """Read on to the end of the file: its last entry, and the part of a line behind it.

        The chain is followed; signatures are for whoever reads the ledger.

        Raises:
            IntegrityError: ST-LEDG-001, 002 or 004.
        """
        self.check(fd, where)
        last = self if self.entries else LastEntry()
        with os.fdopen(os.dup(fd), "rb") as file:
            file.seek(last.end)
            while (line := file.readline(LINE_LIMIT + 1)).endswith(b"\n"):
                last = last.behind(line[:-1], _key_of(line[:-1], last, where))
        if len(line) > LINE_LIMIT:
            raise IntegrityError("ST-LEDG-004", "the last line is incomplete", where)
        return last, line


class _Place(msgspec.Struct, frozen=True):
    """The place of an entry in the chain; the rest of it is not read."""

    seq: int
    prev: str
    count: int | UnsetType = UNSET


class _Line(msgspec.Struct, frozen=True):
    body: _Place
    keyid: str


_LINE: Final = msgspec.json.Decoder(_Line)


def _key_of(line: bytes, last: LastEntry, where: str) -> str:
    """The key of a line that follows the last one."""
    try:
        found = _LINE.decode(line)
    except (msgspec.DecodeError, ValueError) as error:
        what = f"line {last.entries + 1} is no entry: {error}"
        raise IntegrityError("ST-LEDG-001", what, where) from error
    body = found.body
    if gap := last.gap(body.seq, body.prev, body.count, found.keyid):
        raise IntegrityError("ST-LEDG-002", gap, where)
    return found.keyid


@dataclass(slots=True)
class Memory:
    """The last entry that an opened ledger knows (rule 6)."""

    last: LastEntry = field(default_factory=LastEntry)


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
    memory: Memory = field(default_factory=Memory)
    """Shared by the writers of this process."""

    def by(self, key: Signer, writer: str) -> Self:
        """The same opened ledger, for another writer of this process."""
        return replace(self, key=key, writer=writer)

    def begin(self, run_id: str = "", trust: TrustRoot | None = None, policy: str = "") -> Self:
        """Begin the ledger, or show that it is this run's and goes on where it ended.

        Args:
            run_id: The run.
            trust: Its trust root; None for a ledger that is read without one.
            policy: The digest of its policy.

        Raises:
            UsageError: ST-USAG-002 or ST-USAG-006 on I/O errors, ST-USAG-018 when the file is
                another user's, or has another name.
            IntegrityError: ST-LEDG-005 for the ledger of something else, or for none where there
                was one; ST-LEDG-004 for one that lacks a line which is known here; ST-LEDG-001 or
                002 for one whose lines are no chain.
        """
        roots = "" if trust is None else root_keys(trust)
        start = encode_event(events.LedgerStarted(subject=run_id, roots=roots, policy=policy))
        known = self._known()
        with self._opened(0 if known.end else os.O_CREAT) as fd:
            self._add(fd, known, start=start)
        return self

    def append(self, event: Event) -> None:
        """Sign and append one event in its form on disk; `write` is what writers call.

        Raises:
            UsageError: See `begin`.
            IntegrityError: ST-LEDG-001 or 002 when what others have added is no chain, ST-LEDG-004
                when the last entry that is known here is missing, ST-LEDG-005 when nothing has
                begun.
        """
        with self._opened() as fd:
            self._add(fd, self.memory.last, event)

    def _add(
        self, fd: int, known: LastEntry, event: Event | None = None, *, start: Event | None = None
    ) -> None:
        """Go on behind the last entry: with a beginning where there is none, and with an event."""
        where = str(self.path)
        if os.fstat(fd).st_size == 0 and (known.end or start is None):
            raise IntegrityError("ST-LEDG-005", "it is empty, and was begun before", where)
        last, part = known.followed(fd, where)
        said: list[Event] = []
        if last.entries == 0:
            if start is None:
                raise IntegrityError("ST-LEDG-005", "its first line is incomplete", where)
            said.append(start)
        elif start is not None and _first(fd, where).body.event != start:
            raise IntegrityError("ST-LEDG-005", "it begins as another's", where)
        if part:
            os.ftruncate(fd, last.end)
            said.append(_mended(part))
        if event is not None:
            said.append(event)
        for one in said:
            last = self._append(fd, last, one)
        self.memory.last = last
        if event is None or event.decision is Decision.REFUSE or event.event in DURABLE:
            os.fsync(fd)
            self._keep(last)

    @contextmanager
    def _opened(self, flags: int = 0) -> Iterator[int]:
        try:
            fd = open_own(self.path, os.O_RDWR | os.O_APPEND | flags)
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
        """The last entry that is known here, or kept of this ledger."""
        if self.memory.last.end or self.kept is None or not self.kept.exists():
            return self.memory.last
        data = read_file(self.kept, _KEPT_LIMIT)
        return canonical.decode(data, LastEntry, limit=_KEPT_LIMIT, where=str(self.kept))

    def _keep(self, last: LastEntry) -> None:
        if self.kept is not None:
            make_private_dir(self.kept.parent)
            write_atomic(self.kept, canonical.encode(last), mode=PRIVATE_FILE)

    def _append(self, fd: int, last: LastEntry, event: Event) -> LastEntry:
        body = Body(
            seq=last.entries,
            prev=last.digest,
            count=last.counts.get(self.key.key_id, 0),
            time=self.clock(),
            writer=self.writer,
            event=event,
        )
        signature = self.key.sign(canonical.encode(body))
        entry = Entry(body, self.key.key_id, base64.b64encode(signature).decode())
        line = canonical.encode(entry)
        _write_whole(fd, line + b"\n", last.end)
        return last.behind(line, self.key.key_id)

    def last(self) -> LastEntry:
        """The last entry that stands in it, found from the last one that is known here.

        Raises:
            UsageError: See `begin`.
            IntegrityError: See `append`.
        """
        with self._opened() as fd:
            return self.memory.last.followed(fd, str(self.path))[0]

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
    last = LastEntry()
    for number, line in enumerate(_lines(data, where), start=1):
        entry = check_line(line, last, keys, f"{where}:{number}")
        entries.append(entry)
        last = last.behind(line, entry.keyid)
    closed = bool(entries) and entries[-1].body.event.event == Closed.NAME
    if require_closed and not closed:
        raise IntegrityError("ST-LEDG-004", "no closing entry at the end", where)
    counts = {d: sum(e.body.event.decision is d for e in entries) for d in Decision}
    return VerifiedLedger(entries=tuple(entries), head=last.digest, closed=closed, counts=counts)


def check_line(line: bytes, last: LastEntry, keys: Mapping[str, PublicKey], where: str) -> Entry:
    """Check one line, without its end, that is to follow the last one that was checked.

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
    key = keys.get(entry.keyid)
    if key is None:
        raise IntegrityError("ST-LEDG-003", f"signed by the unknown key {entry.keyid[:16]}", where)
    try:
        key.verify(signature, canonical.encode(entry.body))
    except SecureTrainError as error:
        raise IntegrityError("ST-LEDG-003", "the signature does not verify", where) from error
    body = entry.body
    if gap := last.gap(body.seq, body.prev, body.count, entry.keyid):
        raise IntegrityError("ST-LEDG-002", gap, where)
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


def _write_whole(fd: int, line: bytes, size: int) -> None:
    """Append a line or nothing: half a line would make every later entry be refused."""
    try:
        if os.write(fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(fd, size)
        raise
