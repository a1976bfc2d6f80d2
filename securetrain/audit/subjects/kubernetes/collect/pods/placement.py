# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The nodes that a pod may run on: labels of its nodeSelector and of the affinity that is required.

What keeps other pods off these nodes (taints) belongs to the nodes, and is in no manifest of a job.
"""

from collections.abc import Iterator

from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import (
    Scope,
    as_text,
    failed,
    is_known,
    ok,
    opened,
)
from securetrain.audit.subjects.kubernetes.facts.workload import NodeLabel

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ONE_OF = "it allows more than one label"


def node_labels(scope: Scope, pod: Node, left_to: str) -> Iterator[NodeLabel]:
    """Yield what a node must have; open where a template, an operator or a choice decides."""
    selector = scope.child(pod, "nodeSelector")
    required = scope.child(scope.child(scope.child(pod, "affinity"), "nodeAffinity"), _REQUIRED)
    for block in (selector, required):
        if block is not None and (reason := scope.opened(block) or scope.rest(block)):
            at = scope.source.at(block)
            yield NodeLabel(at=at, text=opened(reason, at))
    for key, value in (selector.entries or {} if selector is not None else {}).items():
        yield _label(scope, key, value)
    if required is not None:
        yield from _of_terms(scope, required)
    at = scope.source.at(pod)
    if selector is None and required is None and (reason := scope.rest(pod) or left_to):
        yield NodeLabel(at=at, text=failed(reason, at))


def _of_terms(scope: Scope, required: Node) -> Iterator[NodeLabel]:
    terms = list(scope.elements(required, "nodeSelectorTerms"))
    for term, reason in terms:
        at = scope.source.at(term)
        if reason or len(terms) > 1:
            yield NodeLabel(at=at, text=failed(reason or _ONE_OF, at))
            continue
        for item, why in scope.elements(term, "matchExpressions"):
            key, operator = scope.string(item, "key"), scope.string(item, "operator")
            found = item.get("values")
            values = found.items or () if found is not None else ()
            place = scope.source.at(item)
            if why or not is_known(key) or not is_known(operator):
                yield NodeLabel(at=place, text=failed(why or "a template", place))
            elif operator.value == "In" and len(values) == 1:
                yield _label(scope, key.value or "", values[0])
            elif operator.value == "In":
                yield NodeLabel(at=place, text=failed(_ONE_OF, place))


def _label(scope: Scope, key: str, node: Node) -> NodeLabel:
    value = scope.value(node, as_text)
    at = scope.source.at(node)
    if not is_known(value):
        return NodeLabel(at=at, text=failed(value.reason, at))
    return NodeLabel(at=at, text=ok(f"{key}={value.value}"[:300], at))
