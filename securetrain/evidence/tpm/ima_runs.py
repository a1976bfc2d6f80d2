# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runs of measurement-list entries that were judged before, found again as a whole.

Most nodes of a fleet measure the same files, and most of them in the same order: a boot is not the
same twice, but a service reads its libraries as it always does. Where a list is cut into runs is
said by the entries themselves, so that runs are found again behind an entry that is new, missing or
elsewhere (content-defined chunking: Muthitacharoen et al., SOSP 2001).

A run is what it was when SHA-256 over all of its bytes is. That spares taking entries apart and
looking them up one by one; each of them is extended into the register as before. Only runs of
accepted entries without a violation are kept, under the policy that accepted them.
"""

from collections.abc import Hashable, Mapping
from hashlib import sha256
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

HEAD: Final = 24
"""Bytes by which a run is looked up: its first entry's PCR and SHA-1, which hardly any two have in
common. Nothing is believed for it."""
LONGEST: Final = 256
"""Entries of a run at most."""
_SHORTEST: Final = 4
_DIGEST_BYTE: Final = 4
_STARTS_BELOW: Final = 8
"""A run starts at an entry whose SHA-1 begins with a byte below this: 1 of 32."""
_RUN_OVERHEAD: Final = 400
_ENTRY_OVERHEAD: Final = 200

Judged: TypeAlias = tuple[bytes, bool]
"""What is extended for an entry, and whether the policy excludes its path."""


class Run(NamedTuple):
    """A run that was accepted."""

    size: int
    """Bytes."""
    digest: bytes
    """SHA-256 of them."""
    extends: tuple[bytes, ...]
    """What its entries extend, in order."""
    excluded: tuple[int, ...]
    """Positions of those whose paths the policy excludes."""

    def stands_at(self, data: bytes, start: int) -> bool:
        """Tell whether a list has this very run there."""
        return sha256(data[start : start + self.size]).digest() == self.digest


class Collector:
    """Cuts one list into runs while it is judged entry by entry."""

    def __init__(self, data: bytes) -> None:
        self.found: dict[bytes, Run] = {}
        """By the first bytes."""
        self._data = data
        self._start = -1
        self._judged: list[Judged] = []

    def begin(self, position: int) -> None:
        """A run starts here; the one before ends."""
        self.end(position)
        self._start = position

    def take(self, judged: Judged) -> None:
        """One more entry, which was accepted."""
        if self._start >= 0:
            self._judged.append(judged)

    def end(self, position: int) -> None:
        """The run that was begun ends before this byte, and is kept."""
        if self._start >= 0 and len(self._judged) >= _SHORTEST:
            data = self._data[self._start : position]
            self.found[data[:HEAD]] = Run(
                size=len(data),
                digest=sha256(data).digest(),
                extends=tuple(extend for extend, _ in self._judged),
                excluded=tuple(n for n, (_, excluded) in enumerate(self._judged) if excluded),
            )
        self.drop()

    def drop(self) -> None:
        """Forget the run that was begun: something in it is nobody else's."""
        self._start = -1
        self._judged = []

    @property
    def full(self) -> bool:
        """Tell whether the run has as many entries as one may have."""
        return len(self._judged) >= LONGEST


class Runs:
    """Runs of all nodes, bounded in memory. Safe for threads."""

    def __init__(self, limit: int) -> None:
        """Start empty.

        Args:
            limit: bytes of memory, roughly; 0 keeps nothing.
        """
        self._limit = limit
        self._size = 0
        self._lock = Lock()
        self._tables: dict[Hashable, dict[bytes, Run]] = {}

    def table(self, key: Hashable) -> Mapping[bytes, Run]:
        """The runs that were accepted under a policy."""
        return self._tables.get(key, {})

    def add(self, key: Hashable, found: Mapping[bytes, Run]) -> None:
        """Remember runs; when there is no room, forget all earlier ones."""
        if not found:
            return
        size = sum(_RUN_OVERHEAD + _ENTRY_OVERHEAD * len(run.extends) for run in found.values())
        if size > self._limit:
            return
        with self._lock:
            if self._size + size > self._limit:
                # Appraisals under way keep the tables that they hold.
                self._tables = {}
                self._size = 0
            self._tables.setdefault(key, {}).update(found)
            self._size += size


def starts_run(entry: bytes) -> bool:
    """Tell whether a run starts at this entry of a binary list."""
    return entry[_DIGEST_BYTE] < _STARTS_BELOW
