# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about what a node lets in and out.

A stranger is everybody who is not named: packets of a new connection, from any address, to any
port, by every interface but loopback and authenticated tunnels. What the sender chooses (the port
that it sends from, flags, sizes) it chooses as it likes. Rules:

1. a filter is closed where strangers reach neither `MANY` ports nor `MANY` other protocols from
   more than a `SHARE` of all addresses: what is narrower is somebody or something by name;
2. a port is closed where no more than that share reaches it, and an address where nothing does;
3. what iptables-legacy and programs of eBPF could drop or change is not known: with them nothing is
   accepted for certain, and no mark is known.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias

from securetrain.audit.engine.fields import Missing, View, resolve
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function, records
from securetrain.audit.engine.functions.network import LISTENING
from securetrain.audit.engine.functions.packets import (
    INCOMING,
    OUTGOING,
    Accepted,
    Box,
    Packets,
    both,
    follow,
    size,
    values,
)
from securetrain.audit.engine.functions.settings import SETTINGS, setting
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, unknown
from securetrain.audit.subjects.node.facts.network import Ranges, Route, Ruleset, interface, merged
from securetrain.audit.subjects.node.facts.node import Listener, Scope

Version: TypeAlias = Literal["IPv4", "IPv6"]

MANY: Final = {"dport": 4096, "l4proto": 64}
SHARE: Final = 1 / 64
_CHAINS: Final = ("node", "firewall", "ruleset", "chains", "*")
_FILTERS: Final = (
    *fields("node", "firewall", of=("legacy", "bpf")),
    *fields("node", "firewall", "ruleset", of=("written", "translates")),
    *fields(*_CHAINS, of=("family", "table", "name", "hook", "priority", "policy", "devices")),
    *fields(*_CHAINS, "rules", "*", of=("handle", "verdict", "target", "untracks")),
    *fields(*_CHAINS, "rules", "*", "matches", "*", of=("fields", "rows", "inverted", "why")),
    *fields("node", "interfaces", "*", of=("name", "kind", "loopback", "ipv6")),
)
_ROUTES: Final = fields("node", "routes", "*", of=("network", "interface"))
_TUNNELS: Final = frozenset({"wireguard"})
"""Kinds of interfaces where nobody but authenticated peers is heard."""
_FAMILIES: Final[dict[Version, frozenset[str]]] = {
    "IPv4": frozenset({"inet", "ip", "netdev", "bridge"}),
    "IPv6": frozenset({"inet", "ip6", "netdev", "bridge"}),
}
_SIX: Final[dict[Version, str]] = {"IPv4": "", "IPv6": "6"}
_BITS: Final[dict[Version, int]] = {"IPv4": 32, "IPv6": 128}
_UNICAST: Final[dict[Version, tuple[str, ...]]] = {
    "IPv4": ("1.0.0.0-126.255.255.255", "128.0.0.0-223.255.255.255"),
    "IPv6": ("2000::-3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fc00::-febf::"),
}
_NUMBERS: Final[dict[Version, tuple[int, int]]] = {"IPv4": (2, 0x800), "IPv6": (10, 0x86DD)}
_SYN: Final = merged((f, f) for f in range(256) if f & 0x17 == 0x02)
"""Flags of TCP with which a connection begins."""
_TRANSPORTS: Final[dict[str, Ranges]] = {
    "TCP": ((6, 6),),
    "UDP": ((17, 17),),
    "other protocols": ((3, 3), (5, 5), (7, 16), (18, 49), (52, 57), (59, 255)),
}
"""All but ICMP, IGMP and IPsec, which machines need, and IP in IP."""


class TunnelArgs(Args, frozen=True, kw_only=True):
    """The kinds of interfaces that encrypt."""

    kinds: tuple[str, ...]
    by_the_run: tuple[str, ...]
    """Profiles of `network.require` that encrypt on a plain interface, which only a run shows."""
    variables: tuple[str, ...]
    """Those that name the interfaces."""


class PortArgs(Args, frozen=True, kw_only=True):
    """Ports of one service."""

    ports: tuple[int, ...]


