# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verified bytes that the processes of one node share: each leaf is read and hashed once a node.

The arena is memory without a name (memfd), laid out like the dataset, with a byte for each leaf
that says whether it has been verified. Rules, in order:

1. one process owns it: it alone can write, because the memory is sealed (F_SEAL_FUTURE_WRITE)
   before anybody else gets it, and others can only map it for reading;
2. the owner reads a leaf into the arena, verifies it there and marks it last; until then nobody
   looks at it. What changes on disk afterwards changes nothing;
3. others ask the owner over a socket in a directory of its user, and the owner answers processes
   of its own user only. They compare the digest of the dataset that they verified themselves;
4. an owner that is gone, or a leaf that does not verify, is a refusal, never a read from the disk.

Verified leaves that a process keeps: read and hashed once, then served from its own memory.

One private stretch of memory, cut into slots of a leaf each. Rules, in order:

1. a leaf is read into a slot that nobody knows, verified there, and only then known; one that does
   not verify is never known, and its slot is taken for the next;
2. memory is bounded: all slots exist from the start, as address space; a page of it is taken when
   a leaf first comes there. When every slot is taken, a leaf that was not asked for since the hand
   last passed gives its slot up (second chance) and is verified again when it is asked for;
3. who finds a leaf copies it without a lock. A slot that changes hands is forgotten first, then
   `_given_up` is raised, then the slot is filled: whoever has read that number before finding the
   leaf, and sees it unchanged after the copy, has copied what was verified. Else the copy is thrown
   away and the leaf is asked for under the lock.
"""

import fcntl
import mmap
import os
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, Protocol

from securetrain.artifacts.tree.pool import local_processes
from securetrain.core import CODES, connections
from securetrain.core.errors import IntegrityError, UsageError

F_SEAL_FUTURE_WRITE: Final = 0x10
"""Linux 5.1; not in Python's fcntl."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
_PAGE: Final = mmap.PAGESIZE
_HELLO: Final = struct.Struct("<64sQ")
_ASK: Final = struct.Struct("<IQI")
_MESSAGE: Final = 4096
_TIMEOUT: Final = 60.0
_SOCKET: Final = "arena"


