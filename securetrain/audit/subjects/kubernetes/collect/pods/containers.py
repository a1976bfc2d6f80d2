# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One container as a record: its own settings, what the pod passes on, and Kubernetes' defaults."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from securetrain.audit.facts import Location, Outcome, Reading, SecretKind
from securetrain.audit.parser.secrets import (
    is_secret_name,
    secret_kind,
    secrets_in,
)
from securetrain.audit.parser.templates import MARKER
from securetrain.audit.parser.tree import Node
from securetrain.audit.parser.values import (
    NOT_SET,
    Scope,
    absent,
    failed,
    is_known,
    ok,
    opened,
)
from securetrain.audit.subjects.kubernetes.collect.pods.settings import settings
from securetrain.audit.subjects.kubernetes.collect.pods.volumes import Volumes, mounts_of
from securetrain.audit.subjects.kubernetes.facts.workload import (
    Container,
    Port,
    Role,
    SecretLiteral,
    Setting,
    Source,
    Variable,
)

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class InPod:
    """The part of a container that its pod decides."""

    scope: Scope
    settings: tuple[Setting, ...]
    volumes: Volumes
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
        visible_devices=_visible(env, at),
        secrets=tuple(_distinct(_secrets(own, item)))[:_MAX_ELEMENTS],
        mounts=tuple(mounts_of(own, item, pod.volumes))[:_MAX_ELEMENTS],
        ports=tuple(_ports(own, item)),
        claims_gpu=_claims(resources, _GPU, at),
        claims_rdma=_claims(resources, _RDMA, at),
    )


def open_container(at: Location, role: Role, name: str, reason: str) -> Container:
    """The record of a container that a template inserts."""

    def text() -> Reading[str]:
        return opened(reason, at)

    return Container(
        at=at,
        name=name,
        role=role,
        image=text(),
        repository=text(),
        digest=text(),
        settings=(Setting(at=at, field="", text=text()),),
        env=(Variable(at=at, name=text(), source=opened(reason, at), text=text()),),
        visible_devices=text(),
        secrets=(SecretLiteral(at=at, name=name, kind=opened(reason, at), length=0, where="env"),),
        mounts=(),
        ports=(),
        claims_gpu=opened(reason, at),
        claims_rdma=opened(reason, at),
    )


def _image(scope: Scope, item: Node, image: Reading[str]) -> tuple[Reading[str], Reading[str]]:
    """Repository and digest; parts of a template that are known count as known."""
    rest: Reading[str] = Reading(outcome=image.outcome, reason=image.reason, at=image.at)
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
    for number, (node, reason) in enumerate(scope.elements(item, "env")):
        if number >= _MAX_ELEMENTS:
            break
        variable = _variable(scope, node, reason)
        key = variable.name.value or f"\0{number}"
        found.pop(key, None)
        found[key] = variable
    yield from found.values()
    for node, reason in scope.elements(item, "envFrom"):
        at = scope.source.at(node)
        if node is item:
            continue  # the block that a template inserts is in `env` already
        if reason or node.entries is None:
            why: Reading[str] = opened(reason or "it is no mapping", at)
            yield Variable(at=at, name=why, source=opened(reason, at), text=why)
            continue
        for key, source in (("configMapRef", Source.CONFIG_MAP), ("secretRef", Source.SECRET)):
            ref = node.get(key)
            if ref is not None:
                name = scope.string(ref, "name")
                where = f"{key.removesuffix('Ref')} {name.value or 'of a template'}"
                why = failed(f"it lies in {where}", at)
                yield Variable(at=at, name=why, source=ok(source, at), text=why)


def _variable(scope: Scope, node: Node, reason: str) -> Variable:
    at = scope.source.at(node)
    whole = reason or scope.opened(node)
    if whole or node.entries is None:
        why: Reading[str] = opened(whole or "it is no mapping", at)
        return Variable(at=at, name=why, source=opened(whole, at), text=why)
    name = scope.string(node, "name")
    place = node.get("valueFrom")
    if place is not None:
        kind = next((key for key in _FROM if place.get(key) is not None), "")
        source = ok(_FROM[kind], scope.source.at(place)) if kind else failed("unknown", at)
        return Variable(
            at=at, name=name, source=source, text=failed("it lies in another object", at)
        )
    text = scope.string(node, "value", "")
    value_at = text.at or at
    if is_known(text) and "$(" in (text.value or ""):
        text = failed("it refers to other variables", value_at)
    elif is_known(text) and is_known(name) and secret_kind(name.value or "", text.value or ""):
        text = Reading(outcome=Outcome.DENIED, reason="a secret is not kept", at=value_at)
    elif len(text.value or "") > MAX_VALUE:
        text = failed(f"longer than {MAX_VALUE} characters", value_at)
    return Variable(at=value_at, name=name, source=ok(Source.LITERAL, value_at), text=text)


def _visible(env: tuple[Variable, ...], at: Location) -> Reading[str]:
    for one in env:
        if one.name.value == "NVIDIA_VISIBLE_DEVICES":
            return one.text
    for one in env:
        if not is_known(one.name):
            return Reading(outcome=one.name.outcome, reason=one.name.reason, at=one.at)
    return absent(at)


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
    for number, (node, reason) in enumerate(scope.elements(item, "ports")):
        if number >= _MAX_ELEMENTS:
            return
        at = scope.source.at(node)
        if node is item:
            continue
        if reason or node.entries is None:
            why = reason or "it is no mapping"
            yield Port(
                at=at, number=opened(why, at), name=opened(why, at), host_port=opened(why, at)
            )
            continue
        yield Port(
            at=at,
            number=scope.integer(node, "containerPort"),
            name=scope.string(node, "name"),
            host_port=scope.integer(node, "hostPort"),
        )


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
    for one in resources:
        if not is_known(one):
            return Reading(outcome=one.outcome, reason=one.reason, at=one.at)
    return ok(False, at, NOT_SET)
