# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The judge of the Pod Security Standards; a control that spares a pod does not judge it."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from securetrain.audit.engine.fields import View
from securetrain.audit.engine.function import Args, Judgement, fields, function
from securetrain.audit.engine.kleene import Truth, any_of, truth, unknown
from securetrain.audit.facts import Outcome, Reading
from securetrain.audit.subjects.kubernetes.facts.workload import Pod, Setting, Workload
from securetrain.audit.subjects.kubernetes.standards import EXEMPTIONS, Control, Row, controls


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
