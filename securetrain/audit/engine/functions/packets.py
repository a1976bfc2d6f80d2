# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The packets that a ruleset accepts for certain, and all that it may.

A set of packets is a list of boxes that may overlap; a box has ranges of values for each field, and
any value of a field that it does not name. A chain is read from its last rule to its first, and
what is known of it are the packets that it accepts and those that it drops. A rule adds the boxes
that it is about to one of the two, and takes them away from the other: rules that all accept cut
nothing, however many there are. Rules:

1. the base chains of a hook see a packet one after another, by priority. A drop is final; an accept
   ends one chain only;
2. a condition that is not understood may hold or not: what both ways have in common is certain. A
   field that some rule writes, or that the caller calls opaque, is read so as well;
3. what ends with a verdict that is not understood, in chains that call each other in a circle, or
   after more work than `LIMIT` may have been accepted, may have been dropped;
4. before connections are tracked every packet is invalid, what a rule untracks stays untracked, and
   no other condition on a connection holds for either;
5. a packet that a rule translates (`Ruleset.translates`) comes to later hooks as another
   one: what an earlier hook drops is not certain then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from securetrain.audit.subjects.node.facts.network import (
    Chain,
    Match,
    PacketRule,
    Ranges,
    Ruleset,
    Verdict,
    bits_of,
    interface,
    merged,
    parse,
)

Box: TypeAlias = Mapping[str, Ranges]

LIMIT: Final = 2_000_000
"""Cuts of a box by another."""
INCOMING: Final = ("ingress", "prerouting", "input")
OUTGOING: Final = ("output", "postrouting", "egress")
_STATE, _UNTRACKED = "ct-state", "untracked"
_CONNECTION: Final = frozenset({_STATE, "ct-direction", "ct-status"})
_TRACKING: Final = -200
"""The priority at which connections are tracked, at the first hook of each direction."""
_INVALID, _UNTRACKED_STATE = 1, 64
_MAX_DEPTH: Final = 16
"""The depth to which the kernel itself follows jumps."""


class Packets(NamedTuple):
    """Packets that end together."""

    box: Box
    by: str = ""
    """The rule, or the chain whose policy decided."""


