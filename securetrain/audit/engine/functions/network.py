# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about interfaces and programs that listen.

How the kernel combines settings of interfaces is in its ip-sysctl; a program is judged by whom it
listens for, and what it asks of a client.
"""

from typing import Final

from securetrain.audit.engine.fields import Missing, View, resolve
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function, records
from securetrain.audit.engine.functions.settings import ENVIRONMENT
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, truth, unknown
from securetrain.audit.subjects.node.facts.node import Interface, Listener, Process, Program, Scope

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


LISTENING: Final = fields(
    "node", "listeners", "*", of=("protocol", "address", "port", "scope", "uid", "kernel")
)


class ProgramArgs(Args, frozen=True, kw_only=True):
    """The programs, and what is wrong with them."""

    programs: tuple[Program, ...]
    on_loopback: bool = False
    """Whether it is wrong even where this machine alone reaches it."""
    guard_counts: bool = False
    """Whether one that asks for a password or token may be reached from elsewhere."""
    guard_needed: bool = False
    """Whether one that asks for nothing is wrong on loopback too."""
    variables: tuple[str, ...] = ()
    """Variables of the environment that make the job listen itself."""


@function(
    "listeners.programs_kept_in",
    reads=(
        *LISTENING,
        *fields("node", "listeners", "*", "process", of=("pid", "program", "guarded")),
        *ENVIRONMENT,
    ),
)
def programs_kept_in(view: View, args: ProgramArgs) -> list[Judgement]:
    """None of the programs answers those whom it should not."""
    found = [_judge(listener, args) for listener in records(view, "listeners")]
    for variable in records(view, "env"):
        if variable.name in args.variables and variable.value not in {"", "0"}:
            good = unknown("its value was not recorded") if variable.value is None else FALSE
            why = f"{variable.name} makes the job listen" * (variable.value is not None)
            found.append(Judgement(label=variable.name, good=good, why=why))
    return [judgement for judgement in found if judgement is not None]


def _judge(listener: Listener, args: ProgramArgs) -> Judgement | None:
    process = listener.process
    if listener.protocol != "tcp":
        return None
    wrong_anyway = args.on_loopback or listener.scope is not Scope.LOOPBACK
    if process is None:
        if not listener.is_out_of_sight or not (wrong_anyway or args.guard_needed):
            return None
        return _said(listener, unknown("its process is out of sight"))
    if process.program is None:
        return _said(listener, unknown(f"process {process.pid}: its program is not known"))
    if process.program not in args.programs:
        return None
    return _said(listener, *_answer(process, args, reachable=wrong_anyway))


def _answer(process: Process, args: ProgramArgs, *, reachable: bool) -> tuple[Truth, str]:
    open_ = unknown("whether it asks for a password or token is not known")
    if process.guarded is not None:
        open_ = truth(process.guarded)
    if reachable and not args.guard_counts:
        return FALSE, f"{process.program} answers whoever reaches this address"
    if reachable or args.guard_needed:
        return open_, f"{process.program} asks for no password and no token" * (not open_.value)
    return TRUE, ""


def _said(listener: Listener, good: Truth, why: str = "") -> Judgement:
    process = listener.process
    return Judgement(
        label=listener.label,
        good=good,
        why=why if good.value is False else "",
        evidence={
            "program": process.program if process else None,
            "pid": process.pid if process else None,
            "scope": listener.scope.value,
        },
    )


@function(
    "listeners.tensorpipe_kept_in",
    reads=(
        *LISTENING,
        *fields("node", "listeners", "*", "process", of=("pid", "loads_torch", "tensorpipe")),
    ),
)
def tensorpipe_kept_in(view: View, _: NoArgs) -> list[Judgement]:
    """Torch's RPC, which executes what peers send, is reached by this machine alone."""
    found = []
    for listener in records(view, "listeners"):
        process = listener.process
        if listener.protocol != "tcp" or listener.scope is Scope.LOOPBACK:
            continue
        if process is None:
            if not listener.is_out_of_sight:
                continue
            good = unknown(f"{listener.label}: its process is out of sight")
        elif process.tensorpipe is False or process.loads_torch is False:
            continue
        elif process.tensorpipe is None:
            good = unknown(f"process {process.pid}: its threads are out of sight")
        else:
            good = FALSE
        found.append(
            Judgement(
                label=listener.label,
                good=good,
                why="" if good.value is None else "torch.distributed.rpc executes what peers send",
                evidence={"pid": process.pid if process else None},
            )
        )
    return found
