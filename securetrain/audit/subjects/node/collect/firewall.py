# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The packet filters of this network namespace, by nfnetlink (linux/netfilter/nf_tables.h).

No program is started, and nothing is changed. The kernel shows rules to those only who may change
them (CAP_NET_ADMIN). Rules:

1. what a packet to or from the machine passes is kept: base chains of those hooks in tables that
   are not dormant, and what they jump to. A chain of another kind than ``filter`` that can neither
   drop nor translate is left out, and so is a rule that only counts;
2. an expression becomes a condition on fields of a packet, or one that is not understood; a set
   becomes its elements, unless packets can change it;
3. a limit lets those through who wait: with an accept it holds, and "over" it nothing is dropped;
4. what is too long is not cut: a set of more than `MAX_ROWS`, or what is beyond `ALL_ROWS` of all
   sets, is not understood, and behind `MAX_RULES` rules anything may happen;
5. all answers are of one generation of the rules.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgspec

from securetrain.audit.subjects.node.collect.host import Host, TooMuchError, reading
from securetrain.audit.subjects.node.collect.rtnetlink import links
from securetrain.audit.subjects.node.facts.network import (
    Chain,
    Family,
    Firewall,
    Hook,
    Match,
    PacketRule,
    Ruleset,
    Verdict,
    as_text,
    bits_of,
    interface,
    merged,
    parse,
)
from securetrain.core import netlink

TABLES, CHAINS, RULES, SETS, ELEMENTS = 1, 4, 7, 10, 13
"""NFT_MSG_GETTABLE and so on; what answers is one less."""
MAX_RULES: Final = 4096
MAX_ROWS: Final = 4096
ALL_ROWS: Final = 32768
_SET_LIMIT: Final = 1 << 20
_ENUMERATED: Final = 16
"""Bits of a field whose values are tried one by one where a mask has gaps."""
_CHANGES, _INTERVAL, _CONCAT, _CATCHALL = 0x20, 0x4, 0x80, 0x2
_BASES: Final = {0: "link", 1: "network", 2: "transport"}
_NETFILTER: Final = 12
_SUBSYSTEM: Final = 10 << 8
_GENERAL: Final = struct.Struct(">BBH")
"""struct nfgenmsg: family, version, and the lower half of the generation."""
_FAMILIES: Final[Mapping[int, Family]] = {1: "inet", 2: "ip", 5: "netdev", 7: "bridge", 10: "ip6"}
_HOOKS: Final[Mapping[int, Hook]] = {
    0: "prerouting", 1: "input", 3: "output", 4: "postrouting", 5: "ingress",
}  # fmt: skip
_DEVICE_HOOKS: Final[Mapping[int, Hook]] = {0: "ingress", 1: "egress"}
_INT: Final = struct.Struct(">i")
_DORMANT: Final = 1
_VERDICTS: Final = {
    0: Verdict.DROP,
    1: Verdict.ACCEPT,
    -1: Verdict.CONTINUE,
    -3: Verdict.JUMP,
    -4: Verdict.GOTO,
    -5: Verdict.RETURN,
}
_SILENT: Final = frozenset({"counter", "log", "last", "dup", "flow_offload"})
"""Expressions that decide nothing."""
_SILENT_OBJECTS: Final = frozenset({1, 3})
"""Kinds of named objects that decide nothing: counters, and helpers of connection tracking."""
_TARGETS: Final[Mapping[str, Verdict]] = {
    **dict.fromkeys(("DROP", "REJECT"), Verdict.DROP),
    **dict.fromkeys(("SNAT", "MASQUERADE", "NETMAP"), Verdict.ACCEPT),
    **dict.fromkeys(("LOG", "NFLOG", "TRACE", "AUDIT", "MARK", "CONNMARK", "CT"), Verdict.CONTINUE),
}  # fmt: skip
_WRITTEN: Final = {
    "MARK": "mark",
    "CONNMARK": "mark",
    "CT": "ct-state",
    **dict.fromkeys(("DNAT", "REDIRECT", "TPROXY", "SNAT", "MASQUERADE", "NETMAP"), "ct-status"),
}
_META: Final = {
    1: ("protocol", 2), 3: ("mark", 4), 4: ("iifname", 4), 5: ("oifname", 4), 6: ("iifname", 16),
    7: ("oifname", 16), 10: ("skuid", 4), 11: ("skgid", 4), 15: ("nfproto", 1), 16: ("l4proto", 1),
    19: ("pkttype", 1), 25: ("secpath", 1),
}  # fmt: skip
_CT: Final = {0: ("ct-state", 4), 1: ("ct-direction", 1), 2: ("ct-status", 4)}
_FIB: Final = {0x103: ("fib-saddr", 4), 0x203: ("fib-daddr", 4), 0x2101: ("fib-route", 4)}
"""By the kind of result, and above it what is asked: an address, and whether a route is there."""
_KEYS: Final[Mapping[str, Mapping[int, tuple[str, int]]]] = {"meta": _META, "ct": _CT, "fib": _FIB}
_ANY_PART: Final = frozenset({"saddr", "daddr", "saddr6", "daddr6", "sport", "dport"})
"""The fields that a part of the packet may be whose place is not understood."""
_SOURCES: Final = {"payload": 5, "meta": 3, "ct": 4, "fib": 0}
"""The attribute of a register that is written into the packet."""
_IN_HOST_ORDER: Final = frozenset(
    {"mark", "skuid", "skgid", "ct-state", "ct-status", "fib-saddr", "fib-daddr", "fib-route"}
)
_HEADERS: Final[Mapping[tuple[str, str], tuple[tuple[int, str], ...]]] = {
    ("link", ""): ((12, "protocol"),),
    ("network", "ip"): ((9, "l4proto"), (12, "saddr"), (16, "daddr")),
    ("network", "ip6"): ((6, "l4proto"), (8, "saddr6"), (24, "daddr6")),
    ("transport", ""): ((0, "sport"), (2, "dport"), (13, "tcp-flags")),
}
_XT_CONNTRACK: Final = struct.Struct("=146xHHH")
"""match_flags, invert_flags and state_mask of struct xt_conntrack_mtinfo3."""
_VERSIONS: Final = {("nfproto", 2): "ip", ("nfproto", 10): "ip6", ("protocol", 0x800): "ip",
                    ("protocol", 0x86DD): "ip6"}  # fmt: skip


