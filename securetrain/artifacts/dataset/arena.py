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
"""

import fcntl
import mmap
import os
import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, Protocol

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
