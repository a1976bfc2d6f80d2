# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Containers and volumes as records: their own settings, what the pod passes on, and defaults.

A record of a list is made by `records`: an element that a template inserts, or that is no mapping,
is a record whose every reading is open.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar, get_origin, get_type_hints

import msgspec

from securetrain.audit.facts import Location, Outcome, Place, Reading, SecretKind
from securetrain.audit.parser.secrets import (
    is_secret_name,
    secret_kind,
    secrets_in,
)
from securetrain.audit.parser.templates import MARKER
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import (
    NOT_SET,
    NotOfTypeError,
    Scope,
    absent,
    as_text,
    failed,
    is_known,
    ok,
    opened,
    unknown_as,
)
from securetrain.audit.subjects.kubernetes.facts.workload import (
    Container,
    Mount,
    Port,
    Role,
    SecretLiteral,
    Setting,
    Source,
    Variable,
    Volume,
)
from securetrain.audit.subjects.kubernetes.standards import settings

R = TypeVar("R", bound=Place)

MAX_VALUE: Final = 1024
"""Characters of an environment variable's value that are kept."""
_MAX_ELEMENTS: Final = 500
_DIGEST: Final = re.compile(r"@(sha256:[0-9a-fA-F]{64}|[a-z0-9]+:[0-9a-fA-F]{32,})\Z")
_CLAIM: Final = "claim:"
_GPU: Final = (
    r"claim:|nvidia\.com/(?!.*rdma)|amd\.com/gpu|gpu\.intel\.com/|habana\.ai/|"
    r"aws\.amazon\.com/neuron|google\.com/tpu"
)
_RDMA: Final = r"(?i)claim:|rdma|/roce|/infiniband|/ib\b|/efa\b|/hca"
_FROM: Final = {
    "secretKeyRef": Source.SECRET,
    "configMapKeyRef": Source.CONFIG_MAP,
    "fieldRef": Source.FIELD,
    "resourceFieldRef": Source.FIELD,
    "fileKeyRef": Source.FILE,
}


@cache
def _readings(record: type[Place]) -> tuple[str, ...]:
    hints = get_type_hints(record)
    return tuple(name for name, hint in hints.items() if get_origin(hint) is Reading)


def hole(record: type[R], at: Location, why: str, **known: Any) -> R:
    """A record that a template inserts: its readings are open, and the rest is as `known`."""
    return record(at=at, **{name: opened(why, at) for name in _readings(record)}, **known)


def records(
    scope: Scope, parent: Node, key: str, record: type[R], made: Callable[[Node], R]
) -> Iterator[R]:
    """Yield a record for each element of a list: what is `made` of a mapping, else a hole."""
    for node, reason in islice(scope.elements(parent, key), _MAX_ELEMENTS):
        if reason or node.entries is None:
            yield hole(record, scope.source.at(node), reason or "it is no mapping")
        else:
            yield made(node)


@dataclass(frozen=True, slots=True)
class InPod:
    """The part of a container that its pod decides."""

    scope: Scope
    settings: tuple[Setting, ...]
    volumes: tuple[Volume, ...]
    left_to: str = ""
    """Why what is not set here may be set all the same."""


def container(pod: InPod, item: Node, role: Role, name: str) -> Container:
    """The record of one container, of any of the pod's lists."""
    at = pod.scope.source.at(item)
    own = pod.scope.of(item)
    env = tuple(_variables(own, item))
    resources = tuple(_resources(own, item))
    image = own.string(item, "image")
    repository, digest = _image(own, item, image)
    return Container(
        at=at,
        name=name,
        role=role,
        image=image if len(image.value or "") <= MAX_VALUE else failed("too long", image.at),
        repository=repository,
        digest=digest,
        settings=settings(own, item, "container", pod.left_to, pod.settings),
        env=env,
        visible_devices=of_env(env, "NVIDIA_VISIBLE_DEVICES", at),
        secrets=tuple(_distinct(_secrets(own, item)))[:_MAX_ELEMENTS],
        mounts=tuple(mounts_of(own, item, pod.volumes)),
        ports=tuple(_ports(own, item)),
        claims_gpu=_claims(resources, _GPU, at),
        claims_rdma=_claims(resources, _RDMA, at),
    )


