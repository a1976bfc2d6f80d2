# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The packet filters of this network namespace, by nfnetlink (linux/netfilter/nf_tables.h).

No program is started, and nothing is changed. The kernel shows rules to those only who may change
them (CAP_NET_ADMIN). Rules:

1. a base chain is reduced to its end: the fate of a packet that no condition is about. Rules
   without a condition, jumps among them, are followed; a rule with a condition is passed by;
2. kept beside it are rules that are wide: everything from an interface, everything to a network;
3. a rule without a condition whose verdict is not understood leaves the end not understood.
"""

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from securetrain.audit.subjects.node.facts.network import Ending, Filter
from securetrain.core import netlink

CHAINS: Final = 4
RULES: Final = 7
"""NFT_MSG_GETCHAIN and NFT_MSG_GETRULE."""
_NETFILTER: Final = 12
_SUBSYSTEM: Final = 10 << 8
_ANSWER: Final = {CHAINS: _SUBSYSTEM | 3, RULES: _SUBSYSTEM | 6}
_GENERAL: Final = 4
"""The size of struct nfgenmsg, which begins with the family."""
_FAMILIES: Final[dict[int, Literal["inet", "ip", "ip6"]]] = {1: "inet", 2: "ip", 10: "ip6"}
_HOOKS: Final[dict[int, Literal["input", "output"]]] = {1: "input", 3: "output"}
_INT: Final = struct.Struct(">i")
_DROP, _ACCEPT, _JUMP, _GOTO, _RETURN = 0, 1, -3, -4, -5
_SILENT: Final = frozenset({"counter", "log", "notrack", "meta", "payload", "bitwise", "ct"})
"""Expressions that decide nothing by themselves."""
_SILENT_TARGETS: Final = frozenset({"LOG", "NFLOG", "MARK", "CONNMARK", "CT", "TRACE", "AUDIT"})
_DROPPING_TARGETS: Final = frozenset({"DROP", "REJECT"})
_IIF, _OIF, _IIFNAME, _OIFNAME, _NFPROTO, _PROTOCOL = 4, 5, 6, 7, 15, 1
_LOOPBACK: Final = "lo"
_MAX_DEPTH: Final = 16
"""The depth to which the kernel itself follows jumps."""


def dump(kind: int) -> bytes:
    """Ask the kernel for every chain or rule.

    Raises:
        OSError: when it does not answer, or only root may ask.
        NetlinkError: when there is more than is read.
    """
    return netlink.dump(_NETFILTER, _SUBSYSTEM | kind, bytes(_GENERAL))


@dataclass(frozen=True, slots=True)
class _Chain:
    family: int
    table: str
    name: str
    hook: int | None
    accepts: bool
    kind: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule: its verdict, and what it is about."""

    verdict: int | None
    """None for a rule that has none, or one that is not understood."""
    target: str = ""
    conditional: bool = False
    understood: bool = True
    interface: str = ""
    """The interface that is the one condition, if it is."""
    network: str = ""
    """The destination, or source, that is the one condition, if it is."""
    is_destination: bool = False


_Place = tuple[int, str, str]


