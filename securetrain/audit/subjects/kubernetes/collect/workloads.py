# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pod specs as records, with the values that count in the end.

Defaults are Kubernetes' own (API reference, PodSpec and Container of v1; they are the same in every
version since 1.19): privileged false, allowPrivilegeEscalation true, runAsNonRoot false, host
namespaces false, seccomp Unconfined (unless the kubelet has ``seccompDefault``, which no manifest
shows), automountServiceAccountToken true, serviceAccountName default.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from securetrain.audit.facts import Outcome, Reading, Runtime
from securetrain.audit.parser.files import OwnNames
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import (
    NOT_SET,
    Scope,
    absent,
    as_text,
    failed,
    is_known,
    ok,
    opened,
)
from securetrain.audit.subjects.kubernetes.collect.containers import (
    InPod,
    container,
    hole,
    of_env,
    open_container,
    volumes,
)
from securetrain.audit.subjects.kubernetes.collect.pods import (
    COMPOSED,
    LISTS,
    TRAINER,
    PodSpec,
    pod_specs,
)
from securetrain.audit.subjects.kubernetes.facts.cluster import Entrance
from securetrain.audit.subjects.kubernetes.facts.workload import (
    Account,
    Container,
    Isolation,
    NodeLabel,
    Pair,
    Pod,
    Ray,
    Role,
    Workload,
)
from securetrain.audit.subjects.kubernetes.standards import annotations, settings

T = TypeVar("T")
Named = TypeVar("Named", Container, Entrance)

_LATER: Final = "not joined with other objects"
MAX_PODS: Final = 200
MAX_NODE_LABELS: Final = 100
MAX_CONTAINERS: Final = 200
"""Of one object, over all its pods."""
RAY_KINDS: Final = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
    "RayCronJob": ("spec", "jobTemplate", "rayClusterSpec"),
}
"""Kinds of Ray, and where the cluster stands in them."""


def workload(one: Object) -> Workload | None:
    """The record of an object; None when it has no pods. What other objects say is left open."""
    specs = pod_specs(one)
    if not specs or one.runtime is Runtime.HOST:
        return None
    scope = Scope(one.source, one.node.at)
    metadata = scope.child(one.node, "metadata")
    budget = MAX_CONTAINERS
    pods: list[Pod] = []
    for spec in specs[:MAX_PODS]:
        pods.append(_pod(one, spec, budget))
        budget -= len(pods[-1].containers)
        if budget <= 0:
            break
    name = scope.string(metadata, "name")
    if name.outcome is Outcome.ABSENT:
        generated = scope.string(metadata, "generateName")
        if is_known(generated):
            name = absent(generated.at, f"generateName {generated.value}")
    at = one.source.at(one.node)
    return Workload(
        at=at,
        kind=one.kind,
        api_version=scope.string(one.node, "apiVersion"),
        group=one.group,
        name=name,
        namespace=scope.namespace(one.node),
        labels=pairs(scope, metadata, "labels"),
        rendered=(
            opened(f"a template with {one.marks} open lines", at) if one.marks else ok(True, at)
        ),
        runtime=ok(one.runtime, at),
        inside=one.inside,
        pods=tuple(pods),
        ray=_ray(one, scope, pods),
    )


def pairs(scope: Scope, parent: Node | None, key: str) -> tuple[Pair, ...]:
    """The entries of a mapping of words; what a template may add is one itself."""
    node = scope.child(parent, key)
    if node is None:
        return ()
    found = []
    if reason := scope.opened(node) or scope.rest(node):
        found.append(hole(Pair, scope.source.at(node), reason))
    for name, value in (node.entries or {}).items():
        if name not in (node.twice or ()) and value.text is not None:
            place = scope.source.at(value)
            text = scope.value(value, as_text)
            found.append(Pair(at=place, name=ok(name[:300], place), text=text))
    return tuple(found[:300])


def _pod(one: Object, spec: PodSpec, budget: int) -> Pod:
    node = spec.spec
    scope = Scope(one.source, node.at)
    at = one.source.at(node)
    metadata = spec.metadata
    if metadata is None and one.kind == "Pod" and spec.pointer == "/spec":
        metadata = one.metadata
    own = (*settings(scope, node, "pod", spec.left_to), *annotations(scope, metadata))
    inside = InPod(scope, own, volumes(scope, node), spec.left_to)
    mounted = scope.boolean(node, "automountServiceAccountToken")
    named = scope.string(node, "serviceAccountName")
    if named.outcome is Outcome.ABSENT:
        named = scope.string(node, "serviceAccount", "default")
    return Pod(
        at=at,
        role=spec.role,
        pointer=one.source.template.restored(spec.pointer),
        labels=pairs(scope, metadata, "labels"),
        settings=own,
        runtime_class=scope.string(node, "runtimeClassName"),
        node_labels=tuple(node_labels(scope, node, spec.left_to))[:MAX_NODE_LABELS],
        account=Account(
            at=at,
            name=_or_left(named, spec.left_to),
            token_mounted=_or_left(mounted, spec.left_to),
            rights=failed(_LATER, at),
        ),
        ingress=Isolation(at=at, limited=failed(_LATER, at), policies=()),
        egress=Isolation(at=at, limited=failed(_LATER, at), policies=()),
        containers=tuple(with_own_names(_containers(inside, spec)))[:budget],
        volumes=inside.volumes,
    )


