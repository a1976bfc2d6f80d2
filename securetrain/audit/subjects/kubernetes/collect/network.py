# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Network policies, and which pods they isolate.

A pod is isolated in a direction when a policy for that direction selects it and no policy that
selects it allows everything: policies add up. Kubernetes' own kind is read whole, Cilium's with its
label selectors; Calico's selectors are a language of their own, so that one of these which may
select a pod leaves the answer open.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from securetrain.audit.facts import Location, Reading
from securetrain.audit.parser.files import MAX_POLICIES
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope, failed, is_known, ok
from securetrain.audit.subjects.kubernetes.collect.labels import (
    Answer,
    PodLabels,
    Selector,
    selector_of,
)
from securetrain.audit.subjects.kubernetes.facts.workload import Isolation

_OWN: Final = ("networking.k8s.io", "extensions")
_CILIUM: Final = "cilium.io"
_CALICO: Final = ("crd.projectcalico.org", "projectcalico.org")
KINDS: Final = frozenset(
    {
        *("NetworkPolicy", "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"),
        *("GlobalNetworkPolicy",),
    }
)
_EVERYWHERE: Final = frozenset({"0.0.0.0/0", "::/0"})

Limits: TypeAlias = Answer | None
"""Of one direction: True it limits, False it allows everything, None it says nothing."""


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """A policy, reduced to what decides."""

    name: str
    namespace: Reading[str] | None
    """None for one of the whole cluster."""
    selector: Selector
    ingress: Limits
    egress: Limits
    at: Location


def network_policy(one: Object) -> NetworkPolicy | None:
    """The policy of an object; None when it is none."""
    if one.kind not in KINDS:
        return None
    scope = Scope(one.source, one.node.at)
    spec = scope.child(one.node, "spec")
    namespace: Reading[str] | None = scope.namespace(one.node)
    name = f"{one.kind}/{(namespace.value if namespace else '') or '?'}/{one.said('name')}"
    at = one.source.at(one.node)
    if one.kind in {"CiliumClusterwideNetworkPolicy", "GlobalNetworkPolicy"}:
        namespace = None
    ingress: Limits
    egress: Limits
    if one.group in _OWN:
        selector = selector_of(scope, scope.child(spec, "podSelector"))
        ingress, egress = _directions(scope, spec)
    elif one.group == _CILIUM:
        selector = selector_of(scope, scope.child(spec, "endpointSelector"))
        ingress, egress = (_cilium(scope, spec, way) for way in ("ingress", "egress"))
    elif one.group in _CALICO:
        said = spec.get("selector") if spec else None
        selects_all = said is None or (said.text or "").replace(" ", "") in {"", "all()"}
        selector = Selector(open="" if selects_all else "a selector of Calico")
        ingress, egress = _directions(scope, spec)
    else:
        ingress = egress = "a kind of a group that is not known"
        selector = Selector(open=ingress)
    return NetworkPolicy(name, namespace, selector, ingress, egress, at)


@dataclass(frozen=True, slots=True)
class Isolated:
    """A pod, as policies see it."""

    labels: PodLabels
    namespace: Reading[str]
    at: Location


def _directions(scope: Scope, spec: Node | None) -> tuple[Limits, Limits]:
    if spec is None:
        return True, None
    if reason := scope.opened(spec):
        return reason, reason
    types = scope.child(spec, "policyTypes") or scope.child(spec, "types")
    if types is not None:
        if reason := scope.opened(types):
            return reason, reason
        words = {item.text or "" for item in types.items or ()}
        if any(scope.source.template.holes_of(word) for word in words):
            return "policyTypes of a template", "policyTypes of a template"
    else:
        words = {"Ingress"} | ({"Egress"} if spec.get("egress") is not None else set())
    return tuple(  # type: ignore[return-value]
        _rules(scope, spec, way, peers) if type_ in words else None
        for type_, way, peers in (("Ingress", "ingress", "from"), ("Egress", "egress", "to"))
    )


def _rules(scope: Scope, spec: Node, way: str, peers: str) -> Limits:
    unknown = ""
    for rule, reason in scope.elements(spec, way):
        open_ = reason or scope.rest(rule)
        unknown = open_ or unknown
        ports, listed = rule.get("ports"), rule.get(peers)
        if open_ or rule.entries is None or (ports is not None and ports.items):
            continue
        if listed is not None and (listed.items is None or listed.items):
            if any(map(_is_everybody, listed.items or ())):
                return False
        elif rule.entries.keys() - {peers, "ports"}:
            unknown = unknown or "rules of another kind of policy"
        else:
            return False
    return unknown or True


