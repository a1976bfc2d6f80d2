# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Policies of admission: the kinds that they match, against the kinds that are in use."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import (
    Scope,
    absent,
    failed,
    is_known,
    ok,
    opened,
)
from securetrain.audit.subjects.kubernetes.facts.cluster import Admission

_KYVERNO: Final = frozenset({"kyverno.io", "policies.kyverno.io"})
_GATEKEEPER: Final = "constraints.gatekeeper.sh"
_OWN: Final = "admissionregistration.k8s.io"
_HOLDERS: Final = frozenset(
    {
        *("pod", "deployment", "statefulset", "daemonset", "replicaset", "job", "cronjob"),
        *("replicationcontroller", "pytorchjob", "mpijob", "tfjob", "trainjob", "jobset"),
        *("raycluster", "rayjob", "rayservice", "leaderworkerset", "notebook", "workflow"),
        *("trainingruntime", "clustertrainingruntime", "podtemplate"),
    }
)
_BUILT_IN: Final = frozenset({"", "apps", "batch", "*"})
"""Groups of kinds that hold pods: a policy for none of them is an operator's, about its own."""
_PODS: Final = frozenset({"pod", "*"})


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """A policy, before it is compared with the kinds in use."""

    name: str
    engine: str
    kinds: tuple[str, ...]
    """In small letters, without groups, in the singular."""
    groups: tuple[str, ...]
    """Where the policy names any."""
    open: str
    at: Location
    """Where the kinds stand."""
    failure_policy: Reading[str]


def admission_policy(one: Object) -> Iterator[AdmissionPolicy]:
    """Yield the policy of an object; nothing when it is none."""
    scope = Scope(one.source, one.node.at)
    spec = scope.child(one.node, "spec")
    at = one.source.at(one.node)
    failure: Reading[str] = absent(at, "no webhook")
    words: list[Node] = []
    if one.group in _KYVERNO and one.kind in {"ClusterPolicy", "Policy", "ValidatingPolicy"}:
        engine = "kyverno"
        lists = _lists(spec, "kinds", below="match") or _lists(spec, "resources")
    elif one.group == _GATEKEEPER:
        engine, lists = "gatekeeper", _lists(spec, "kinds", below="match")
    elif one.group == _OWN and one.kind == "ValidatingAdmissionPolicy":
        engine, lists = one.kind.lower(), _lists(scope.child(spec, "matchConstraints"), "resources")
        failure = scope.string(spec, "failurePolicy", "Fail")
    elif one.group == _OWN and one.kind.endswith("WebhookConfiguration"):
        hooks = scope.child(one.node, "webhooks")
        engine, lists = "webhook", _lists(hooks, "resources")
        failure = _weakest(scope, hooks, at)
    else:
        return
    if one.group == _OWN:
        words = _lists(one.node, "apiGroups")
    kinds, groups = ([item for node in some for item in _words(node)] for some in (lists, words))
    yield AdmissionPolicy(
        one.title,
        engine,
        tuple(_singular(item.text) for item in kinds if item.text is not None),
        tuple(item.text for item in groups if item.text is not None),
        next(filter(None, map(scope.opened, (*kinds, *groups))), ""),
        one.source.at(lists[0]) if lists else at,
        failure,
    )


def _words(node: Node) -> Iterator[Node]:
    """Yield a list and its elements, of which each may be open."""
    yield from (node, *(node.items or ()))


def _lists(node: Node | None, key: str, *, below: str = "") -> list[Node]:
    """The lists of words under a key, wherever it stands below another one."""
    found = []
    stack = [(node, not below)] if node is not None else []
    while stack:
        one, inside = stack.pop()
        for name, value in reversed((one.entries or {}).items()):
            is_words = value.entries is None and all(i.text is not None for i in value.items or ())
            if name == key and inside and is_words:
                found.append(value)
            elif name != "exclude":
                stack.append((value, inside or name == below))
        stack.extend((item, inside) for item in reversed(one.items or ()))
    return found


def _singular(word: str) -> str:
    """``batch/v1/Job`` and ``jobs`` as ``job``."""
    bare = word.rpartition("/")[2].rpartition(".")[2].lower()
    if bare not in _HOLDERS and bare.endswith("s"):
        return bare.removesuffix("s")
    return bare


def _weakest(scope: Scope, hooks: Node | None, at: Location) -> Reading[str]:
    found: Reading[str] = ok("Fail", at, "not set")
    for item in (hooks.items or ()) if hooks is not None else ():
        said = scope.string(item, "failurePolicy", "Fail")
        if said.value != "Fail":
            return said
        found = said
    return found


