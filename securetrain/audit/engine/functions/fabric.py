# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about NCCL, Gloo and what configures them."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from securetrain.audit.engine.fields import Missing, View, resolve
from securetrain.audit.engine.function import Args, Judgement, NoArgs, function, records
from securetrain.audit.engine.functions.paths import PATHS, path_is_safe
from securetrain.audit.engine.functions.settings import (
    SETTINGS,
    UNSET,
    Setting,
    setting,
    settings,
)
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, all_of, truth, unknown
from securetrain.audit.facts import Location, Outcome
from securetrain.audit.subjects.node.facts.node import EnvKind, PathFact, PathRole
from securetrain.network import variables as handed_on
from securetrain.policy.schema import FabricTrust


class InterfaceArgs(Args, frozen=True, kw_only=True):
    """The variable that names the interface."""

    variable: str
    exact: bool = False
    """Whether the value must start with '=' (NCCL takes a bare name for a prefix)."""
    same_as: str = ""
    """Another variable that, when it is set, must name the same interface."""


@function("fabric.interface_pinned", reads=(*SETTINGS, ("node", "interfaces", "*", "name")))
def interface_pinned(view: View, args: InterfaceArgs) -> list[Judgement]:
    """The variable names interfaces of this node, exactly."""
    is_node = view.document.kind == "node"
    other = setting(view, args.same_as) if args.same_as and is_node else UNSET
    present = {one.name for one in records(view, "interfaces")} if is_node else None
    return [
        _judge_interface(own, other, args, present)
        for own in settings(view, args.variable)
        if is_node or own is not UNSET
    ]


def _judge_interface(
    own: Setting, other: Setting, args: InterfaceArgs, present: set[str] | None
) -> Judgement:
    evidence: dict[str, Any] = {args.variable: own.value, "from": own.place}
    if not own.known or not other.known:
        good, why = unknown(own.why or other.why), ""
    elif not own.value:
        good, why = FALSE, f"{args.variable} is not set"
    else:
        why = _interface_problem(own.value, present, args, other.value)
        good = truth(not why)
    where = own.location
    return Judgement(label=args.variable, good=good, why=why, location=where, evidence=evidence)


def _interface_problem(
    value: str, present: set[str] | None, args: InterfaceArgs, other: str | None
) -> str:
    """Explain why a value does not name exactly these interfaces; empty when it does."""
    names = value.lstrip("=").split(",")
    if value.startswith("^"):
        return "it excludes interfaces, so that any other is used"
    if args.exact and not value.startswith("="):
        return "without '=' it is a prefix: any interface whose name starts so is used"
    if absent := [name for name in names if present is not None and name not in present]:
        return f"there is no interface {', '.join(absent)}"
    if other and sorted(other.lstrip("=").split(",")) != sorted(names):
        return f"{args.same_as} names {other}"
    return ""


class UnsetArgs(Args, frozen=True, kw_only=True):
    """The variable that should not be there."""

    variable: str


@function("fabric.variable_unset", reads=SETTINGS)
def variable_unset(view: View, args: UnsetArgs) -> list[Judgement]:
    """NCCL sees no such variable."""
    label = "" if view.document.kind == "node" else args.variable
    return [
        Judgement(
            label=label,
            good=truth(found.value is None) if found.known else unknown(found.why),
            location=found.location,
            evidence={args.variable: found.value, "from": found.place},
        )
        for found in settings(view, args.variable)
    ]


class PluginArgs(Args, frozen=True, kw_only=True):
    """The variables that make NCCL load a library."""

    variables: tuple[str, ...]
    harmless: tuple[str, ...] = ()
    """Values that load nothing from outside."""


@function("fabric.plugins_fixed", reads=(*SETTINGS, *PATHS))
def plugins_fixed(view: View, args: PluginArgs) -> list[Judgement]:
    """A plugin is named by absolute path, and nobody but root and the job can change that file."""
    is_node = view.document.kind == "node"
    paths = records(view, "paths") if is_node else ()
    files = {one.path: one for one in paths if one.role is PathRole.NCCL_PLUGIN}
    uid = view.document.root("job").uid if is_node else 0
    found = []
    for name in args.variables:
        for there in settings(view, name):
            if there.known and not there.value:
                continue
            good, why = unknown(there.why), ""
            if there.value:
                plugins = there.value.split(",")  # NCCL takes the first that it can load
                judged = [_judge_plugin(one, files, args, uid) for one in plugins]
                good = all_of(truth for truth, _ in judged)
                why = next((said for truth, said in judged if not truth.value and said), "")
            evidence = {name: there.value, "from": there.place}
            where = there.location
            found.append(
                Judgement(label=name, good=good, why=why, location=where, evidence=evidence)
            )
    return found


def _judge_plugin(
    value: str, files: Mapping[str, PathFact], args: PluginArgs, uid: int
) -> tuple[Truth, str]:
    if value.lower() in {word.lower() for word in args.harmless}:
        return TRUE, ""
    if not value.startswith("/"):
        return FALSE, "a bare name: the loader searches LD_LIBRARY_PATH for it"
    if value not in files:
        return unknown(f"{value}: who can write it is not known"), ""
    if files[value].outcome is Outcome.ABSENT:
        return FALSE, "there is no such file"
    return path_is_safe(files[value], uid)


class AllowedArgs(Args, frozen=True, kw_only=True):
    """The variables that need no allowance."""

    pinned: tuple[str, ...]


@function("fabric.variables_allowed", reads=(*SETTINGS, ("node", "env", "*", "kind")))
def variables_allowed(view: View, args: AllowedArgs) -> list[Judgement]:
    """The policy allows every variable of the fabric, in the environment or in NCCL's files."""
    places: dict[str, Location | None] = {}
    found = []
    is_node = view.document.kind == "node"
    for variable in records(view, "env") if is_node else records(view, "environment", "launch"):
        if is_node and variable.kind is EnvKind.FABRIC:
            places[variable.name] = None
        elif not is_node and not variable.name.value:
            good = unknown(f"any variable: {variable.name.reason}")
            found.append(Judgement(label=variable.label, good=good, location=variable.at))
        elif not is_node and any(fnmatchcase(variable.name.value, one) for one in handed_on.FABRIC):
            places.setdefault(variable.name.value, variable.at)
    for file in records(view, "nccl_conf") if is_node else ():
        if file.options is None and file.outcome is not Outcome.ABSENT:
            why = f"{file.path}: {file.outcome.value}: {file.reason}"
            found.append(Judgement(label=file.path, good=unknown(why), location=file.location))
        for option in file.options or ():
            places.setdefault(option.name, Location(path=file.path, line=option.line))
    allowed = view.policy.fabric.allow_environment
    for name, place in places.items():
        if name not in args.pinned and not any(fnmatchcase(name, one) for one in allowed):
            seen = {"from": f"{place.path}:{place.line}" if place else name}
            found.append(Judgement(label=name, good=FALSE, location=place, evidence=seen))
    return found


@function("fabric.nothing_in_clear", reads=(("node", "hardware", "infiniband"),))
def nothing_in_clear(view: View, _: NoArgs) -> list[Judgement]:
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
