# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The votes that end a job, and those that say that a member is not to be trusted. No I/O.

Rules:

1. a Close counts from a member of the current round: one that is in it, and in its membership. Of
   anybody else, a spare node among them, it is recorded and counts for nothing;
2. the job ends when the policy's quorum of that round has closed it. By default that is rank 0's
   node, or more than half of the members; `rendezvous.close_quorum` may ask for more than half, or
   for all. It also ends when every node that is there has closed it: nobody is left to be harmed;
3. a node whose workers have failed, or have not come to the group that the others have made
   (`arrivals`), does not vote that the job has ended well;
4. a vote is its node's until the node asks for another round. It outlasts the node's going: who
   has finished need not wait for the others;
5. a suspicion is recorded and evicts nobody. More than half of the members of an epoch that name
   the same other member of it do; so does a transcript of an audit that the coordinator checks
   (`Suspicions.transcript`). A node's own voice against it counts once, and only in that epoch.
   What statistics say of a gradient (`is_statistical`) is recorded and never counts, from however
   many: honest ranks are off by chance too, and only an audit can tell.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from securetrain.core.vocabulary import CloseQuorum
from securetrain.rendezvous.wire.membership import Membership

CheckTranscript: TypeAlias = Callable[[bytes, str, Membership], bool]
"""Tells whether an audit's transcript proves that a node of an epoch is at fault."""


def is_over(
    rule: CloseQuorum,
    members: Sequence[str],
    finished: Collection[str],
    present: Collection[str],
    failed: Collection[str] = (),
) -> bool:
    """Tell whether the votes end the job: rule 2.

    Args:
        rule: The policy's quorum.
        members: Of the current epoch, by rank.
        finished: Nodes that have closed the job.
        present: Nodes that are in, members or not.
        failed: Those that have closed it because their workers have failed.
    """
    closed = [node for node in members if node in finished]
    if closed and present and set(present) <= set(closed):
        return True
    votes = [node for node in closed if node not in failed]
    if not votes:
        return False
    match rule:
        case CloseQuorum.FIRST_OR_MAJORITY:
            return members[0] in votes or 2 * len(votes) > len(members)
        case CloseQuorum.MAJORITY:
            return 2 * len(votes) > len(members)
        case CloseQuorum.ALL:
            return len(votes) == len(members)


def is_statistical(code: str) -> bool:
    """Tell whether a cause is one of which no number of voices evicts."""
    match code:
        case "ST-GRAD-001" | "ST-GRAD-002":
            return True
        case _:
            return False


def no_transcripts(_transcript: bytes, _node: str, _membership: Membership) -> bool:
    """No audit makes transcripts that a coordinator can check yet: none proves anything."""
    return False


@dataclass(slots=True)
class Suspicions:
    """The voices of an epoch's members against each other: rule 5."""

    transcript: CheckTranscript = no_transcripts
    _epoch: int = -1
    _voices: dict[str, set[str]] = field(default_factory=dict)
    _doubts: dict[str, set[str]] = field(default_factory=dict)
    """Voices that only statistics stand behind."""

    def add(self, membership: Membership, by: str, against: str, code: str = "") -> int | None:
        """A member accuses another; the voices against it that count, or None if heard before."""
        if membership.epoch != self._epoch:
            self._epoch = membership.epoch
            self._voices.clear()
            self._doubts.clear()
        if is_statistical(code):
            doubts = self._doubts.setdefault(against, set())
            heard = by in doubts
            doubts.add(by)
            return None if heard else len(self._voices.get(against, ()))
        voices = self._voices.setdefault(against, set())
        if by in voices:
            return None
        voices.add(by)
        return len(voices)

    def proven(self, membership: Membership, against: str, transcript: bytes) -> bool:
        """Tell whether a member is to be evicted: by a majority, or by what an audit shows."""
        voices = self._voices.get(against, set()) if membership.epoch == self._epoch else set()
        if 2 * len(voices) > len(membership.members):
            return True
        return bool(transcript) and self.transcript(transcript, against, membership)