class LeafReader(Protocol):
    """A reader of verified leaves; after an IntegrityError the memory may hold anything."""

    def __call__(self, name: str, index: int, view: memoryview) -> None:
        """Fill `view` with leaf number `index` of a file."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The place of each file's leaves in the arena. A pure function of the statement."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    leaf: int

    @classmethod
    def of(cls, files: Mapping[str, int], leaf: int) -> "Layout":
        """The files by name."""
        names = tuple(sorted(files))
        return cls(names, tuple(files[name] for name in names), leaf)

    @property
    def counts(self) -> list[int]:
        """Leaves of each file."""
        return [-(-size // self.leaf) for size in self.sizes]

    @property
    def marks(self) -> int:
        """Bytes before the data: one a leaf, to whole pages."""
        return -(-sum(self.counts) // _PAGE) * _PAGE

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.marks + sum(self.counts) * self.leaf


class Arena:
    """The memory, mapped by its owner or by a reader."""

    def __init__(self, layout: Layout, fd: int, *, writable: bool) -> None:
        self.layout = layout
        self.fd = fd
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, max(layout.size, _PAGE), mmap.MAP_SHARED, protection)
        self._view = memoryview(self._map)
        starts = [0, *accumulate(layout.counts)]
        self._first = dict(zip(layout.names, starts[:-1], strict=True))
        self._sizes = dict(zip(layout.names, layout.sizes, strict=True))
        self._marks = layout.marks

    @classmethod
    def create(cls, layout: Layout) -> "Arena":
        """New memory that this process owns.

        Raises:
            UsageError: ST-USAG-002 when the system has no such memory.
        """
        try:
            fd = os.memfd_create("securetrain-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, max(layout.size, _PAGE))
            arena = cls(layout, fd, writable=True)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            raise UsageError(
                "ST-USAG-002",
                f"no sealed memory for verified data: {error.strerror}",
                "",
                "use Linux 5.1 or newer, or leave the arena out",
            ) from error
        return arena

    def has(self, name: str, index: int) -> bool:
        """Tell whether a leaf has been verified."""
        return self._view[self._first[name] + index] == 1

    def place(self, name: str, index: int) -> memoryview:
        """The memory of a leaf."""
        start = self._marks + (self._first[name] + index) * self.layout.leaf
        length = min(self.layout.leaf, self._sizes[name] - index * self.layout.leaf)
        return self._view[start : start + length]

    def copy(self, name: str, offset: int, length: int) -> bytes:
        """The bytes of a range of a file, whose leaves have been verified."""
        start = self._marks + self._first[name] * self.layout.leaf + offset
        return self._map[start : start + length]

    def mark(self, name: str, index: int) -> None:
        """Say that a leaf has been verified."""
        self._view[self._first[name] + index] = 1

    def close(self) -> None:
        """Unmap it. Views that were handed out keep it alive."""
        with suppress(BufferError):
            self._view.release()
            self._map.close()
        os.close(self.fd)


class OwnArena:
    """The owner's side: fills the arena, and serves it."""

    def __init__(self, layout: Layout, digest: str, read_leaf: LeafReader) -> None:
        self.arena = Arena.create(layout)
        self.digest = digest
        self._read_leaf = read_leaf
        self._lock = threading.Lock()

    def ensure(self, name: str, first: int, count: int) -> None:
        """Verify some leaves, if that was not done before.

        Raises:
            IntegrityError: one of them is not what was signed; it stays unmarked and zero.
        """
        for index in range(first, first + count):
            if self.arena.has(name, index):
                continue
            with self._lock:
                if self.arena.has(name, index):
                    continue
                view = self.arena.place(name, index)
                try:
                    self._read_leaf(name, index, view)
                except BaseException:
                    view[:] = bytes(len(view))
                    raise
                self.arena.mark(name, index)

    @contextmanager
    def served(self) -> Iterator[Path]:
        """Serve it to processes of this user on this node; the path is what they connect to."""
        with tempfile.TemporaryDirectory(prefix="securetrain-arena-") as folder:
            path = Path(folder) / _SOCKET
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(str(path))
                listener.listen(128)
                thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
                thread.start()
                try:
                    yield path
                finally:
                    with suppress(OSError):
                        listener.shutdown(socket.SHUT_RDWR)
                    thread.join(timeout=5)

    def close(self) -> None:
        """Give the memory back."""
        self.arena.close()

    def _accept(self, listener: socket.socket) -> None:
        for peer, _ in connections(listener):
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, suppress(OSError, struct.error):
            credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("<iII", credentials)[1] != os.getuid():
                return
            hello = _HELLO.pack(self.digest.encode(), self.arena.layout.size)
            socket.send_fds(peer, [hello], [self.arena.fd])
            names, counts = self.arena.layout.names, self.arena.layout.counts
            while request := peer.recv(_MESSAGE):
                number, first, count = _ASK.unpack(request)
                if number >= len(names) or first + count > counts[number]:
                    return
                peer.send(self._answer(names[number], first, count))

    def _answer(self, name: str, first: int, count: int) -> bytes:
        try:
            self.ensure(name, first, count)
        except IntegrityError as error:
            parts = (error.code, error.what, error.where, error.fix)
            return b"\0".join(part.encode()[:900] for part in parts)
        return b"ok"


class SharedArena:
    """A reader's side."""

    def __init__(self, layout: Layout, digest: str, path: Path) -> None:
        """Connect to an owner.

        Raises:
            IntegrityError: ST-DATA-130 when it serves another dataset, ST-DATA-200 when it cannot
                be reached.
        """
        self._lock = threading.Lock()
        self._numbers = {name: number for number, name in enumerate(layout.names)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_TIMEOUT)
        fds: list[int] = []
        try:
            self._socket.connect(str(path))
            hello, fds, _flags, _address = socket.recv_fds(self._socket, _HELLO.size, 1)
            served, size = _HELLO.unpack(hello)
            (fd,) = fds
            _check_memory(fd, size)
            if served.decode() != digest or size != layout.size:
                raise IntegrityError(
                    "ST-DATA-130",
                    f"the arena holds dataset {served[:16].decode()}, not {digest[:16]}",
                    str(path),
                    "start all workers of the node on one dataset",
                )
        except (OSError, ValueError, struct.error) as error:
            for fd in fds:
                os.close(fd)
            self._socket.close()
            raise _gone(path, error) from error
        except IntegrityError:
            for fd in fds:
                os.close(fd)
            self._socket.close()
            raise
        self.arena = Arena(layout, fd, writable=False)
        self._path = path

    def ensure(self, name: str, first: int, count: int) -> None:
        """Have the owner verify some leaves, if that was not done before.

        Raises:
            IntegrityError: one of them is not what was signed; ST-DATA-200 when the owner is gone.
        """
        if all(self.arena.has(name, index) for index in range(first, first + count)):
            return
        try:
            with self._lock:
                self._socket.send(_ASK.pack(self._numbers[name], first, count))
                answer = self._socket.recv(_MESSAGE)
        except OSError as error:
            raise _gone(self._path, error) from error
        if answer == b"ok":
            return
        code, what, where, fix = ([*answer.decode(errors="replace").split("\0"), "", "", ""])[:4]
        if code not in CODES:
            raise _gone(self._path, EOFError("no answer"))
        raise IntegrityError(code, what, where, fix)

    def close(self) -> None:
        """Let go of the memory and the owner."""
        self._socket.close()
        self.arena.close()


