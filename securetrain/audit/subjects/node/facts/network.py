# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Types of facts about what filters a node's packets, and where they go."""

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final, Literal, TypeAlias

from securetrain.audit.facts import MAY_BE_EMPTY, Fact, Mode, Reading

Family: TypeAlias = Literal["inet", "ip", "ip6", "netdev", "bridge"]
Hook: TypeAlias = Literal["ingress", "prerouting", "input", "output", "postrouting", "egress"]

FIELDS: Final[dict[str, int]] = {
    **dict.fromkeys(("saddr6", "daddr6", "iifname", "oifname"), 128),
    **dict.fromkeys(("saddr", "daddr", "mark", "skuid", "skgid"), 32),
    **dict.fromkeys(("protocol", "sport", "dport"), 16),
    **dict.fromkeys(("nfproto", "l4proto", "tcp-flags", "pkttype", "secpath", "ct-direction"), 8),
    **dict.fromkeys(("fib-saddr", "fib-daddr", "fib-route"), 8),
    "ct-state": 7,
    "ct-status": 9,
}
"""Fields of a packet that rules ask about, and their bits. Another part of the packet is named by
header, first byte and number of bytes, as in ``ip@8+1``."""


def bits_of(field: str) -> int:
    """The size of a field of a packet."""
    return FIELDS[field] if field in FIELDS else 8 * int(field.rpartition("+")[2])


Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Values in order, ends included; what is next to each other is one range."""


@lru_cache(maxsize=4096)
def parse(text: str) -> Ranges:
    """The ranges of a text of `Match.rows`.

    Raises:
        ValueError: when it is none.
    """
    found = []
    for part in text.split(",") if text else ():
        low, _, high = part.partition("-")
        found.append((int(low, 16), int(high or low, 16)))
    return merged(found)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, without overlap."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        elif low <= high:
            found.append((low, high))
    return tuple(found)


def as_text(ranges: Ranges) -> str:
    """The text for `parse`."""
    return ",".join(f"{low:x}" if low == high else f"{low:x}-{high:x}" for low, high in ranges)


def interface(name: str) -> Ranges:
    """An interface as the value of a field: its name in 16 bytes; ``*`` at the end for any rest."""
    stem = name.removesuffix("*").encode()[:16]
    low = int.from_bytes(stem.ljust(16, b"\0"))
    return ((low, low | ((1 << 8 * (16 - len(stem))) - 1) if name.endswith("*") else low),)


class Verdict(StrEnum):
    """The end of a rule for the packets that it is about."""

    ACCEPT = "accept"
    DROP = "drop"
    CONTINUE = "continue"
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"
    UNKNOWN = "unknown"
    """Another program decides, or one that is not understood."""


class Match(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A condition: the fields that it reads together, and the values for which it holds."""

    fields: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()
    rows: Annotated[tuple[tuple[str, ...], ...], MAY_BE_EMPTY] = ()
    """Rows of ranges, one for each field, as in ``16-19,1bb``: hexadecimal, ends included."""
    inverted: bool = False
    why: str = ""
    """The reason why it is not understood; empty when it is."""


class PacketRule(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A rule: what a packet must be, and what becomes of it."""

    handle: int
    matches: Annotated[tuple[Match, ...], MAY_BE_EMPTY] = ()
    verdict: Verdict
    target: str = ""
    """The chain to go to."""
    untracks: bool = False
    """Whether connections of these packets are not tracked."""

    @property
    def opaque(self) -> str:
        """The reason why something of it is not understood; empty when all is."""
        why = next((match.why for match in self.matches if match.why), "")
        return why or "another program decides" * (self.verdict is Verdict.UNKNOWN)


class Chain(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A chain of nftables that packets of the machine itself pass."""

    family: Family
    table: str
    name: str
    hook: Hook | Literal[""] = ""
    """Empty for a chain that others jump to."""
    priority: int = 0
    policy: Literal["accept", "drop"] = "accept"
    devices: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()
    """Interfaces that it belongs to; empty for all."""
    rules: Annotated[tuple[PacketRule, ...], MAY_BE_EMPTY] = ()

    @property
    def label(self) -> str:
        """Family, table and chain."""
        return f"{self.family} {self.table} {self.name}"


class Ruleset(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The chains of nftables that a packet to or from this machine passes."""

    chains: Annotated[tuple[Chain, ...], MAY_BE_EMPTY]
    written: Annotated[tuple[str, ...], MAY_BE_EMPTY] = ()
    """Fields that rules change on the way: what later rules find there is not followed."""
    translates: bool = False
    """Whether some rule gives packets another destination."""


class Firewall(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that filters packets."""

    ruleset: Reading[Ruleset]
    legacy: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Tables of the older iptables, whose rules are not read."""
    bpf: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Kinds of eBPF programs that are loaded and can drop or change packets."""


class Route(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A route to a network."""

    network: str
    interface: str
    """Empty when nothing goes there."""

    @property
    def label(self) -> str:
        """The network."""
        return self.network


class VerbsDevice(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device file of RDMA."""

    path: str
    uid: int
    mode: Mode

    @property
    def label(self) -> str:
        """The file."""
        return self.path


class RdmaPort(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A port of an adapter that is up."""

    name: str
    """Adapter and number, as in ``mlx5_0/1``."""
    layer: Literal["InfiniBand", "Ethernet"]
    full_default: bool | None
    """Whether it is a full member of the partition that everybody is in; None when unread."""
    interfaces: Annotated[tuple[str, ...], MAY_BE_EMPTY] | None
    """The network devices beside it; None when they are not known."""

    @property
    def label(self) -> str:
        """Adapter and number."""
        return self.name


class Rdma(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything about RDMA."""

    devices: Reading[Annotated[tuple[VerbsDevice, ...], MAY_BE_EMPTY]]
    ports: Reading[Annotated[tuple[RdmaPort, ...], MAY_BE_EMPTY]]
    storage: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Addresses of file servers that are mounted."""


class Gloo(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The abilities of the Gloo that is built into torch."""

    tls: Reading[bool]
    """Whether its TLS transport was compiled in; absent where the job does not ask for it."""