class NetworkArgs(Args, frozen=True, kw_only=True):
    """Addresses of a cloud's own services."""

    networks: tuple[str, ...]


class ManagementArgs(Args, frozen=True, kw_only=True):
    """Addresses of management processors."""

    own: tuple[str, ...]
    """Those that a machine's own one has on the cable inside it."""
    networks: tuple[str, ...]
    """Those of the site."""
    general: tuple[str, ...]
    """Routes that say nothing of what is there."""


@function("network.inbound_denied", reads=_FILTERS)
def inbound_denied(view: View, _: NoArgs) -> list[Judgement]:
    """Packets that nobody allows are not let in, for each version of IP that the node speaks."""
    return [
        _shown(
            version,
            *_closed(view, INCOMING, version, _strangers(view, version), ("saddr", SHARE, 1)),
        )
        for version in _versions(view)
    ]


@function("network.outbound_denied", reads=(*_FILTERS, *_ROUTES))
def outbound_denied(view: View, _: NoArgs) -> list[Judgement]:
    """Packets that nobody allows are not let out, or no route leads everywhere."""
    found = []
    for version in _versions(view):
        routes = [route for route in _routes(view, version) if route.interface]
        ways = sorted({r.interface for r in routes if ip_network(r.network).prefixlen <= 1})
        box = _own(view, version, ways)
        closed = _closed(view, OUTGOING, version, box, ("daddr", SHARE, 1)) if ways else _NOTHING
        found.append(_shown(version, *closed, by=", ".join(ways)))
    return found


@function(
    "network.listeners_filtered",
    reads=(
        *_FILTERS,
        *LISTENING,
        *fields("node", "listeners", "*", "process", of=("pid", "loads_torch")),
    ),
)
def listeners_filtered(view: View, _: NoArgs) -> list[Judgement]:
    """A filter keeps strangers from ports of torch that listen beyond loopback."""
    found = []
    for listener in records(view, "listeners"):
        process = listener.process
        if listener.protocol != "tcp" or listener.scope is Scope.LOOPBACK:
            continue
        loads = process.loads_torch if process else None
        if loads is False or (process is None and not listener.is_out_of_sight):
            continue
        good, why, rule = _port_closed(view, listener)
        if loads is None and good.value is False:
            good, why = unknown("whether it is a process of torch is not known"), ""
        pid = process.pid if process else None
        found.append(_shown(listener.label, good, why, rule, scope=listener.scope.value, pid=pid))
    return found


@function("network.ports_filtered", reads=(*_FILTERS, *LISTENING))
def ports_filtered(view: View, args: PortArgs) -> list[Judgement]:
    """A filter keeps strangers from these ports where they are open beyond loopback."""
    return [
        _shown(one.label, *_port_closed(view, one), scope=one.scope.value)
        for one in records(view, "listeners")
        if one.protocol == "tcp" and one.port in args.ports and one.scope is not Scope.LOOPBACK
    ]


@function(
    "network.metadata_out_of_reach", reads=(*_FILTERS, *_ROUTES, ("node", "hardware", "cloud"))
)
def metadata_out_of_reach(view: View, args: NetworkArgs) -> list[Judgement]:
    """In a cloud, no route leads to its own addresses, or a filter drops what goes there."""
    cloud = resolve(view, ("node", "hardware", "cloud"))
    if isinstance(cloud, Missing):
        return [Judgement(label="", good=TRUE if cloud.definite else unknown(cloud.reason))]
    found = []
    for text in args.networks:
        network = ip_network(text)
        route = _way(view, network)
        if route is None or not route.interface:
            continue
        answers = {"l4proto": ((6, 6),), "dport": ((80, 80),)}
        good, why, rule = _dropped(view, network, route, answers)
        if good is TRUE and _dropped(view, network, route, {})[0] is not TRUE:
            good, why = unknown("it is dropped on port 80 alone"), ""
        seen = {"cloud": cloud, "by": route.interface, "route": route.network}
        found.append(_shown(text, good, why, rule, **seen))
    return found


