# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The words of a node's ranks on their files, until those of one save are all there. No I/O.

A node signs once for all its ranks (`artifacts.statement.checkpoint_predicate`). Rules:

1. a word is a rank's only if that rank's process handed it in: the caller has seen to it
   (`rules`), and no worker says anything of another one's;
2. one word of a rank in a save: the same bytes again have the same reply, others are refused;
3. the words of a save agree on everything but rank and file: run, step, world, tree, records;
4. a save is whole when every rank of this node has handed its word in, or rank 0 where it saves
   alone. Before that nothing is signed, and whatever ends the round ends it;
5. what a rank can have kept is bounded, and only its own older words go for its newer ones: no
   worker can push out what its neighbours have said.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from securetrain.artifacts import checkpoint_predicate, members
from securetrain.core.errors import RuntimeRefusal

OTHER_TIME: Final = "ST-RUNT-033"
MOST_SAVES: Final = 8
"""Of one rank at a time; one in the background and one in the foreground are two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A rank's word on its file, as it was handed in."""

    said: members.RankMessage
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The words of all ranks of this node in one save."""

    ranks: tuple[int, ...]
    leaves: tuple[str, ...]
    message: bytes
    """What the node signs."""


@dataclass(slots=True)
class NodeFiles:
    """The words of one node's ranks in one round."""

    ranks: frozenset[int] = frozenset()
    """The workers of this node. While nobody has said which, no save is whole."""
    _words: dict[int, dict[str, Word]] = field(default_factory=dict)
    """By rank and save, the oldest first."""

    def begin(self, ranks: frozenset[int]) -> None:
        """New workers: what those before them have said counts no more."""
        self.ranks = ranks
        self._words.clear()

    def take(self, word: Word) -> Whole | None:
        """Take a word; the words of all ranks when it was the last one.

        Raises:
            RuntimeRefusal: ST-RUNT-033 by rules 2 and 3; then nothing has changed.
        """
        said, save = word.said, word.said.save_id
        own = self._words.get(said.rank, {})
        before = own.get(save)
        if before is not None and before.message != word.message:
            raise RuntimeRefusal(
                OTHER_TIME, f"rank {said.rank} has said something else in save {save[:16]}"
            )
        for rank, words in self._words.items():
            if (other := words.get(save)) is not None:
                _check_agree(said, rank, other.said)
        if before is None:
            self._words[said.rank] = own = {**own, save: word}
            while len(own) > MOST_SAVES:
                del own[next(iter(own))]
        return self._whole(said)

    def _whole(self, said: members.RankMessage) -> Whole | None:
        wanted = frozenset({0}) if said.world_size == 1 else self.ranks
        found = {
            rank: self._words[rank][said.save_id]
            for rank in sorted(wanted)
            if said.save_id in self._words.get(rank, {})
        }
        if not wanted or len(found) < len(wanted):
            return None
        ranks = tuple(found)
        leaves = tuple(checkpoint_predicate.leaf_of(one.message) for one in found.values())
        message = checkpoint_predicate.node_message(said.run_id, said.save_id, ranks, leaves)
        return Whole(ranks=ranks, leaves=leaves, message=message)


def _check_agree(said: members.RankMessage, rank: int, other: members.RankMessage) -> None:
    """Rule 3."""
    common = msgspec.structs.replace(said, rank=other.rank, file=other.file)
    if common == other:
        return
    names = [
        name for name in common.__struct_fields__ if getattr(common, name) != getattr(other, name)
    ]
    raise RuntimeRefusal(
        OTHER_TIME,
        f"ranks {said.rank} and {rank} of this node do not agree on the {names[0]} of save"
        f" {said.save_id[:16]}: {getattr(said, names[0])} and {getattr(other, names[0])}"[:500],
        fix="save the same step with all ranks",
    )
