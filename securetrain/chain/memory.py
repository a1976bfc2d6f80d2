# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Answers of one verification, kept for the next checkpoint of the same chain.

Rules:

1. a memory belongs to one `links.Given`: trust root, evidence, time and question are the same for
   all that is in it. A `Given` that was replaced has a memory of its own;
2. a key names everything else that an answer depends on: the digests of what was read;
3. an exception is not kept: what was refused is judged anew, and refused anew;
4. of each kind, the `ROOM` answers that were used last are kept, so that a pack of any size is
   judged in bounded memory. Checkpoints of a run follow each other and share what they name.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

ROOM: Final = 8

T = TypeVar("T")


class Memory:
    """Answers by kind and key; see the module."""

    def __init__(self) -> None:
        self._kinds: dict[str, OrderedDict[Hashable, Any]] = {}

    def of(self, kind: str, key: Hashable, make: Callable[[], T], room: int = ROOM) -> T:
        """The answer to a question, which is made when it is not there.

        Args:
            kind: What is asked; the same `make` for each key of it.
            key: Everything that the answer depends on besides the `Given`.
            make: Finds the answer.
            room: How many answers of this kind are kept.
        """
        kept = self._kinds.setdefault(kind, OrderedDict())
        if key in kept:
            kept.move_to_end(key)
            return kept[key]  # type: ignore[no-any-return]
        found = make()
        kept[key] = found
        while len(kept) > room:
            kept.popitem(last=False)
        return found