def _check_memory(fd: int, size: int) -> None:
    """Refuse memory that somebody could still change."""
    info = os.fstat(fd)
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if not stat.S_ISREG(info.st_mode) or info.st_size < size or seals & _SEALS != _SEALS:
        raise ValueError("the memory is not sealed")


def _gone(path: Path, error: Exception) -> IntegrityError:
    return IntegrityError(
        "ST-DATA-200",
        f"the node's arena of verified data cannot be reached: {error}",
        str(path),
        "start the workers of the node again: the process that owned it has ended",
    )


LEAST: Final = 64 << 20
"""Bytes that are kept where the memory that is free says less, or nothing."""
PART: Final = 8
"""A process of a node keeps one of so many parts of the node's free memory."""
_FREE: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")
_LIMITS: Final = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


class Kept:
    """The leaves of a dataset's files that this process has verified."""

    def __init__(self, leaf: int, leaves: int, room: int) -> None:
        """Make room.

        Args:
            leaf: bytes of a leaf.
            leaves: leaves of all files together; there is never room for more.
            room: bytes that may be kept; at least one leaf is.
        """
        self.leaf = leaf
        self.slots = max(1, min(leaves, room // leaf))
        self._memory = self._reserve()
        self._view = memoryview(self._memory)
        self._free = list(range(self.slots - 1, -1, -1))
        self._asked = bytearray(self.slots)
        self._owners: list[tuple[dict[int, int], int] | None] = [None] * self.slots
        self._known: dict[str, dict[int, int]] = {}
        self._given_up = 0
        self._hand = 0

    def _reserve(self) -> mmap.mmap:
        """Address space for the slots, or for half of them where the system gives no more."""
        while True:
            try:
                memory = mmap.mmap(
                    -1, self.slots * self.leaf, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                )
            except OSError:
                if self.slots == 1:
                    raise
                self.slots //= 2
                continue
            with suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
            return memory

    def __len__(self) -> int:
        """The number of leaves that are kept."""
        return self.slots - len(self._free)

    def find(self, name: str, index: int, start: int, end: int) -> bytes | None:
        """Bytes `start` to `end` of a leaf that is kept, else None. Safe in threads (rule 3)."""
        given_up = self._given_up
        known = self._known.get(name)
        slot = None if known is None else known.get(index)
        if slot is None:
            return None
        self._asked[slot] = 1
        place = slot * self.leaf
        data = self._memory[place + start : place + end]
        return data if given_up == self._given_up else None

    def get(
        self,
        name: str,
        index: int,
        start: int,
        end: int,
        fill: Callable[[memoryview], None],
    ) -> bytes:
        """Bytes of a leaf, which `fill` reads and verifies if it is not kept. One caller at a time.

        Args:
            name: the file.
            index: the leaf's number.
            start: first byte in the leaf.
            end: the byte after the last.
            fill: fills the memory of one whole slot, of which it cuts off what it does not need; it
                raises when the leaf is not what was signed.
        """
        known = self._known.setdefault(name, {})
        slot = known.get(index)
        if slot is None:
            slot = self._free.pop() if self._free else self._give_up()
            try:
                fill(self._view[slot * self.leaf : (slot + 1) * self.leaf])
            except BaseException:
                self._free.append(slot)
                raise
            self._owners[slot] = (known, index)
            known[index] = slot
        self._asked[slot] = 1
        place = slot * self.leaf
        return self._memory[place + start : place + end]

    def _give_up(self) -> int:
        """A slot that was taken, which nobody finds any more."""
        while self._asked[self._hand]:
            self._asked[self._hand] = 0
            self._hand = (self._hand + 1) % self.slots
        slot = self._hand
        self._hand = (slot + 1) % self.slots
        owner = self._owners[slot]
        if owner is not None:
            del owner[0][owner[1]]
            self._owners[slot] = None
        # Last: who still found it has read the old number before this line.
        self._given_up += 1
        return slot


def room() -> int:
    """Bytes that a process keeps of a dataset where nobody says how many.

    A share of the memory that is free now, in the machine and in the cgroup, for each process that
    the launcher has started on this node.
    """
    return max(LEAST, _free_bytes() // PART // local_processes())


def _free_bytes() -> int:
    found = []
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split(":", 1) for line in _FREE.read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) << 10)
    for limit, used in _LIMITS:
        with suppress(OSError, ValueError):
            bound = int((_CGROUP / limit).read_text())
            found.append(bound - int((_CGROUP / used).read_text()))
    return min(found, default=0)
