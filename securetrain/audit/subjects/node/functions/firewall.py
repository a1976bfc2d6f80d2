# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about what a node lets in and out.

Every base chain of a hook sees every packet, and an accept of one ends that one only. So one that
drops by default is enough, and what an accepting one lets through means nothing. What is in the
tables of the older iptables is not read: where there are any, nothing is known to be open.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final, Literal, TypeAlias

from securetrain.audit.engine.fields import Missing, View, resolve
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function, records
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, unknown
from securetrain.audit.subjects.node.facts.network import Ending, Filter, Route
from securetrain.audit.subjects.node.facts.node import Scope
from securetrain.audit.subjects.node.functions.listeners import LISTENING, is_own_out_of_sight
from securetrain.audit.subjects.node.functions.settings import SETTINGS, setting

Hook: TypeAlias = Literal["input", "output"]
Version: TypeAlias = Literal["IPv4", "IPv6"]

_FILTERS: Final = (
    *fields("node", "firewall", of=("legacy", "filters")),
    *fields(
        *("node", "firewall", "filters", "*"),
        of=(
            "table",
            "chain",
            "family",
            "hook",
            "ending",
            "opens",
            "allows",
            "denies",
            "conditional",
        ),
    ),
    *fields("node", "interfaces", "*", of=("name", "kind", "loopback", "ipv6")),
)
_ROUTES: Final = fields("node", "routes", "*", of=("network", "interface"))
_FAMILY: Final[dict[Version, str]] = {"IPv4": "ip", "IPv6": "ip6"}
_TUNNELS: Final = frozenset({"wireguard"})
"""Kinds of interfaces where nobody but authenticated peers is heard."""


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
    found = []
    for version in _versions(view):
        good, why = _denied(view, "input", version)
        found.append(Judgement(label=version, good=good, why=why))
    return found


@function("network.outbound_denied", reads=(*_FILTERS, *_ROUTES))
def outbound_denied(view: View, _: NoArgs) -> list[Judgement]:
    """Packets that nobody allows are not let out, or no route leads everywhere."""
    found = []
    for version in _versions(view):
        routes = [route for route in _routes(view, version) if route.interface]
        widest = [route for route in routes if ip_network(route.network).prefixlen <= 1]
        good, why = _denied(view, "output", version) if widest else (TRUE, "")
        seen = {"by": ", ".join(sorted({route.interface for route in widest}))}
        found.append(Judgement(label=version, good=good, why=why, evidence=seen))
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
        if loads is False or (
            process is None and not is_own_out_of_sight(listener, view.document.root("job").uid)
        ):
            continue
        version: Version = "IPv6" if ":" in listener.address else "IPv4"
        good, why = _denied(view, "input", version)
        if loads is None and good.value is False:
            good, why = unknown("whether it is a process of torch is not known"), ""
        seen = {"scope": listener.scope.value, "pid": process.pid if process else None}
        found.append(Judgement(label=listener.label, good=good, why=why, evidence=seen))
    return found


@function("network.ports_filtered", reads=(*_FILTERS, *LISTENING))
def ports_filtered(view: View, args: PortArgs) -> list[Judgement]:
    """A filter keeps strangers from these ports where they are open beyond loopback."""
    found = []
    for listener in records(view, "listeners"):
        if (
            listener.protocol == "tcp"
            and listener.port in args.ports
            and listener.scope is not Scope.LOOPBACK
        ):
            good, why = _denied(view, "input", "IPv6" if ":" in listener.address else "IPv4")
            seen = {"scope": listener.scope.value}
            found.append(Judgement(label=listener.label, good=good, why=why, evidence=seen))
    return found


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
        version: Version = "IPv4" if network.version == 4 else "IPv6"
        route = _way(_routes(view, version), network)
        if route is None or not route.interface:
            continue
        good, why = _dropped(view, network, version)
        seen = {"cloud": cloud, "by": route.interface, "route": route.network}
        found.append(Judgement(label=text, good=good, why=why, evidence=seen))
    return found


@function("network.management_apart", reads=(*_FILTERS, *_ROUTES, ("node", "hardware", "bmc")))
def management_apart(view: View, args: ManagementArgs) -> list[Judgement]:
    """No route but a general one leads to management processors, this machine's own or others'."""
    found = []
    for text in (*args.own, *args.networks):
        network = ip_network(text)
        version: Version = "IPv4" if network.version == 4 else "IPv6"
        route = _way(_routes(view, version), network, overlapping=True)
        if route is None or not route.interface:
            continue
        if route.network in args.general:
            if text in args.own:
                continue  # not the cable inside the machine
            good, why = unknown("only a general route leads there: a router decides"), ""
        else:
            good, why = _dropped(view, network, version)
        seen = {"by": route.interface, "route": route.network}
        found.append(Judgement(label=text, good=good, why=why, evidence=seen))
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
    for name in _named(view, args.variables):
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