def dump(kind: int, family: int = 0, attributes: bytes = b"") -> bytes:
    """Ask the kernel for every table, chain, rule or set, or for the elements of one set.

    Raises:
        OSError: when it does not answer, or only root may ask.
        NetlinkError: when there is more than is read.
    """
    limit = _SET_LIMIT if kind == ELEMENTS else netlink.MAX_BYTES
    ask = _GENERAL.pack(family, 0, 0) + attributes
    return netlink.dump(_NETFILTER, _SUBSYSTEM | kind, ask, limit=limit)


class _Attributes(dict[int, bytes]):
    """Attributes by their kind, as what they are."""

    def number(self, kind: int, otherwise: int = 0) -> int:
        """A number; the other without one."""
        return _number(self[kind]) if kind in self else otherwise

    def text(self, kind: int) -> str:
        """A name; empty without one."""
        return netlink.text(self.get(kind, b""))

    def inside(self, kind: int) -> "_Attributes":
        """Those inside of one."""
        return _Attributes(netlink.attributes(self.get(kind, b"")))

    def value(self, kind: int) -> bytes:
        """The bytes of a value, to which the kernel gives an attribute of its own."""
        return self.inside(kind).get(1, b"")


_Place: TypeAlias = tuple[int, str, str]
_Key: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""Fields, and the values of each."""
_Dump: TypeAlias = Callable[..., bytes]


@dataclass(frozen=True, slots=True)
class _Field:
    """Bytes of a field that a register holds; without a name they are not understood."""

    name: str
    size: int
    first: int = 0
    """The first byte of them within the field."""
    mask: int | None = None
    xor: int = 0
    is_swapped: bool = False
    """Whether its bytes are in the order of the host."""

    def read(self, data: bytes) -> int:
        return int.from_bytes(data, sys.byteorder if self.is_swapped else "big")


_OPAQUE: Final = (_Field("", 16),)
_ANYTHING: Final = PacketRule(handle=0, verdict=Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Set:
    """A set as it was found; without rows it is not understood."""

    elements: tuple[tuple[bytes, bytes, _Attributes], ...] = ()
    """First and last key, and the rest."""
    others: _Attributes | None = None
    """The element for everything else."""
    why: str = ""


class _Reader:
    """Reads one answer of the kernel after the other."""

    def __init__(self, dump: _Dump, names: Mapping[int, str]) -> None:
        self._dump = dump
        self._names = names
        self._generations: set[int] = set()
        self._sets: dict[_Place, _Set] = {}
        self._flags: dict[_Place, int] = {}
        self.written: set[str] = set()
        self.translates = False
        self.spans: dict[str, set[tuple[int, int]]] = {}
        self.rules = 0
        self.rows = 0

    def objects(
        self, kind: int, family: int = 0, attributes: bytes = b""
    ) -> Iterator[tuple[int, _Attributes]]:
        """Family and attributes of each object."""
        for answer, body in netlink.answers(self._dump(kind, family, attributes)):
            if answer != _SUBSYSTEM | kind - 1 or len(body) < _GENERAL.size:
                raise netlink.NetlinkError("the kernel's answer is not what was asked for")
            of, _, generation = _GENERAL.unpack_from(body)
            self._generations.add(generation)
            if len(self._generations) > 1:
                raise netlink.NetlinkError("the rules changed while they were read")
            yield of, _Attributes(netlink.attributes(body[_GENERAL.size :]))

    def ruleset(self) -> Ruleset:
        """Everything that a packet to or from this machine passes (rule 1)."""
        dormant = {
            (family, table.text(1))
            for family, table in self.objects(TABLES)
            if table.number(2) & _DORMANT
        }
        chains = {place: found for place, found in self._chains() if place[:2] not in dormant}
        raw: dict[_Place, list[_Attributes]] = {}
        for family, rule in self.objects(RULES):
            place = (family, rule.text(1), rule.text(2))
            raw.setdefault(place, []).append(rule)
        for family, one in self.objects(SETS):
            self._flags[family, one.text(1), one.text(2)] = one.number(3)
        kept: dict[_Place, Chain] = {}
        for place, (chain, kind) in sorted(chains.items()):
            if not chain.hook:
                continue
            found: dict[_Place, Chain] = {}
            self._follow(place, chains, raw, found)
            if chain.family == "bridge" and _decides(found.values()):
                kept[place] = msgspec.structs.replace(chain, rules=(_ANYTHING,))
            elif kind == "filter" or _decides(found.values()):
                kept |= found
        return Ruleset(
            chains=tuple(kept.values()),
            written=tuple(sorted(self.written)),
            translates=self.translates,
        )

    def _chains(self) -> Iterator[tuple[_Place, tuple[Chain, str]]]:
        for number, one in self.objects(CHAINS):
            family = _FAMILIES.get(number)
            if family is None:
                continue
            hook = one.inside(4)
            hooks = _DEVICE_HOOKS if family == "netdev" else _HOOKS
            at = hooks.get(hook.number(1)) if 1 in hook else ""
            if at is None:
                continue  # what is passed on to other machines
            chain = Chain(
                family=family,
                table=one.text(1),
                name=one.text(3),
                hook=at,
                priority=hook.number(2),
                policy="accept" if one.number(5, 1) else "drop",
                devices=tuple(sorted(set(_devices(hook)))),
            )
            yield (number, chain.table, chain.name), (chain, one.text(7))

    def _follow(
        self,
        place: _Place,
        chains: Mapping[_Place, tuple[Chain, str]],
        raw: Mapping[_Place, list[_Attributes]],
        found: dict[_Place, Chain],
    ) -> None:
        """Read a chain and all that it leads to."""
        todo = [place]
        while todo:
            place = todo.pop()
            if place in found or place not in chains:
                continue
            rules: list[PacketRule] = []
            for one in raw.get(place, ()):
                self.rules += 1
                if self.rules > MAX_RULES:
                    rules.append(_ANYTHING)
                    break
                rules += _Compiler(self, place).rules(one)
            chain = msgspec.structs.replace(chains[place][0], rules=tuple(rules))
            found[place] = chain
            todo += [(*place[:2], rule.target) for rule in rules if rule.target]

    def interface(self, index: int) -> str:
        """The value of an interface's name; nothing when there is none of this number."""
        name = self._names.get(index)
        return as_text(interface(name)) if name else ""

    def elements(self, place: _Place) -> _Set:
        """The elements of a set (rule 2)."""
        if place not in self._sets:
            try:
                self._sets[place] = self._elements(place)
            except netlink.NetlinkError as error:
                self._sets[place] = _Set(why=f"set {place[2]}: {error}")
        return self._sets[place]

    def _elements(self, place: _Place) -> _Set:
        flags = self._flags.get(place, _CHANGES)
        if flags & _CHANGES:
            return _Set(why=f"packets change the set {place[2]}")
        family, table, name = place
        words = _attribute(1, table.encode() + b"\0") + _attribute(2, name.encode() + b"\0")
        rows: list[tuple[bytes, bytes, _Attributes]] = []
        others = None
        for _, answer in self.objects(ELEMENTS, family, words):
            for _, element in netlink.listed_attributes(answer.get(3, b"")):
                one = _Attributes(netlink.attributes(element))
                if {7, 9, 11} & set(one):
                    return _Set(why=f"the set {name} has elements with expressions")
                if one.number(3) & _CATCHALL:
                    others = one
                    continue
                key = one.inside(1)[1]
                last = one.inside(10)[1] if 10 in one else key
                rows.append((key, last, one))
        if flags & _INTERVAL and not flags & _CONCAT:
            rows = list(_intervals(rows))
        return _Set(tuple(rows), others)


