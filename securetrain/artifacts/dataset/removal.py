# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a dataset that must not be read any more (tombstones).

What has to go, because a person asked for it or because it was poisoned, cannot simply vanish from
a signed file. The next version of the statement names the bytes, and from then on no reader of ours
hands them out; a read that touches one of them is refused.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from securetrain.artifacts.statement.dataset_predicate import Removed
from securetrain.core.errors import IntegrityError


@dataclass(slots=True)
class Removals:
    """The removed stretches, by file."""

    _starts: dict[str, list[int]] = field(default_factory=dict)
    _stretches: dict[str, list[Removed]] = field(default_factory=dict)

    @classmethod
    def of(cls, removed: Sequence[Removed]) -> "Removals":
        """Those of a verified statement, which are sorted and do not overlap."""
        found = cls()
        for one in removed:
            found._starts.setdefault(one.file, []).append(one.offset)
            found._stretches.setdefault(one.file, []).append(one)
        return found

    def __bool__(self) -> bool:
        return bool(self._starts)

    def touching(self, file: str, offset: int, length: int) -> Removed | None:
        """The first removed stretch that shares a byte with a range; None when there is none."""
        starts = self._starts.get(file)
        if starts is None or length == 0:
            return None
        at = bisect_right(starts, offset) - 1
        for one in self._stretches[file][max(at, 0) : at + 2]:
            if one.offset < offset + length and offset < one.offset + one.length:
                return one
        return None

    def kept(self, file: str, size: int) -> list[tuple[int, int]]:
        """Begin and end of the stretches of a file that may be read."""
        stretches, at = [], 0
        for one in self._stretches.get(file, []):
            stretches.append((at, one.offset))
            at = one.offset + one.length
        stretches.append((at, size))
        return [(begin, end) for begin, end in stretches if begin < end]

    def check(self, file: str, offset: int, length: int, where: str) -> None:
        """Refuse a read that touches what was removed.

        Raises:
            IntegrityError: ST-DATA-122.
        """
        one = self.touching(file, offset, length)
        if one is not None:
            what = f"sample {one.sample}" if one.sample else f"{one.length} bytes"
            because = f": {one.reason}" if one.reason else ""
            raise IntegrityError(
                "ST-DATA-122",
                f"{what} at byte {one.offset} was removed{because}",
                f"{where}/{file}",
            )
