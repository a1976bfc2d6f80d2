# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Pod specs by their structure: a mapping with a list of containers, at any depth, in any kind.

A kind's name decides nothing but the exceptions: definitions of kinds and policies of admission
hold patterns and no pods; a step of Argo has one container under another key; a TrainJob's trainer
is a container whose pod stands in its runtime. In a kind of an operator a container may stand
beside its pod, under a key of its own (Slinky's ``slurmd``, Dynamo's ``mainContainer``): it is one
by its image. What it does not set the operator may, so that is open and no default.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from securetrain.audit.parser.files import OwnNames
from securetrain.audit.parser.objects import DEFINITIONS, Object
from securetrain.audit.parser.tree import Node

LISTS: Final = ("containers", "initContainers", "ephemeralContainers")
_NO_PODS: Final = frozenset(
    {
        DEFINITIONS,
        "kyverno.io",
        "policies.kyverno.io",
        "constraints.gatekeeper.sh",
        "templates.gatekeeper.sh",
        "mutations.gatekeeper.sh",
        "admissionregistration.k8s.io",
    }
)
"""Groups whose objects hold patterns of pods."""
_ARGO: Final = "argoproj.io"
_ARGO_PATCH: Final = "podSpecPatch"
"""A string that changes the pod: what the pod does not set is open."""
_SINGLE: Final = ("container", "script")
TRAINER: Final = "."
"""In place of a key: the mapping is the container itself."""
_WITHIN: Final = frozenset({*LISTS, *_SINGLE, "volumes"})
"""Keys of a pod spec that no other pod is below."""
_POD_FIELDS: Final = frozenset(
    {
        *("hostNetwork", "hostPID", "hostIPC", "restartPolicy", "serviceAccountName", "volumes"),
        *("initContainers", "nodeSelector", "tolerations", "affinity", "imagePullSecrets"),
        *("securityContext", "priorityClassName", "schedulerName", "dnsPolicy"),
    }
)
_GENERIC: Final = frozenset(
    {
        *("spec", "template", "podTemplate", "jobTemplate", "podSpec", "podTemplateSpec"),
        *("leaderWorkerTemplate", "rayClusterSpec", "rayClusterConfig", "rayClusterTemplate"),
        *("jobSetTemplateSpec", "workloadSpec", "podTemplateOverrides", "extraPodSpec"),
    }
)
_OF_CONTAINER: Final = frozenset(
    {
        *("command", "args", "env", "envFrom", "ports", "resources", "volumeMounts"),
        *("securityContext", "imagePullPolicy", "livenessProbe", "readinessProbe"),
    }
)
"""Fields of which one beside an image makes a container."""
COMPOSED: Final = frozenset({"repository", "version", "tag"})
"""Keys beside an image that is not the whole name of one."""
_WALLS: Final = frozenset({"securityContext", "volumeMounts", "command"})
"""Fields that make a container of a mapping with such keys, so that adding one hides nothing."""
_TEMPLATES: Final = ("template", "podTemplate", "podTemplateSpec", "podSpec", "extraPodSpec")
_ROLES: Final = {
    "headGroupSpec": "head",
    "leaderTemplate": "leader",
    "workerTemplate": "worker",
    "submitterPodTemplate": "submitter",
}
_NAMES: Final = ("name", "groupName", "role")


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod spec in an object."""

    pointer: str
    role: str
    spec: Node
    metadata: Node | None
    """Of the pod, not of the object."""
    containers: Node
    """The mapping that has the lists of containers."""
    single: str = ""
    """The key of the one container, where there is no list of them."""
    beside: tuple[str, ...] = ()
    """Keys of containers in `containers` that are in no list."""
    left_to: str = ""
    """Why what is not set here may be set all the same."""


def holds_pods(one: Object) -> bool:
    """Return whether pods in an object are pods."""
    return one.group not in _NO_PODS and one.kind != "CustomResourceDefinition"


def pod_specs(one: Object) -> list[PodSpec]:
    """The pod specs of an object, in order, each with a role of its own."""
    if not holds_pods(one):
        return []
    names = OwnNames()
    named = []
    whole = one.node.get("spec")
    for found in _specs(one, one.node, (), (), None, taken=set()):
        places = (found.spec, whole) if one.group == _ARGO else ()
        if any(node and _ARGO_PATCH in (node.entries or ()) for node in places):
            marker = one.source.template.marker(_ARGO_PATCH, _ARGO_PATCH)
            found.spec.holes = [*(found.spec.holes or ()), marker]
        named.append(replace(found, role=names.of(found.role)))
    return named


def _specs(
    one: Object,
    node: Node,
    way: tuple[str, ...],
    nodes: tuple[Node, ...],
    parent: Node | None,
    *,
    taken: set[int],
) -> Iterator[PodSpec]:
    """Yield the pod specs in a mapping or list; `taken` are those whose containers are beside."""
    if node.text is not None or way[:1] in {("metadata",), ("status",)}:
        return
    if node.entries is not None:
        spec = None
        if id(node) not in taken:
            spec = _spec_at(one, node, way, nodes, parent) or _spec_beside(one, node, way, nodes)
        if spec is not None:
            taken.add(id(spec.spec))
            yield spec
        for key, value in node.entries.items():
            if spec is not None and key in _WITHIN:
                continue
            if spec is None or key not in spec.beside:
                yield from _specs(one, value, (*way, key), (*nodes, node), node, taken=taken)
        return
    for number, item in enumerate(node.items or ()):
        yield from _specs(one, item, (*way, str(number)), (*nodes, node), parent, taken=taken)


def _spec_at(
    one: Object,
    node: Node,
    way: tuple[str, ...],
    nodes: tuple[Node, ...],
    parent: Node | None,
) -> PodSpec | None:
    pointer = "/" + "/".join(way)
    entries = node.entries or {}
    single = ""
    # A TrainJob's own pods, and what it overrides of them, begin with those of its runtime.
    left_to = f"the runtime {_runtime(one)} sets it" if one.kind == "TrainJob" else ""
    if not _is_list_of_containers(one, entries):
        if one.group == _ARGO:
            single = next((key for key in _SINGLE if _is_container(entries.get(key))), "")
        if one.kind == "TrainJob" and _is_trainer(way, entries):
            single = TRAINER
        if not single:
            return None
    metadata = parent.get("metadata") if parent is not None and way[-1:] == ("spec",) else None
    if one.group == _ARGO and single:
        metadata = node.get("metadata")
    return PodSpec(
        pointer=pointer,
        role=_role(one, way, nodes),
        spec=node,
        metadata=metadata,
        containers=node,
        single=single,
        left_to=left_to,
    )


def _spec_beside(
    one: Object, node: Node, way: tuple[str, ...], nodes: tuple[Node, ...]
) -> PodSpec | None:
    """The pod of the containers that stand under keys of their own, in a kind of an operator."""
    if not _of_operator(one):
        return None
    beside = {key: value for key, value in (node.entries or {}).items() if _is_container(value)}
    in_pod = way[-1:] == ("extraPodSpec",) or way[-1:] == ("podSpec",)
    if not in_pod and not any(_OF_CONTAINER & set(one.entries or ()) for one in beside.values()):
        return None
    spec, metadata, key = _pod_of(node)
    return PodSpec(
        pointer="/" + "/".join((*way, *key)),
        role=_role(one, way, nodes),
        spec=spec,
        metadata=metadata,
        containers=node,
        beside=tuple(beside),
        left_to=f"the operator of {one.kind or 'this kind'} may set it",
    )


def _of_operator(one: Object) -> bool:
    own = "." in one.group and not one.group.endswith(".k8s.io")
    return own and one.group != _ARGO and one.kind != "TrainJob"


def _pod_of(node: Node) -> tuple[Node, Node | None, tuple[str, ...]]:
    """The pod spec beside containers, its metadata, and the way to it; else the mapping itself."""
    for key in _TEMPLATES:
        template = node.get(key)
        if template is None or template.entries is None:
            continue
        spec = template.get("spec")
        if spec is not None and spec.entries is not None:
            return spec, template.get("metadata"), (key, "spec")
        if _POD_FIELDS & set(template.entries):
            return template, None, (key,)
    return node, None, ()


def _is_trainer(way: tuple[str, ...], entries: dict[str, Node]) -> bool:
    """Tell whether a TrainJob changes its runtime's container here, if only by nothing."""
    return way == ("spec", "trainer") or (way == ("spec",) and "trainer" not in entries)


