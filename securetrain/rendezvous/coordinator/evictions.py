# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The members of a job that turned out not to be believed, and since when.

Rules:

1. a member that is evicted, lost or leaves is out of its epoch at once: the others hear its name
   and stop listening to it, before they restart their workers. Else a node could keep its tunnel by
   dropping the connection on which it would have to prove itself again;
2. one that was evicted for what it showed or did (its evidence, its lease, a revocation, a message
   that has no place) is believed up to the challenge before its last good evidence, and no longer.
   Every later membership says so, and who joins later knows it too;
3. one that fell silent, cannot be reached, left while the job went on, or met a coordinator that
   could not decide or write, has not proven itself since. Under ``node.doubt_lost`` it is believed
   no longer than that either (ST-ADMN-018): else a node that cannot prove itself again would only
   have to go. Without it, such a node is just gone;
4. a node that found the job closed is none of these.

Which of these an end is, its code's row says (`core.codes`, column ``node``).
"""

from datetime import datetime
from typing import Final

from securetrain.core import Node
from securetrain.core.errors import SecureTrainError
from securetrain.rendezvous.coordinator.memory import Held, JobState
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.wire.membership import Evicted, Membership
from securetrain.rendezvous.wire.protocol import MAX_EVICTED

GONE: Final = "ST-ADMN-018"


class Evictions:
    """The coordinator's account of them. Nothing here locks."""

    def __init__(self, *, doubt_lost: bool = True) -> None:
        """Nobody was evicted yet.

        Args:
            doubt_lost: Rule 3.
        """
        self._doubt_lost = doubt_lost
        self._all: list[Evicted] = []
        self._out: list[str] = []
        self._last: dict[str, int] = {}
        self._led: set[str] = set()
        self._current: frozenset[str] = frozenset()

    @property
    def all(self) -> tuple[Evicted, ...]:
        """The evictions that a membership names: the latest, oldest first."""
        return tuple(self._all[-MAX_EVICTED:])

    @property
    def out(self) -> tuple[str, ...]:
        """Members of the current epoch that are out."""
        return tuple(self._out[-MAX_EVICTED:])

    def formed(self, membership: Membership) -> None:
        """A new epoch has begun."""
        self._out.clear()
        self._current = frozenset(member.node for member in membership.members)
        for member in membership.members:
            self._last[member.node] = membership.epoch
        self._led.add(membership.members[0].node)

    def gone(self, node: str) -> None:
        """A node is not connected any more."""
        if node in self._current and node not in self._out:
            self._out.append(node)

    def add(self, session: Session, error: SecureTrainError | None) -> Evicted | None:
        """An admitted node is out, with a reason or by itself; returns what there is to say."""
        return self._add(session.node, session.proven, error)

    def lost(self, held: Held) -> Evicted | None:
        """A member did not come back to the coordinator after another one."""
        return self._add(held.node, held.proven, None)

    @property
    def last(self) -> dict[str, int]:
        """The last epoch of each node that was in one."""
        return dict(self._last)

    @property
    def led(self) -> frozenset[str]:
        """The nodes that were ever rank 0."""
        return frozenset(self._led)

    def restore(self, state: JobState) -> None:
        """Go on from the account of another coordinator."""
        self._all, self._out = list(state.evicted), list(state.out)
        self._last, self._led = dict(state.last), set(state.led)
        self._current = frozenset(member.node for member in state.membership.members)

    def _add(
        self, node: str, proven: datetime | None, error: SecureTrainError | None
    ) -> Evicted | None:
        verdict = Node.UNPROVEN if error is None else error.definition.node
        if verdict is Node.FREE or (verdict is Node.UNPROVEN and not self._doubt_lost):
            return None
        code = GONE if error is None or verdict is Node.UNPROVEN else error.code
        if proven is None or node not in self._last:
            return None
        gone = Evicted(
            node=node,
            code=code,
            last_good=proven,
            epoch=self._last[node],
            led=node in self._led,
        )
        self._all.append(gone)
        return gone
