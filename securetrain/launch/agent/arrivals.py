# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The word of a launcher about its ranks: from their reports to the coordinator.

Rules:

1. a node is in the group when all of its ranks are, waits when one of them does, and works before;
2. only the reports of the workers that run now count: of a start before, they may have its rank and
   its attempt;
3. workers whose exception says that others are gone, or that were ended by torch's own abort, may
   have lost the group: whom they missed is said. A time-out in a group that was there is none of
   these: a script that waits for itself would begin again and again. Those that end with an
   exception of their own have failed by themselves. Of an exit code or a signal alone nobody knows:
   their agent waits for news (`member_agent`), but not as long as the coordinator waits for its
   word (`arrivals`, there);
4. ranks become nodes by the membership alone.
"""

import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from securetrain.launch.process.workerlog import GroupReport, WorkerReport, is_second_hand
from securetrain.rendezvous.member import Member
from securetrain.rendezvous.wire import Membership, node_of, protocol

LOOK_SECONDS: Final = 0.5
UNKNOWN_PART: Final = 0.25
_TIMED_OUT: Final = re.compile(r"time[d-]? ?out", re.IGNORECASE)

ReadReport = Callable[[int, int], WorkerReport | None]
"""Reads the report of a rank and an attempt, if there is a good one."""


@dataclass(slots=True)
class NodeArrival:
    """One node's ranks on their way into the group."""

    read: ReadReport
    _started: float = 0.0
    _looked: float = 0.0
    _said: tuple[object, ...] = field(default=())

    def started(self) -> None:
        """Workers are started."""
        self._started, self._said = time.monotonic(), ()

    def look(
        self, member: Member, ranks: Sequence[int], attempt: int, *, at_once: bool = False
    ) -> None:
        """Say where the ranks are, if that is news."""
        now = time.monotonic()
        if now < self._looked + LOOK_SECONDS and not at_once:
            return
        self._looked = now
        groups = self._groups(ranks, attempt)
        if not groups:
            return
        arrived = len(groups) == len(ranks) and all(group.arrived for group in groups)
        self._say(
            member,
            protocol.ArrivalState.ARRIVED if arrived else protocol.ArrivalState.WAITING,
            groups,
        )

    def patience(self, member: Member, failures: Mapping[int, Any], attempt: int) -> float:
        """Workers have failed: say so if they may have lost the group. Rule 3.

        Returns:
            Of the time that a failure waits for news, so much.
        """
        if not failures:
            return 1.0
        found = [self._is_lost(*each, attempt) for each in failures.items()]
        if all(found) and not self._has_timed_out(list(failures), attempt):
            self._say(member, protocol.ArrivalState.FAILED, self._groups(list(failures), attempt))
        if all(found):
            return 1.0
        return 0.0 if False in found else UNKNOWN_PART

    def _has_timed_out(self, ranks: Sequence[int], attempt: int) -> bool:
        reports = [self._fresh(rank, attempt) for rank in ranks]
        return any(
            report.group is not None
            and report.group.arrived
            and (report.error is None or bool(_TIMED_OUT.search(report.error.message)))
            for report in reports
            if report is not None
        )

    def _say(
        self, member: Member, stand: protocol.ArrivalState, groups: Sequence[GroupReport]
    ) -> None:
        current = member.membership
        if current is None:
            return
        waiting = [group for group in groups if not group.arrived]
        missing = nodes_of(current, {rank for group in waiting for rank in group.missing})
        timeout = min((group.timeout for group in waiting), default=0.0)
        said = (current.epoch, stand, missing, timeout)
        if said != self._said:
            self._said = said
            member.say_arrival(stand, missing, timeout)

    def _groups(self, ranks: Sequence[int], attempt: int) -> list[GroupReport]:
        """The ranks' reports; nothing of those that have begun no group."""
        reports = [self._fresh(rank, attempt) for rank in ranks]
        return [report.group for report in reports if report is not None and report.group]

    def _fresh(self, rank: int, attempt: int) -> WorkerReport | None:
        """Rule 2."""
        report = self.read(rank, attempt)
        group = None if report is None else report.group
        return report if group is not None and group.begun >= self._started else None

    def _is_lost(self, rank: int, failure: Any, attempt: int) -> bool | None:
        """Tell whether a rank has lost the group; None when nobody knows."""
        report = self._fresh(rank, attempt)
        if failure.exitcode == -signal.SIGABRT and report is not None:
            return True
        if failure.exitcode < 0 or report is None or report.error is None:
            return None
        return is_second_hand(report.error)


def nodes_of(membership: Membership, ranks: Collection[int]) -> tuple[str, ...]:
    """The nodes of ranks, by name; ranks that the epoch has not are nobody's."""
    found = set()
    for rank in ranks:
        try:
            found.add(node_of(membership, rank))
        except LookupError:
            continue
    return tuple(sorted(found))