def admissions(policies: Sequence[AdmissionPolicy], kinds: Sequence[str]) -> Iterator[Admission]:
    """Yield the policies that judge what holds pods, each with the kinds that it misses."""
    for policy in policies:
        named = set(policy.kinds)
        if not policy.open and not named & (_HOLDERS | _PODS):
            continue
        own = bool(policy.groups) and not _BUILT_IN & set(policy.groups)
        reaches_all = own or bool(named & _PODS)
        overlooked = (kind for kind in kinds if kind.lower() not in named and not reaches_all)
        missed: Reading[tuple[str, ...]] = ok(tuple(overlooked), policy.at)
        if policy.open and not named & _PODS:
            missed = opened(policy.open, policy.at)
        yield Admission(
            at=policy.at,
            name=policy.name,
            engine=policy.engine,
            missed=missed,
            failure_policy=policy.failure_policy,
        )


# --- signatures of images -------------------------------------------------------------------------

INCLUDED: Final = "policy.sigstore.dev/include"
"""The label of a Namespace that Sigstore's controller looks at."""
_WEBHOOKS: Final = re.compile(r"connaisseur|ratify", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SignaturePolicy:
    """A policy about signatures of images."""

    at: Location
    namespaces: tuple[str, ...] = ("*",)
    """Patterns of the namespaces that it covers."""
    excluded: tuple[str, ...] = ()
    labelled: bool = False
    """Whether only namespaces count that have the label `INCLUDED`."""
    open: str = ""
    """The reason for which it is not known whom it covers."""
    enforces: bool = True


def signature_policy(one: Object) -> Iterator[SignaturePolicy]:
    """Yield the policy of an object; nothing when it is about no signature."""
    scope = Scope(one.source, one.node.at)
    spec = scope.child(one.node, "spec")
    at = one.source.at(one.node)
    match one.group, one.kind:
        case "policy.sigstore.dev", "ClusterImagePolicy":
            mode = scope.string(spec, "mode", "enforce")
            reason = "" if is_known(mode) else mode.reason
            enforces = mode.value != "warn"
            yield SignaturePolicy(at, labelled=True, open=reason, enforces=enforces)
        case "admissionregistration.k8s.io", "ValidatingWebhookConfiguration":
            if _WEBHOOKS.search(one.said("name")):
                yield SignaturePolicy(at)
        case "kyverno.io", "ClusterPolicy" | "Policy":
            if spec is not None and any(_under(spec, "verifyImages")):
                yield _of_kyverno(one, scope, spec)
        case "policies.kyverno.io", "ImageValidatingPolicy":
            yield SignaturePolicy(at, open="its conditions are not read", enforces=_denies(spec))
        case _:
            pass


def _denies(spec: Node | None) -> bool:
    said = spec.get("validationActions") if spec is not None else None
    return said is None or any(node.text == "Deny" for node in said.walk())


def _of_kyverno(one: Object, scope: Scope, spec: Node) -> SignaturePolicy:
    named: list[str] = []
    excluded: list[str] = []
    reason = ""
    for key, into in (("match", named), ("exclude", excluded)):
        for match in _under(spec, key):
            for node in _under(match, "namespaces"):
                reason = reason or scope.opened(node)
                into.extend(item.text for item in node.items or () if item.text)
            if any(True for _ in _under(match, "namespaceSelector")):
                reason = reason or "a selector of namespaces"
    actions = (*_under(spec, "failureAction"), *_under(spec, "validationFailureAction"))
    enforces = any((node.text or "").lower() == "enforce" for node in actions)
    if one.kind == "Policy":
        named = [one.said("namespace") or "default"]
    return SignaturePolicy(
        one.source.at(one.node), tuple(named or ["*"]), tuple(excluded), False, reason, enforces
    )


def _under(node: Node, wanted: str) -> Iterator[Node]:
    """Yield what stands under a key, at any depth."""
    for key, value in (node.entries or {}).items():
        if key == wanted:
            yield value
        else:
            yield from _under(value, wanted)
    for item in node.items or ():
        yield from _under(item, wanted)


def signatures(
    name: str,
    label: Reading[str] | None,
    policies: Sequence[SignaturePolicy],
    at: Location,
    unknown: str,
) -> Reading[bool]:
    """Find whether a policy refuses images without a signature in a namespace.

    Args:
        name: The namespace.
        label: Its label `INCLUDED`; None when its object is not among the files.
        policies: All of them.
        at: The place of the namespace.
        unknown: The reason for which a missing policy is no answer; empty when it is one.
    """
    reason = ""
    for one in policies:
        if not one.enforces or not _covers(one, name):
            continue
        if one.open:
            reason = reason or one.open
        elif not one.labelled or (label is not None and label.value == "true"):
            return ok(True, one.at)
        elif label is None:
            reason = reason or "no Namespace of this name is among the files"
        elif label.outcome not in {Outcome.OK, Outcome.ABSENT}:
            reason = reason or label.reason
    if reason or unknown:
        return failed(reason or unknown, at)
    return ok(False, at)


def _covers(policy: SignaturePolicy, name: str) -> bool:
    def among(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return among(policy.namespaces) and not among(policy.excluded)
