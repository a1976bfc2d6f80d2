# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The end of a set of packets in a ruleset: accepted, dropped, or not known, and by which rule.

A set of packets is a box: ranges of values for each field, and any value of a field that it does
not name. Each rule cuts the boxes that reach it into those that it is about and the rest. Rules:

1. the base chains of a hook see a packet one after another, by priority. A drop is final; an accept
   ends one chain only;
2. a condition that is not understood may hold or not: both are followed, and what ends so is not
   certain. A field that some rule writes, or that the caller calls opaque, is read so as well;
3. what ends with a verdict that is not understood, in chains that call each other in a circle, or
   after more work than `LIMIT` may have been accepted, may have been dropped;
4. before connections are tracked every packet is invalid, what a rule untracks stays untracked, and
   no other condition on a connection holds for either;
5. a packet that a rule translates (`Ruleset.translates`) comes to later hooks as another
   one: what an earlier hook drops is not certain then.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

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

LIMIT: Final = 100_000
"""Cuts of a box by a rule."""
INCOMING: Final = ("ingress", "prerouting", "input")
OUTGOING: Final = ("output", "postrouting", "egress")
_INVALID, _UNTRACKED = ((1, 1),), ((64, 64),)
_CONNECTION: Final = ("ct-state", "ct-direction", "ct-status")
_TRACKING: Final = -200
"""The priority at which connections are tracked, at the first hook of each direction."""
_MAX_DEPTH: Final = 16
"""The depth to which the kernel itself follows jumps."""


@dataclass(frozen=True, slots=True)
class Packets:
    """Packets that ended together."""

    box: Box
    accepted: bool = True
    certain: bool = True
    """Whether no other end of the same packets is possible."""
    by: str = ""
    """The rule, or the chain whose policy decided."""
    why: str = ""
    """The reason why it is not certain."""


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
) -> tuple[Packets, ...]:
    """Cut a box into packets that end together.

    Args:
        ruleset: What filters.
        box: The packets.
        hooks: `INCOMING` or `OUTGOING`.
        families: Families of tables that see them.
        opaque: Fields of which nothing is known, besides those that rules write.
    """
    try:
        return tuple(_walk(ruleset, opaque).go(box, hooks, families))
    except _TooManyError as error:
        return tuple(_either([Packets(box)], str(error)))


