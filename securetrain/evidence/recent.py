# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verdicts that depend on nothing but their input, kept for the next time, bounded and in order.

A fleet shows the same certificates, keys and reports again and again. Only what was accepted is
kept: a refusal is judged anew, and costs the one who asks for it.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A table that forgets the entry that is in it for longest. Safe for threads."""

    def __init__(self, limit: int, forgotten: Callable[[V], None] = lambda _: None) -> None:
        """Start empty.

        Args:
            limit: how many entries are kept, at least one.
            forgotten: is called with each value that makes room.
        """
        assert limit > 0
        self._limit = limit
        self._forgotten = forgotten
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value that is kept; None when there is none, or no longer."""
        with self._lock:
            return self._entries.get(key)

    def put(self, key: K, value: V) -> V:
        """Keep `value`, and give it back."""
        with self._lock:
            self._entries[key] = value
            if len(self._entries) > self._limit:
                self._forgotten(self._entries.popitem(last=False)[1])
        return value