_Boxes: TypeAlias = list[Packets]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The packets that are accepted."""

    sure: _Boxes
    possible: _Boxes
    """All that may be."""
    why: str
    """The reason why not all of them are certain."""


class _TooManyError(Exception):
    """There is more to follow than is followed."""


def both(one: Ranges, other: Ranges) -> Ranges:
    """The values in both."""
    if len(one) == len(other) == 1:
        (low, high), (first, last) = one[0], other[0]
        low, high = max(low, first), min(high, last)
        return ((low, high),) if low <= high else ()
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            found.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def without(one: Ranges, other: Ranges) -> Ranges:
    """The values of the first that the second does not have."""
    gaps, start = [], 0
    for low, high in other:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, max(start, one[-1][1] if one else 0)))
    return both(one, tuple(gap for gap in gaps if gap[0] <= gap[1]))


def size(ranges: Ranges) -> int:
    """The number of values."""
    return sum(high - low + 1 for low, high in ranges)


def values(box: Box, name: str) -> Ranges:
    """The values of a field."""
    return box[name] if name in box else ((0, (1 << bits_of(name)) - 1),)


def follow(
    ruleset: Ruleset,
    box: Box,
    hooks: tuple[str, ...],
    families: frozenset[str],
    opaque: frozenset[str] = frozenset(),
) -> Accepted:
    """Tell which packets of a box are accepted.

    Args:
        ruleset: What filters.
        box: The packets.
        hooks: `INCOMING` or `OUTGOING`.
        families: Families of tables that see them.
        opaque: Fields of which nothing is known, besides those that rules write.
    """
    try:
        return _Walk(ruleset, box, opaque | frozenset(ruleset.written)).go(hooks, families)
    except _TooManyError as error:
        return Accepted([], [Packets(box)], str(error))


class _Outcome(NamedTuple):
    """The packets that surely have an end, and all that may have it."""

    sure: _Boxes
    possible: _Boxes


class _Ends(NamedTuple):
    """The ends of packets in a chain; what it neither accepts nor drops comes back from it."""

    accepted: _Outcome
    dropped: _Outcome
    untracked: _Outcome
    """Those that one of its rules untracks, whatever becomes of them."""


_EMPTY: Final[_Boxes] = []
_NOTHING: Final = _Outcome(_EMPTY, _EMPTY)
_BACK: Final = _Ends(_NOTHING, _NOTHING, _NOTHING)


class _Condition(NamedTuple):
    """The boxes where a condition holds, and those where it is asked at all."""

    rows: _Boxes
    asked: _Boxes


@lru_cache(maxsize=8192)
def _condition(match: Match, *, early: bool) -> _Condition:
    """Read a condition that is understood, apart from its inversion."""
    if len(match.fields) == 1:
        column = merged(one for (text,) in match.rows for one in parse(text))
        rows: list[dict[str, Ranges]] = [{match.fields[0]: column}]
    else:
        rows = [dict(zip(match.fields, map(parse, row), strict=True)) for row in match.rows]
    asked: list[Box] = [{}]
    if not _CONNECTION.isdisjoint(match.fields):
        is_state = _CONNECTION.intersection(match.fields) == {_STATE}
        there = [] if early else [row | {_UNTRACKED: ((0, 0),)} for row in rows]
        for number, state in enumerate((_INVALID, _UNTRACKED_STATE)) if is_state else ():
            if early or state == _UNTRACKED_STATE:
                for row in rows:
                    if both(row[_STATE], ((state, state),)):
                        rest = {name: own for name, own in row.items() if name != _STATE}
                        there.append(rest | {_UNTRACKED: ((number, number),)})
        rows = there
        if not is_state:
            asked = [] if early else [{_UNTRACKED: ((0, 0),)}]
    return _Condition([Packets(row) for row in rows], [Packets(one) for one in asked])


class _Walk:
    """A walk back through the hooks."""

    def __init__(self, ruleset: Ruleset, box: Box, opaque: frozenset[str]) -> None:
        state = values(box, _STATE)
        tracked = without(state, ((_UNTRACKED_STATE, _UNTRACKED_STATE),))
        self._begins = [
            Packets({_UNTRACKED: merged([(0, 0)] * bool(tracked) + [(1, 1)] * (tracked != state))})
        ]
        self._box = {**box, _STATE: tracked or state, _UNTRACKED: ((0, 1),)}
        self._all = [Packets({})]
        self._every = _Outcome(self._all, self._all)
        maybe = _Outcome([], self._all)
        self._either = _Ends(maybe, maybe, _NOTHING)
        self._chains = {(c.family, c.table, c.name): c for c in ruleset.chains}
        self._opaque = opaque
        self._translates = ruleset.translates
        self._left = LIMIT
        self._found: dict[tuple[str, str, str, bool], _Ends] = {}
        self._depth = 0
        self._whys: list[str] = []

    def go(self, hooks: tuple[str, ...], families: frozenset[str]) -> Accepted:
        """Follow packets through the base chains (rules 1, 4 and 5)."""
        base = [c for c in self._chains.values() if c.hook in hooks and c.family in families]
        passed = self._every
        for chain in sorted(base, key=lambda c: (hooks.index(str(c.hook)), c.priority))[::-1]:
            passed = self._before(chain, passed)
        sure, possible = (
            [Packets({**self._box, **box}, by) for box, by in self._both(boxes, self._begins)]
            for boxes in passed
        )
        return Accepted(sure, possible, self._whys[-1] if self._whys else "")

    def _before(self, chain: Chain, after: _Outcome) -> _Outcome:
        """The packets that pass a base chain and what is behind it."""
        is_early = chain.hook == "ingress" or (
            chain.hook in {"prerouting", "output"} and chain.priority < _TRACKING
        )
        ends = self._ends(chain, early=is_early)
        seen = self._all
        if chain.devices:
            name = "oifname" if chain.hook == "egress" else "iifname"
            own = merged(interface(one)[0] for one in chain.devices)
            seen = self._narrowed([Packets({name: own})])
        after = self._untracked(after, _Outcome(seen, seen), ends.untracked)
        found: list[_Boxes] = []
        for passing, accepted, dropped in zip(
            after, ends.accepted, ends.dropped[::-1], strict=True
        ):
            if found and _is_certain(after, ends.accepted, ends.dropped):
                found *= 2
                break
            here = self._both(passing, seen)
            found.append(self._both(here, accepted) + self._less(passing, seen))
            if chain.policy == "accept":
                policy = f"the policy of {chain.label}"
                found[-1] += [Packets(b, by or policy) for b, by in self._less(here, dropped)]
        is_final = not self._translates or chain.hook not in {"ingress", "prerouting"}
        return _Outcome(found[0], found[1] if is_final else after.possible)

    def _ends(self, chain: Chain, *, early: bool) -> _Ends:
        """The ends of packets in a chain; either while these are looked for, and too deep down."""
        key = chain.family, chain.table, chain.name, early
        if key not in self._found and self._depth <= _MAX_DEPTH:
            self._found[key] = self._either
            self._depth += 1
            ends = _BACK
            for rule in reversed(chain.rules):
                ends = self._rule(chain, rule, ends, early=early)
            self._depth -= 1
            self._found[key] = ends
        return self._found.get(key, self._either)

    def _rule(self, chain: Chain, rule: PacketRule, after: _Ends, *, early: bool) -> _Ends:
        """The ends of packets in the rest of a chain, from its ends behind this rule (rule 2)."""
        is_opaque, hits = False, self._all
        for match in rule.matches:
            if match.why or not self._opaque.isdisjoint(match.fields):
                is_opaque = True
                continue
            condition = _condition(match, early=early)
            rows = self._narrowed(condition.rows)
            if match.inverted:
                hits = self._less(self._both(hits, self._narrowed(condition.asked)), rows)
            else:
                hits = self._both(hits, rows)
            if not hits:
                return after
        by = f"rule {rule.handle} of {chain.label}"
        own, is_last, why = self._verdict(chain, rule, by, early=early)
        if is_opaque:
            why = ": ".join(filter(None, (f"{by} may hold", rule.opaque)))
        self._whys += [why] * bool(why)
        if rule.verdict is Verdict.ACCEPT:
            hits = [Packets(one.box, by) for one in hits]
        about = _Outcome([] if is_opaque else hits, hits)
        after = _Ends(*(self._untracked(one, about, own.untracked) for one in after))
        ended = _Outcome(*map(list.__add__, own.accepted, own.dropped))
        others = own.dropped, own.accepted, ended
        return _Ends(
            *(
                self._through(about, one, rest, None if is_last else other)
                for one, rest, other in zip(own, after, others, strict=True)
            )
        )

    def _verdict(
        self, chain: Chain, rule: PacketRule, by: str, *, early: bool
    ) -> tuple[_Ends, bool, str]:
        """The ends of the packets of a rule, whether none goes on to the next, and what is open."""
        ends, is_last, why = _BACK, rule.verdict in {Verdict.GOTO, Verdict.RETURN}, ""
        match rule.verdict:
            case Verdict.ACCEPT:
                ends = _BACK._replace(accepted=self._every)
            case Verdict.DROP:
                ends = _BACK._replace(dropped=self._every)
            case Verdict.UNKNOWN:
                ends, why = self._either, f"{by} is not understood"
            case Verdict.JUMP | Verdict.GOTO:
                target = self._chains.get((chain.family, chain.table, rule.target))
                ends = self._ends(target, early=early) if target else self._either
                if ends is self._either:
                    is_last, why = True, "a chain that is not there, or calls itself"
        if rule.untracks and early:
            ends = ends._replace(untracked=self._every)
        return ends, is_last, why

    def _through(
        self, about: _Outcome, own: _Outcome, after: _Outcome, other: _Outcome | None
    ) -> _Outcome:
        """The packets with an end in a rule, or behind it.

        Args:
            about: What the rule is about.
            own: Those with this end where it is.
            after: Those with this end behind it.
            other: Those with another end where it is; None: nothing that it is about goes on.
        """
        if own is after is _NOTHING:
            return after
        found: list[_Boxes] = []
        for at, (hits, one, rest) in enumerate(zip(about, own, after, strict=True)):
            if found and _is_certain(about, own, after, other or own):
                found *= 2
                break
            if other is None:
                stopped = self._less(about[1 - at], one)
            else:
                stopped = self._both(about[1 - at], other[1 - at])
            found.append(self._both(hits, one) + self._less(rest, stopped))
        return _Outcome(*found)

    def _untracked(self, after: _Outcome, about: _Outcome, untracked: _Outcome) -> _Outcome:
        """The packets of `after` before some of them were untracked."""
        if not untracked.possible:
            return after
        sure, possible = map(self._both, about, untracked)
        later = [
            [
                Packets({name: one.box[name] for name in one.box if name != _UNTRACKED}, one.by)
                for one in boxes
                if one.box.get(_UNTRACKED) != ((0, 0),)
            ]
            for boxes in after
        ]
        either = self._both(self._both(after.sure, later[0]), possible)
        return _Outcome(
            self._less(after.sure, possible) + self._both(sure, later[0]) + either,
            self._less(after.possible, sure) + self._both(possible, later[1]),
        )

    def _narrowed(self, boxes: _Boxes) -> _Boxes:
        """Boxes without what all packets here are; none of what none of these is."""
        found: _Boxes = []
        for box, by in boxes:
            own = {name: both(values(self._box, name), box[name]) for name in box}
            if all(own.values()):
                rest = {name: own[name] for name in own if own[name] != values(self._box, name)}
                found.append(Packets(rest, by))
        return found

    def _both(self, some: _Boxes, others: _Boxes) -> _Boxes:
        """The packets that are in both."""
        if others is self._all:
            return some
        self._count(len(some) * len(others))
        return [
            Packets(box, one.by or other.by)
            for one in some
            for other in others
            if (box := _common(one.box, other.box)) is not None
        ]

    def _less(self, some: _Boxes, others: _Boxes) -> _Boxes:
        """The packets of the first that are not among the others."""
        if others is self._all:
            return []
        for other in others:
            self._count(len(some))
            some = [
                Packets(box, one.by) for one in some for box in self._beyond(one.box, other.box)
            ]
        return some

    def _beyond(self, one: Box, other: Box) -> list[Box]:
        """The parts of a box that are not in another."""
        found: list[Box] = []
        left = one
        for name, ranges in other.items():
            own = left[name] if name in left else values(self._box, name)
            common = both(own, ranges)
            if not common:
                return [one]
            if common != own:
                found.append({**left, name: without(own, ranges)})
                left = {**left, name: common}
        return found

    def _count(self, cuts: int) -> None:
        self._left -= cuts
        if self._left < 0:
            raise _TooManyError("there are more rules than are followed")


def _is_certain(*outcomes: _Outcome) -> bool:
    """Return whether what is sure of them is all that is possible."""
    return all(one.sure is one.possible for one in outcomes)


def _common(one: Box, other: Box) -> Box | None:
    """The box of packets that are in both; None where there is none."""
    found = dict(one)
    for name, ranges in other.items():
        found[name] = both(found[name], ranges) if name in found else ranges
        if not found[name]:
            return None
    return found
