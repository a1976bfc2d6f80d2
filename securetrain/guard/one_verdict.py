# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One verdict for all ranks of a group, whatever a liar tells each of them.

Every rank works out what a step's messages mean. Who was told other messages may come to another
end, leave out another rank than the others do, or drop a step that they apply; then their
reductions do not meet any more. So nobody acts on what it has read before all know what all have
read. Rules, for four ranks or more:

1. behind the table of each step every rank says a digest of its finding and of all it was told
   since the last one, in two small messages (common_word.py), so that all honest ranks know the
   same digests. A rank that says another one to each of them is caught there;
2. what most say counts, for all; the finding itself is sent only when it is not that of the step
   before and somebody has another one. A rank that alone has found something is overruled;
3. when digests differ, ranks say what they heard from each, rank by rank. Who told more ranks
   otherwise than may lie is **guilty**; else it is a dispute of two, which names neither, and both
   have no say for `MEMORY` steps: with one liar all others are honest. Nothing is learned from such
   a step. A rank that is odd more than `STRIKES` times in that time without a dispute has none
   either. So nobody can make the others compare, or forget, in every step;
4. what is still not agreed on is nobody's finding: the step is refused by all, and settled.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.guard.common_word import gather_words
from securetrain.guard.dispute import REMEMBERED, Standing, guilty_by_standing
from securetrain.guard.group_channel import Channel

MEMORY: Final = REMEMBERED
"""Steps for which a dispute counts."""
STRIKES: Final = 3
MOST_RANKS: Final = 64
"""In larger groups nobody asks who was told what: the answers grow with the third power."""
TOLD_OTHERWISE: Final = "told the others different things"
_DIGEST: Final = 16

Words = tuple[bytes | None, ...]


class Heard:
    """A channel that remembers a digest of everything that each rank has told this one.

    Args:
        channel: of the group.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._digests = [hashlib.sha256() for _ in range(channel.size)]
        self.is_asked = True
        """Whether anybody takes the digests."""

    @property
    def rank(self) -> int:
        """See `Channel`."""
        return self._channel.rank

    @property
    def size(self) -> int:
        """See `Channel`."""
        return self._channel.size

    def all_gather(self, data: bytes) -> list[bytes]:
        """See `Channel`."""
        rows = self._channel.all_gather(data)
        if self.is_asked:
            for digest, row in zip(self._digests, rows, strict=True):
                digest.update(row)
        return rows

    def broadcast(self, data: bytes, size: int, source: int) -> bytes:
        """See `Channel`."""
        return self._channel.broadcast(data, size, source)

    def take(self) -> tuple[bytes, ...]:
        """The digests since the last call, by rank."""
        digests, size = self._digests, len(self._digests)
        self._digests = [hashlib.sha256() for _ in range(size)]
        return tuple(one.digest()[:_DIGEST] for one in digests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The end of a step's comparison; equal on every honest rank, but for `mine`."""

    finding: bytes | None
    """The one that counts; None: there is none."""
    mine: bool
    """It is this rank's, which has read what most have read."""
    learn: bool = True
    """All were told the same, which may be learned from."""
    guilty: tuple[int, ...] = ()
    """Ranks that told the others different things."""
    disputes: tuple[tuple[int, int], ...] = ()
    """Pairs of which one told the other something else, or the other says so."""