@function("network.management_apart", reads=(*_FILTERS, *_ROUTES, ("node", "hardware", "bmc")))
def management_apart(view: View, args: ManagementArgs) -> list[Judgement]:
    """No route but a general one leads to management processors, this machine's own or others'."""
    found = []
    for text in (*args.own, *args.networks):
        network = ip_network(text)
        route = _way(view, network, overlapping=True)
        if route is None or not route.interface:
            continue
        if route.network in args.general:
            if text in args.own:
                continue  # not the cable inside the machine
            closed = unknown("only a general route leads there: a router decides"), "", ""
        else:
            closed = _dropped(view, network, route, {})
        found.append(_shown(text, *closed, by=route.interface, route=route.network))
    bmc = resolve(view, ("node", "hardware", "bmc"))
    if not args.networks and not (isinstance(bmc, Missing) and bmc.definite):
        reason = "its networks are not named: audit.params of ST-NET-007 takes them"
        why = bmc.reason if isinstance(bmc, Missing) else f"{bmc}: a management processor; {reason}"
        found.append(Judgement(label="", good=unknown(why)))
    return found


@function(
    "fabric.encrypted",
    reads=(
        *SETTINGS,
        *fields("node", "interfaces", "*", of=("name", "kind", "loopback")),
    ),
)
def fabric_encrypted(view: View, args: TunnelArgs) -> list[Judgement]:
    """Interfaces that NCCL and Gloo are told to use encrypt, where the policy wants encryption."""
    known = {one.name: one for one in records(view, "interfaces")}
    asked = sorted(set(view.policy.network.require) & set(args.by_the_run))
    found = []
    for name in _told(view, args.variables):
        interface = known.get(name)
        if interface is None:
            continue  # ST-FAB-001
        good, why = TRUE, ""
        if interface.kind not in args.kinds and interface.loopback is not True:
            good, why = FALSE, f"{name} is no tunnel: what goes there can be read on the way"
        if interface.loopback is None and good is FALSE:
            good, why = unknown(f"whether {name} is loopback is not known"), ""
        elif good is FALSE and asked:
            good, why = unknown(f"{' or '.join(asked)} may protect {name}: only a run shows it"), ""
        found.append(Judgement(label=name, good=good, why=why, evidence={"kind": interface.kind}))
    return found


def _told(view: View, variables: tuple[str, ...]) -> list[str]:
    said = (setting(view, name).value for name in variables)
    names = [one for value in said if value for one in value.lstrip("=").split(",")]
    return list(dict.fromkeys(names))


def _versions(view: View) -> list[Version]:
    """The versions of IP that packets from elsewhere can have; both when that is not known."""
    outward = [one for one in records(view, "interfaces") if one.loopback is not True]
    six = any(one.ipv6 is not False for one in outward)
    return ["IPv4", "IPv6"] if six else ["IPv4"]


_Closed: TypeAlias = tuple[Truth, str, str]
"""The truth of "it is closed", why not, and the rule that decided."""
_Measure: TypeAlias = tuple[str, float, int]
"""The field with addresses, and above which share of them, at how many `MANY`, packets are many."""
_NOTHING: Final[_Closed] = (TRUE, "", "")


def _shown(label: str, good: Truth, why: str, rule: str, **seen: object) -> Judgement:
    return Judgement(
        label=label, good=good, why=why, evidence={"rule": rule, **seen} if rule else seen
    )


def _strangers(view: View, version: Version) -> Box | None:
    """Packets of strangers; None where no interface hears any."""
    names = [
        one.name
        for one in records(view, "interfaces")
        if one.loopback is not True and one.kind not in _TUNNELS
    ]
    return _box(version, {"iifname": _named(names), "fib-daddr": ((2, 2),)}) if names else None


def _own(view: View, version: Version, ways: Iterable[str]) -> Box:
    """Packets of the job that leave by these interfaces."""
    job = view.document.root("job")
    user: Box = {"skuid": ((job.uid, job.uid),), "skgid": ((job.gid, job.gid),)}
    return _box(version, {"oifname": _named(ways), **user})


def _named(names: Iterable[str]) -> Ranges:
    return merged(one for name in names for one in interface(name))