@dataclass(slots=True)
class _Walk:
    """The findings of a walk along a base chain."""

    hook: Literal["input", "output"]
    rules: dict[_Place, list[bytes]]
    opens: list[str] = field(default_factory=list)
    allows: list[str] = field(default_factory=list)
    denies: list[str] = field(default_factory=list)
    conditional: bool = False

    def end(self, place: _Place, depth: int = 0) -> Ending | None:
        """The fate of a packet that no condition is about; None when the chain returns."""
        if depth > _MAX_DEPTH:
            return Ending.NOT_UNDERSTOOD
        for raw in self.rules.get(place, ()):
            rule = _rule(raw)
            if rule.conditional:
                self._note(rule, place, depth)
                continue
            if not rule.understood:
                return Ending.NOT_UNDERSTOOD
            match rule.verdict:
                case None:
                    continue
                case _ if rule.verdict == _RETURN:
                    return None
                case _ if rule.verdict in {_JUMP, _GOTO}:
                    ended = self.end((place[0], place[1], rule.target), depth + 1)
                    if ended is not None or rule.verdict == _GOTO:
                        return ended
                case _:
                    return _ending(rule.verdict)
        return None

    def _note(self, rule: _Rule, place: _Place, depth: int) -> None:
        verdict = _ending(rule.verdict) if rule.verdict in {_DROP, _ACCEPT} else None
        if rule.verdict in {_JUMP, _GOTO}:
            inner = _Walk(self.hook, self.rules)
            verdict = inner.end((place[0], place[1], rule.target), depth + 1)
            self.conditional |= inner.conditional or verdict is Ending.DROP
        is_far = rule.is_destination == (self.hook == "output")
        match verdict, rule:
            case Ending.ACCEPT, _Rule(interface=str(name)) if name:
                if name != _LOOPBACK:
                    self.opens.append(name)
            case Ending.ACCEPT, _Rule(network=str(network)) if network:
                if is_far:
                    self.allows.append(network)
                elif self.hook == "input":
                    self.opens.append(network)  # everything that comes to one of the node's own
            case Ending.DROP, _Rule(network=str(network)) if network and is_far:
                self.denies.append(network)
            case Ending.DROP, _:
                self.conditional = True
            case _:
                self.conditional |= not rule.understood


def filters(chains: bytes, rules: bytes) -> tuple[Filter, ...]:
    """The base chains that judge what comes in and goes out.

    Raises:
        OSError: when the kernel refused.
        NetlinkError: when the answers are malformed or have no end.
    """
    by_chain: dict[_Place, list[bytes]] = {}
    for family, attributes in _objects(rules, RULES):
        place = (family, netlink.text(attributes.get(1, b"")), netlink.text(attributes.get(2, b"")))
        by_chain.setdefault(place, []).append(attributes.get(4, b""))
    found = []
    for chain in _chains(chains):
        if chain.family not in _FAMILIES or chain.hook not in _HOOKS or chain.kind == "nat":
            continue
        walk = _Walk(_HOOKS[chain.hook], by_chain)
        ended = walk.end((chain.family, chain.table, chain.name)) or (
            Ending.ACCEPT if chain.accepts else Ending.DROP
        )
        found.append(
            Filter(
                table=chain.table,
                chain=chain.name,
                family=_FAMILIES[chain.family],
                hook=_HOOKS[chain.hook],
                ending=ended,
                opens=tuple(sorted(set(walk.opens))),
                allows=tuple(sorted(set(walk.allows))),
                denies=tuple(sorted(set(walk.denies))),
                conditional=walk.conditional,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.hook, one.label)))


def _objects(data: bytes, kind: int) -> Iterator[tuple[int, dict[int, bytes]]]:
    for answer, body in netlink.answers(data):
        if answer != _ANSWER[kind] or len(body) < _GENERAL:
            raise netlink.NetlinkError("the kernel's answer is not what was asked for")
        yield body[0], netlink.attributes(body[_GENERAL:])


def _chains(data: bytes) -> Iterator[_Chain]:
    for family, attributes in _objects(data, CHAINS):
        hook = netlink.attributes(attributes[4]) if 4 in attributes else {}
        yield _Chain(
            family=family,
            table=netlink.text(attributes.get(1, b"")),
            name=netlink.text(attributes.get(3, b"")),
            hook=_number(hook[1]) if 1 in hook else None,
            accepts=_number(attributes[5]) != _DROP if 5 in attributes else True,
            kind=netlink.text(attributes.get(7, b"")),
        )


def _rule(expressions: bytes) -> _Rule:
    """Take a rule apart (rules 1 and 2)."""
    verdict: int | None = None
    target, understood, conditional = "", True, False
    seen = _Seen()
    for kind, element in netlink.listed_attributes(expressions):
        if kind != 1:
            continue
        parts = netlink.attributes(element)
        name, data = netlink.text(parts.get(1, b"")), netlink.attributes(parts.get(2, b""))
        match name:
            case "immediate":
                found, target = _verdict(data)
                verdict = verdict if found is None else found
                understood = understood and (found is None or found in _UNDERSTOOD)
            case "reject":
                verdict = _DROP
            case "target":
                word = netlink.text(data.get(1, b""))
                verdict = _DROP if word in _DROPPING_TARGETS else verdict
                understood = understood and word in _DROPPING_TARGETS | _SILENT_TARGETS
            case "match" if netlink.text(data.get(1, b"")) == "comment":
                pass
            case _ if name in _SILENT:
                seen.load(name, data)
            case _:
                conditional = True
                is_map = name == "lookup" and 3 in data and _number(data[3]) == 0
                understood = understood and not is_map  # a map of verdicts
                seen.compare(name, data)
    return _Rule(
        verdict=verdict,
        target=target,
        conditional=conditional,
        understood=understood,
        interface=seen.interface if seen.is_simple and not seen.network else "",
        network=seen.network if seen.is_simple and not seen.interface else "",
        is_destination=seen.is_destination,
    )