def _containers(pod: InPod, spec: PodSpec) -> Iterator[Container]:
    """Yield the containers of the pod's lists, and the one that stands under a key of its own."""
    node = spec.spec
    if spec.single == TRAINER:
        yield container(pod, node, Role.MAIN, "trainer")
        return
    if spec.single and (inner := node.get(spec.single)):
        yield container(pod, inner, Role.MAIN, spec.role or spec.single)
    for key in spec.beside:
        if (inner := spec.containers.get(key)) is not None:
            made = container(pod, inner, Role.MAIN, key)
            yield _composed(made) if COMPOSED & set(inner.entries or ()) else made
    for key in LISTS:
        if key not in (node.entries or {}) and (spec.beside or key != "containers"):
            continue  # what a template adds to the pod as a whole is in `containers`
        for number, (item, reason) in enumerate(pod.scope.elements(node, key), 1):
            if reason or item.entries is None:
                at = pod.scope.source.at(item)
                why = reason or "it is no mapping"
                yield open_container(at, Role(key), f"#{number}", why)
            else:
                yield container(pod, item, Role(key), _name_of(pod.scope, item, number))


def _composed(made: Container) -> Container:
    """The container, whose image the operator puts together of several keys."""
    why: Reading[str] = failed("the operator puts its name together", made.image.at)
    return msgspec.structs.replace(made, image=why, repository=why, digest=why)


def with_own_names(found: Iterable[Named]) -> Iterator[Named]:
    """Yield records with names that differ: a number follows a name that was there before."""
    names = OwnNames()
    for one in found:
        yield msgspec.structs.replace(one, name=names.of(one.name))


def _or_left(reading: Reading[T], left_to: str) -> Reading[T]:
    """The reading, unless a runtime or an operator may set what is not set here."""
    return failed(left_to, reading.at) if left_to and reading.reason == NOT_SET else reading


def _name_of(scope: Scope, item: Node, number: int) -> str:
    name = item.get("name")
    text = name.text if name is not None else None
    return scope.source.template.restored(text)[:120] if text else f"#{number}"


def _ray(one: Object, scope: Scope, pods: list[Pod]) -> Reading[Ray]:
    at = one.source.at(one.node)
    if one.kind not in RAY_KINDS:
        return absent(at, "no kind of Ray's")
    cluster: Node | None = one.node
    for key in RAY_KINDS[one.kind]:
        cluster = scope.child(cluster, key)
    if cluster is None:
        return absent(at, "it selects a cluster that stands elsewhere")
    place = one.source.at(cluster)
    heads = (made for pod in pods if pod.role == "head" for made in pod.containers[:1])
    auth = scope.string(scope.child(cluster, "authOptions"), "mode")
    if auth.outcome is Outcome.ABSENT:
        env = [variable for made in heads for variable in made.env]
        auth = of_env(env, "RAY_AUTH_MODE", None)
    if auth.outcome is Outcome.ABSENT:
        auth = ok("disabled", place, NOT_SET)
    return ok(Ray(at=place, auth=auth), place)


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ONE_OF = "it allows more than one label"


def node_labels(scope: Scope, pod: Node, left_to: str) -> Iterator[NodeLabel]:
    """Yield what a node must have; open where a template, an operator or a choice decides."""
    selector = scope.child(pod, "nodeSelector")
    required = scope.child(scope.child(scope.child(pod, "affinity"), "nodeAffinity"), _REQUIRED)
    for block in (selector, required):
        if block is not None and (reason := scope.opened(block) or scope.rest(block)):
            yield hole(NodeLabel, scope.source.at(block), reason)
    for key, value in (selector.entries or {} if selector is not None else {}).items():
        yield _label(scope, key, value)
    if required is not None:
        yield from _of_terms(scope, required)
    if selector is None and required is None and (reason := scope.rest(pod) or left_to):
        yield _no_label(scope, pod, reason)


def _of_terms(scope: Scope, required: Node) -> Iterator[NodeLabel]:
    terms = list(scope.elements(required, "nodeSelectorTerms"))
    for term, reason in terms:
        if reason or len(terms) > 1:
            yield _no_label(scope, term, reason or _ONE_OF)
            continue
        for item, why in scope.elements(term, "matchExpressions"):
            key, operator = scope.string(item, "key"), scope.string(item, "operator")
            found = item.get("values")
            values = found.items or () if found is not None else ()
            if why or not is_known(key) or not is_known(operator):
                yield _no_label(scope, item, why or "a template")
            elif operator.value == "In" and len(values) == 1:
                yield _label(scope, key.value or "", values[0])
            elif operator.value == "In":
                yield _no_label(scope, item, _ONE_OF)


def _no_label(scope: Scope, node: Node, reason: str) -> NodeLabel:
    at = scope.source.at(node)
    return NodeLabel(at=at, text=failed(reason, at))


def _label(scope: Scope, key: str, node: Node) -> NodeLabel:
    value, at = scope.value(node, as_text), scope.source.at(node)
    if not is_known(value):
        return _no_label(scope, node, value.reason)
    return NodeLabel(at=at, text=ok(f"{key}={value.value}"[:300], at))