def _box(version: Version, more: Box) -> Box:
    """Packets that begin a connection, between any two addresses."""
    unicast = merged(
        (int(ip_address(low)), int(ip_address(high)))
        for low, _, high in (text.partition("-") for text in _UNICAST[version])
    )
    family, kind = _NUMBERS[version]
    six = _SIX[version]
    return {
        "nfproto": ((family, family),),
        "protocol": ((kind, kind),),
        "saddr" + six: unicast,
        "daddr" + six: unicast,
        "ct-state": ((8, 8),),
        "ct-direction": ((0, 0),),
        "ct-status": ((0, 0), (0x80, 0x80), (0x100, 0x100), (0x180, 0x180)),
        "mark": ((0, 0),),
        "pkttype": ((0, 0),),
        "secpath": ((0, 0),),
        "fib-saddr": ((1, 1),),
        "fib-route": ((1, 1),),
        **more,
    }


def _closed(
    view: View, hooks: tuple[str, ...], version: Version, box: Box | None, measure: _Measure
) -> _Closed:
    """Return whether a filter drops all but a few of these packets."""
    ruleset = resolve(view, ("node", "firewall", "ruleset"))
    if isinstance(ruleset, Missing):
        return unknown(ruleset.reason), "", ""
    if box is None:
        return _NOTHING
    beside = _beside(view)
    opaque = frozenset({"mark", "ct-status"} if beside else ())
    every = merged(one for ranges in _TRANSPORTS.values() for one in ranges)
    asked = {**box, "l4proto": both(values(box, "l4proto"), every), "tcp-flags": _SYN}
    asked |= {"ct-state": ((8, 8), (64, 64))} if beside else {}
    found = _follow(ruleset, tuple(asked.items()), hooks, version, opaque)
    doubt: _Closed = _NOTHING
    for name in _TRANSPORTS:
        if many := _many(found.sure, version, measure, name):
            rule = max(many, key=lambda one: size(values(one.box, "saddr" + _SIX[version]))).by
            if not beside:
                way = "in" if hooks is INCOMING else "out"
                return FALSE, f"{rule or 'no filter'} lets {name} {way}", rule
            doubt = unknown(beside), "", rule
        elif found.possible != found.sure and _many(found.possible, version, measure, name):
            doubt = unknown(found.why or "a rule of a filter is not understood"), "", ""
    return doubt


@lru_cache(maxsize=1024)
def _follow(
    ruleset: Ruleset,
    box: tuple[tuple[str, Ranges], ...],
    hooks: tuple[str, ...],
    version: Version,
    opaque: frozenset[str],
) -> Accepted:
    """Follow packets once where many nodes have the same rules."""
    return follow(ruleset, dict(box), hooks, _FAMILIES[version], opaque)


def _many(
    found: Iterable[Packets], version: Version, measure: _Measure, name: str
) -> list[Packets]:
    """The packets of a transport where they have many ports, or protocols, at many addresses."""
    field, share, many = measure
    axis = "l4proto" if name == "other protocols" else "dport"
    mine = [one for one in found if both(values(one.box, "l4proto"), _TRANSPORTS[name])]
    if axis == "l4proto":  # of one port is something by name here, too
        mine = [one for one in mine if size(values(one.box, "dport")) > many * MANY["dport"]]
    boxes = [(values(one.box, axis), values(one.box, field + _SIX[version])) for one in mine]
    few, least = (1 << _BITS[version]) * share, many * MANY[axis]
    if size(merged(one for _, at in boxes for one in at)) <= few:
        return []
    edges = sorted({edge for own, _ in boxes for low, high in own for edge in (low, high + 1)})
    for low, behind in pairwise(edges):
        there = (at for own, at in boxes if any(a <= low <= b for a, b in own))
        if size(merged(one for at in there for one in at)) > few:
            least -= behind - low
            if least < 0:
                return mine
    return []


