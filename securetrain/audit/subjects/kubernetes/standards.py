# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The Pod Security Standards: a table of Kubernetes' own (``policies/standards``), and its judge.

Rules:

1. the collector reads each field of the table where it stands, and judges nothing;
2. a field that has to be set is ``absent`` at the block that lacks it, unless the pod passes it on;
3. what leaves a mapping open leaves every field below it open that does not stand there;
4. a control that spares a pod (its system, its user namespace) does not judge it.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.audit.documents.document import read_document
from securetrain.audit.documents.facts import Outcome, Reading
from securetrain.audit.engine.fields import View
from securetrain.audit.engine.function import Args, Judgement, fields, function
from securetrain.audit.engine.kleene import Truth, any_of, truth, unknown
from securetrain.audit.subjects.kubernetes.facts.workload import Pod, Setting, Workload
from securetrain.policy.load import bundled_dir

LIMIT: Final = 256 << 10
EXEMPTIONS: Final = {"windows": ("os.name", "windows"), "user-namespace": ("hostUsers", "false")}
"""What spares a pod: its field, and the value."""


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


class Row(_Base, frozen=True, kw_only=True):
    """One restricted field, and the values that a control takes."""

    of: Literal["pod", "container", "annotation", "volume"]
    path: str
    """Of a volume: empty, for its kind is the value; a pattern of an annotation's name."""
    type: Literal["boolean", "integer", "capability", "text"] = "text"
    undefined: Literal["allowed", "inherited", "refused"] = "allowed"
    allowed: tuple[str, ...] | None = None
    refused: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    """Elements that the list must have."""

    def takes(self, value: str) -> bool:
        """Return whether a value is as the control wants it."""
        if self.contains or value in self.refused:
            return value in self.contains
        return self.allowed is None or any(fnmatchcase(value, one) for one in self.allowed)


class Control(_Base, frozen=True, kw_only=True):
    """A control of the standards."""

    id: str
    level: Literal["baseline", "restricted"]
    since: str
    """The version of Kubernetes that brought it."""
    exempt: tuple[Literal["windows", "user-namespace"], ...]
    settings: Annotated[tuple[Row, ...], Meta(min_length=1)]


class _File(_Base, frozen=True, kw_only=True):
    apiVersion: Literal["securetrain.dev/policy/v1"]  # noqa: N815 - the field's name in the file
    kind: Literal["PodSecurityStandards"]
    metadata: dict[Literal["id", "version"], str]
    source: dict[Literal["commit", "license", "facts"], str]
    controls: Annotated[tuple[Control, ...], Meta(min_length=1)]


@cache
def controls() -> Mapping[str, Control]:
    """The controls by their ids.

    Raises:
        AuditError: ST-AUDT-001 when the shipped table is none.
    """
    path = bundled_dir("policies") / "standards" / "pod-security.yaml"
    file = read_document(
        path, _File, limit=LIMIT, code="ST-AUDT-001", fix="install the package again"
    )
    return {one.id: one for one in file.controls}


def rows(of: str) -> dict[str, Row]:
    """The fields of pods, containers or annotations, with the row that asks most of each."""
    found: dict[str, Row] = {}
    if of == "pod":
        found |= {path: Row(of="pod", path=path) for path, _ in EXEMPTIONS.values()}
    for row in (row for one in controls().values() for row in one.settings if row.of == of):
        if row.path not in found or row.undefined != "allowed":
            found[row.path] = row
    return found


class StandardArgs(Args, frozen=True, kw_only=True):
    """The part of the standards that a check asks for."""

    controls: tuple[str, ...]
    fields: tuple[str, ...] = ("*",)
    """Patterns of fields, for a check of a part of a control."""
    only: tuple[str, ...] = ()
    """Values that are at fault; none: all that the control does not take."""
    besides: tuple[str, ...] = ()
    """Values that another check judges."""
    settled_by: str = ""
    """A field that answers for the others wherever it is set."""
    spares_rdma: bool = False
    """Whether a container that asks for an RDMA device is not judged."""


_OF: Final = ("field", "text")