def open_container(at: Location, role: Role, name: str, reason: str) -> Container:
    """The record of a container that a template inserts."""
    secret = hole(SecretLiteral, at, reason, name=name, length=0, where="env")
    return hole(
        Container,
        *(at, reason),
        role=role,
        name=name,
        settings=(hole(Setting, at, reason, field=""),),
        env=(hole(Variable, at, reason),),
        secrets=(secret,),
        mounts=(),
        ports=(),
    )


def _image(scope: Scope, item: Node, image: Reading[str]) -> tuple[Reading[str], Reading[str]]:
    """Repository and digest; parts of a template that are known count as known."""
    rest: Reading[str] = unknown_as(image, image.at)
    text = (image.value or "") if is_known(image) else _template_text(scope, item, "image")
    if text is None:
        return rest, rest
    found = _DIGEST.search(text)
    digest: Reading[str] = ok(found[1], image.at) if found else absent(image.at)
    bare = text[: found.start()] if found else text
    head, _, last = bare.rpartition("/")
    word, colon, said = last.partition(":")
    host, slash, _ = bare.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost" or MARKER.search(host)):
        host = "docker.io"
    path = f"{head}/{word}" if head else word
    if host == "docker.io":
        path = path.removeprefix("docker.io/")
        path = f"docker.io/{path}" if "/" in path else f"docker.io/library/{path}"
    repository: Reading[str] = ok(path, image.at)
    if MARKER.search(path) or "$" in path:
        repository = rest
    opens = MARKER.search(said) or "$" in said if colon else MARKER.search(last)
    return repository, rest if opens and not found else digest


def _template_text(scope: Scope, item: Node, key: str) -> str | None:
    """The text of a value that only markers leave open; None when anything else does."""
    node = item.get(key)
    if node is None or node.text is None or node.branches or node.tag or key in (item.twice or ()):
        return None
    template = scope.source.template
    if template.condition(node.at, scope.start) or not MARKER.search(node.text):
        return None
    return node.text


def _variables(scope: Scope, item: Node) -> Iterator[Variable]:
    """The last of each name, in order, then what ``envFrom`` adds."""
    found: dict[str, Variable] = {}
    made = records(scope, item, "env", Variable, lambda node: _variable(scope, node))
    for number, variable in enumerate(made):
        key = variable.name.value or f"\0{number}"
        found.pop(key, None)
        found[key] = variable
    yield from found.values()
    for node, reason in scope.elements(item, "envFrom"):
        at = scope.source.at(node)
        if node is item:
            continue  # the block that a template inserts is in `env` already
        if reason or node.entries is None:
            yield hole(Variable, at, reason or "it is no mapping")
            continue
        for key, source in (("configMapRef", Source.CONFIG_MAP), ("secretRef", Source.SECRET)):
            if (ref := node.get(key)) is not None:
                name = scope.string(ref, "name").value or "of a template"
                why: Reading[str] = failed(f"it lies in {key.removesuffix('Ref')} {name}", at)
                yield Variable(at=at, name=why, source=ok(source, at), text=why)


def _variable(scope: Scope, node: Node) -> Variable:
    at = scope.source.at(node)
    if whole := scope.opened(node):
        return hole(Variable, at, whole)
    name = scope.string(node, "name")
    place = node.get("valueFrom")
    if place is not None:
        kind = next((key for key in _FROM if place.get(key) is not None), "")
        source = ok(_FROM[kind], scope.source.at(place)) if kind else failed("unknown", at)
        elsewhere: Reading[str] = failed("it lies in another object", at)
        return Variable(at=at, name=name, source=source, text=elsewhere)
    text = scope.string(node, "value", "")
    value_at = text.at or at
    if is_known(text) and "$(" in (text.value or ""):
        text = failed("it refers to other variables", value_at)
    elif is_known(text) and is_known(name) and secret_kind(name.value or "", text.value or ""):
        text = Reading(outcome=Outcome.DENIED, reason="a secret is not kept", at=value_at)
    elif len(text.value or "") > MAX_VALUE:
        text = failed(f"longer than {MAX_VALUE} characters", value_at)
    return Variable(at=value_at, name=name, source=ok(Source.LITERAL, value_at), text=text)


