# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The closed registry of named functions that a check may ``call``.

A function is here when its rule needs more than comparing fields: a walk along a path, the
kernel's way of combining two settings. Each takes typed arguments, names the evidence that it
reads, and returns one `Judgement` for each thing that it judged. It says unknown when it cannot
know.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from securetrain.audit.facts import EnvVariable, Interface, Link, Outcome, PathFact, PathRole
from securetrain.audit.fields import Missing, View, resolve
from securetrain.audit.kleene import FALSE, TRUE, Truth, all_of, truth, unknown
from securetrain.core.vocabulary import NodeTier
from securetrain.policy.schema import FabricTrust


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The judgement of one thing: true when it is as it should be, with what was seen."""

    label: str
    good: Truth
    why: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


Body: TypeAlias = Callable[[View, Any], list[Judgement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A registered function: its argument struct and the evidence it reads."""

    name: str
    body: Body
    args: type[msgspec.Struct]
    reads: tuple[str, ...]


class _Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The base of argument structs."""


# --- paths ---------------------------------------------------------------------------------------


class PathArgs(_Args, frozen=True, kw_only=True):
    """The paths to judge."""

    roles: tuple[PathRole, ...]


def _paths_safe(view: View, args: PathArgs) -> list[Judgement]:
    """Nobody but root and the job's user can change, replace or pre-create the path."""
    facts = resolve(view, ("node", "paths"))
    assert isinstance(facts, tuple)  # the engine calls with the evidence at hand
    chosen = {fact.path: fact for fact in facts if fact.role in args.roles}
    return [_judge_path(fact, view.facts.job.uid) for fact in chosen.values()]


def _judge_path(fact: PathFact, uid: int) -> Judgement:
    good, why = path_is_safe(fact, uid)
    return Judgement(
        label=fact.path,
        good=good,
        why=why,
        evidence={"role": fact.role.value, "origin": fact.origin, "outcome": fact.outcome.value},
    )


def path_is_safe(fact: PathFact, uid: int) -> tuple[Truth, str]:
    """Walk the chain as the kernel does.

    Every component must belong to root or `uid`. A directory that others may write is harmless on
    the way only when it is sticky and the next component exists: then nobody else can replace it.
    At the end of what exists, and for the target itself, others may not write at all.
    """
    trusted = {0, uid}
    open_: list[str] = []
    for position, link in enumerate(fact.chain):
        if link.uid not in trusted:
            return FALSE, f"{link.path} belongs to uid {link.uid}"
        if link.kind == "link":
            continue  # its target follows in the chain; its own mode means nothing
        writable = others_can_write(link, trusted)
        last = position == len(fact.chain) - 1
        if writable.value is False or (not last and _is_sticky(link)):
            continue
        if writable.value is None:
            open_.extend(writable.reasons)
            continue
        if last and fact.outcome is Outcome.ABSENT:
            return FALSE, f"others can create it first: {link.path} has mode {link.mode}"
        return FALSE, f"others can write {link.path}: it has mode {link.mode}"
    if fact.outcome not in (Outcome.OK, Outcome.ABSENT) or not fact.chain:
        open_.append(f"{fact.path}: {fact.outcome.value}: {fact.reason}")
    if open_:
        return all_of(unknown(reason) for reason in open_), open_[0]
    return TRUE, ""


def others_can_write(link: Link, trusted: set[int]) -> Truth:
    """Return whether anybody outside `trusted` may write it, by its permission bits."""
    mode = int(link.mode, 8)
    if mode & 0o002:
        return TRUE
    if not mode & 0o020:
        return FALSE
    if link.group_uids is None:
        return unknown(f"{link.path}: the members of its group are not known")
    return truth(not set(link.group_uids) <= trusted)


def _is_sticky(link: Link) -> bool:
    return bool(int(link.mode, 8) & 0o1000)


# --- fabric --------------------------------------------------------------------------------------


