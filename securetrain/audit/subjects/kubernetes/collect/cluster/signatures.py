# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Policies of admission that refuse images without a signature, and the namespaces they cover.

Kyverno's ``verifyImages`` (also ImageValidatingPolicy), Sigstore's ClusterImagePolicy (namespaces
that are labelled for it, policy-controller v0.12), and the webhooks of Connaisseur and Ratify.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope, failed, is_known, ok

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
            if list(_under(match, "namespaceSelector")):
                reason = reason or "a selector of namespaces"
    said = [
        node.text or ""
        for key in ("failureAction", "validationFailureAction")
        for node in _under(spec, key)
    ]
    enforces = any(word.lower() == "enforce" for word in said)
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