def of_env(env: Sequence[Variable], name: str, at: Location | None) -> Reading[str]:
    """The value of a variable; open where a name is, and absent at a place."""
    for one in env:
        if one.name.value == name:
            return one.text
    open_ = next((one for one in env if not is_known(one.name)), None)
    return absent(at) if open_ is None else unknown_as(open_.name, open_.at)


def _secrets(scope: Scope, item: Node) -> Iterator[SecretLiteral]:
    for node, reason in scope.elements(item, "env"):
        if reason or node.entries is None:
            continue
        name, value = node.get("name"), node.get("value")
        if name is None or value is None or name.text is None or value.text is None:
            continue
        if MARKER.search(name.text):
            continue
        at = scope.source.at(value)
        label = name.text[:120]
        if why := scope.opened(value):
            if is_secret_name(name.text):
                yield SecretLiteral(at=at, name=label, kind=opened(why, at), length=0, where="env")
        elif "$(" not in value.text and (kind := secret_kind(name.text, value.text)):
            read: Reading[SecretKind] = ok(kind, at)
            yield SecretLiteral(at=at, name=label, kind=read, length=len(value.text), where="env")
    for where in ("command", "args"):
        yield from _in_words(scope, item, where)


def _distinct(found: Iterable[SecretLiteral]) -> Iterator[SecretLiteral]:
    """Yield secrets with labels that differ."""
    seen: dict[str, int] = {}
    for one in found:
        seen[one.label] = count = seen.get(one.label, 0) + 1
        yield one if count == 1 else msgspec.structs.replace(one, name=f"{one.name}#{count}")


def _in_words(scope: Scope, item: Node, where: str) -> Iterator[SecretLiteral]:
    before = ""
    template = scope.source.template
    found = item.get(where)
    nodes = found.items if found is not None and found.items is not None else []
    if found is not None and found.text is not None:
        nodes = [found]
    for number, node in enumerate(nodes, 1):
        text = node.text or ""
        if before.startswith("--") and is_secret_name(before) and not MARKER.search(text):
            if kind := secret_kind(before, text):
                at = scope.source.at(node)
                yield SecretLiteral(
                    at=at, name=before[:120], kind=ok(kind, at), length=len(text), where=where
                )
        else:
            for literal in secrets_in(text, template):
                line = node.at
                if node.literal:
                    line = node.line + 1 + text.count("\n", 0, literal.start)
                at = Location(path=scope.source.path, line=line)
                is_name = literal.kind is SecretKind.NAME
                label = literal.name[:120] if is_name else f"word {number}: {literal.kind}"
                yield SecretLiteral(
                    at=at, name=label, kind=ok(literal.kind, at), length=literal.length, where=where
                )
        before = text


def _ports(scope: Scope, item: Node) -> Iterator[Port]:
    def made(node: Node) -> Port:
        return Port(
            at=scope.source.at(node),
            number=scope.integer(node, "containerPort"),
            name=scope.string(node, "name"),
            host_port=scope.integer(node, "hostPort"),
        )

    is_inserted = scope.opened(item) or item.get("ports") is None
    if not is_inserted:  # that is in `env` already
        yield from records(scope, item, "ports", Port, made)


def _resources(scope: Scope, item: Node) -> Iterator[Reading[str]]:
    """Yield the names of what a container asks for, and what leaves them open."""
    block = scope.child(item, "resources")
    if block is None:
        return
    if reason := scope.opened(block):
        yield opened(reason, scope.source.at(block))
        return
    for key in ("limits", "requests"):
        part = scope.child(block, key)
        if part is not None and (reason := scope.opened(part) or scope.rest(part)):
            yield opened(reason, scope.source.at(part))
        for name, value in (part.entries or {} if part is not None else {}).items():
            if not MARKER.search(name) and value.text != "0":
                yield ok(name[:120], scope.source.at(value))
    for node, reason in scope.elements(block, "claims"):
        if node is not block:
            spot = scope.source.at(node)
            yield opened(reason, spot) if reason else ok(_CLAIM, spot)


