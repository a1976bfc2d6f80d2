# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A key-value store in memory with the semantics of torch.distributed.Store, without torch.

For testing code that takes a store (barriers, exchanges, rendezvous helpers) in one process with
threads. The differences from a TCPStore are that no port is open and that a wait which cannot end
raises ``StoreTimeoutError`` (a RuntimeError, as torch's DistStoreError is).
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

Value: TypeAlias = str | bytes


class StoreTimeoutError(RuntimeError):
    """A key did not appear in time."""


class MemoryStore:
    """The subset of `torch.distributed.Store` that rendezvous and helpers use."""

    def __init__(
        self,
        timeout: timedelta = timedelta(seconds=5),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout = timeout
        self._monotonic = monotonic
        self._data: dict[str, bytes] = {}
        self._changed = threading.Condition()

    @property
    def timeout(self) -> timedelta:
        """The time for which `get` and `wait` wait."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long `get` and `wait` wait."""
        self._timeout = timeout

    def set(self, key: str, value: Value) -> None:
        """Store a value under a key, replacing an older one."""
        with self._changed:
            self._data[key] = _bytes(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """The value of a key; waits until it exists.

        Raises:
            StoreTimeoutError: When it does not appear in time.
        """
        with self._changed:
            self._await([key], self._timeout)
            return self._data[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0, and return its new value."""
        with self._changed:
            value = int(self._data.get(key, b"0")) + amount
            self._data[key] = str(value).encode()
            self._changed.notify_all()
            return value

    def append(self, key: str, value: Value) -> None:
        """Append bytes to a value."""
        with self._changed:
            self._data[key] = self._data.get(key, b"") + _bytes(value)
            self._changed.notify_all()

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Set `desired` if the value is `expected` (or absent and `expected` is empty).

        Returns:
            The value after the call: `desired` when it was set. As in a TCPStore, comparing an
            absent key with something returns that something and sets nothing.
        """
        with self._changed:
            current = self._data.get(key)
            if current is None and expected:
                return _bytes(expected)
            if current is None or current == _bytes(expected):
                self._data[key] = _bytes(desired)
                self._changed.notify_all()
            return self._data[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist; never waits."""
        with self._changed:
            return all(key in self._data for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist.

        Raises:
            StoreTimeoutError: When they do not appear in time.
        """
        with self._changed:
            self._await(keys, self._timeout if timeout is None else timeout)

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it existed."""
        with self._changed:
            return self._data.pop(key, None) is not None

    def num_keys(self) -> int:
        """The number of keys."""
        with self._changed:
            return len(self._data)

    def list_keys(self) -> list[str]:
        """All keys: there are no secrets in key names."""
        with self._changed:
            return sorted(self._data)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys; waits for all of them."""
        with self._changed:
            self._await(keys, self._timeout)
            return [self._data[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Set several keys at once."""
        with self._changed:
            self._data.update((key, _bytes(value)) for key, value in zip(keys, values, strict=True))
            self._changed.notify_all()

    def _await(self, keys: Sequence[str], timeout: timedelta) -> None:
        deadline = self._monotonic() + timeout.total_seconds()
        while missing := [key for key in keys if key not in self._data]:
            left = deadline - self._monotonic()
            if left <= 0 or not self._changed.wait(left):
                raise StoreTimeoutError(f"no value for {missing} after {timeout}")


def _bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else value
