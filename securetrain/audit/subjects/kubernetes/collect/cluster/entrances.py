# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ways to pods from outside the cluster: Services, Ingresses and routes, host ports.

A route stands where it names the Service whose purpose is the worst.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope, is_known, ok, opened
from securetrain.audit.subjects.kubernetes.collect.labels import (
    PodLabels,
    Selector,
    selector_of,
)
from securetrain.audit.subjects.kubernetes.facts.cluster import Entrance
from securetrain.audit.subjects.kubernetes.facts.workload import Container, Pod, Workload

ROUTES: Final = frozenset(
    {
        *("Ingress", "HTTPRoute", "TCPRoute", "TLSRoute", "GRPCRoute", "VirtualService", "Route"),
        *("IngressRoute", "IngressRouteTCP"),
    }
)
_ROUTE_GROUPS: Final = frozenset(
    {
        *("networking.k8s.io", "extensions", "gateway.networking.k8s.io", "networking.istio.io"),
        *("route.openshift.io", "traefik.io", "traefik.containo.us"),
    }
)
_BACKENDS: Final = frozenset(
    {"service", "serviceName", "backendRefs", "destination", "to", "services"}
)
_CLOSED: Final = frozenset({"ClusterIP", "ExternalName"})
_MAX_REACHED: Final = 50
_OF_NODE: Final = ("hostNetwork", "true")

_WORST: Final = ("notebook", "dashboard", "rendezvous", "training", "other")
_PORTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("29500", "29400", "29401", "29501", "23456", "2379", "2380", "2222"), "rendezvous"
    ),
    **dict.fromkeys(("8265", "6006", "10001", "6379", "52365", "25999", "6007"), "dashboard"),
    **dict.fromkeys(("8888", "8889"), "notebook"),
}
"""Ports by what uses them: torchrun, PyTorchJob, etcd, MPI's sshd; Ray, TensorBoard; Jupyter."""
_NAMES: Final = (
    (re.compile(r"jupyter|notebook|jupyterhub", re.IGNORECASE), "notebook"),
    (
        re.compile(
            r"dashboard|tensorboard|mlflow|ray-?(?:client|head)|gcs|wandb|aim\b", re.IGNORECASE
        ),
        "dashboard",
    ),
    (
        re.compile(
            r"c10d|rdzv|rendezvous|pytorchjob-port|master-?port|etcd|mpi|nccl", re.IGNORECASE
        ),
        "rendezvous",
    ),
)
_IMAGES: Final = (
    (re.compile(r"jupyter|notebook", re.IGNORECASE), "notebook"),
    (re.compile(r"tensorboard|mlflow|rayproject/", re.IGNORECASE), "dashboard"),
)
_LEADERS: Final = frozenset({"master", "launcher", "chief", "head", "leader", "mpimaster"})
_TRAINING: Final = frozenset(
    {
        *("kubeflow.org", "trainer.kubeflow.org", "jobset.x-k8s.io", "batch.volcano.sh", "batch"),
        *("ray.io", "leaderworkerset.x-k8s.io"),
    }
)


@dataclass(frozen=True, slots=True)
class Way:
    """A Service, a route or a host port, before it is joined with pods."""

    name: str
    kind: str
    namespace: Reading[str]
    type: Reading[str]
    ports: tuple[str, ...]
    at: Location
    selector: Selector | None = None
    """None for what selects no pods."""
    backends: tuple["Backend", ...] = ()
    """The Services that a route leads to."""
    own_name: str = ""


@dataclass(frozen=True, slots=True)
class Backend:
    """A Service that a route leads to, and where the route names it."""

    name: str
    at: Location


@dataclass(frozen=True, slots=True)
class Target:
    """A pod that a way may lead to."""

    workload: Workload
    pod: Pod
    labels: PodLabels

    @property
    def title(self) -> str:
        """Kind, namespace, name and role."""
        one = self.workload
        parts = (one.kind, one.namespace.value or "?", one.name.value or "?", self.pod.role)
        return "/".join(part for part in parts if part)


