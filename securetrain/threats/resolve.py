# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Verify threat models: everything that a model claims must be there.

The chain is threat -> control -> check -> code -> enforcing code -> drill or test. Rules:

1. every id that a model uses exists in it, and stands once;
2. every flow has a decision for each letter of STRIDE: threats of that flow and letter, or why not;
3. every threat has an active control; an active control is enforced by code or looked for by a
   check, and code is proven by a drill or a test; what refuses names its codes;
4. a check belongs to the controls that list it, and to those that it names itself;
   checks, codes, enforcing code, drills and tests exist; a drill's boundary and expected code are
   those of the threat and the control; a check that is cited cites the threat in turn;
5. a residual past its review date is a problem;
6. for the complete set of models: every check's threats exist, every refusal code that answers an
   attack and every drill is cited, and all twelve boundaries are modelled.

Tests that are not part of an installation are *unchecked*, which is not the same as passed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol

from msgspec.structs import replace

from securetrain.audit import Check
from securetrain.core import CODES, ExitCode
from securetrain.core.vocabulary import Boundary
from securetrain.threats.source import SourceTree
from securetrain.threats.threat_model import Control, Flow, Status, Stride, Threat, ThreatModel


class DrillFacts(Protocol):
    """The facts about a drill; `securetrain.drills.registry.Drill` is one."""

    @property
    def boundary(self) -> Boundary:
        """The boundary that it attacks."""
        ...

    @property
    def expected_code(self) -> str:
        """The code with which it must be refused."""
        ...


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a model claims and that is not so (ST-THRT-002)."""

    model: str
    where: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of verifying models."""

    models: tuple[ThreatModel, ...]
    problems: tuple[Problem, ...]
    unchecked: tuple[str, ...]
    """Claims that could not be looked at here: tests outside an installation."""

    @property
    def exit_code(self) -> ExitCode:
        """1 for any problem, 3 when something was not looked at."""
        if self.problems:
            return ExitCode.FAILURE
        return ExitCode.INCOMPLETE if self.unchecked else ExitCode.OK


@dataclass(slots=True, kw_only=True)
class References:
    """The things that models may refer to."""

    checks: Mapping[str, Check]
    drills: Mapping[str, DrillFacts]
    source: SourceTree
    today: date
    unchecked: list[str] = field(default_factory=list)


def verify(
    models: Sequence[ThreatModel],
    checks: Iterable[Check],
    drills: Mapping[str, DrillFacts],
    source: SourceTree,
    today: date,
    *,
    complete: bool,
) -> Report:
    """Verify models against the checks, codes, code, drills and tests that exist.

    Args:
        models: The models.
        checks: The audit's catalogue.
        drills: The registry of drills. It is handed in because drills stand above threats.
        source: Where code and tests are.
        today: The day that review dates are compared with.
        complete: Whether these are all models, so that what none of them cites is a problem.
    """
    world = References(
        checks={check.id: check for check in checks}, drills=drills, source=source, today=today
    )
    models = [_with_declared(model, world.checks) for model in models]
    problems = [problem for model in models for problem in _model(model, world)]
    problems += _twice("all models", "threat", (t.id for m in models for t in m.threats))
    if complete:
        problems += _coverage(models, world)
    return Report(
        models=tuple(models),
        problems=tuple(dict.fromkeys(problems)),
        unchecked=tuple(dict.fromkeys(world.unchecked)),
    )


def _with_declared(model: ThreatModel, checks: Mapping[str, Check]) -> ThreatModel:
    """The model with each check under the controls that it names itself."""
    named: dict[str, list[str]] = {}
    for check in checks.values():
        for control in check.spec.controls:
            named.setdefault(control, []).append(check.id)

    def whole(control: Control) -> Control:
        ids = dict.fromkeys((*control.checks, *named.get(control.id, ())))
        return replace(control, checks=tuple(ids))

    return replace(
        model,
        threats=tuple(
            replace(threat, controls=tuple(map(whole, threat.controls))) for threat in model.threats
        ),
    )