def _named(view: View, variables: tuple[str, ...]) -> list[str]:
    values = (setting(view, name).value for name in variables)
    names = [one for value in values if value for one in value.lstrip("=").split(",")]
    return list(dict.fromkeys(names))


def _versions(view: View) -> list[Version]:
    """The versions of IP that packets from elsewhere can have; both when that is not known."""
    outward = [one for one in records(view, "interfaces") if one.loopback is not True]
    six = any(one.ipv6 is not False for one in outward)
    return ["IPv4", "IPv6"] if six else ["IPv4"]


def _filters(view: View, hook: Hook, version: Version) -> list[Filter] | Missing:
    found = resolve(view, ("node", "firewall", "filters"))
    if isinstance(found, Missing):
        return found
    families = {"inet", _FAMILY[version]}
    return [one for one in found if one.hook == hook and one.family in families]


def _denied(view: View, hook: Hook, version: Version) -> tuple[Truth, str]:
    """The truth of "a filter drops what no rule allows", and why not."""
    filters = _filters(view, hook, version)
    if isinstance(filters, Missing):
        return unknown(filters.reason), ""
    closed = [one for one in filters if one.ending is Ending.DROP]
    opened = ""
    for one in closed:
        wide = [*_open_interfaces(view, one), *(n for n in one.allows if n.endswith("/0"))]
        if not wide:
            return TRUE, ""
        opened = f"{one.label} lets everything through for {', '.join(wide)}"
    if any(one.ending is Ending.NOT_UNDERSTOOD for one in filters):
        return unknown("a rule of a filter is not understood"), ""
    if (why := _older(view)) is not None:
        return unknown(why), ""
    word = "in" if hook == "input" else "out"
    return FALSE, opened or f"what no rule is about is let {word}"


def _open_interfaces(view: View, one: Filter) -> list[str]:
    kinds = {interface.name: interface.kind for interface in records(view, "interfaces")}
    return [name for name in one.opens if not _is_tunnel(name, kinds.items())]


def _is_tunnel(pattern: str, kinds: Iterable[tuple[str, str]]) -> bool:
    """Return whether every interface that a rule is about is a tunnel, and there is one."""
    matched = [kind for name, kind in kinds if fnmatchcase(name, pattern)]
    return bool(matched) and all(kind in _TUNNELS for kind in matched)


def _dropped(view: View, network: IPv4Network | IPv6Network, version: Version) -> tuple[Truth, str]:
    """The truth of "a filter drops what goes to a network", and why not."""
    filters = _filters(view, "output", version)
    if isinstance(filters, Missing):
        return unknown(filters.reason), ""
    for one in filters:
        if any(_covers(text, network) for text in one.denies):
            return TRUE, ""
        allowed = one.opens or any(_overlaps(text, network) for text in one.allows)
        if one.ending is Ending.DROP and not allowed:
            return TRUE, ""
    if any(one.conditional or one.ending is Ending.NOT_UNDERSTOOD for one in filters):
        return unknown("a rule with more conditions may drop it"), ""
    if (why := _older(view)) is not None:
        return unknown(why), ""
    return FALSE, "a route leads there, and no filter drops it"


def _older(view: View) -> str | None:
    """The reason why the older iptables leaves it open; None when it has no tables."""
    legacy = resolve(view, ("node", "firewall", "legacy"))
    if isinstance(legacy, Missing):
        return None if legacy.definite else legacy.reason
    return f"the rules of iptables-legacy ({', '.join(legacy)}) are not read" if legacy else None


def _routes(view: View, version: Version) -> list[Route]:
    return [one for one in records(view, "routes") if (":" in one.network) == (version == "IPv6")]


def _way(
    routes: Iterable[Route], network: IPv4Network | IPv6Network, *, overlapping: bool = False
) -> Route | None:
    """The narrowest route to a network, or to a part of it."""
    fits = _overlaps if overlapping else _covers
    ways = [one for one in routes if fits(one.network, network)]
    return max(ways, key=lambda one: ip_network(one.network).prefixlen, default=None)


def _covers(text: str, network: IPv4Network | IPv6Network) -> bool:
    wide = ip_network(text)
    return wide.version == network.version and network.subnet_of(wide)  # type: ignore[arg-type]


def _overlaps(text: str, network: IPv4Network | IPv6Network) -> bool:
    wide = ip_network(text)
    return wide.version == network.version and wide.overlaps(network)


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
        network = ip_network(text)
        version: Version = "IPv4" if network.version == 4 else "IPv6"
        route = _way(_routes(view, version), network)
        if route is not None and route.interface in interfaces:
            found.append(f"{what} ({route.interface})")
    return list(dict.fromkeys(found))
