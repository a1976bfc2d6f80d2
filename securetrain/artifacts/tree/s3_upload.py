# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One object that is written from front to back, without knowing how long it becomes.

A small one is one request. A larger one goes in parts, some of them at the same time, and appears
when it is whole; one that is given up is aborted, as far as the store can be reached, since parts
of it cost money that no listing of objects shows.
"""

import secrets
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from securetrain.artifacts.tree.s3_client import ConditionError, Requests

PART: Final = 16 << 20
"""Bytes of a part; S3 takes no less than 5 MiB, and 10,000 parts at most."""
GROWS: Final = 2000
"""Parts after which they become four times as large: 5 TB, S3's largest object, are 6,000."""
AT_ONCE: Final = 4


def part_size(number: int) -> int:
    """The size of a part, counted from 0."""
    return PART << (2 * (number // GROWS))


def new_writer(save_id: str) -> str:
    """A word by which a writer knows its object again."""
    return f"{save_id}.{secrets.token_hex(8)}"


@dataclass(slots=True)
class Upload:
    """An object in the making."""

    requests: Requests
    key: str
    writer: str
    pool: ThreadPoolExecutor
    size: int = 0
    _buffer: bytearray = field(default_factory=bytearray)
    _id: str = ""
    _parts: "deque[Future[str]]" = field(default_factory=deque)
    _done: list[str] = field(default_factory=list)

    @classmethod
    @contextmanager
    def create(cls, requests: Requests, key: str, save_id: str) -> Iterator["Upload"]:
        """A new object, which is there when the block ends well, and not otherwise.

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
            room = part_size(len(self._done) + len(self._parts)) - len(self._buffer)
            # The last part stays here until something follows it: it may be the only one.
            if not room:
                self._send()
                continue
            self._buffer += data[:room]
            data = data[room:]

    def end(self) -> None:
        """Make the object of what was written."""
        if not self._id:
            self.requests.put(self.key, self._buffer, self.writer)
            return
        self._send()
        while self._parts:
            self._done.append(self._parts.popleft().result())
        self.requests.end_parts(self.key, self._id, self._done, self.writer, self.size)

    def abort(self) -> None:
        """Give it up, as far as the store can be reached."""
        while self._parts:
            part = self._parts.popleft()
            if not part.cancel():
                part.exception()
        if self._id:
            with suppress(OSError):
                self.requests.abort_parts(self.key, self._id)

    def _send(self) -> None:
        if not self._id:
            self._id = self.requests.begin_parts(self.key, self.writer)
        number = len(self._done) + len(self._parts) + 1
        part, self._buffer = self._buffer, bytearray()
        self._parts.append(
            self.pool.submit(self.requests.put_part, self.key, self._id, number, part)
        )
        while len(self._parts) >= AT_ONCE:
            self._done.append(self._parts.popleft().result())