def _model(model: ThreatModel, world: References) -> Iterator[Problem]:
    for kind, ids in _ids(model):
        yield from _twice(model.id, kind, ids)
    yield from _places(model, world)
    for flow in model.flows:
        yield from _flow(model, flow)
    for threat in model.threats:
        yield from _threat(model, threat, world)


def _places(model: ThreatModel, world: References) -> Iterator[Problem]:
    """Boundaries, components and what is out of scope."""
    zones = {zone.id for zone in model.zones}
    for crossing in model.boundaries:
        yield from _unknown(model, f"boundary {crossing.id}", "zone", crossing.between, zones)
        if not any(flow.crosses is crossing.id for flow in model.flows):
            yield Problem(model.id, f"boundary {crossing.id}", "no flow crosses it")
    for component in model.components:
        yield from _unknown(model, component.id, "zone", [component.zone], zones)
        if component.code and world.source.module(component.code) is None:
            yield Problem(model.id, component.id, f"there is no module {component.code}")
    for item in model.out_of_scope:
        for code in item.codes:
            if code not in CODES:
                yield Problem(model.id, item.id, f"there is no code {code}")


def _ids(model: ThreatModel) -> Iterator[tuple[str, Iterable[str]]]:
    yield "zone", (x.id for x in model.zones)
    yield "boundary", (x.id for x in model.boundaries)
    yield "persona", (x.id for x in model.personas)
    yield "asset", (x.id for x in model.assets)
    yield "component", (x.id for x in model.components)
    yield "flow", (x.id for x in model.flows)
    yield "out_of_scope", (x.id for x in model.out_of_scope)


def _twice(model: str, kind: str, ids: Iterable[str]) -> list[Problem]:
    return [
        Problem(model, f"{kind} {name}", "stands twice")
        for name, count in Counter(ids).items()
        if count > 1
    ]


def _unknown(
    model: ThreatModel, where: str, kind: str, names: Iterable[str], known: Iterable[str]
) -> Iterator[Problem]:
    there = set(known)
    for name in names:
        if name not in there:
            yield Problem(model.id, where, f"there is no {kind} {name}")


def _flow(model: ThreatModel, flow: Flow) -> Iterator[Problem]:
    """Rule 2."""
    components = {component.id for component in model.components}
    yield from _unknown(model, flow.id, "component", [flow.source, flow.to], components)
    if flow.crosses not in {crossing.id for crossing in model.boundaries}:
        yield Problem(model.id, flow.id, f"the model has no boundary {flow.crosses}")
    threats = {threat.id: threat for threat in model.threats}
    for letter in Stride:
        decision = flow.stride.get(letter)
        if decision is None:
            yield Problem(model.id, flow.id, f"no decision for {letter} ({letter.name.lower()})")
        elif not isinstance(decision, str):
            for name in decision:
                threat = threats.get(name)
                if threat is None:
                    yield Problem(model.id, flow.id, f"{letter}: there is no threat {name}")
                elif threat.flow != flow.id or letter not in threat.stride:
                    yield Problem(
                        model.id, flow.id, f"{letter}: {name} is not about this flow and letter"
                    )


def _threat(model: ThreatModel, threat: Threat, world: References) -> Iterator[Problem]:
    """Rules 1, 3 and 5 for one threat."""
    flows = {flow.id: flow for flow in model.flows}
    yield from _unknown(model, threat.id, "flow", [threat.flow], flows)
    yield from _unknown(
        model, threat.id, "persona", [threat.persona], (p.id for p in model.personas)
    )
    yield from _unknown(model, threat.id, "asset", threat.assets, (a.id for a in model.assets))
    flow = flows.get(threat.flow)
    for letter in threat.stride if flow else ():
        decision = flow.stride.get(letter) if flow else None
        if decision is None or isinstance(decision, str) or threat.id not in decision:
            yield Problem(model.id, threat.id, f"{threat.flow} does not list it under {letter}")
    if not any(control.status is Status.ACTIVE for control in threat.controls):
        yield Problem(model.id, threat.id, "no active control")
    yield from _twice(model.id, f"{threat.id} control", (c.id for c in threat.controls))
    for control in threat.controls:
        yield from _control(model, threat, control, flow, world)
    if threat.residual.review_by < world.today:
        yield Problem(
            model.id, threat.id, f"its residual was to be reviewed by {threat.residual.review_by}"
        )


