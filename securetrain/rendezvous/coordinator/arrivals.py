# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The way into the workers' group, by the words of all members of an epoch. No I/O, no clock.

Rules:

1. nobody is late while nobody waits: a script that makes no group, or makes it after an hour of
   work, owes nobody anything. The time of a member begins when another one that is in the group's
   making first names it as missing;
2. an accusation is due after ``rendezvous.arrival_seconds``; sooner where the accuser's group would
   time out before, later where its script gave the group longer than torch does, and at once where
   the group has timed out;
3. a member that has said nothing of itself ``arrival_seconds`` after the epoch began is absent as
   soon as one accusation is due: every launcher says at once that its workers are at work, so no
   other's lie makes one silent;
4. a member that has spoken is absent, whatever it says, when the accusations of more than half of
   the members that are in are due;
5. those of exactly half are word against word: there is one new round, and then, for the same two,
   an end that names both. Those of fewer than half change nothing;
6. workers that have ended well count as that from a member that has arrived, or while no more than
   half of the members wait or have arrived;
7. a member that has gone, for whatever reason, is lost to those that wait for it or whose workers
   have lost the group since: there is a new round, if enough are left;
8. more than half of those whose workers have not ended lose the group, or half of all: there is a
   new round, three times within a short time; after that, what workers die of is their agents' to
   judge. Who alone has not lost it, each of these times and once more, is absent;
9. fewer lose it, and more than two work: there is a new round, three times for each of them until
   an epoch has lasted ten times ``arrival_seconds``. Who breaks the group for one of the others
   alone, or before they have all arrived, leaves that one with no more than its own word.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Final, TypeAlias

from securetrain.rendezvous.wire.protocol import Arrival, ArrivalState

TORCH_SECONDS: Final = 1800.0
"""torch's longest default for a group's time-out: a script that gives more has said that it may."""
_PART: Final = 0.9
"""Of a group's time-out, when an accusation is due that must come before it."""

_SETTLE: Final = 1.0
"""Seconds in which the word of the one that failed first may come after those of the others."""
_TIMES: Final = 4
_RECENT: Final = 10
"""Losses within so many times ``arrival_seconds`` are one story: rule 8."""

Pair: TypeAlias = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A judgement of the members' words; at most one of the three is not empty."""

    absent: dict[str, str] = field(default_factory=dict)
    """The members that are to go, and why."""
    again: str = ""
    """Why there is to be a new round."""
    end: str = ""
    """Why the job cannot go on."""


@dataclass(slots=True)
class _Word:
    """The latest word of a member."""

    stand: ArrivalState
    at: float
    due: dict[str, float] = field(default_factory=dict)
    """Whom it misses, and when that is due."""


