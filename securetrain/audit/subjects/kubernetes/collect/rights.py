# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Service accounts and what bindings among the files allow them."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from securetrain.audit.facts import Location, Outcome, Reading
from securetrain.audit.parser.files import MAX_POLICIES
from securetrain.audit.parser.objects import Object
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import NOT_SET, Scope, failed, is_known, ok, unknown_as
from securetrain.audit.subjects.kubernetes.facts.workload import Account, Right

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


_Rules: TypeAlias = tuple[tuple[Rule, ...], str]
"""Those of a role, and what leaves it open; empty when nothing does."""


@dataclass(slots=True)
class Rights:
    """Roles, bindings and accounts of all files."""

    roles: dict[tuple[str, str], _Rules] = field(default_factory=dict)
    """By namespace and ``KIND/NAME``."""
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
            self.roles[where, one.title] = _rules(scope, one.node)
        elif one.kind in {"RoleBinding", "ClusterRoleBinding"}:
            if len(self.bindings) >= MAX_POLICIES:
                return False
            self.bindings.append(_binding(scope, one, namespace))
        return True

    def account(self, account: Account, namespace: Reading[str], unread: str) -> Account:
        """The account with its rights; `unread` is a file that may have a binding."""
        at, mounted = account.at, account.token_mounted
        is_said = mounted.outcome is not Outcome.ABSENT
        for deciding in (account.name, namespace):
            if not is_known(deciding):
                open_: Reading[Any] = unknown_as(deciding, at)
                mounted = mounted if is_said else open_
                return msgspec.structs.replace(account, token_mounted=mounted, rights=open_)
        key = (namespace.value or "", account.name.value or "", unread)
        if not is_said:
            mounted = self.automount.get(key[:2], mounted)
            if mounted.outcome is Outcome.ABSENT:
                mounted = ok(True, at, NOT_SET)
        if key not in self.seen:
            self.seen[key] = self._rights(key[0], key[1], at, unread)
        rights = msgspec.structs.replace(self.seen[key], at=at)
        return msgspec.structs.replace(account, token_mounted=mounted, rights=rights)

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
            rules, opens = self._rules_of(binding)
            unknown = unknown or (f"{binding.name}: {opens}" if opens else "")
            found.extend(_rights_of(binding, rules))
        if unknown and not any(one.dangerous for one in found):
            return failed(unknown, at)
        return ok(tuple(found), at)

    def _rules_of(self, binding: Binding) -> _Rules:
        kind, _, name = binding.role.partition("/")
        found = self.roles.get((binding.role_namespace, binding.role))
        if found is None and kind == "ClusterRole" and name in _BUILT_IN:
            everything = name == "cluster-admin"
            verbs, resources = (("*",), ("*",)) if everything else (("get",), ())
            return (Rule(verbs, resources, _BUILT_IN[name], binding.at),), ""
        return found or ((), f"{binding.role} is not among the files")


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
    whole = "system:serviceaccounts"
    named = {
        ("User", f"system:serviceaccount:{namespace}:{name}"),
        *(("Group", one) for one in (whole, f"{whole}:{namespace}", "system:authenticated")),
    }
    own = ("ServiceAccount", namespace, name)
    return any(one == own or (one[0], one[2]) in named for one in binding.subjects)


def _binding(scope: Scope, one: Object, namespace: str) -> Binding:
    own = namespace if one.kind == "RoleBinding" else ""
    ref = one.node.get("roleRef")
    kind, name = (_word(ref, key) for key in ("kind", "name"))
    opens = [scope.opened(node) for node in _parts(ref)]
    subjects = []
    for item, reason in scope.elements(one.node, "subjects"):
        opens.append(reason)
        if not reason and item.entries is not None:
            opens += map(scope.opened, item.entries.values())
            space = _word(item, "namespace") or own or "default"
            subjects.append((_word(item, "kind"), space, _word(item, "name")))
    said = (ref.get("name") if ref is not None else None) or ref or one.node
    return Binding(
        name=one.title,
        namespace=own,
        role=f"{kind}/{name}",
        role_namespace=own if kind == "Role" else "",
        subjects=tuple(subjects),
        open=next(filter(None, opens), ""),
        at=one.source.at(said),
    )


def _parts(node: Node | None) -> Iterator[Node]:
    """Yield a mapping and its values."""
    if node is not None:
        yield from (node, *(node.entries or {}).values())


def _word(node: Node | None, key: str) -> str:
    found = node.get(key) if node is not None else None
    return (found.text or "")[:200] if found is not None else ""


def _rules(scope: Scope, node: Node) -> _Rules:
    opens = [scope.rest(node)]
    if node.get("aggregationRule") is not None:
        opens.append("a role that others add to")
    found: list[Rule] = []
    for item, reason in scope.elements(node, "rules"):
        if len(found) == _MAX_RULES:
            opens.append(f"more than {_MAX_RULES} rules")
            break
        verbs, resources = (item.get(key) for key in ("verbs", "resources"))
        parts = [one for words in (verbs, resources) if words for one in words.walk()]
        opens += [reason, scope.rest(item), *map(scope.opened, parts)]
        if not reason and item.entries is not None:
            does, on = _words(verbs), _words(resources)
            found.append(Rule(does, on, dangers(does, on), scope.source.at(item)))
    return tuple(found), next(filter(None, opens), "")


def _words(found: Node | None) -> tuple[str, ...]:
    return tuple((one.text or "")[:100] for one in (found.items or () if found else ()))[:100]


_ANY: Final = "*"
_DANGERS: Final[tuple[tuple[str, AbstractSet[str], AbstractSet[str]], ...]] = (
    ("create pods", {"create"}, {"pods"}),
    ("create pods", {"create", "update", "patch"}, _CONTROLLERS),
    ("exec into pods", {"create", "get"}, {"pods/exec", "pods/attach", "pods/*"}),
    ("read secrets", {"get", "list", "watch"}, {"secrets"}),
    ("change rights", {"create", "update", "patch", "bind", "escalate"}, _RIGHTS),
    ("impersonate", {"impersonate"}, {"users", "groups", "serviceaccounts"}),
    ("create tokens", {"create"}, {"serviceaccounts/token"}),
    ("reach nodes", {"get", "create", "update", "patch"}, {"nodes/proxy"}),
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