class _Compiler:
    """Turns the expressions of one rule into conditions and a verdict."""

    def __init__(self, reader: _Reader, place: _Place) -> None:
        self._reader = reader
        self._place = place
        family = _FAMILIES[place[0]]
        self._version: str = family if family in {"ip", "ip6"} else ""
        self._registers: dict[int, tuple[_Field, ...]] = {}
        self._matches: list[Match] = []
        self._limits: list[bool] = []  # whether each holds for what is over it
        self._verdict = Verdict.CONTINUE
        self._target = ""
        self._untracks = False
        self._tracked = sys.maxsize  # so many conditions stand before a connection is not tracked
        self._map: list[tuple[Match | None, Verdict, str]] = []

    def rules(self, rule: _Attributes) -> list[PacketRule]:
        """The rule, or one for each verdict of its map; none when it decides nothing."""
        for kind, element in netlink.listed_attributes(rule.get(4, b"")):
            parts = _Attributes(netlink.attributes(element))
            if kind == 1:
                self._read(parts.text(1), parts.inside(2))
        ends = [*self._map] or [(None, self._verdict, self._target)]
        found = []
        for mapped, verdict, target in ends:
            if verdict is Verdict.CONTINUE and not self._untracks:
                continue
            if verdict is Verdict.DROP and True in self._limits:
                continue
            matches = [*self._matches, *([mapped] if mapped else ())]
            for at, match in enumerate(matches):
                if at >= self._tracked and any(name.startswith("ct-") for name in match.fields):
                    matches[at] = Match(why="a connection that its own rule does not track")
            if self._limits and (verdict is not Verdict.ACCEPT or True in self._limits):
                matches.append(Match(why="a limit"))
            found.append(
                PacketRule(
                    handle=int.from_bytes(rule.get(3, b"")),
                    matches=tuple(matches),
                    verdict=verdict,
                    target=target,
                    untracks=self._untracks,
                )
            )
        return found

    def _read(self, name: str, data: _Attributes) -> None:
        """Take one expression."""
        match name:
            case "immediate":
                verdict = _verdict(data)
                if verdict is None:
                    self._load(data[1], _OPAQUE)
                else:
                    self._verdict, self._target = verdict
            case "reject":
                self._verdict = Verdict.DROP
            case "notrack":
                self._untracks, self._tracked = True, len(self._matches)
            case "limit":
                self._limits.append(bool(data.number(5) & 1))
            case "nat" | "redir" | "masq":
                is_target = name == "redir" or data.number(1) == 1
                self._verdict = Verdict.UNKNOWN if is_target else Verdict.ACCEPT
                self._reader.written.add("ct-status")
                self._reader.translates |= is_target
            case "queue" | "synproxy" | "tproxy" | "fwd":
                self._verdict = Verdict.UNKNOWN
                self._reader.translates |= name == "tproxy"
            case "target":
                self._xt_target(data.text(1))
            case _:
                self._condition(name, data)

    def _condition(self, name: str, data: _Attributes) -> None:
        """Take an expression that loads, changes or compares something."""
        match name:
            case _ if name in _SILENT:
                pass
            case "objref" if data.number(1) in _SILENT_OBJECTS:
                pass
            case "dynset" if not {6, 11} & set(data):
                pass  # an element that is added without a condition
            case "meta" | "ct" | "payload" | "fib":
                self._field(name, data)
            case "bitwise" | "byteorder":
                self._change(name, data)
            case "cmp" | "range":
                self._compare(name, data)
            case "lookup":
                self._lookup(data)
            case "match":
                self._xt_match(data.text(1), data.get(3, b""))
            case _:
                self._registers.clear()  # it may have written any
                self._opaque(f"{name} is not understood")

    def _opaque(self, why: str) -> None:
        self._matches.append(Match(why=why))

    def _load(self, register: bytes, pieces: tuple[_Field, ...]) -> None:
        slot, size = _slot(register), sum(piece.size for piece in pieces)
        for covered in range(slot, slot - (-size // 4)):
            self._registers.pop(covered, None)
        self._registers[slot] = pieces

    def _field(self, name: str, data: _Attributes) -> None:
        """A part of the packet that is loaded, or written."""
        key, first, size = (data.number(kind) for kind in (2, 3, 4))
        if name == "payload":
            pieces = self._part(_BASES.get(key, ""), first, size)
        else:
            known = key | (first & 0x23) << 8 if name == "fib" else key
            word, size = _KEYS[name].get(known, ("", 16))
            is_index = word.endswith("name") and size == _INT.size
            pieces = (_Field(word, size, is_swapped=is_index or word in _IN_HOST_ORDER),)
        if _SOURCES[name] in data:
            lacks = name == "payload" and not all(piece.name for piece in pieces)
            self._reader.written.update(piece.name for piece in pieces if piece.name)
            self._reader.written |= _ANY_PART if lacks else frozenset()
        elif 1 in data:
            self._load(data[1], pieces)

    def _part(self, base: str, first: int, size: int) -> tuple[_Field, ...]:
        """Bytes of a header, as fields."""
        family = self._version if base == "network" else ""
        known = {
            place + k: (name, place)
            for place, name in _HEADERS.get((base, family), ())
            for k in range(bits_of(name) // 8)
        }
        pieces: list[_Field] = []
        at, end = first, first + size
        while at < end:
            name, place = known.get(at, ("", at))
            stop = at + 1
            while stop < end and known.get(stop, ("", at)) == (name, place):
                stop += 1
            if not name:
                name = self._unnamed(family or base, at, stop - at)
            pieces.append(_Field(name, stop - at, at - place))
            at = stop
        return tuple(pieces)

    def _unnamed(self, header: str, first: int, size: int) -> str:
        """The name of other bytes of a header; none where two names would share a byte."""
        if not header or header in {"link", "network"}:
            return ""  # a neighbour's, or of a version that nobody said
        spans = self._reader.spans.setdefault(header, set())
        last = first + size
        if any((a, b) != (first, last) and a < last and first < b for a, b in spans):
            return ""
        spans.add((first, last))
        return f"{header}@{first}+{size}"

    def _change(self, name: str, data: _Attributes) -> None:
        """A register that is masked, or turned into the order of the network."""
        pieces = self._registers.get(_slot(data[1]), ())
        if name == "byteorder":
            changed = tuple(replace(one, is_swapped=False) for one in pieces)
        elif data.number(6) == 0 and 4 in data and 5 in data:
            mask, xor = data.value(4), data.value(5)
            changed = tuple(
                replace(one, mask=one.read(m), xor=one.read(x), name=one.name * (one.mask is None))
                for one, m, x in zip(pieces, _taken(pieces, mask), _taken(pieces, xor), strict=True)
            )
        else:
            changed = _OPAQUE
        self._load(data[2], changed)

    def _compare(self, name: str, data: _Attributes) -> None:
        """A register that is compared with a value, or with two."""
        pieces = self._registers.get(_slot(data[1]), ())
        operation = data.number(2)
        low = data.value(3)
        high = data.value(4) if name == "range" else low
        if operation in {2, 5}:  # less, and its contrary
            high = b"\xff" * len(low)
        elif operation in {3, 4}:
            low = bytes(len(high))
        inverted = operation in {1, 2, 4}
        row = self._row(pieces, low, high)
        if row is None:
            self._opaque("a comparison that is not understood")
            return
        names = tuple(piece.name for piece in pieces[: len(row)])
        self._matches.append(Match(fields=names, rows=(row,), inverted=inverted))
        if not inverted and low == high and len(row) == 1:
            value = pieces[0].read(low)
            self._version = _VERSIONS.get((names[0], value), self._version)

    def _row(self, pieces: tuple[_Field, ...], low: bytes, high: bytes) -> tuple[str, ...] | None:
        """The ranges of each field between two values; None where that is not understood."""
        found = []
        if (low != high and len(pieces) > 1) or len(low) > sum(piece.size for piece in pieces):
            return None
        for piece, a, b in zip(pieces, _taken(pieces, low), _taken(pieces, high), strict=True):
            if not a:
                break
            if len(a) < piece.size and (piece.is_swapped or piece.mask is not None):
                return None
            text = self._ranges(replace(piece, size=len(a)), piece.read(a), piece.read(b))
            if text is None:
                return None
            found.append(text)
        return tuple(found) or None

    def _ranges(self, piece: _Field, low: int, high: int) -> str | None:
        """The values of a field whose bytes, masked, are between two values."""
        if piece.name in {"iifname", "oifname"} and piece.is_swapped:
            return self._reader.interface(low) if low == high and piece.mask is None else None
        if not piece.name:
            return None
        bits, all_ = bits_of(piece.name), (1 << 8 * piece.size) - 1
        beyond = max(0, bits - 8 * (piece.first + piece.size))
        mask = all_ if piece.mask is None else piece.mask
        wild = all_ & ~mask
        is_prefix = low == high and wild & (wild + 1) == 0
        if piece.first == 0 and not piece.xor and (not wild or is_prefix):
            if low & wild and low == high:
                return ""  # no masked value has these bits
            high |= wild
            span = low << beyond, min(((high + 1) << beyond) - 1, (1 << bits) - 1)
            return as_text(merged([span]))
        if bits > _ENUMERATED:
            return None
        hits = (
            value
            for value in range(1 << bits)
            if low <= (value >> beyond & all_ & mask) ^ piece.xor <= high
        )
        return as_text(merged((value, value) for value in hits))

    def _lookup(self, data: _Attributes) -> None:
        """A set, a map or a map of verdicts."""
        name = data.text(1)
        found = self._reader.elements((*self._place[:2], name))
        is_verdict = data.number(3, 1) == 0
        if 3 in data and not is_verdict:
            self._load(data[3], _OPAQUE)
        keys = [self._key(_slot(data[2]), first, last) for first, last, _ in found.elements]
        why = found.why or f"what is looked up in {name} is not understood" * (None in keys)
        self._reader.rows += len(keys)
        if len(keys) > MAX_ROWS or self._reader.rows > ALL_ROWS:
            why = f"the set {name} is longer than what is read of sets"
        read = [key for key in keys if key is not None]
        inverted = bool(data.number(5) & 1)
        if why:
            self._opaque(why)
            if is_verdict:
                self._verdict = Verdict.UNKNOWN
        elif is_verdict:
            self._map_verdicts(read, found)
        elif found.others is None:
            self._matches.append(_among(read, inverted=inverted))
        elif inverted:
            self._matches.append(_among([]))

    def _map_verdicts(self, keys: list[_Key], found: _Set) -> None:
        """A rule for each verdict of a map, and one for everything else."""
        ends: dict[tuple[Verdict, str], list[_Key]] = {}
        for key, (*_, element) in zip(keys, found.elements, strict=True):
            end = _verdict(element) or (Verdict.UNKNOWN, "")
            ends.setdefault(end, []).append(key)
        self._map += [(_among(some), *end) for end, some in ends.items()]
        self._map = self._map or [(_among([]), Verdict.CONTINUE, "")]
        if found.others is not None:
            end = _verdict(found.others) or (Verdict.UNKNOWN, "")
            self._map.append((_among(keys, inverted=True), *end))

    def _key(self, slot: int, first: bytes, last: bytes) -> _Key | None:
        """The fields that an element is compared with, and its values of them."""
        names: list[str] = []
        row: list[str] = []
        at = 0
        while at < len(first):
            pieces = self._registers.get(slot, ())
            size = sum(piece.size for piece in pieces)
            part = self._row(pieces, first[at : at + size], last[at : at + size])
            if part is None or len(part) < len(pieces):
                return None
            names += [piece.name for piece in pieces]
            row += part
            slot += -(-size // 4)
            at += -(-size // 4) * 4
        return tuple(names), tuple(row)

    def _xt_target(self, name: str) -> None:
        """A target of iptables."""
        self._verdict = _TARGETS.get(name, Verdict.UNKNOWN)
        self._reader.translates |= name in {"DNAT", "REDIRECT", "TPROXY"}
        self._reader.written.update({_WRITTEN[name]} if name in _WRITTEN else ())

    def _xt_match(self, name: str, info: bytes) -> None:
        """A condition of iptables: states and ports are read."""
        if name == "comment":
            return
        if name == "conntrack" and len(info) >= _XT_CONNTRACK.size:
            asks, inverted, states = _XT_CONNTRACK.unpack_from(info)
            if asks == 1:
                hits = merged((s, s) for s in (1, 2, 4, 8, 64) if s & states)
                key = ("ct-state",), (as_text(hits),)
                self._matches.append(_among([key], inverted=bool(inverted & 1)))
                return
        self._opaque(f"the condition {name} of iptables is not read")


def _among(keys: list[_Key], *, inverted: bool = False) -> Match:
    """The condition that a packet is one of these; nothing is one of none."""
    names = keys[0][0] if keys else ("l4proto",)
    rows = [row for _, row in keys]
    if len(names) == 1:
        rows = [(as_text(merged(one for (text,) in rows for one in parse(text))),)]
    return Match(fields=names, rows=tuple(rows), inverted=inverted)


def _intervals(
    rows: list[tuple[bytes, bytes, _Attributes]],
) -> Iterator[tuple[bytes, bytes, _Attributes]]:
    """Intervals from their first keys, and the keys behind their ends."""
    rows = sorted(rows, key=lambda row: (row[0], not row[2].number(3) & 1))
    for here, behind in zip(rows, [*rows[1:], None], strict=True):
        if here[2].number(3) & 1:
            continue
        size = len(here[0])
        end = int.from_bytes(behind[0]) if behind else 1 << 8 * size
        yield here[0], (end - 1).to_bytes(size), here[2]


def _decides(chains: Iterable[Chain]) -> bool:
    """Return whether one of these chains may do anything but accept."""
    return any(
        chain.policy == "drop"
        or any(rule.verdict in {Verdict.DROP, Verdict.UNKNOWN} for rule in chain.rules)
        for chain in chains
    )


def _devices(hook: _Attributes) -> Iterator[str]:
    if 3 in hook:
        yield netlink.text(hook[3])
    for kind, name in netlink.listed_attributes(hook.get(4, b"")):
        yield netlink.text(name) + "*" * (kind == 2)


def _taken(pieces: tuple[_Field, ...], data: bytes) -> Iterator[bytes]:
    """The part of a register's value that belongs to each of its pieces."""
    at = 0
    for piece in pieces:
        yield data[at : at + piece.size]
        at += piece.size


def _verdict(data: _Attributes) -> tuple[Verdict, str] | None:
    """Verdict and chain; None for a value."""
    parts = data.inside(2).inside(2)
    if 1 not in parts:
        return None
    return _VERDICTS.get(parts.number(1), Verdict.UNKNOWN), parts.text(2)


def _slot(register: bytes) -> int:
    """The first of a register's four-byte slots."""
    number = _number(register)
    return number - 8 if number >= 8 else 4 * (number - 1)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _number(data: bytes) -> int:
    if len(data) < _INT.size:
        raise netlink.NetlinkError("a number of the kernel is cut off")
    number: int = _INT.unpack_from(data)[0]
    return number


def ruleset(dump: _Dump, names: Mapping[int, str]) -> Ruleset:
    """The chains that packets to and from this machine pass.

    Args:
        dump: What asks the kernel.
        names: The interfaces by their numbers.

    Raises:
        OSError: when the kernel refused.
        NetlinkError: when the answers are malformed, or of different generations.
    """
    try:
        return _Reader(dump, names).ruleset()
    except (LookupError, OverflowError) as error:
        raise netlink.NetlinkError("a part of the kernel's answer is missing") from error


_LEGACY: Final = ("ip_tables_names", "ip6_tables_names")
_CALL: Final = {"x86_64": 321, "aarch64": 280}
"""The number of bpf(2)."""
_NEXT, _OPEN, _DESCRIBE = 11, 13, 15
"""BPF_PROG_GET_NEXT_ID, BPF_PROG_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD of linux/bpf.h."""
_KINDS: Final = {3: "tc", 4: "tc", 6: "xdp", 32: "netfilter"}
_MAX_PROGRAMS: Final = 4096


def firewall(host: Host) -> Firewall:
    """The filters of this network namespace."""
    return Firewall(
        ruleset=reading(lambda: _ruleset(host)),
        legacy=reading(lambda: _legacy(host)),
        bpf=reading(lambda: tuple(sorted(set((host.kernel.programs or loaded_programs)())))),
    )


def _ruleset(host: Host) -> Ruleset:
    names = {link.number: link.facts.name for link in links(host)}
    return ruleset(host.kernel.nft or dump, names)


def _legacy(host: Host) -> tuple[str, ...]:
    """Names of tables that iptables-legacy filled; a kernel without it has no list of them."""
    found: set[str] = set()
    for name in _LEGACY:
        try:
            found |= set(host.text(f"/proc/self/net/{name}", 4096).split())
        except FileNotFoundError:
            continue
    return tuple(sorted(found))


def loaded_programs() -> Iterator[str]:
    """The kinds of eBPF programs that see packets, one for each of the machine.

    Raises:
        OSError: when only root may ask.
        LookupError: where bpf(2) is not known.
        TooMuchError: when there are more than are asked for.
    """
    number = 0
    for _ in range(_MAX_PROGRAMS):
        try:
            _, said = _bpf(_NEXT, struct.pack("=III", number, 0, 0))
        except FileNotFoundError:
            return  # behind the last
        (number,) = struct.unpack_from("=I", said, 4)
        with suppress(FileNotFoundError):  # it has gone
            if kind := _KINDS.get(_kind(number)):
                yield kind
    raise TooMuchError(f"more than {_MAX_PROGRAMS} programs of eBPF")


def _kind(number: int) -> int:
    program, _ = _bpf(_OPEN, struct.pack("=III", number, 0, 0))
    said = ctypes.create_string_buffer(4)
    try:
        _bpf(_DESCRIBE, struct.pack("=IIQ", program, len(said), ctypes.addressof(said)))
    finally:
        os.close(program)
    return int.from_bytes(said.raw, sys.byteorder)


def _bpf(command: int, ask: bytes) -> tuple[int, bytes]:
    """The result of bpf(2), and what it was asked as it left it."""
    words = ctypes.create_string_buffer(ask, len(ask))
    number = ctypes.c_long(_CALL[platform.machine()])
    libc = ctypes.CDLL(None, use_errno=True)
    done = int(libc.syscall(number, ctypes.c_long(command), words, ctypes.c_ulong(len(ask))))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done, words.raw