def _runtime(one: Object) -> str:
    spec = one.node.get("spec")
    ref = spec.get("runtimeRef") if spec else None
    name = ref.get("name") if ref else None
    return (name.text if name is not None else "") or "of the cluster"


def _is_container(node: Node | None) -> bool:
    if node is None or node.entries is None or "image" not in node.entries:
        return False
    keys = set(node.entries)
    return node.entries["image"].entries is None and (not COMPOSED & keys or bool(_WALLS & keys))


def _is_list_of_containers(one: Object, entries: dict[str, Node]) -> bool:
    """Tell whether a mapping has containers in a list, or what a template makes one of."""
    node = entries.get("containers")
    if node is None:
        return False
    items = node.items if node.items is not None else [node]
    mappings = [item for item in items if item.entries is not None]
    if not mappings:
        is_open = any(item.text and one.source.template.holes_of(item.text) for item in items)
        return is_open and (node.items is not None or bool(_POD_FIELDS & set(entries)))
    words = {"name", "image", "command", "args"}
    has_words = (item.holes or (item.entries or {}).keys() & words for item in mappings)
    return node.items is not None and any(has_words)


def _role(one: Object, way: tuple[str, ...], nodes: tuple[Node, ...]) -> str:
    """The nearest word on the way that says what the pod is."""
    for index in range(len(way) - 1, -1, -1):
        key = way[index]
        node = nodes[index]
        if node.items is not None:
            item = node.items[int(key)]
            name = next((found for n in _NAMES if (found := item.get(n)) and found.text), None)
            if name is not None and name.text is not None:
                return one.source.template.restored(name.text)[:120]
            return f"{way[index - 1] if index else ''}[{key}]"
        if key in _ROLES:
            return _ROLES[key]
        if index and key not in _GENERIC:
            return one.source.template.restored(key.partition("\ue002")[0])[:120]
    return ""