class InterfaceArgs(_Args, frozen=True, kw_only=True):
    """The variable that names the interface."""

    variable: str
    exact: bool = False
    """Whether the value must start with '=' (NCCL takes a bare name for a prefix)."""
    same_as: str = ""
    """Another variable that, when it is set, must name the same interface."""


def _fabric_interface(view: View, args: InterfaceArgs) -> list[Judgement]:
    """The variable names interfaces of this node, exactly."""
    env: dict[str, str | None] = {v.name: v.value for v in _tuple(view, "env")}
    wanted = [args.variable, *([args.same_as] if args.same_as in env else [])]
    hidden = [name for name in wanted if name in env and env[name] is None]
    value, other = env.get(args.variable), env.get(args.same_as)
    evidence: dict[str, Any] = {args.variable: value}
    if hidden:
        good, why = unknown(f"the value of {hidden[0]} was not recorded"), ""
    elif not value:
        good, why = FALSE, f"{args.variable} is not set"
    else:
        present = {interface.name for interface in _tuple(view, "interfaces")}
        why = _interface_problem(value, present, args, other)
        good = truth(not why)
    return [Judgement(label=args.variable, good=good, why=why, evidence=evidence)]


def _interface_problem(
    value: str, present: set[str], args: InterfaceArgs, other: str | None
) -> str:
    """Explain why a value does not name exactly these interfaces; empty when it does."""
    names = value.lstrip("=").split(",")
    if value.startswith("^"):
        return "it excludes interfaces, so that any other is used"
    if args.exact and not value.startswith("="):
        return "without '=' it is a prefix: any interface whose name starts so is used"
    if absent := [name for name in names if name not in present]:
        return f"there is no interface {', '.join(absent)}"
    if other and sorted(other.lstrip("=").split(",")) != sorted(names):
        return f"{args.same_as} names {other}"
    return ""


class PluginArgs(_Args, frozen=True, kw_only=True):
    """The variables that make NCCL load a library."""

    variables: tuple[str, ...]
    harmless: tuple[str, ...] = ()
    """Values that load nothing from outside."""


def _fabric_plugins(view: View, args: PluginArgs) -> list[Judgement]:
    """A plugin is named by absolute path, and nobody but root and the job can change that file."""
    files = {f.path: f for f in _tuple(view, "paths") if f.role is PathRole.NCCL_PLUGIN}
    found = []
    for variable in _tuple(view, "env"):
        if variable.name not in args.variables:
            continue
        found.append(_judge_plugin(variable, files, args, view.facts.job.uid))
    return found


def _judge_plugin(
    variable: EnvVariable, files: Mapping[str, PathFact], args: PluginArgs, uid: int
) -> Judgement:
    value = variable.value
    evidence = {variable.name: value}
    if value is None:
        good, why = unknown(f"{variable.name}: its value was not recorded"), ""
    elif value in args.harmless:
        good, why = TRUE, ""
    elif not value.startswith("/"):
        good, why = FALSE, "a bare name: the loader searches LD_LIBRARY_PATH for it"
    elif value not in files:
        good, why = unknown(f"{value}: not collected"), ""
    elif files[value].outcome is Outcome.ABSENT:
        good, why = FALSE, "there is no such file"
    else:
        good, why = path_is_safe(files[value], uid)
    return Judgement(label=variable.name, good=good, why=why, evidence=evidence)


# --- network -------------------------------------------------------------------------------------


class RpFilterArgs(_Args, frozen=True, kw_only=True):
    """The values that are accepted."""

    accept: tuple[int, ...]


def _reverse_path_filter(view: View, args: RpFilterArgs) -> list[Judgement]:
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


class _NoArgs(_Args, frozen=True, kw_only=True):
    """Nothing to say."""


def _router_advertisements(view: View, _: _NoArgs) -> list[Judgement]:
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


