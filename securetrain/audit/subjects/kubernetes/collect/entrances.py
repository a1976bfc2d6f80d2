# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ways to pods from outside the cluster: Services, Ingresses and routes, host ports.

A route stands where it names the Service whose purpose is the worst.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope, is_known, ok, opened, unknown_as
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
_NAMES: Final = {
    "notebook": r"(?i)jupyter|notebook|jupyterhub",
    "dashboard": r"(?i)dashboard|tensorboard|mlflow|ray-?(?:client|head)|gcs|wandb|aim\b",
    "rendezvous": r"(?i)c10d|rdzv|rendezvous|pytorchjob-port|master-?port|etcd|mpi|nccl",
}
_IMAGES: Final = {
    "notebook": r"(?i)jupyter|notebook",
    "dashboard": r"(?i)tensorboard|mlflow|rayproject/",
}
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
    at: Location
    ports: tuple[str, ...] = ()
    selector: Selector | None = None
    """None for what selects no pods."""
    backends: tuple["Backend", ...] = ()
    """The Services that a route leads to."""
    own_name: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, as routes name it."""
        return self.namespace.value or "", self.own_name


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
    way = Way(name, one.kind, namespace, ok(one.kind, at), at, own_name=one.said("name"))
    if one.kind == "Service" and one.group in {"", "core"}:
        ports, kind = tuple(_ports(scope, spec)), _type(scope, spec)
        yield replace(way, type=kind, ports=ports, selector=_selector(scope, spec))
    elif one.kind in ROUTES and one.group in _ROUTE_GROUPS:
        place = one.source.at(spec) if spec is not None else at
        backends, ports = _backends(one, spec)
        kind = ok(one.kind, place)
        yield replace(way, type=kind, at=place, backends=backends, ports=ports)
    elif one.group == "ray.io":
        for node in one.node.walk():
            if (head := node.get("headGroupSpec")) is not None:
                place, kind = scope.source.at(head), _of_ray(scope, head)
                ports = ("8265", "dashboard")
                yield replace(way, name=f"{name}/head", type=kind, at=place, ports=ports)


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


def _of_ray(scope: Scope, head: Node) -> Reading[str]:
    """The type of the Service that KubeRay makes for the head, or its Ingress."""
    inner = scope.child(scope.child(head, "headService"), "spec")
    kind = scope.string(head, "serviceType", "ClusterIP")
    if head.get("serviceType") is None and inner is not None:
        kind = scope.string(inner, "type", "ClusterIP")
    ingress = head.get("enableIngress")
    if ingress is not None and kind.value in _CLOSED:
        read = scope.value(ingress, lambda value: value.text or "")
        if (read.value or "").lower() == "true":
            return ok("Ingress", read.at)
        return kind if is_known(read) else read
    return kind


def entrances(found: Sequence[Way], targets: Sequence[Target]) -> Iterator[Entrance]:
    """Yield ways joined with the pods that they lead to."""
    reached: dict[tuple[str, str], tuple[Way, list[Target]]] = {}
    nearby: dict[str | None, list[Target]] = {}
    for target in targets:
        nearby.setdefault(target.workload.namespace.value, []).append(target)
    for way in found:
        if way.selector is not None and is_known(way.namespace):
            near = [*nearby.get(way.namespace.value, ()), *nearby.get(None, ())]
            reached[way.key] = (way, list(_selected(way, way.selector, near)))
    for way in found:
        joined: list[Target] = []
        if way.selector is not None:
            joined = reached.get(way.key, (way, []))[1]
            if not is_known(way.namespace):
                joined = list(_selected(way, way.selector, targets))
        if not way.backends:
            yield _entrance(way, [way], joined)
            continue
        services, ranked = [way], []
        for backend in way.backends:
            service, behind = reached.get((way.key[0], backend.name), (None, []))
            alone = replace(way, backends=(backend,))
            mine = [service] if service is not None else []
            ports = service.ports if service is not None else ()
            purpose = _purpose(alone, mine, behind, ports).value or "other"
            ranked.append((_WORST.index(purpose), backend.at))
            services += mine
            joined = [*joined, *behind]
        _, at = min(ranked, key=lambda pair: pair[0])
        yield _entrance(replace(way, type=ok(way.kind, at)), services, joined)
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
    is_open: Reading[bool] = unknown_as(way.type, way.type.at)
    if is_known(way.type):
        is_open = ok(way.type.value not in _CLOSED, way.type.at)
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


def _by_pattern(patterns: Mapping[str, str], words: Iterable[str]) -> Iterator[str]:
    for word in words:
        yield from (purpose for purpose, one in patterns.items() if re.search(one, word))


def _host_ports(targets: Sequence[Target]) -> Iterator[Entrance]:
    for target in targets:
        if any((one.field, one.text.value) == _OF_NODE for one in target.pod.settings):
            continue  # that is what the check of the host's network is about
        for container in target.pod.containers:
            yield from _of_container(target, container)


def _of_container(target: Target, container: Container) -> Iterator[Entrance]:
    for port in container.ports:
        read = port.host_port
        if read.outcome is Outcome.ABSENT or read.value == 0:
            continue
        at = read.at or port.at
        number = str(port.number.value or read.value or "")
        name = f"hostPort/{target.title}/{container.name}:{number or '?'}"
        words = tuple(word for word in (number, port.name.value) if word)
        kind: Reading[str] = ok("hostPort", at)
        way = Way(name, "hostPort", target.workload.namespace, kind, at, words)
        made = _entrance(way, [way], [target])
        is_open: Reading[bool] = made.open if is_known(read) else unknown_as(read, at)
        yield msgspec.structs.replace(made, open=is_open)