def _is_everybody(peer: Node) -> bool:
    block = peer.get("ipBlock")
    if block is not None:
        cidr = block.get("cidr")
        return cidr is not None and cidr.text in _EVERYWHERE and block.get("except") is None
    entries = peer.entries or {}
    spaces, pods = entries.get("namespaceSelector"), entries.get("podSelector")
    is_any = spaces is not None and spaces.entries is not None
    return is_any and not any(one and (one.entries or one.holes) for one in (spaces, pods))


def _cilium(scope: Scope, spec: Node | None, way: str) -> Limits:
    if spec is None or (spec.entries or {}).get(way) is None:
        return None
    for rule, reason in scope.elements(spec, way):
        if reason:
            return reason
        if rule.entries is not None and not rule.entries:
            return True  # an empty rule allows nothing and turns isolation on
        listed = rule.get("fromEntities" if way == "ingress" else "toEntities")
        words = {item.text for item in (listed.items or () if listed else ())}
        if words & {"all", "world"} and rule.get("toPorts") is None:
            return False
    return True


_Key: TypeAlias = tuple[str | None, str, str]


@dataclass(slots=True)
class Policies:
    """All network policies of the files, by namespace and by a label that they ask for."""

    found: dict[_Key, list[NetworkPolicy]] = field(default_factory=dict)
    """None for the namespace: of the whole cluster, or a template decides it. Empty for the label:
    they ask for none."""
    count: int = 0

    def add(self, policy: NetworkPolicy) -> bool:
        """Note a policy; return whether there was room for it."""
        self.count += 1
        if self.count > MAX_POLICIES:
            return False
        space = policy.namespace
        where = space.value if space is not None and is_known(space) else None
        asked = next((r for r in policy.selector.requirements if len(r.values) == 1), None)
        key = (where, "", "")
        if asked is not None and asked.operator == "In":
            key = (where, asked.key, asked.values[0])
        self.found.setdefault(key, []).append(policy)
        return True

    def near(self, pod: Isolated) -> Iterator[NetworkPolicy]:
        """Yield the policies that may select a pod."""
        labels = pod.labels
        if labels.rest or labels.opens or not is_known(pod.namespace):
            for (where, _, _), policies in self.found.items():
                if where is None or not is_known(pod.namespace) or where == pod.namespace.value:
                    yield from policies
            return
        for where in (None, pod.namespace.value):
            yield from self.found.get((where, "", ""), ())
            for key, value in labels.known.items():
                yield from self.found.get((where, key, value), ())

    def isolation(self, pod: Isolated, way: str, unread: str) -> Isolation:
        """The isolation of a pod in one direction, ``ingress`` or ``egress``.

        `unread` is a file that was not read and may have a policy; empty when there is none.
        """
        chosen: list[NetworkPolicy] = []
        unknown = ""
        for policy in self.near(pod):
            limits = policy.ingress if way == "ingress" else policy.egress
            answer: Answer = False if limits is None else _selects(policy, pod)
            if answer is False:
                continue
            if isinstance(answer, str):
                unknown = unknown or f"{policy.name}: {answer}"
            elif isinstance(limits, str):
                unknown = unknown or f"{policy.name}: {limits}"
            elif limits is False:
                reason = f"{policy.name} allows everything"
                limited = ok(False, policy.at, reason)
                return Isolation(at=pod.at, limited=limited, policies=(policy.name,))
            else:
                chosen.append(policy)
        names = tuple(sorted(policy.name for policy in chosen))
        if not unknown and unread and not chosen:
            unknown = f"{unread} could not be read and may have a network policy"
        if unknown:
            return Isolation(at=pod.at, limited=failed(unknown, pod.at), policies=names)
        if chosen:
            return Isolation(at=pod.at, limited=ok(True, chosen[0].at), policies=names)
        limited = ok(False, pod.at, "no network policy among the files selects it")
        return Isolation(at=pod.at, limited=limited, policies=())


def _selects(policy: NetworkPolicy, pod: Isolated) -> Answer:
    unknown = ""
    if policy.namespace is not None:
        for space in (policy.namespace, pod.namespace):
            if not is_known(space):
                unknown = f"the namespace: {space.reason}"
        if not unknown and policy.namespace.value != pod.namespace.value:
            return False
    answer = pod.labels.selected(policy.selector)
    return answer if answer is False or isinstance(answer, str) else unknown or True