def _outward(view: View) -> list[Interface]:
    """Interfaces that are not known to be loopback or down."""
    return [i for i in _tuple(view, "interfaces") if i.loopback is not True and i.up is not False]


def _fabric_in_clear(view: View, _: _NoArgs) -> list[Judgement]:
    """The policy trusts no fabric on which gradients travel in the clear."""
    network = view.policy.network
    if network.fabric is FabricTrust.ENCRYPTED:
        return [Judgement(label="", good=TRUE)]
    devices = resolve(view, ("node", "hardware", "infiniband"))
    isolation = network.isolation
    said = f"{isolation.statement} ({isolation.evidence})" if isolation else "no word on isolation"
    shown = "not known" if isinstance(devices, Missing) else ", ".join(devices)
    return [
        Judgement(
            label="",
            good=FALSE,
            why=f"{' or '.join(p for p in network.require if p.degraded)}, DEGRADED: {said}",
            evidence={"infiniband": shown},
        )
    ]


# --- node ---------------------------------------------------------------------------------------


def _attestation_possible(view: View, _: _NoArgs) -> list[Judgement]:
    """The device that the policy's tier needs is there, or an exception is in date.

    The last day of an exception is inclusive. The device's own evidence is admission's to verify;
    this only finds the machine that would be refused.
    """
    policy = view.policy.node
    exception = policy.allow_self_asserted
    until = exception.until if exception else None
    why = "the policy makes no exception"
    if exception is not None:
        if until is None or view.now.date() <= until:
            return [Judgement(label="", good=TRUE)]
        why = f"the exception's last day was {until}"
    match policy.min_tier:
        case NodeTier.TEE | NodeTier.TEE_GPU:
            device = "tee"
        case NodeTier.VTPM | NodeTier.TPM:
            device = "tpm"
        case NodeTier.TEST_ONLY | NodeTier.SELF_ASSERTED | NodeTier.CLOUD_TOKEN:
            return [Judgement(label="", good=TRUE)]  # no device of this machine stands behind it
        case _:
            raise ValueError(policy.min_tier)
    found = resolve(view, ("node", "hardware", device))
    if isinstance(found, Missing) and found.definite:
        good, why = FALSE, f"{found.reason}; {why}"
    elif isinstance(found, Missing):
        good = unknown(found.reason)
    else:
        good, why = TRUE, ""
    return [Judgement(label="", good=good, why=why, evidence={"min_tier": policy.min_tier.value})]


def _tuple(view: View, name: str) -> tuple[Any, ...]:
    value = resolve(view, ("node", name))
    assert isinstance(value, tuple), name  # the engine calls with the evidence at hand
    return value


def _registry(functions: Iterable[Function]) -> dict[str, Function]:
    table = {function.name: function for function in functions}
    return dict(sorted(table.items()))


FUNCTIONS: Final[Mapping[str, Function]] = _registry(
    (
        Function(
            name="paths.safe_from_others", body=_paths_safe, args=PathArgs, reads=("node.paths",)
        ),
        Function(
            name="fabric.interface_pinned",
            body=_fabric_interface,
            args=InterfaceArgs,
            reads=("node.env", "node.interfaces"),
        ),
        Function(
            name="fabric.plugins_fixed",
            body=_fabric_plugins,
            args=PluginArgs,
            reads=("node.env", "node.paths"),
        ),
        Function(
            name="fabric.nothing_in_clear",
            body=_fabric_in_clear,
            args=_NoArgs,
            reads=("node.hardware",),
        ),
        Function(
            name="network.reverse_path_filter",
            body=_reverse_path_filter,
            args=RpFilterArgs,
            reads=("node.interfaces", "node.sysctls"),
        ),
        Function(
            name="network.router_advertisements_refused",
            body=_router_advertisements,
            args=_NoArgs,
            reads=("node.interfaces",),
        ),
        Function(
            name="attestation.possible",
            body=_attestation_possible,
            args=_NoArgs,
            reads=("node.hardware",),
        ),
    )
)