def _control(
    model: ThreatModel, threat: Threat, control: Control, flow: Flow | None, world: References
) -> Iterator[Problem]:
    """Rules 3 and 4 for one control."""
    where = f"{threat.id}/{control.id}"
    sentences = (
        *_form(control),
        *_dangling(threat, control, world),
        *_drills(control, flow, world),
        *_tests(control, where, world),
    )
    for what in sentences:
        yield Problem(model.id, where, what)


def _form(control: Control) -> Iterator[str]:
    """Check the fields that an active control needs (rule 3)."""
    if control.codes and not control.enforced_by:
        yield "names codes, but not the code that raises them"
    if control.status is not Status.ACTIVE:
        return
    if not control.checks and not control.enforced_by:
        yield "neither enforced by code nor looked for by a check"
    if control.enforced_by and not control.codes and not control.checks:
        yield "neither a refusal code nor a check shows that it works; name one"
    if control.enforced_by and not control.drills and not control.tests:
        yield "proven by neither a drill nor a test"


def _dangling(threat: Threat, control: Control, world: References) -> Iterator[str]:
    """Checks, codes and enforcing code that are not there."""
    for name in control.checks:
        check = world.checks.get(name)
        if check is None:
            yield f"there is no check {name}"
        elif threat.id not in check.spec.threats:
            yield f"{name} does not cite this threat"
    yield from (f"there is no code {code}" for code in control.codes if code not in CODES)
    yield from filter(None, map(world.source.attribute, control.enforced_by))


def _drills(control: Control, flow: Flow | None, world: References) -> Iterator[str]:
    """Drills that are not there, attack elsewhere or are refused otherwise."""
    for name in control.drills:
        drill = world.drills.get(name)
        if drill is None:
            yield f"there is no drill {name}"
            continue
        if flow is not None and drill.boundary is not flow.crosses:
            yield f"{name} attacks the boundary {drill.boundary}, not {flow.crosses}"
        if drill.expected_code not in control.codes:
            yield f"{name} expects {drill.expected_code}, which the control does not name"


def _tests(control: Control, where: str, world: References) -> Iterator[str]:
    """Tests that are not there; where no tests are installed, they are noted as unchecked."""
    for target in control.tests:
        if world.source.repository is None:
            world.unchecked.append(f"{where}: {target}: the tests are not installed here")
        elif reason := world.source.test(target):
            yield reason


def _coverage(models: Sequence[ThreatModel], world: References) -> Iterator[Problem]:
    """Rule 6: what no model cites."""
    controls = [c for m in models for t in m.threats for c in t.controls]
    threats = {t.id for m in models for t in m.threats}
    codes = {code for control in controls for code in control.codes}
    codes |= {code for m in models for item in m.out_of_scope for code in item.codes}
    drills = {name for control in controls for name in control.drills}
    found = [
        *_uncited_checks(world, threats, {name for c in controls for name in c.checks}),
        *_unknown_controls(world, {control.id for control in controls}),
        *(
            (code.id, f"no threat cites this refusal: {code.title}")
            for code in CODES.values()
            if code.answers_an_attack and code.id not in codes
        ),
        *((name, "no threat cites this drill") for name in world.drills if name not in drills),
    ]
    modelled = {crossing.id for m in models for crossing in m.boundaries}
    found += [(b.value, "no model has this boundary") for b in Boundary if b not in modelled]
    for where, what in found:
        yield Problem("all models", where, what)


def _uncited_checks(
    world: References, threats: Collection[str], named: Collection[str]
) -> Iterator[tuple[str, str]]:
    for check in world.checks.values():
        for name in check.spec.threats:
            if name not in threats:
                yield check.id, f"cites {name}, which no model has"
        if check.id not in named:
            yield check.id, "no control names this check"


def _unknown_controls(world: References, there: Collection[str]) -> Iterator[tuple[str, str]]:
    for check in world.checks.values():
        for name in check.spec.controls:
            if name not in there:
                yield check.id, f"names the control {name}, which no model has"
