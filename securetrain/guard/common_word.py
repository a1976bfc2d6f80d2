# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Know what every rank says although one of them tells each other rank something else. Pure.

Each rank says a word, then passes on what it heard from the others (the "oral messages" of the
Byzantine generals, 1982). A rank's word is what more than half of the **others** heard from it.
With four ranks or more, of which **one** may lie, and messages that come directly from their
senders:

1. what an honest rank says is its word: all but the liar pass on the same;
2. what the liar says is the same word, or none, to all honest ranks: all who pass it on are honest,
   and tell everybody alike;
3. all know it at once, after two messages. Whatever they decide by these words they decide alike,
   in the same step, and go on together. One message could not do that.

With more liars (1) holds as long as the others are more than half; (2) may not.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

LEAST: Final = 4
"""Ranks; among three a liar cannot be told from a rank that was lied to."""

Gather = Callable[[bytes], Sequence[bytes]]
"""Sends a message to every rank, and returns what each of them has sent to this one."""


def gather_words(mine: bytes, gather: Gather) -> tuple[bytes | None, ...]:
    """The word of each rank, as long as this one's; None: it did not say the same to most.

    Args:
        mine: This rank's.
        gather: With all ranks, itself included.
    """
    heard = gather(mine)
    passed_on = gather(b"".join(heard))
    length, ranks = len(mine), range(len(heard))
    words: list[bytes | None] = []
    for rank in ranks:
        place = slice(length * rank, length * (rank + 1))
        said = Counter(passed_on[other][place] for other in ranks if other != rank)
        word, count = said.most_common(1)[0]
        words.append(word if 2 * count > len(heard) - 1 else None)
    return tuple(words)