_Row: TypeAlias = tuple[tuple[str, Ranges], ...]


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition that is understood: it holds for the packets of one of its rows."""

    fields: tuple[str, ...]
    rows: tuple[_Row, ...]
    inverted: bool

    @classmethod
    def of(cls, match: Match) -> "_Condition":
        """The condition of a match; one row for one field."""
        if len(match.fields) == 1:
            column = merged(one for (text,) in match.rows for one in parse(text))
            return cls(match.fields, (((match.fields[0], column),),), match.inverted)
        rows = (zip(match.fields, map(parse, row), strict=True) for row in match.rows)
        return cls(match.fields, tuple(map(tuple, rows)), match.inverted)

    def never_holds(self, box: Box) -> bool:
        """Return whether it is about none of these packets, whatever else a rule asks."""
        if len(self.rows) != 1 or self.inverted:
            return False
        return any(not both(values(box, name), ranges) for name, ranges in self.rows[0])


@lru_cache(maxsize=64)
def _walk(ruleset: Ruleset, opaque: frozenset[str]) -> "_Walk":
    return _Walk(ruleset, opaque | frozenset(ruleset.written))


class _Walk:
    """A walk through the hooks."""

    def __init__(self, ruleset: Ruleset, opaque: frozenset[str]) -> None:
        self._base = [chain for chain in ruleset.chains if chain.hook]
        self._chains = {(c.family, c.table, c.name): c for c in ruleset.chains}
        self._opaque = opaque
        self._translates = ruleset.translates
        self._left = LIMIT
        self._conditions = {
            id(rule): [None if self._is_opaque(m) else _Condition.of(m) for m in rule.matches]
            for chain in ruleset.chains
            for rule in chain.rules
        }

    def _is_opaque(self, match: Match) -> bool:
        return bool(match.why) or not self._opaque.isdisjoint(match.fields)

    def go(self, box: Box, hooks: tuple[str, ...], families: frozenset[str]) -> list[Packets]:
        """Follow packets through the base chains (rules 1, 4 and 5)."""
        self._left = LIMIT
        base = [c for c in self._base if c.hook in hooks and c.family in families]
        flows, ended = [Packets(box)], []
        for chain in sorted(base, key=lambda c: (hooks.index(str(c.hook)), c.priority)):
            is_early = chain.hook == "ingress" or (
                chain.hook in {"prerouting", "output"} and chain.priority < _TRACKING
            )
            is_final = not self._translates or chain.hook not in {"ingress", "prerouting"}
            passed = []
            for flow in flows:
                for one in self._decided(chain, flow, is_early=is_early):
                    if not one.accepted:
                        ended.append(one if is_final else replace(one, certain=False))
                    if one.accepted or not is_final:
                        passed.append(replace(one, accepted=True, certain=one.certain and is_final))
            flows = _distinct(passed)
        return ended + flows

    def _decided(self, chain: Chain, flow: Packets, *, is_early: bool) -> Iterator[Packets]:
        """The ends of packets in a base chain."""
        flows = [flow]
        if chain.devices:
            name = "oifname" if chain.hook == "egress" else "iifname"
            own = merged((interface(one)[0]) for one in chain.devices)
            flows, others = _within(flow, ((name, own),))
            yield from others
        if is_early and values(flow.box, "ct-state") != _UNTRACKED:
            flows = [_without_connection(one, _INVALID) for one in flows]
        ended, left = self._run(chain, flows)
        policy = chain.policy == "accept"
        ended += [replace(one, accepted=policy, by=f"the policy of {chain.label}") for one in left]
        for one in ended:
            if values(one.box, "ct-state") == _INVALID:
                tracked = {name: values(flow.box, name) for name in _CONNECTION}
                one = replace(one, box={**one.box, **tracked})  # noqa: PLW2901 - as it goes on
            yield one

    def _run(
        self, chain: Chain | None, flows: list[Packets], depth: int = 0
    ) -> tuple[list[Packets], list[Packets]]:
        """The packets that end in a chain, and those that come to its end."""
        if chain is None or depth > _MAX_DEPTH:
            return _either(flows, "a chain that is not there, or calls itself"), []
        ended: list[Packets] = []
        left: list[Packets] = []
        for rule in chain.rules:
            going: list[Packets] = []
            by = f"rule {rule.handle} of {chain.label}"
            for flow in flows:
                hits, rest = self._split(flow, rule, by)
                going += rest
                match rule.verdict:
                    case Verdict.ACCEPT | Verdict.DROP:
                        good = rule.verdict is Verdict.ACCEPT
                        ended += [replace(one, accepted=good, by=by) for one in hits]
                    case Verdict.CONTINUE:
                        going += hits
                    case Verdict.RETURN:
                        left += hits
                    case Verdict.JUMP | Verdict.GOTO:
                        target = self._chains.get((chain.family, chain.table, rule.target))
                        more, back = self._run(target, hits, depth + 1) if hits else ([], [])
                        ended += more
                        (going if rule.verdict is Verdict.JUMP else left).extend(back)
                    case Verdict.UNKNOWN:
                        ended += _either(hits, f"{by} is not understood")
                        going += [replace(one, certain=False) for one in hits]
            flows = _distinct(going)
        return ended, left + flows

    def _split(
        self, flow: Packets, rule: PacketRule, by: str
    ) -> tuple[list[Packets], list[Packets]]:
        """The packets that a rule is about, and the rest (rule 2)."""
        conditions = self._conditions[id(rule)]
        self._left -= 1 + sum(len(one.rows) for one in conditions if one is not None)
        if self._left < 0:
            raise _TooManyError("there are more rules than are followed")
        if any(one is not None and one.never_holds(flow.box) for one in conditions):
            return [], [flow]
        hits, rest = [flow], []
        for condition in conditions:
            inside: list[Packets] = []
            if condition is None:
                continue
            for one in hits:
                within, beyond = _cut(one, condition)
                inside += within
                rest += beyond
            hits = inside
        if None in conditions:
            why = ": ".join(filter(None, (f"{by} may hold", rule.opaque)))
            hits = [replace(one, certain=False, why=why) for one in hits]
            rest += hits
        if rule.untracks and values(flow.box, "ct-state") == _INVALID:
            hits = [_without_connection(one, _UNTRACKED) for one in hits]
        return hits, rest


def _cut(flow: Packets, condition: _Condition) -> tuple[list[Packets], list[Packets]]:
    """The packets for which a condition holds, and those for which it does not."""
    inside: list[Packets] = []
    beyond = [flow]
    if () in [flow.box.get(name) for name in condition.fields]:
        return [], beyond
    for row in condition.rows:
        rest: list[Packets] = []
        for one in beyond:
            within, others = _within(one, row)
            inside += within
            rest += others
        beyond = rest
    return (beyond, inside) if condition.inverted else (inside, beyond)


def _within(
    flow: Packets, row: Iterable[tuple[str, Ranges]]
) -> tuple[list[Packets], list[Packets]]:
    """The part of packets that is in another box, and the parts that are not."""
    others: list[Packets] = []
    for name, ranges in row:
        own = values(flow.box, name)
        common = both(own, ranges)
        if not common:
            return [], [*others, flow]
        if common != own:
            others.append(_changed(flow, name, without(own, ranges)))
            flow = _changed(flow, name, common)
    return [flow], others


def _changed(flow: Packets, name: str, ranges: Ranges) -> Packets:
    return Packets({**flow.box, name: ranges}, flow.accepted, flow.certain, flow.by, flow.why)


def _without_connection(flow: Packets, state: Ranges) -> Packets:
    """Packets of no connection: conditions on one do not hold, whatever they ask (rule 4)."""
    return replace(flow, box={**flow.box, **dict.fromkeys(_CONNECTION, ()), "ct-state": state})


def _either(flows: list[Packets], why: str) -> list[Packets]:
    """Packets that end either way (rule 3)."""
    return [
        replace(one, accepted=good, certain=False, why=why)
        for one in flows
        for good in (True, False)
    ]


def _distinct(flows: list[Packets]) -> list[Packets]:
    """Flows without those that are part of another: two ways to one place are one."""
    if all(flow.certain for flow in flows):
        return flows
    found: list[Packets] = []
    for flow in sorted(flows, key=lambda one: len(one.box)):
        if not any(not _within(flow, one.box.items())[1] for one in found):
            found.append(flow)
    return found


def accepted(found: Iterable[Packets]) -> tuple[list[Packets], list[Packets]]:
    """The packets that are accepted for certain, and all that may be."""
    found = list(found)
    doubtful = [
        [(name, ranges) for name, ranges in one.box.items() if name not in _CONNECTION]
        for one in found
        if not one.accepted
    ]
    possible = [one for one in found if one.accepted]
    sure: list[Packets] = []
    for one in possible:
        parts = [one]
        for box in () if one.certain else doubtful:
            parts = [rest for part in parts for rest in _within(part, box)[1]]
        sure += parts
    return sure, possible