def _claims(resources: tuple[Reading[str], ...], pattern: str, at: Location) -> Reading[bool]:
    for one in resources:
        if one.value and re.search(pattern, one.value):
            return ok(True, one.at)
    open_ = next((one for one in resources if not is_known(one)), None)
    return ok(False, at, NOT_SET) if open_ is None else unknown_as(open_, open_.at)


# --- volumes --------------------------------------------------------------------------------------


def as_path(node: Node) -> str:
    """An absolute path without ``..``, ``//`` and a slash at the end."""
    text = node.text
    if text is None or not text.startswith("/"):
        raise NotOfTypeError("an absolute path")
    return "/" + posixpath.normpath(text).lstrip("/")


def volumes(scope: Scope, spec: Node) -> tuple[Volume, ...]:
    """The volumes of a pod spec."""
    return tuple(records(scope, spec, "volumes", Volume, lambda item: _volume(scope, item)))


def mounts_of(scope: Scope, item: Node, known: Sequence[Volume]) -> Iterator[Mount]:
    """Yield the mounts of a container, and the devices of raw block volumes are none."""

    def made(node: Node) -> Mount:
        return Mount(
            at=scope.source.at(node),
            path=scope.read(node, "mountPath", as_path),
            host_path=_mounted(scope, node, known),
        )

    return records(scope, item, "volumeMounts", Mount, made)


def _mounted(scope: Scope, node: Node, known: Sequence[Volume]) -> Reading[str]:
    """The host's path that a mount shows."""
    at = scope.source.at(node)
    name = scope.string(node, "name")
    if not is_known(name):
        return unknown_as(name, name.at)
    host_path = next((one.host_path for one in known if one.name.value == name.value), None)
    if host_path is None:
        open_ = next((one.name for one in known if not is_known(one.name)), None)
        missing: Reading[str] = failed("the pod has no volume of this name", at)
        return missing if open_ is None else unknown_as(open_, at)
    below = node.get("subPath")
    sub = scope.value(below, lambda one: one.text or "") if below is not None else None
    if is_known(host_path) and sub is not None and is_known(sub):
        joined = posixpath.normpath(f"{host_path.value}/{sub.value}")
        return ok("/" + joined.lstrip("/"), host_path.at)
    return host_path


def _volume(scope: Scope, item: Node) -> Volume:
    at = scope.source.at(item)
    entries = item.entries or {}
    keys = [key for key in entries if key != "name" and "\ue002" not in key]
    there = [key for key in keys if item.get(key) is not None or key == "emptyDir"]
    is_claim = item.get("spec") is not None and item.get("metadata") is not None
    kind = ok("persistentVolumeClaim", at) if is_claim else _kind(scope, item, there)

    def field(of: str, key: str, default: str | None = None) -> Reading[str]:
        """A field that only one kind of volume has."""
        node = scope.child(item, of)
        as_type = as_path if of == "hostPath" else as_text
        if of == "hostPath" and kind.outcome is Outcome.ERROR and of in there:
            return scope.read(node, key, as_type, lacks=at)
        if not is_known(kind):
            return unknown_as(kind, at)
        if kind.value != of:
            return absent(at, f"it is of kind {kind.value}")
        place = scope.source.at(node) if node is not None else at
        return scope.read(node, key, as_type, default=default, lacks=place)

    return Volume(
        at=at,
        name=scope.string(item.get("metadata") if is_claim else item, "name"),
        kind=kind,
        host_path=field("hostPath", "path"),
        medium=field("emptyDir", "medium", ""),
        size_limit=field("emptyDir", "sizeLimit"),
    )


def _kind(scope: Scope, item: Node, there: Sequence[str]) -> Reading[str]:
    """The kind of a volume, of the keys that are there."""
    at = scope.source.at(item)
    nodes = [(item.entries or {})[key] for key in there]
    if len(nodes) == 1:
        opens = scope.opened(nodes[0]) if nodes[0].text is None else ""
        found: Reading[str] = ok(there[0], scope.source.at(nodes[0]))
    else:
        opens = next(filter(None, map(scope.opened, nodes)), "") if nodes else scope.rest(item)
        found = failed("it has two kinds", at) if nodes else ok("emptyDir", at, NOT_SET)
    if whole := scope.opened(item) or opens:
        return opened(whole, at)
    return found