def ways(one: Object) -> Iterator[Way]:
    """Yield the ways that an object is or asks for."""
    scope = Scope(one.source, one.node.at)
    namespace = scope.namespace(one.node)
    spec = scope.child(one.node, "spec")
    name = f"{one.kind}/{namespace.value or '?'}/{one.said('name') or '?'}"
    at = one.source.at(one.node)
    if one.kind == "Service" and one.group in {"", "core"}:
        yield Way(
            name=name,
            kind=one.kind,
            namespace=namespace,
            type=_type(scope, spec),
            ports=tuple(_ports(scope, spec)),
            at=at,
            selector=_selector(scope, spec),
            own_name=one.said("name"),
        )
    elif one.kind in ROUTES and one.group in _ROUTE_GROUPS:
        place = one.source.at(spec) if spec is not None else at
        backends, ports = _backends(one, spec)
        yield Way(
            name=name,
            kind=one.kind,
            namespace=namespace,
            type=ok(one.kind, place),
            ports=ports,
            at=place,
            backends=backends,
            own_name=one.said("name"),
        )
    elif one.group == "ray.io":
        yield from _of_ray(one, scope, namespace, name)


def _type(scope: Scope, spec: Node | None) -> Reading[str]:
    said = scope.string(spec, "type", "ClusterIP")
    listed = scope.child(spec, "externalIPs")
    if listed is not None and said.value in _CLOSED and (listed.items or listed.text):
        return ok("externalIPs", scope.source.at(listed))
    return said


def _selector(scope: Scope, spec: Node | None) -> Selector | None:
    node = scope.child(spec, "selector")
    return None if node is None else selector_of(scope, node)


def _ports(scope: Scope, spec: Node | None) -> Iterator[str]:
    for item, reason in scope.elements(spec, "ports"):
        if reason or item.entries is None:
            continue
        for key in ("port", "targetPort", "name"):
            found = item.get(key)
            if found is not None and found.text and not scope.opened(found):
                yield found.text[:80]


def _backends(one: Object, spec: Node | None) -> tuple[tuple[Backend, ...], tuple[str, ...]]:
    """The Services that a route's rules name, and their ports, wherever these stand."""
    names: dict[str, Backend] = {}
    ports: dict[str, None] = {}
    stack: list[tuple[str, Node]] = [("", spec)] if spec is not None else []
    while stack:
        key, node = stack.pop()
        if node.items is not None:
            stack.extend((key, item) for item in node.items)
        elif node.entries is not None:
            for inner, value in node.entries.items():
                stack.append((inner if value.text is None else "", value))
                if value.text is None or one.source.template.holes_of(value.text):
                    continue
                if inner == "serviceName" or (key in _BACKENDS and inner in {"name", "host"}):
                    name = value.text.partition(".")[0][:200]
                    names.setdefault(name, Backend(name, one.source.at(value)))
                elif inner in {"servicePort", "number", "port", "targetPort"}:
                    ports[value.text[:80]] = None
    found = sorted(names.values(), key=lambda backend: backend.at.line)
    return tuple(found), tuple(ports)


def _of_ray(one: Object, scope: Scope, namespace: Reading[str], name: str) -> Iterator[Way]:
    """Yield the Service and the Ingress that KubeRay makes for the head."""
    for node in one.node.walk():
        head = node.get("headGroupSpec") if node.entries is not None else None
        if head is None:
            continue
        said = head.get("serviceType")
        service = scope.child(head, "headService")
        inner = scope.child(service, "spec")
        ingress = head.get("enableIngress")
        kind_of = scope.string(head, "serviceType", "ClusterIP")
        if said is None and inner is not None:
            kind_of = scope.string(inner, "type", "ClusterIP")
        if ingress is not None and kind_of.value in _CLOSED:
            read = scope.value(ingress, lambda value: value.text or "")
            if (read.value or "").lower() == "true":
                kind_of = ok("Ingress", read.at)
            elif not is_known(read):
                kind_of = read
        yield Way(
            name=f"{name}/head",
            kind=one.kind,
            namespace=namespace,
            type=kind_of,
            ports=("8265", "dashboard"),
            at=scope.source.at(head),
            own_name=one.said("name"),
        )


def entrances(found: Sequence[Way], targets: Sequence[Target]) -> Iterator[Entrance]:
    """Yield ways joined with the pods that they lead to."""
    reached: dict[tuple[str, str], tuple[Way, list[Target]]] = {}
    nearby: dict[str | None, list[Target]] = {}
    for target in targets:
        nearby.setdefault(target.workload.namespace.value, []).append(target)
    for way in found:
        if way.selector is not None and is_known(way.namespace):
            near = [*nearby.get(way.namespace.value, ()), *nearby.get(None, ())]
            mine = list(_selected(way, way.selector, near))
            reached[way.namespace.value or "", way.own_name] = (way, mine)
    for way in found:
        joined: list[Target] = []
        services = [way]
        if way.selector is not None:
            joined = reached.get((way.namespace.value or "", way.own_name), (way, []))[1]
            if not is_known(way.namespace):
                joined = list(_selected(way, way.selector, targets))
        ranked: list[tuple[int, Location]] = []
        for backend in way.backends:
            service, behind = reached.get((way.namespace.value or "", backend.name), (None, []))
            if service is not None:
                services.append(service)
                joined.extend(behind)
            alone = replace(way, backends=(backend,))
            purpose = _purpose(
                alone, [service] if service else [], behind, service.ports if service else ()
            )
            ranked.append((_WORST.index(purpose.value or "other"), backend.at))
        if ranked:
            _, at = min(ranked, key=lambda pair: pair[0])
            yield _entrance(replace(way, type=ok(way.kind, at)), services, joined)
        else:
            yield _entrance(way, services, joined)
    yield from _host_ports(targets)


