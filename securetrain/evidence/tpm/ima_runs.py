# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runs of measurement-list entries that were judged before, found again as a whole.

Most nodes of a fleet measure the same files, and most of them in the same order: a boot is not the
same twice, but a service reads its libraries as it always does. Where a list is cut into runs is
said by the entries themselves, so that runs are found again behind an entry that is new, missing or
elsewhere (content-defined chunking: Muthitacharoen et al., SOSP 2001). A renewal brings the few
entries since the last one, often the same on many nodes: those are one run, found by its digest.

A run is what it was when SHA-256 over all of its bytes is. That spares taking entries apart and
looking them up one by one; each of them is extended into the register as before. A run is kept
under all that its entries' verdicts depended on (`RuntimePolicy.identity`: the policy, the one
before it, SHA-1, the keys) with their marks. No run holds a violation: what is answered to those
depends on other rules, and each must be counted and named where it stands.
"""

from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

HEAD: Final = 24
"""Bytes by which a run is looked up: its first entry's PCR and SHA-1, which hardly any two have in
common. Nothing is believed for it."""
LONGEST: Final = 256
"""Entries of a run at most."""
LONGEST_TAIL: Final = 64 << 10
"""Bytes of a renewal's list that is remembered as a whole."""
_SHORTEST: Final = 4
_DIGEST_BYTE: Final = 4
_STARTS_BELOW: Final = 8
"""A run starts at an entry whose SHA-1 begins with a byte below this: 1 of 32."""
_RUN_OVERHEAD: Final = 400
_ENTRY_OVERHEAD: Final = 200

VIOLATION: Final = b"\xff" * 32
"""What is extended for a violation, and for nothing else: no SHA-256 is known to be this."""

Judged: TypeAlias = tuple[bytes, int]
"""What is extended for an entry, and its mark; 0 for none."""


class Run(NamedTuple):
    """A run that was accepted."""

    size: int
    """Bytes."""
    digest: bytes
    """SHA-256 of them."""
    extends: tuple[bytes, ...]
    """What its entries extend, in order."""
    marks: tuple[tuple[int, int], ...]
    """Position and mark of each that has one."""

    def stands_at(self, data: bytes, start: int) -> bool:
        """Tell whether a list has this very run there."""
        return sha256(data[start : start + self.size]).digest() == self.digest

    def after(self, pcr: bytes, num_entries: int) -> bytes:
        """The register after so many of its entries; nothing where it has fewer."""
        if num_entries > len(self.extends):
            return b""
        for extend in self.extends[:num_entries]:
            pcr = sha256(pcr + extend).digest()
        return pcr

    def extend(self, pcr: bytes, target: bytes) -> tuple[bytes, int, int]:
        """Extend the register by the run, or up to the entry that reaches the quote.

        Args:
            pcr: the register before the run.
            target: the quoted value.

        Returns:
            The register, how many entries it took, and the sum of their marks.
        """
        read = 0
        for extend in self.extends:
            pcr = sha256(pcr + extend).digest()
            read += 1
            if pcr == target:
                break
        return pcr, read, sum(mark for place, mark in self.marks if place < read)


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
        """One more entry, which was accepted; a violation ends the run, which is forgotten."""
        if judged[0] == VIOLATION:
            self._drop()
        elif self._start >= 0:
            self._judged.append(judged)

    def end(self, position: int) -> None:
        """The run that was begun ends before this byte, and is kept."""
        if self._start >= 0 and len(self._judged) >= _SHORTEST:
            data = self._data[self._start : position]
            self.found[data[:HEAD]] = Run(
                size=len(data),
                digest=sha256(data).digest(),
                extends=tuple(extend for extend, _ in self._judged),
                marks=tuple((n, mark) for n, (_, mark) in enumerate(self._judged) if mark),
            )
        self._drop()

    def _drop(self) -> None:
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


def whole(digest: bytes, judged: Sequence[Judged | None]) -> dict[bytes, Run]:
    """The whole list of a renewal as a run, by its digest; nothing where it may not be kept.

    Args:
        digest: SHA-256 of the list.
        judged: its entries; None for one whose verdict is not for all nodes (a violation).
    """
    accepted = [one for one in judged if one is not None and one[0] != VIOLATION]
    if not judged or len(accepted) < len(judged):
        return {}
    extends = tuple(extend for extend, _ in accepted)
    marks = tuple((n, mark) for n, (_, mark) in enumerate(accepted) if mark)
    return {digest: Run(0, digest, extends, marks)}


def starts_run(entry: bytes) -> bool:
    """Tell whether a run starts at this entry of a binary list."""
    return entry[_DIGEST_BYTE] < _STARTS_BELOW