class Arrivals:
    """The words of one job's members, epoch by epoch. Times are seconds on a steady clock."""

    def __init__(self, seconds: float, min_nodes: int) -> None:
        """Nobody has spoken.

        Args:
            seconds: ``rendezvous.arrival_seconds``.
            min_nodes: So few members can go on.
        """
        self._seconds, self._min_nodes = seconds, min_nodes
        self._epoch, self._begun, self._is_judged = -1, 0.0, False
        self._here: set[str] = set()
        self._gone: set[str] = set()
        self._words: dict[str, _Word] = {}
        self._done: set[str] = set()
        self._disputed: set[Pair] = set()
        self._losses: deque[tuple[float, frozenset[str]]] = deque(maxlen=_TIMES)
        """When the group was lost, and who had not lost it."""
        self._alone: Counter[str] = Counter()
        """How often members lost it that were fewer than half: rule 9."""

    def begin(self, epoch: int, members: Collection[str], now: float) -> None:
        """An epoch has begun."""
        if self._has_lasted(now):
            self._alone.clear()
        self._begun = now
        self._epoch, self._here, self._is_judged = epoch, set(members), False
        for kept in (self._gone, self._words, self._done):
            kept.clear()

    def hear(self, node: str, said: Arrival, now: float) -> None:
        """A member speaks of its ranks; of another epoch it says nothing."""
        if said.epoch != self._epoch or node not in self._here:
            return
        self._is_judged = False
        before = self._words.get(node)
        ended = before is not None and before.stand in {ArrivalState.ARRIVED, ArrivalState.FAILED}
        if ended and said.stand is not ArrivalState.FAILED:
            return  # groups that a script makes later are its own business
        # Who repeats that it has lost the group puts off no judgement.
        again = before is not None and before.stand is said.stand is ArrivalState.FAILED
        word = self._words[node] = _Word(said.stand, before.at if before and again else now)
        if said.stand in {ArrivalState.WAITING, ArrivalState.FAILED}:
            known = before.due if before is not None else {}
            due = now if said.stand is ArrivalState.FAILED else now + self._patience(said.timeout)
            others = (self._here | self._gone) - {node}
            word.due = {
                name: min(due, known.get(name, due)) for name in said.missing if name in others
            }

    def _patience(self, timeout: float) -> float:
        """Rule 2."""
        if timeout <= 0:
            return self._seconds
        before = _PART * timeout
        return before if timeout > TORCH_SECONDS else min(self._seconds, before)

    def finish(self, node: str) -> None:
        """A member says that its workers have ended well."""
        if node in self._here:
            self._done.add(node)

    def drop(self, node: str) -> None:
        """A member is gone, or its workers have failed for good."""
        if node in self._here:
            self._here.discard(node)
            self._gone.add(node)
            self._words.pop(node, None)

    @property
    def done(self) -> set[str]:
        """Members whose workers have ended well, as far as that counts: rule 6."""
        return {node for node in self._done & self._here if self.counts(node)}

    def counts(self, node: str) -> bool:
        """Tell whether what a member says of the end counts: rule 6."""
        word = self._words.get(node)
        if word is not None and word.stand in {ArrivalState.ARRIVED, ArrivalState.UNSEEN}:
            return True
        made = self._standing(ArrivalState.WAITING, ArrivalState.ARRIVED, ArrivalState.FAILED)
        return 2 * len(made) <= len(self._here)

    @property
    def is_lost(self) -> bool:
        """Tell whether the ranks of a member have lost the group."""
        return bool(self._standing(ArrivalState.FAILED))

    @property
    def deadline(self) -> float | None:
        """The time of the next judgement that no further word changes."""
        if self._without_the_gone() is not None:
            return 0.0
        ends = [self._lost_at, *(at for _, _, at, _ in self._cases())]
        return min((end for end in ends if end is not None), default=None)

    def judge(self, now: float) -> Judgement | None:
        """The judgement that is due: None when nothing is."""
        due = [case for case in self._cases() if case[2] <= now]
        absent = {node: why for node, why, _, against in due if not against}
        if absent:
            return Judgement(absent=absent)
        if (lost := self._without_the_gone() or self._lost(now)) is not None:
            return lost
        for node, why, _, against in due:
            pairs = {frozenset(pair) for pair in product([node], against)}
            if pairs & self._disputed:
                return Judgement(end=why)
            self._disputed |= pairs
            return Judgement(again=why)
        return None

    def _cases(self) -> Iterator[tuple[str, str, float, tuple[str, ...]]]:
        """Rules 3 to 5: who is accused, in words, when it is due, and whose word stands against."""
        size = len(self._here)
        for node in sorted(self._here):
            times = {
                by: word.due[node]
                for by, word in self._words.items()
                if node in word.due and by in self._here
            }
            if not times:
                continue
            order, who = sorted(times.values()), ", ".join(sorted(times))
            verb = "wait" if len(times) > 1 else "waits"
            if node not in self._words:
                why = f"{node} has not come to the workers' group and says nothing; {who} {verb}"
                yield node, why, max(order[0], self._begun + self._seconds), ()
                continue
            stand = self._words[node].stand
            why = f"{who} {verb} for {node} in the workers' group, and {node} says: {stand}"
            if 2 * len(times) > size:
                yield node, why, order[size // 2], ()
            elif 2 * len(times) == size:
                yield node, why, order[-1], tuple(sorted(times))

    def _standing(self, *stands: ArrivalState) -> list[_Word]:
        return [word for word in self._words.values() if word.stand in stands]

    def _without_the_gone(self) -> Judgement | None:
        """Rule 7."""
        missed = {name for word in self._words.values() for name in word.due} & self._gone
        needed = missed or (self._gone if self._standing(ArrivalState.FAILED) else set())
        if not needed or len(self._here) < self._min_nodes:
            return None
        return Judgement(again=f"{', '.join(sorted(needed))} left, and the others need it")

    @property
    def _failed(self) -> dict[str, float]:
        return {
            node: word.at for node, word in self._words.items() if word.stand is ArrivalState.FAILED
        }

    def _is_common(self) -> bool:
        """Tell whether enough have lost the group for rule 8."""
        size = len(self._here - self.done)  # who is done has no part in it any more
        return 2 * len(self._failed) >= (size + 1 if self.done else size)

    def _may_ask(self, node: str, now: float) -> bool:
        """Tell whether a new round is due to one that lost the group with few others: rule 9."""
        has_rounds = self._alone[node] < _TIMES - 1 or self._has_lasted(now)
        return has_rounds and len(self._here - self.done) > 2

    def _has_lasted(self, now: float) -> bool:
        return now - self._begun >= _RECENT * self._seconds

    @property
    def _lost_at(self) -> float | None:
        """The time when rule 8 or 9 is due: before the agent of the first one gives up."""
        failed = self._failed
        if self._is_judged or not failed or len(self._here) < self._min_nodes:
            return None
        asking = [at for node, at in failed.items() if self._may_ask(node, at)]
        if not (asking or self._is_common()):
            return None
        last = max(failed.values())
        return _SETTLE + (min(last, min(asking) + _SETTLE / 2) if asking else last)

    def _lost(self, now: float) -> Judgement | None:
        if self._lost_at is None or now < self._lost_at:
            return None
        ended = f", after the end of {', '.join(sorted(self.done))}" if self.done else ""
        lost = f"the group was lost by {', '.join(sorted(self._failed))}{ended}"
        if not self._is_common():
            self._alone.update(list(self._failed))
            return Judgement(again=lost)
        standing = self._here - self.done - set(self._failed)
        self._losses.append((now, frozenset(standing)))
        recent = [who for at, who in self._losses if at > now - _RECENT * self._seconds]
        if len(recent) < _TIMES:
            return Judgement(again=lost)
        always = reduce(frozenset.__and__, recent)
        if len(always) != 1 or not len(self._failed) == len(self._here) - 1 > 1:
            self._is_judged = True
            return None
        self._losses.clear()
        who = ", ".join(sorted(self._here - standing))
        why = f"{_TIMES} times in a row {who} lost the group, and it says that it has not"
        return Judgement(absent={node: f"{node}: {why}" for node in always})