_UNDERSTOOD: Final = frozenset({_DROP, _ACCEPT, _JUMP, _GOTO, _RETURN})


@dataclass(slots=True)
class _Seen:
    """The conditions of a rule, as far as they are about an interface or a network."""

    interface: str = ""
    network: str = ""
    is_destination: bool = False
    is_simple: bool = True
    _loaded: tuple[str, int, int] = ("", 0, 0)
    _mask: bytes = b""

    def load(self, name: str, data: dict[int, bytes]) -> None:
        """Note what an expression puts into a register."""
        match name:
            case "meta":
                self._loaded, self._mask = ("meta", _number(data.get(2, b"")), 0), b""
            case "payload":
                base, offset = _number(data.get(2, b"")), _number(data.get(3, b""))
                place = ("payload" if base == 1 else "", offset, _number(data.get(4, b"")))
                self._loaded, self._mask = place, b""
            case "bitwise":
                self._mask = netlink.attributes(data.get(4, b"")).get(1, b"")
            case "ct":
                self._loaded, self._mask = ("", 0, 0), b""

    def compare(self, name: str, data: dict[int, bytes]) -> None:
        """Note what a register is compared with."""
        if name != "cmp" or _number(data.get(2, b"")) != 0:
            self.is_simple = False
            return
        value = netlink.attributes(data.get(3, b"")).get(1, b"")
        source, key, _ = self._loaded
        if source == "meta" and key in {_IIFNAME, _OIFNAME}:
            ended = value.endswith(b"\0")
            self.interface = netlink.text(value) + ("" if ended else "*")
        elif source == "meta" and key in {_IIF, _OIF}:
            index = int.from_bytes(value, "little" if struct.pack("=H", 1)[0] else "big")
            self.interface = _LOOPBACK if index == 1 else f"#{index}"
        elif source == "meta" and key in {_NFPROTO, _PROTOCOL}:
            pass  # the version of IP
        elif source == "payload" and (network := self._network(value)):
            self.network, self.is_destination = network, self._loaded[1] in {16, 24}
        else:
            self.is_simple = False

    def _network(self, value: bytes) -> str:
        """The network that a source or destination address is compared with; empty for others."""
        _, offset, _ = self._loaded
        size = {12: 4, 16: 4, 8: 16, 24: 16}.get(offset, 0)
        if not 0 < len(value) <= size:
            return ""
        bits = 8 * len(value)
        if self._mask:
            bits = int.from_bytes(self._mask).bit_count()
        try:
            address = ipaddress.ip_address(value + bytes(size - len(value)))
            return str(ipaddress.ip_network((address, bits), strict=False))
        except ValueError:
            return ""


def _verdict(data: dict[int, bytes]) -> tuple[int | None, str]:
    """Verdict and chain of an ``immediate``; None when it only fills a register."""
    parts = netlink.attributes(netlink.attributes(data.get(2, b"")).get(2, b""))
    if 1 not in parts:
        return None, ""
    return _number(parts[1]), netlink.text(parts.get(2, b""))


def _ending(verdict: int | None) -> Ending:
    if verdict == _DROP:
        return Ending.DROP
    return Ending.ACCEPT if verdict == _ACCEPT else Ending.NOT_UNDERSTOOD


def _number(data: bytes) -> int:
    if len(data) < _INT.size:
        raise netlink.NetlinkError("a number of the kernel is cut off")
    number: int = _INT.unpack_from(data)[0]
    return number
