# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about interfaces: how the kernel combines their settings (ip-sysctl)."""

from typing import Final

from securetrain.audit.engine.fields import Missing, View, resolve
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function, records
from securetrain.audit.engine.kleene import TRUE, truth, unknown
from securetrain.audit.subjects.node.facts.node import Interface

_WAYS_IN: Final = ("name", "up", "loopback")


class RpFilterArgs(Args, frozen=True, kw_only=True):
    """The values that are accepted."""

    accept: tuple[int, ...]


@function(
    "network.reverse_path_filter",
    reads=(
        ("node", "sysctls", "net.ipv4.conf.all.rp_filter"),
        *fields("node", "interfaces", "*", of=(*_WAYS_IN, "rp_filter")),
    ),
)
def reverse_path_filter(view: View, args: RpFilterArgs) -> list[Judgement]:
    """The larger of ``all`` and the interface's own value counts (ip-sysctl, rp_filter)."""
    shared = resolve(view, ("node", "sysctls", "net.ipv4.conf.all.rp_filter"))
    found = []
    for interface in _outward(view):
        own = interface.rp_filter
        if isinstance(shared, Missing) or own is None:
            reason = shared.reason if isinstance(shared, Missing) else f"{interface.name}: not read"
            good, effective = unknown(reason), None
        else:
            effective = max(shared, own)
            good = truth(effective in args.accept)
        found.append(Judgement(label=interface.name, good=good, evidence={"rp_filter": effective}))
    return found


@function(
    "network.router_advertisements_refused",
    reads=fields("node", "interfaces", "*", of=(*_WAYS_IN, "ipv6", "accept_ra", "forwarding6")),
)
def router_advertisements(view: View, _: NoArgs) -> list[Judgement]:
    """No interface takes a route from a neighbour (ip-sysctl, accept_ra and forwarding)."""
    found = []
    for interface in _outward(view):
        if interface.ipv6 is False:
            good = TRUE
        elif interface.ipv6 is None or interface.accept_ra is None:
            good = unknown(f"{interface.name}: accept_ra or disable_ipv6 could not be read")
        elif interface.accept_ra == 1 and interface.forwarding6 is None:
            good = unknown(f"{interface.name}: forwarding could not be read")
        else:
            # 1 means "unless forwarding", 2 means always
            takes = interface.accept_ra == 2 or (
                interface.accept_ra == 1 and interface.forwarding6 == 0
            )
            good = truth(not takes)
        found.append(
            Judgement(
                label=interface.name,
                good=good,
                evidence={"accept_ra": interface.accept_ra, "forwarding": interface.forwarding6},
            )
        )
    return found


@function(
    "network.redirects_refused",
    reads=(
        ("node", "sysctls", "net.ipv4.conf.all.accept_redirects"),
        *fields("node", "interfaces", "*", of=(*_WAYS_IN, "accept_redirects", "forwarding")),
    ),
)
def redirects_refused(view: View, _: NoArgs) -> list[Judgement]:
    """Either ``all`` or the interface's own value is enough, unless the interface forwards."""
    shared = resolve(view, ("node", "sysctls", "net.ipv4.conf.all.accept_redirects"))
    found = []
    for interface in _outward(view):
        own, forwards = interface.accept_redirects, interface.forwarding
        if isinstance(shared, Missing):
            good = unknown(shared.reason)
        elif own is None or forwards is None:
            good = unknown(f"{interface.name}: accept_redirects or forwarding could not be read")
        else:
            takes = (shared and own) if forwards else (shared or own)
            good = truth(not takes)
        seen = {"all": None if isinstance(shared, Missing) else shared, "own": own}
        found.append(Judgement(label=interface.name, good=good, evidence=seen))
    return found


def _outward(view: View) -> list[Interface]:
    """Interfaces that are not known to be loopback or down."""
    return [i for i in records(view, "interfaces") if i.loopback is not True and i.up is not False]
