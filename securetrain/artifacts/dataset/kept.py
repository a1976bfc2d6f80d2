# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verified leaves that a process keeps: read and hashed once, then served from its own memory.

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

import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from securetrain.artifacts.tree.pool import local_processes

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
