# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Labels and selectors: whether an object selects a pod, with what operators add to the pod.

Labels that operators add are from their sources: training-operator v1.9 and trainer v2.0,
mpi-operator v0.6, jobset v0.8, kuberay v1.4, lws v0.6, volcano v1.12, Kubernetes 1.33.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope, as_text, is_known
from securetrain.audit.subjects.kubernetes.facts.workload import Pod, Workload

Answer: TypeAlias = bool | str
"""Whether it does; a string: that is not known, and why."""

_ADDED: Final[Mapping[str, Mapping[str, str]]] = {
    "batch": {"job-name": "{name}", "batch.kubernetes.io/job-name": "{name}"},
    "kubeflow.org": {
        "training.kubeflow.org/job-name": "{name}",
        "training.kubeflow.org/replica-type": "{role}",
        "training.kubeflow.org/job-role": "{role}",
        "training.kubeflow.org/operator-name": "*",
        "training.kubeflow.org/replica-index": "*",
    },
    "trainer.kubeflow.org": {
        "jobset.sigs.k8s.io/jobset-name": "{name}",
        "jobset.sigs.k8s.io/replicatedjob-name": "*",
        "trainer.kubeflow.org/trainjob-ancestor-step": "*",
    },
    "jobset.x-k8s.io": {
        "jobset.sigs.k8s.io/jobset-name": "{name}",
        "jobset.sigs.k8s.io/replicatedjob-name": "{role}",
        "jobset.sigs.k8s.io/replicatedjob-replicas": "*",
        "jobset.sigs.k8s.io/job-index": "*",
        "job-name": "*",
        "batch.kubernetes.io/job-name": "*",
    },
    "ray.io": {
        "ray.io/cluster": "*",
        "ray.io/node-type": "{ray}",
        "ray.io/group": "*",
        "ray.io/is-ray-node": "yes",
        "ray.io/identifier": "*",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    },
    "leaderworkerset.x-k8s.io": {
        "leaderworkerset.sigs.k8s.io/name": "{name}",
        "leaderworkerset.sigs.k8s.io/group-index": "*",
        "leaderworkerset.sigs.k8s.io/worker-index": "*",
        "role": "*",
    },
    "batch.volcano.sh": {
        "volcano.sh/job-name": "{name}",
        "volcano.sh/job-namespace": "{namespace}",
        "volcano.sh/task-spec": "{role}",
        "volcano.sh/queue-name": "*",
        "volcano.sh/task-index": "*",
    },
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One part of a selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Selector:
    """A selector of pods; with no requirement it selects all of a namespace."""

    requirements: tuple[Requirement, ...] = ()
    open: str = ""
    """What leaves it open; empty when nothing does."""


@dataclass(frozen=True, slots=True)
class PodLabels:
    """The labels that a pod will have."""

    known: Mapping[str, str]
    opens: Mapping[str, str] = field(default_factory=dict)
    """Labels whose value is not known, and why."""
    rest: str = ""
    """What may add any label; empty when nothing does."""

    def selected(self, selector: Selector) -> Answer:
        """Answer whether a selector selects the pod."""
        unknown = selector.open
        for one in selector.requirements:
            answer = self._meets(one)
            if answer is False:
                return False
            if isinstance(answer, str):
                unknown = unknown or answer
        return unknown or True

    def _meets(self, one: Requirement) -> Answer:
        if one.key in self.opens:
            return True if one.operator == "Exists" else self.opens[one.key]
        value = self.known.get(one.key)
        if value is None and self.rest:
            return self.rest
        answers = {
            "In": value is not None and value in one.values,
            "NotIn": value is None or value not in one.values,  # codespell:ignore notin
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        return answers.get(one.operator, f"the operator {one.operator[:40]}")


def labels_of(workload: Workload, pod: Pod, *, from_runtime: bool = False) -> PodLabels:
    """The labels of a pod: its own, and those that its kind's operator adds."""
    known: dict[str, str] = {}
    opens: dict[str, str] = {}
    rest = f"the runtime of {workload.label}" if from_runtime else ""
    if "." in workload.group and not workload.group.endswith(".k8s.io"):
        rest = rest or ("" if workload.group in _ADDED else f"the operator of {workload.kind}")
    fill = _filled(workload, pod)
    for key, value in _ADDED.get(workload.group, {}).items():
        said = fill(value)
        if said is None:
            opens[key] = f"the operator of {workload.kind}"
        else:
            known[key] = said
    for pair in pod.labels:
        if not is_known(pair.name):
            rest = rest or pair.name.reason
        elif is_known(pair.text):
            known[pair.name.value or ""] = pair.text.value or ""
            opens.pop(pair.name.value or "", None)
        else:
            known.pop(pair.name.value or "", None)
            opens[pair.name.value or ""] = pair.text.reason
    return PodLabels(known, opens, rest)


def _filled(workload: Workload, pod: Pod) -> Callable[[str], str | None]:
    role = pod.role.partition("#")[0]
    words = {
        "{name}": workload.name.value,
        "{namespace}": workload.namespace.value,
        "{role}": role.lower() if workload.group == "kubeflow.org" else role,
        "{ray}": "head" if role == "head" else "worker",
        "*": None,
    }
    return lambda value: words.get(value, value)


def selector_of(scope: Scope, node: Node | None) -> Selector:
    """The selector of a mapping with matchLabels and matchExpressions, or of plain labels."""
    if node is None:
        return Selector()
    if reason := scope.opened(node) or scope.rest(node):
        return Selector(open=reason)
    keys = node.entries or {}
    plain = "matchLabels" not in keys and "matchExpressions" not in keys
    parts = [*_labels(scope, node if plain else node.get("matchLabels"))]
    parts.extend(_expressions(scope, node.get("matchExpressions")))
    found = tuple(one for one in parts if isinstance(one, Requirement))
    return Selector(found, next((one for one in parts if isinstance(one, str)), ""))


def _labels(scope: Scope, node: Node | None) -> Iterator[Requirement | str]:
    """Yield a requirement for each label, and what leaves one open."""
    if node is None:
        return
    if reason := scope.opened(node) or scope.rest(node):
        yield reason
    for key, value in (node.entries or {}).items():
        read = scope.value(value, as_text)
        if is_known(read):
            yield Requirement(key.removeprefix("k8s:"), "In", (read.value or "",))
        else:
            yield read.reason


def _expressions(scope: Scope, node: Node | None) -> Iterator[Requirement | str]:
    if node is None:
        return
    if reason := scope.opened(node):
        yield reason
    for item in node.items or ():
        key, operator, values = (item.get(name) for name in ("key", "operator", "values"))
        if key is None or operator is None or key.text is None or operator.text is None:
            yield scope.opened(item) or "a requirement without key or operator"
            continue
        words = tuple(one.text or "" for one in (values.items or () if values else ()))
        if any(scope.source.template.holes_of(word) for word in (key.text, *words)):
            yield "a template"
        else:
            yield Requirement(key.text, operator.text, words)