def _selected(way: Way, selector: Selector, targets: Iterable[Target]) -> Iterator[Target]:
    if not selector.requirements and not selector.open:
        return
    for target in targets:
        known = is_known(way.namespace) and is_known(target.workload.namespace)
        if known and way.namespace.value != target.workload.namespace.value:
            continue
        if not selector.open and target.labels.selected(selector) is True:
            yield target


def _entrance(way: Way, services: Sequence[Way], joined: Sequence[Target]) -> Entrance:
    is_open: Reading[bool]
    if is_known(way.type):
        is_open = ok(way.type.value not in _CLOSED, way.type.at)
    else:
        is_open = Reading(outcome=way.type.outcome, reason=way.type.reason, at=way.type.at)
    ports = tuple(dict.fromkeys(port for one in services for port in one.ports))
    return Entrance(
        at=way.type.at or way.at,
        name=way.name,
        kind=way.kind,
        type=way.type,
        open=is_open,
        ports=ports[:_MAX_REACHED],
        reaches=tuple(dict.fromkeys(target.title for target in joined))[:_MAX_REACHED],
        purpose=_purpose(way, services, joined, ports),
    )


def _purpose(
    way: Way, services: Sequence[Way], joined: Sequence[Target], ports: Sequence[str]
) -> Reading[str]:
    named = [*ports, *(one.own_name for one in services), *(one.name for one in way.backends)]
    said = [
        *(_PORTS[port] for port in ports if port in _PORTS),
        *_by_pattern(_NAMES, named),
    ]
    if way.kind.startswith("Ray"):
        said.append("dashboard")
    for target in joined:
        said.extend(_by_pattern(_IMAGES, (one.image.value or "" for one in target.pod.containers)))
        if target.workload.group in _TRAINING:
            is_leader = target.pod.role.lower() in _LEADERS
            said.append("rendezvous" if is_leader else "training")
    worst = min(said, key=_WORST.index, default="other")
    at = way.type.at or way.at
    if worst == "other":
        reason = next(
            (one.selector.open for one in services if one.selector and one.selector.open), ""
        )
        if reason:
            return opened(reason, at)
    return ok(worst, at)


def _by_pattern(
    patterns: Sequence[tuple[re.Pattern[str], str]], words: Iterable[str]
) -> Iterator[str]:
    for word in words:
        for pattern, purpose in patterns:
            if pattern.search(word):
                yield purpose


def _host_ports(targets: Sequence[Target]) -> Iterator[Entrance]:
    for target in targets:
        if any((one.field, one.text.value) == _OF_NODE for one in target.pod.settings):
            continue  # that is what the check of the host's network is about
        for container in target.pod.containers:
            yield from _of_container(target, container)


def _of_container(target: Target, container: Container) -> Iterator[Entrance]:
    for port in container.ports:
        if port.host_port.outcome is Outcome.ABSENT or port.host_port.value == 0:
            continue
        at = port.host_port.at or port.at
        number = str(port.number.value or port.host_port.value or "")
        kind: Reading[str] = ok("hostPort", at)
        is_open: Reading[bool] = ok(True, at)
        if not is_known(port.host_port):
            is_open = Reading(outcome=port.host_port.outcome, reason=port.host_port.reason, at=at)
        name = f"hostPort/{target.title}/{container.name}:{number or '?'}"
        words = tuple(word for word in (number, port.name.value) if word)
        way = Way(name, "hostPort", target.workload.namespace, kind, words, at)
        made = _entrance(way, [way], [target])
        yield Entrance(
            at=at,
            name=name,
            kind="hostPort",
            type=kind,
            open=is_open,
            ports=made.ports,
            reaches=made.reaches,
            purpose=made.purpose,
        )