@function(
    "pods.secured",
    reads=(
        *fields("workload", "pods", "*", "settings", "*", of=_OF),
        *fields("workload", "pods", "*", "containers", "*", "settings", "*", of=_OF),
        *fields("workload", "pods", "*", "volumes", "*", of=("name", "kind")),
        ("workload", "pods", "*", "containers", "*", "claims_rdma"),
    ),
)
def secured(view: View, args: StandardArgs) -> list[Judgement]:
    """Every pod is as the controls of the Pod Security Standards want it."""
    found: list[Judgement] = []
    workload: Workload = view.document.root("workload")
    for pod in workload.pods:
        asked: dict[str, list[tuple[Row, Truth]]] = {}
        for control in map(controls().__getitem__, args.controls):
            if (sparing := _spared(pod, control)).value is not True:
                for row in control.settings:
                    if any(fnmatchcase(row.path, one) for one in args.fields):
                        asked.setdefault(row.of, []).append((row, sparing))
        own = [*asked.get("pod", ()), *asked.get("annotation", ())]
        found += _judged((pod.label,), own, pod.settings, args)
        for one in pod.containers:
            name = (pod.label, one.label)
            mine = asked.get("container", [])
            if args.spares_rdma:
                rdma = _claimed(one.claims_rdma)
                mine = [(row, any_of((sparing, rdma))) for row, sparing in mine if not rdma.value]
            found += _judged(name, mine, one.settings, args, pod.settings)
        for volume in pod.volumes:
            kind = Setting(at=volume.at, field="", text=volume.kind)
            found += _judged((pod.label, volume.label), asked.get("volume", ()), (kind,), args)
    return found


def _claimed(reading: Reading[bool]) -> Truth:
    if reading.outcome is Outcome.OK:
        return truth(bool(reading.value))
    return unknown(f"claims_rdma: {reading.reason}", reading.at)


def _spared(pod: Pod, control: Control) -> Truth:
    """Tell whether a control does not judge a pod; what may be put in somewhere spares nobody."""
    asked = dict(map(EXEMPTIONS.__getitem__, control.exempt))
    return any_of(
        truth(one.text.value == asked[one.field])
        if one.text.outcome is Outcome.OK
        else unknown(f"{one.field}: {one.text.reason}", one.location)
        for one in pod.settings
        if one.field in asked
    )


def _bearing(settings: Sequence[Setting], path: str) -> list[Setting]:
    """The settings of a field, and what leaves it open where it does not stand there."""
    exact = [one for one in settings if one.field == path or fnmatchcase(one.field, path)]
    if exact and "*" not in path:
        return exact
    above = (one for one in settings if not one.field or path.startswith(f"{one.field}."))
    return [*exact, *above]


def _judged(
    label: tuple[str, ...],
    asked: Sequence[tuple[Row, Truth]],
    settings: Sequence[Setting],
    args: StandardArgs,
    passed_on: Sequence[Setting] = (),
) -> Iterator[Judgement]:
    """Yield one judgement about a pod, container or volume, if it is at fault or not known."""
    settling = [
        one
        for row, _ in asked
        if row.path == args.settled_by
        for one in _bearing(settings, row.path) or _bearing(passed_on, row.path)
        if one.text.outcome is not Outcome.ABSENT
    ]
    seen: dict[str, tuple[Setting, Truth]] = {}
    for row, sparing in asked:
        if settling and row.path != args.settled_by:
            continue
        for one in _at_fault(row, settings, args):
            good = _answer(one)
            if good.value is False and sparing.value is None:
                good = sparing
            seen.setdefault(f"{one.field}={one.text.value}", (one, good))
    worst = [pair for pair in seen.values() if pair[1].value is False] or [*seen.values()]
    worst.sort(key=lambda pair: pair[0].text.outcome is Outcome.ABSENT)
    if worst:
        bad = [one for one, _ in worst]
        absent = [f"{_name(one)} is not set" for one in bad if one.text.outcome is Outcome.ABSENT]
        yield Judgement(
            label=label,
            good=worst[0][1],
            why="; ".join(absent),
            location=bad[0].location,
            evidence=_shown(bad),
        )


def _shown(bad: Sequence[Setting]) -> dict[str, str | None]:
    """The values that decided, by their fields."""
    found: dict[str, str | None] = {}
    for one in bad:
        before, value = found.get(_name(one)), one.text.value
        found[_name(one)] = f"{before}, {value}" if before and value else before or value
    return found


def _at_fault(row: Row, settings: Sequence[Setting], args: StandardArgs) -> list[Setting]:
    """The settings that a row does not take, or that are not known."""
    bearing = _bearing(settings, row.path)
    values = {one.text.value for one in bearing}
    if row.contains:
        lacking = [one for one in bearing if one.text.value is None] or bearing
        return [] if set(row.contains) <= values else lacking[:1]
    if args.only:
        return [one for one in bearing if one.text.value in {None, *args.only}]
    judged = (one for one in bearing if one.text.value not in args.besides)
    return [one for one in judged if one.text.value is None or not row.takes(one.text.value)]


def _answer(one: Setting) -> Truth:
    if one.text.outcome in {Outcome.OK, Outcome.ABSENT}:
        return truth(False, one.location)
    return unknown(f"{_name(one)}: {one.text.outcome}: {one.text.reason}", one.location)


def _name(one: Setting) -> str:
    return one.field.replace("[*]", "") or "its settings"
