# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Service accounts and what bindings among the files allow them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.files import MAX_POLICIES
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import Scope, failed, is_known, ok
from securetrain.audit.subjects.kubernetes.facts.workload import Account, Right

KINDS: Final = frozenset(
    {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount"}
)
_GROUP: Final = "rbac.authorization.k8s.io"
_MAX_RULES: Final = 200
_CONTROLLERS: Final = frozenset(
    {
        *("deployments", "daemonsets", "statefulsets", "replicasets", "replicationcontrollers"),
        *("jobs", "cronjobs", "pytorchjobs", "mpijobs", "tfjobs", "jaxjobs", "xgboostjobs"),
        *("paddlejobs", "trainjobs", "rayclusters", "rayjobs", "rayservices", "jobsets"),
        *("leaderworkersets", "workflows", "cronworkflows", "notebooks", "clustertrainingruntimes"),
        *("trainingruntimes",),
    }
)
_RIGHTS: Final = frozenset({"roles", "rolebindings", "clusterroles", "clusterrolebindings"})
_BUILT_IN: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster-admin": ("everything",),
    "admin": ("create pods", "exec into pods", "read secrets", "change rights", "create tokens"),
    "edit": ("create pods", "exec into pods", "read secrets", "create tokens"),
    "view": (),
    "system:auth-delegator": (),
    "system:discovery": (),
    "system:basic-user": (),
    "system:public-info-viewer": (),
}
"""ClusterRoles that every cluster has (kubernetes/pkg/../bootstrappolicy), and what they allow."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a role."""

    verbs: tuple[str, ...]
    resources: tuple[str, ...]
    dangerous: tuple[str, ...]
    at: Location


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding of a role to subjects."""

    name: str
    namespace: str
    """Empty for one of the whole cluster."""
    role: str
    role_namespace: str
    subjects: tuple[tuple[str, str, str], ...]
    """Kind, namespace and name of each."""
    open: str
    """What leaves it open; empty when nothing does."""
    at: Location


@dataclass(slots=True)
class Rights:
    """Roles, bindings and accounts of all files."""

    roles: dict[tuple[str, str], tuple[Rule, ...] | str] = field(default_factory=dict)
    """By namespace and ``KIND/NAME``; a string: what leaves it open."""
    bindings: list[Binding] = field(default_factory=list)
    seen: dict[tuple[str, str, str], Reading[tuple[Right, ...]]] = field(default_factory=dict)
    """Answers that were given."""
    automount: dict[tuple[str, str], Reading[bool]] = field(default_factory=dict)
    """What service accounts say, by namespace and name."""

    def take(self, one: Object) -> bool:
        """Note an object, when it is one of rights; return whether there was room for it."""
        scope = Scope(one.source, one.node.at)
        namespace = one.said("namespace") or "default"
        if one.kind == "ServiceAccount":
            said = scope.boolean(one.node, "automountServiceAccountToken")
            self.automount[namespace, one.said("name")] = said
        elif one.group != _GROUP:
            return True
        elif one.kind in {"Role", "ClusterRole"}:
            where = namespace if one.kind == "Role" else ""
            open_rest = scope.rest(one.node)
            if one.node.get("aggregationRule") is not None:
                open_rest = "a role that others add to"
            rules = tuple(_rules(scope, one.node))
            self.roles[where, one.title] = open_rest or rules
        elif one.kind in {"RoleBinding", "ClusterRoleBinding"}:
            if len(self.bindings) >= MAX_POLICIES:
                return False
            self.bindings.append(_binding(scope, one, namespace))
        return True

    def account(self, account: Account, namespace: Reading[str], unread: str) -> Account:
        """The account with its rights; `unread` is a file that may have a binding."""
        at = account.at
        name, space = account.name, namespace
        if not is_known(name) or not is_known(space):
            deciding = name if not is_known(name) else space
            why: Reading[tuple[Right, ...]] = Reading(
                outcome=deciding.outcome, reason=deciding.reason, at=at
            )
            mounted = account.token_mounted
            if mounted.outcome is Outcome.ABSENT:
                mounted = Reading(outcome=deciding.outcome, reason=deciding.reason, at=at)
            return Account(at=at, name=name, token_mounted=mounted, rights=why)
        mounted = account.token_mounted
        if mounted.outcome is Outcome.ABSENT:
            said = self.automount.get((space.value or "", name.value or ""))
            if said is None or said.outcome is Outcome.ABSENT:
                mounted = ok(True, at, "not set")
            else:
                mounted = said
        key = (space.value or "", name.value or "", unread)
        if key not in self.seen:
            self.seen[key] = self._rights(key[0], key[1], at, unread)
        rights = msgspec.structs.replace(self.seen[key], at=at)
        return Account(at=at, name=name, token_mounted=mounted, rights=rights)

    def _rights(
        self, namespace: str, name: str, at: Location, unread: str
    ) -> Reading[tuple[Right, ...]]:
        if unread:
            return failed(f"{unread} could not be read and may have a binding", at)
        if not self.bindings:
            return failed("no binding of a role is among the files", at)
        found: list[Right] = []
        unknown = ""
        for binding in self.bindings:
            if binding.open:
                unknown = unknown or f"{binding.name}: {binding.open}"
            if not _is_bound(binding, namespace, name):
                continue
            rules = self._rules_of(binding)
            if isinstance(rules, str):
                unknown = unknown or f"{binding.name}: {rules}"
                continue
            found.extend(_rights_of(binding, rules))
        if unknown and not any(one.dangerous for one in found):
            return failed(unknown, at)
        return ok(tuple(found), at)

    def _rules_of(self, binding: Binding) -> tuple[Rule, ...] | str:
        kind, _, name = binding.role.partition("/")
        rules = self.roles.get((binding.role_namespace, binding.role))
        if rules is None and kind == "ClusterRole" and name in _BUILT_IN:
            dangerous = _BUILT_IN[name]
            everything = name == "cluster-admin"
            words = ("*",) if everything else ()
            return (Rule(("*",) if everything else ("get",), words, dangerous, binding.at),)
        return f"{binding.role} is not among the files" if rules is None else rules


def _rights_of(binding: Binding, rules: Sequence[Rule]) -> Iterator[Right]:
    for number, rule in enumerate(rules, 1):
        yield Right(
            at=rule.at,
            role=binding.role if len(rules) == 1 else f"{binding.role}#{number}",
            binding=binding.name,
            everywhere=not binding.namespace,
            verbs=rule.verbs,
            resources=rule.resources,
            dangerous=rule.dangerous,
        )


def _is_bound(binding: Binding, namespace: str, name: str) -> bool:
    groups = {
        "system:serviceaccounts",
        f"system:serviceaccounts:{namespace}",
        "system:authenticated",
    }
    for kind, space, said in binding.subjects:
        if kind == "ServiceAccount" and (space, said) == (namespace, name):
            return True
        if kind == "Group" and said in groups:
            return True
        if kind == "User" and said == f"system:serviceaccount:{namespace}:{name}":
            return True
    return False


def _binding(scope: Scope, one: Object, namespace: str) -> Binding:
    own = namespace if one.kind == "RoleBinding" else ""
    ref = one.node.get("roleRef")
    kind, name = (_word(ref, key) for key in ("kind", "name"))
    unknown = ""
    for node in (ref, *((ref.entries or {}).values() if ref else ())):
        unknown = unknown or (scope.opened(node) if node is not None else "")
    subjects = []
    for item, reason in scope.elements(one.node, "subjects"):
        if reason or item.entries is None:
            unknown = unknown or reason
            continue
        for value in item.entries.values():
            unknown = unknown or scope.opened(value)
        space = _word(item, "namespace") or own or "default"
        subjects.append((_word(item, "kind"), space, _word(item, "name")))
    at = one.source.at(ref) if ref is not None else one.source.at(one.node)
    if ref is not None and (said := ref.get("name")) is not None:
        at = one.source.at(said)
    return Binding(
        name=one.title,
        namespace=own,
        role=f"{kind}/{name}",
        role_namespace=own if kind == "Role" else "",
        subjects=tuple(subjects),
        open=unknown,
        at=at,
    )


def _word(node: Node | None, key: str) -> str:
    found = node.get(key) if node is not None else None
    return (found.text or "")[:200] if found is not None else ""


def _rules(scope: Scope, node: Node) -> Iterator[Rule]:
    for number, (item, reason) in enumerate(scope.elements(node, "rules")):
        if number >= _MAX_RULES:
            return
        at = scope.source.at(item)
        if reason or item.entries is None:
            continue
        verbs, resources = _words(item, "verbs"), _words(item, "resources")
        yield Rule(verbs, resources, dangers(verbs, resources), at)


def _words(item: Node, key: str) -> tuple[str, ...]:
    found = item.get(key)
    return tuple((one.text or "")[:100] for one in (found.items or () if found else ()))[:100]


_ANY: Final = "*"
_DANGERS: Final[tuple[tuple[str, frozenset[str], frozenset[str]], ...]] = (
    ("create pods", frozenset({"create"}), frozenset({"pods"})),
    ("create pods", frozenset({"create", "update", "patch"}), _CONTROLLERS),
    (
        "exec into pods",
        frozenset({"create", "get"}),
        frozenset({"pods/exec", "pods/attach", "pods/*"}),
    ),
    ("read secrets", frozenset({"get", "list", "watch"}), frozenset({"secrets"})),
    ("change rights", frozenset({"create", "update", "patch", "bind", "escalate"}), _RIGHTS),
    (
        "impersonate",
        frozenset({"impersonate"}),
        frozenset({"users", "groups", "serviceaccounts"}),
    ),
    ("create tokens", frozenset({"create"}), frozenset({"serviceaccounts/token"})),
    (
        "reach nodes",
        frozenset({"get", "create", "update", "patch"}),
        frozenset({"nodes/proxy"}),
    ),
)
"""What no training job needs: one of these verbs on one of these resources."""


def dangers(verbs: Sequence[str], resources: Sequence[str]) -> tuple[str, ...]:
    """Return what a rule allows that no training job needs."""
    does, on = set(verbs), set(resources)
    found = ["everything"] if _ANY in does and _ANY in on else []
    for name, wanted, things in _DANGERS:
        if (_ANY in does or does & wanted) and (_ANY in on or on & things):
            found.append(name)
    return tuple(dict.fromkeys(found))
