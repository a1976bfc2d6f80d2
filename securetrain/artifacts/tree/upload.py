# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One file of a store, written from front to back without knowing how long it becomes.

A small one is one object of its name. A larger one is several, each put on a condition as the first
one is: ``NAME.part-000001`` and so on, and at last ``NAME``, the first part, with the size of all
(ADR 0016). So a file is there when it is whole, no store's multipart upload is begun, which no
listing shows and no condition guards, and whatever a dead saver leaves is an object with a name.
"""

import re
import secrets
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from securetrain.artifacts.tree.objects import ConditionError, Requests

PART: Final = 32 << 20
"""Bytes of a part: 200,000 objects (`objects.ENTRIES`) are 6.7 TB."""
AT_ONCE: Final = 2
_PART: Final = re.compile(r"(.+)\.part-(\d{6})", re.DOTALL)


def part_name(name: str, number: int) -> str:
    """The name of a part, counted from 0."""
    return f"{name}.part-{number:06d}" if number else name


def joined(listed: list[tuple[str, int]]) -> dict[str, int]:
    """The files that listed objects are, by name: those of parts once, with the size of all.

    A part without those before it keeps its own name, under which no statement names it.
    """
    files = dict(listed)
    following: dict[str, int] = {}
    for name, size in sorted(listed):
        found = _PART.fullmatch(name)
        whole = found[1] if found else ""
        if whole in files and name == part_name(whole, following.get(whole, 1)):
            following[whole] = following.get(whole, 1) + 1
            files[whole] += size
            del files[name]
    return files


def new_writer(save_id: str) -> str:
    """A word by which a writer knows its object again."""
    return f"{save_id}.{secrets.token_hex(8)}"


@dataclass(slots=True)
class Upload:
    """A file in the making."""

    requests: Requests
    key: str
    writer: str
    pool: ThreadPoolExecutor
    size: int = 0
    _first: bytearray | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _parts: "deque[tuple[str, Future[str]]]" = field(default_factory=deque)
    _done: list[str] = field(default_factory=list)

    @classmethod
    @contextmanager
    def create(cls, requests: Requests, key: str, save_id: str) -> Iterator["Upload"]:
        """A new file, which is there when the block ends well, and not otherwise.

        Raises:
            OSError: FileExistsError when something of another writer lies there.
        """
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="upload") as pool:
            upload = cls(requests, key, new_writer(save_id), pool)
            try:
                yield upload
                upload.end()
            except BaseException as error:
                upload.abort()
                if isinstance(error, ConditionError):
                    raise FileExistsError(f"{key}: somebody else has put it") from error
                raise

    def write(self, data: memoryview) -> None:
        """Append all of `data`."""
        data = data.cast("B")
        self.size += len(data)
        while len(data):
            room = PART - len(self._buffer)
            # The last part stays here until something follows it: it may be the only one.
            if not room:
                self._send()
                continue
            self._buffer += data[:room]
            data = data[room:]

    def end(self) -> None:
        """Put the first part, after all others."""
        if self._first is None:
            self.requests.put(self.key, self._buffer, self.writer)
            return
        self._send()
        while self._parts:
            self._wait()
        self.requests.put(self.key, self._first, self.writer, whole=self.size)

    def abort(self) -> None:
        """Give it up: remove the parts that are this writer's, as far as the store is reached."""
        for name, part in self._parts:
            if not part.cancel() and part.exception() is None:
                self._done.append(name)
        for name in self._done:
            with suppress(OSError):
                self.requests.delete(name)

    def _send(self) -> None:
        part, self._buffer = self._buffer, bytearray()
        if self._first is None:
            self._first = part
            return
        name = part_name(self.key, len(self._done) + len(self._parts) + 1)
        self._parts.append((name, self.pool.submit(self.requests.put, name, part, self.writer)))
        while len(self._parts) > AT_ONCE:
            self._wait()

    def _wait(self) -> None:
        name, part = self._parts.popleft()
        part.result()
        self._done.append(name)