class OneVerdict:
    """The comparisons of one group of ranks. Collective.

    Args:
        channel: the group.
        limit: how many ranks may lie, for what is held against one.
    """

    def __init__(self, channel: Channel, limit: int) -> None:
        self._channel = channel
        self._limit = limit
        self._standing = Standing(channel.size, limit)
        self._odd: dict[int, list[int]] = {}
        self._step = 0
        self._last = b""
        self.barred: frozenset[int] = frozenset()
        """Ranks that were found guilty, as long as they are excluded: what they say is not read."""

    @property
    def quiet(self) -> frozenset[int]:
        """Ranks whose values are in no seed: one of them may tell each rank another."""
        quiet = self.barred.union(*self._standing.pairs)
        return quiet if len(quiet) < self._channel.size - 1 else self.barred

    def agree(self, finding: bytes, heard: Sequence[bytes]) -> Agreed:
        """Compare findings.

        Args:
            finding: this rank's; as long on every rank.
            heard: a digest of what each rank has told this one.
        """
        self._step += 1
        self._standing.begin()
        heard = [b"" if rank in self.barred else one for rank, one in enumerate(heard)]
        known = finding + _digest(b"".join(heard))
        news = finding != self._last
        words = self._gather(bytes([news]) + _digest(known))
        guilty = self._two_faced(words)
        disputes: tuple[tuple[int, int], ...] = ()
        word, odd = self._count(words)
        learn = not odd  # then there is a word
        if not learn:
            guilty, disputes = self._compare(heard, guilty)
            self._strike(odd, disputes)
            word, _ = self._count(words)
        mine = words[self._channel.rank] == word
        found: bytes | None = None
        if word is not None and not word[0]:
            found = self._last
        elif word is not None:
            said = self._fetch(known, word[1:], words)
            found = None if said is None else said[: len(finding)]
        self._last = found or self._last
        return Agreed(finding=found, mine=mine, learn=learn, guilty=guilty, disputes=disputes)

    def same(self, heard: Sequence[bytes]) -> tuple[bool, tuple[int, ...]]:
        """Compare what was heard in a part of a step; returns whether it can be used, and the
        guilty.

        Args:
            heard: a digest of what each rank has told this one.
        """
        heard = [b"" if rank in self.barred else one for rank, one in enumerate(heard)]
        words = self._gather(_digest(b"".join(heard)))
        _, odd = self._count(words)
        if not odd:
            return True, ()
        guilty, disputes = self._compare(heard, self._two_faced(words))
        self._strike(odd, disputes)
        return False, guilty

    def choose(self, mine: bytes) -> bytes | None:
        """Return the message of most; as long on every rank, and equal on every honest one."""
        words = self._gather(_digest(mine))
        word, _ = self._count(words)
        return None if word is None else self._fetch(mine, word, words)

    def _gather(self, mine: bytes) -> Words:
        return gather_words(mine, self._channel.all_gather)

    def _voters(self) -> list[int]:
        """The ranks that have a say."""
        struck = {rank for rank in self._odd if len(self._recent(rank)) > STRIKES}
        ranks = [rank for rank in range(self._channel.size) if rank not in self.barred]
        disputed = {rank for pair in self._standing.pairs for rank in pair}
        for silent in (struck | disputed, disputed):
            voters = [rank for rank in ranks if rank not in silent]
            if len(voters) > 1:
                return voters
        return ranks

    def _count(self, words: Words) -> tuple[bytes | None, list[int]]:
        """The word that counts, and who has a say and says another."""
        voters = self._voters()
        counts = Counter(said for rank in voters if (said := words[rank]) is not None)
        if not counts:
            return None, voters
        # Of equal counts any will do: neither is enough.
        most = min(counts, key=lambda said: (-counts[said], said))
        odd = [rank for rank in voters if words[rank] != most]
        enough = max(len(voters) // 2 + 1, len(voters) - self._limit)
        return (most if counts[most] >= enough else None), odd

    def _two_faced(self, words: Words) -> tuple[int, ...]:
        return tuple(
            rank for rank, said in enumerate(words) if said is None and rank not in self.barred
        )

    def _compare(
        self, heard: Sequence[bytes], guilty: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Find those who told others something else: the guilty, and pairs that contradict."""
        size = self._channel.size
        if size > MOST_RANKS:
            return guilty, ()
        said = self._gather(b"".join(one or bytes(_DIGEST) for one in heard))
        found, pairs = {*guilty, *self._two_faced(said)}, set[tuple[int, int]]()
        for rank in range(size):
            place = slice(_DIGEST * rank, _DIGEST * (rank + 1))
            others = {r: one[place] for r, one in enumerate(said) if one is not None and r != rank}
            if rank in self.barred or not others:
                continue
            most, _ = Counter(others.values()).most_common(1)[0]
            told = [other for other, one in others.items() if one != most]
            pairs.update((min(rank, other), max(rank, other)) for other in told)
        pairs = {pair for pair in pairs if not found & {*pair}}
        for rank in found:
            self._standing.forget(rank)
        found.update(guilty_by_standing(self._standing, sorted(pairs)))
        return tuple(sorted(found)), tuple(sorted(p for p in pairs if not found & {*p}))

    def _recent(self, rank: int) -> list[int]:
        return [at for at in self._odd.get(rank, []) if self._step - at < MEMORY]

    def _strike(self, odd: Collection[int], disputes: Collection[tuple[int, int]]) -> None:
        """A rank that is odd was told otherwise, which is a dispute, or says so."""
        for rank in odd:
            if not any(rank in pair for pair in disputes):
                self._odd[rank] = [*self._recent(rank), self._step]

    def _fetch(self, mine: bytes, digest: bytes, words: Words) -> bytes | None:
        """Return the message of a digest; all know whether anybody has to be told."""
        alike = [said is not None and said[-_DIGEST:] == digest for said in words]
        if all(alike):
            return mine
        for row in self._channel.all_gather(mine):
            if _digest(row) == digest:
                return row
        return None


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST]