def _port_closed(view: View, listener: Listener) -> _Closed:
    """Return whether strangers are kept from a listener; one of ``::`` hears IPv4 too."""
    address = ip_address(listener.address)
    versions: list[Version] = ["IPv6" if address.version == 6 else "IPv4"]
    if listener.address == "::":
        versions.append("IPv4")
    found = []
    for version in versions:
        box = _strangers(view, version)
        own = () if address.is_unspecified else ((int(address), int(address)),)
        if box is not None:
            box = {**box, "l4proto": ((6, 6),), "dport": ((listener.port, listener.port),)}
            box |= {"daddr" + _SIX[version]: own} if own else {}
        found.append(_closed(view, INCOMING, version, box, ("saddr", SHARE, 0)))
    open_ = next((one for one in found if one[0].value is False), None)
    return open_ or next((one for one in found if one[0].value is None), found[0])


def _dropped(view: View, network: IPv4Network | IPv6Network, route: Route, more: Box) -> _Closed:
    """Return whether a filter drops what goes to a network."""
    version = _version_of(network)
    there = int(network[0]), int(network[-1])
    box = {**_own(view, version, [route.interface]), "daddr" + _SIX[version]: (there,), **more}
    good, why, rule = _closed(view, OUTGOING, version, box, ("daddr", 0, 0))
    return good, why and f"a route leads there, and {why}", rule


def _beside(view: View) -> str:
    """Whatever sees packets too and is not read (rule 3)."""
    for name, what in (("legacy", "the rules of iptables-legacy"), ("bpf", "programs of eBPF")):
        found = resolve(view, ("node", "firewall", name))
        if isinstance(found, Missing):
            if not found.definite:
                return found.reason
        elif found:
            return f"{what} ({', '.join(found)}) are not read"
    return ""


def _routes(view: View, version: Version) -> list[Route]:
    return [one for one in records(view, "routes") if (":" in one.network) == (version == "IPv6")]


def _version_of(network: IPv4Network | IPv6Network) -> Version:
    return "IPv4" if network.version == 4 else "IPv6"


def _way(
    view: View, network: IPv4Network | IPv6Network, *, overlapping: bool = False
) -> Route | None:
    """The narrowest route to a network, or to a part of it."""
    ways: list[tuple[int, Route]] = []
    for one in _routes(view, _version_of(network)):
        wide: Any = ip_network(one.network)
        if wide.overlaps(network) if overlapping else network.subnet_of(wide):
            ways.append((wide.prefixlen, one))
    return max(ways, key=itemgetter(0), default=(0, None))[1]


@function(
    "fabric.rdma_apart",
    reads=(
        *_ROUTES,
        ("node", "rdma", "ports"),
        ("node", "rdma", "storage"),
        *fields("node", "rdma", "ports", "*", of=("name", "layer", "interfaces")),
    ),
)
def rdma_apart(view: View, _: NoArgs) -> list[Judgement]:
    """RDMA over Ethernet shares its network with neither users nor file servers."""
    ports, storage = (resolve(view, ("node", "rdma", name)) for name in ("ports", "storage"))
    if isinstance(ports, Missing):
        return [Judgement(label="", good=TRUE if ports.definite else unknown(ports.reason))]
    found = []
    for port in ports:
        if port.layer != "Ethernet":
            continue
        shared = [] if port.interfaces is None else _shared_with(view, port.interfaces, storage)
        good, why = (
            (FALSE, f"it shares its network with {', '.join(shared)}") if shared else (TRUE, "")
        )
        if port.interfaces is None:
            good = unknown(f"{port.name}: its network devices are not known")
        elif not shared and isinstance(storage, Missing):
            good = unknown(storage.reason)
        seen = {"interfaces": ", ".join(port.interfaces or ())}
        found.append(Judgement(label=port.name, good=good, why=why, evidence=seen))
    return found


def _shared_with(
    view: View, interfaces: tuple[str, ...], storage: tuple[str, ...] | Missing
) -> list[str]:
    """The other traffic that routes lead over these interfaces."""
    ways: list[tuple[str, str]] = [("everything else", "0.0.0.0/0"), ("everything else", "::/0")]
    if not isinstance(storage, Missing):
        ways += [("a file server", one) for one in storage]
    found = []
    for what, text in ways:
        route = _way(view, ip_network(text))
        if route is not None and route.interface in interfaces:
            found.append(f"{what} ({route.interface})")
    return list(dict.fromkeys(found))
