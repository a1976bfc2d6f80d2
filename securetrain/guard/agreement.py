# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One decision for all pieces of a model: what one group of ranks refuses, every rank refuses.

A pipeline stage or a tensor-parallel coordinate is judged by the ranks that hold it (watch.py). An
optimizer step on the others alone would tear the model apart, so after the groups every rank tells
every other one, in a single small all-gather of fixed size, which codes its group refuses with and
whom it names. Rules:

1. a refusal by any rank is everybody's, whether or not it can be attributed; what a group has
   settled is no refusal;
2. a rank is named to the others when more than half of **its own** group's ranks name it: nobody
   can accuse a rank of another group, and a lone liar accuses nobody;
3. which groups there are is exchanged once and must be the same to all (ST-GRAD-006);
4. all ranks fold the same rows into what they found, so that the verdict is equal everywhere.
"""

from collections.abc import Collection, Sequence
from typing import Final

import torch.distributed as dist
from torch.distributed import ProcessGroup

from securetrain.core.errors import GuardError
from securetrain.guard.group_channel import Channel, GroupChannel
from securetrain.guard.presence import Deadline
from securetrain.guard.response import Findings

_FOUND: Final = (1, 2, 3, 4, 11, 12, 13, 14)
"""Numbers of the codes that a group can find, one bit each. A row has one byte for them."""
_NAMED: Final = 16
"""Ranks that one row can name; who names more names none that matter one by one."""
_NOBODY: Final = (1 << 32) - 1
_FLAGS: Final = ("refused", "contested", "undecided", "upstream", "reaches_back")
"""Of `Findings`: what one group finds, all have."""
_LISTS: Final = ("outliers", "excluded", "newly_excluded", "readmitted", "proven")
"""Of `Findings`: ranks that a majority of their own group names."""
_LIMIT: Final = 64 << 20


class JobAgreement:
    """The ranks that decide as one.

    Args:
        group: these ranks; every group that holds a piece lies inside it.
        ranks: that hold this rank's piece.
        deadline: for each message.
    """

    def __init__(
        self, group: ProcessGroup, ranks: Sequence[int], deadline: Deadline | None = None
    ) -> None:
        self._channel: Channel = GroupChannel(group, deadline)
        self._all = dist.get_process_group_ranks(group)
        sizes = {_number(row) for row in self._channel.all_gather(_bytes(len(ranks)))}
        rows = self._channel.all_gather(b"".join(map(_bytes, ranks))) if len(sizes) == 1 else []
        self._groups = [_numbers(row) for row in rows]
        of = dict(zip(self._all, self._groups, strict=False))
        if not of or any(
            rank not in group or any(of.get(member, group) != group for member in group)
            for rank, group in of.items()
        ):
            raise GuardError(
                "ST-GRAD-006",
                "the ranks do not agree on the holders of the model's pieces",
                "the groups given to the guard",
                "give every rank the group of its own piece",
            )

    @property
    def leaders(self) -> list[int]:
        """The place of the first rank of every group, each once."""
        seen: dict[tuple[int, ...], int] = {}
        for place, group in enumerate(self._groups):
            seen.setdefault(group, place)
        return list(seen.values())

    def exchange(self, findings: Findings) -> int:
        """Tell the others and hear them; codes and names are the same on every rank then. Returns
        the bytes sent. Collective.
        """
        codes = sum(1 << bit for bit, n in enumerate(_FOUND) if code_of(n) in findings.codes)
        flags = sum(1 << bit for bit, name in enumerate(_FLAGS) if getattr(findings, name))
        flags |= int(not findings.attributed) << len(_FLAGS)
        lists = [_padded(getattr(findings, name)) for name in _LISTS]
        row = bytes([codes, flags]) + b"".join(map(_bytes, [r for ranks in lists for r in ranks]))
        rows = self._channel.all_gather(row)
        said = [_numbers(row[2:]) for row in rows]
        for place, name in enumerate(_LISTS):
            part = [ranks[_NAMED * place : _NAMED * (place + 1)] for ranks in said]
            setattr(findings, name, set(accused_by_majority(self._groups, part)))
        for bit, name in enumerate(_FLAGS):
            setattr(findings, name, any(row[1] >> bit & 1 for row in rows))
        for bit, number in enumerate(_FOUND):
            if any(row[0] >> bit & 1 for row in rows) and code_of(number) not in findings.codes:
                findings.codes.append(code_of(number))
                findings.note("another piece of the model was refused")
        if findings.codes:
            unsure = any(row[0] and row[1] >> len(_FLAGS) & 1 for row in rows)
            findings.attributed = bool(findings.outliers) and not unsure
        return len(row)

    def gather_from_leaders(self, mine: bytes) -> list[bytes]:
        """Gather a message from the first rank of every group, for every rank. Collective.

        Raises:
            ValueError: it is too much.
        """
        lengths = [_number(row) for row in self._channel.all_gather(_bytes(len(mine)))]
        leaders = self.leaders
        if sum(lengths[place] for place in leaders) > _LIMIT:
            raise ValueError(f"more than {_LIMIT} bytes")
        return [self._channel.broadcast(mine, lengths[place], place) for place in leaders]


def accused_by_majority(
    groups: Sequence[tuple[int, ...]], said: Sequence[Sequence[int]]
) -> list[int]:
    """The ranks that more than half of their own group name (rule 2).

    Args:
        groups: For every rank that speaks, who holds its piece.
        said: And whom it names.
    """
    votes: dict[int, int] = {}
    voters: dict[tuple[int, ...], int] = {}
    for group, ranks in zip(groups, said, strict=True):
        voters[group] = voters.get(group, 0) + 1
        for rank in set(ranks) & set(group):
            votes[rank] = votes.get(rank, 0) + 1
    return sorted(
        rank for group, count in voters.items() for rank in group if votes.get(rank, 0) > count / 2
    )


def _padded(ranks: Collection[int]) -> list[int]:
    mine = sorted(ranks) if len(ranks) <= _NAMED else []
    return mine + [_NOBODY] * (_NAMED - len(mine))


def code_of(number: int) -> str:
    """The code of a finding."""
    return f"ST-GRAD-{number:03}"


def _bytes(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _numbers(data: bytes) -> tuple[int, ...]:
    return tuple(_number(data[at : at + 4]) for at in range(0, len(data), 4))
