# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A check, ready to run: its definition (`schema.py`) against the schema of facts.

Rules:

1. paths, operators, functions and params that do not exist are ST-AUDT-001 when the check is
   loaded;
2. ``evidence`` lists exactly what the check reads: an undeclared read and an unused declaration are
   errors, because the engine answers unknown for every declared section that is not there;
3. a subject that ends in ``[*]`` gives one finding for each element that is not as it should be;
   then ``assert`` is ``none`` or ``every`` over that collection, or a ``call``. Subjects nest:
   ``workload.pods[*].containers[*]`` is the collection ``[workload, pods, "*", containers]``;
4. an ``assert`` may compare the assets of a kind with each other (`across.py`); its subject is then
   the asset as a whole;
5. a check of ``kinds`` and ``cel`` asks an expression of every object of some kinds, in whatever
   manifest it stands (`expression.py`), and asks nothing else;
6. ``also`` asks the same of another kind of asset, and is a `Check` of its own with that id: a
   function then looks at what it reads of that kind;
7. ``in_context`` lists where a failure weighs less or more, and the sentence that says why. The
   first whose ``when`` is known to be true counts; what is not known changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from securetrain.audit.cel.expression import OBJECTS, Expression
from securetrain.audit.documents import EVIDENCE, GIVEN
from securetrain.audit.engine import functions as _functions  # noqa: F401 - registers
from securetrain.audit.engine.fields import (
    EACH,
    Missing,
    Path,
    UnknownFieldError,
    View,
    elements,
    evidence_name,
    has_readings,
    is_reading,
    judged_at,
    kind_of,
    shape_at,
    steps_of,
)
from securetrain.audit.engine.function import REGISTERED, Function, Judgement
from securetrain.audit.engine.kleene import Truth, truth, unknown
from securetrain.audit.engine.predicates import (
    Compiler,
    Predicate,
    defaults_said,
    missing_reasons,
    placed,
    shown_values,
)
from securetrain.audit.engine.schema import (
    Call,
    CheckSpec,
    InContext,
    Param,
    check_bounds,
    set_by_policy,
    value_of,
)
from securetrain.audit.facts import Outcome
from securetrain.audit.subjects.kubernetes.facts.cluster import Asked
from securetrain.core.errors import AuditError, PolicyError
from securetrain.core.vocabulary import Severity
from securetrain.policy.schema import Policy

FUNCTIONS: Final[Mapping[str, Function]] = dict(sorted(REGISTERED.items()))
"""The closed set of functions that a check may ``call``: each stands with its subject."""

RULES: Final = ("equal_across", "majority_across", "unique_across")

Across: TypeAlias = tuple[str, tuple[Path, ...]]
Judge: TypeAlias = Callable[[View], list[Judgement]]
"""Judges a document; what is as it should be may be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check ready to run."""

    spec: CheckSpec
    source: str
    """The file that defines it."""
    applies: Predicate | None
    judge: Judge
    across: Across | None = None
    """For a check that compares assets, which of `RULES`, and what: `judge` then has no answer."""
    weights: tuple[tuple[Predicate, InContext], ...] = ()
    """The entries of ``in_context``, each after the predicate of its ``when``."""
    reads: frozenset[Path] = frozenset()
    """Every field of the facts that it looks at."""
    gates: tuple[Path, ...] = ()
    """The evidence without which it is unknown, whatever the rest says."""
    expression: Expression | None = None
    """What it asks of objects, which is answered when these are read."""
    over: tuple[Path, ...] = ()
    """The steps to the elements that it judges; none for a check of the asset as a whole."""

    @property
    def id(self) -> str:
        """Its id."""
        return self.spec.id

    @property
    def root(self) -> str:
        """The root that its subject begins with."""
        return self.spec.subject.partition(".")[0]

    @property
    def kind(self) -> str:
        """The kind of asset that it is about."""
        kind = kind_of(self.root)
        assert kind is not None, "it was checked when the check was compiled"
        return kind

    @property
    def severity(self) -> Severity:
        """The severity of a failure."""
        return self.spec.severity


def compile_check(spec: CheckSpec, source: str, given: Mapping[str, Any] | None = None) -> Check:
    """Check a definition against the schema of facts and compile it.

    Args:
        spec: the definition.
        source: the file that it is from.
        given: the policy's values of its params.

    Raises:
        AuditError: ST-AUDT-001 with the file, the check and the place in it.
        PolicyError: ST-PLCY-002 when a given value does not fit.
    """
    where = f"{source}: {spec.id}"
    expression = _expression_of(spec, where)
    if expression is not None:
        spec = msgspec.structs.replace(spec, subject=f"{OBJECTS}[*]", evidence=(OBJECTS,))
    params = {
        name: _param(name, param, given or {}, f"{where}: params.{name}")
        for name, param in spec.params.items()
    }
    compiler = Compiler(where=where, params=params)
    applies = compiler.compile(spec.applies, "applies") if spec.applies is not None else None
    across: Across | None = None
    judge: Judge
    match (spec.asserts, spec.call):
        case _ if expression is not None:
            applies, judge = partial(is_asked, expression), partial(said_of, expression)
            compiler.reads.add(OBJECTS)
        case (dict() as predicate, None) if set(predicate) & set(RULES):
            across, judge = _across_of(spec, predicate, compiler), _compares
        case (dict() as predicate, None):
            judge = _judge_of_assert(spec, predicate, compiler)
        case (None, Call() as call):
            judge = _judge_of_call(spec, call, compiler)
        case _:
            raise compiler.refuse("needs either assert or call", "assert")
    _same_evidence(spec, compiler)
    _same_kind(spec, compiler)
    unused = set(params) - compiler.used_params
    if unused:
        raise compiler.refuse(f"params {sorted(unused)} are not used", "params")
    surroundings = Compiler(where=where, params={})
    weights = tuple(
        (surroundings.compile(one.when, f"in_context[{i}].when"), one)
        for i, one in enumerate(spec.in_context)
    )
    return Check(
        spec=spec,
        source=source,
        applies=applies,
        judge=judge,
        across=across,
        weights=weights,
        reads=frozenset(compiler.fields | surroundings.fields),
        gates=_gates(spec),
        expression=expression,
        over=judged_at(path) if (path := subject_collection(spec, compiler)) else (),
    )


def _expression_of(spec: CheckSpec, where: str) -> Expression | None:
    if spec.cel is None and not spec.kinds:
        return None
    others = ("subject", "applies", "evidence", "params", "asserts", "call", "also")
    if spec.cel is None or not spec.kinds or any(getattr(spec, one) for one in others):
        what = "kinds and cel go together, without subject, applies, evidence, params and assert"
        raise AuditError("ST-AUDT-001", what, f"{where}: cel")
    try:
        return Expression(spec.kinds, spec.cel)
    except ValueError as error:
        raise AuditError("ST-AUDT-001", f"not understood: {error}", f"{where}: cel") from error


def _judge_of_assert(spec: CheckSpec, predicate: dict[str, Any], compiler: Compiler) -> Judge:
    collection = subject_collection(spec, compiler)
    if collection is None:
        paths_from = len(compiler.shown)
        whole = compiler.compile(predicate, "assert")
        paths = compiler.shown[paths_from:]
        return lambda view: _whole(view, whole(view), paths)
    quantifier = next(iter(set(predicate) & {"none", "every"}), None)
    if quantifier is None or set(predicate) != {quantifier, "where"}:
        raise compiler.refuse("a subject with [*] needs none or every at the top", "assert")
    path, item = compiler.collection(predicate[quantifier], f"assert.{quantifier}")
    if path != collection:
        raise compiler.refuse("assert is over another collection than the subject", "assert")
    shown: list[Path] = []
    where = compiler.element(predicate["where"], item, "assert.where", path, shown)
    return _each(steps_of(path), where, shown, bad=quantifier == "none")


def _across_of(spec: CheckSpec, predicate: dict[str, Any], compiler: Compiler) -> Across:
    if len(predicate) != 1:
        raise compiler.refuse("a comparison of assets stands alone", "assert")
    if subject_collection(spec, compiler) is not None:
        raise compiler.refuse("what compares assets is about each as a whole", "subject")
    ((rule, raw),) = predicate.items()
    several = isinstance(raw, list) and bool(raw) and all(isinstance(one, list) for one in raw)
    paths = [compiler.across(one, f"assert.{rule}") for one in (raw if several else [raw])]
    if len(set(paths)) != len(paths):
        raise compiler.refuse("a path stands twice", f"assert.{rule}")
    return rule, tuple(paths)


def _compares(_: View) -> list[Judgement]:
    raise TypeError("this check compares assets")


def _whole(view: View, good: Truth, paths: list[Path]) -> list[Judgement]:
    failed = good.value is False
    paths = _decided(good, paths)
    why = [missing_reasons(view, paths, definite=failed)]
    for root in view.document.roots if failed else ():
        own = [path[1:] for path in paths if path[0] == root and len(path) > 1]
        why += defaults_said(view.document.root(root), own)
    return [
        Judgement(
            label="",
            good=good,
            why="; ".join(filter(None, why)),
            evidence=shown_values(view, paths),
        )
    ]


def _each(steps: tuple[Path, ...], where: Predicate, shown: list[Path], *, bad: bool) -> Judge:
    def judge(view: View) -> list[Judgement]:
        found = (one(view, labels, item) for labels, item in elements(view, steps))
        return [judgement for judgement in found if judgement is not None]

    def one(view: View, labels: tuple[str, ...], item: Any) -> Judgement | None:
        if isinstance(item, Missing):
            return Judgement(label=labels, good=unknown(item.reason, item.at))
        there = view.on(item)
        holds = where(there)
        if holds.value is (not bad):
            return None
        good = placed(~holds if bad else holds, item)
        paths, why = _decided(good, shown), ""
        if good.value is False:
            said = [missing_reasons(there, paths, definite=True), *defaults_said(item, paths)]
            why = "; ".join(filter(None, said))
        seen = shown_values(there, paths) if has_readings(item.__class__) else _shown(item)
        return Judgement(label=labels, good=good, why=why, evidence=seen)

    return judge


def _decided(good: Truth, shown: list[Path]) -> list[Path]:
    """The fields of the clause that failed; all of them where nothing is decided."""
    return [path for path in shown if good.value is None or path in good.read]


def _shown(item: Any) -> dict[str, Any]:
    """A record's fields for a finding, which has the place itself."""
    plain: dict[str, Any] = msgspec.to_builtins(item)
    return {name: value for name, value in plain.items() if name != "at"}


def _judge_of_call(spec: CheckSpec, call: Call, compiler: Compiler) -> Judge:
    function: Function | None = FUNCTIONS.get(call.fn)
    if function is None:
        raise compiler.refuse(f"there is no function {call.fn!r}", "call.fn")
    subject_collection(spec, compiler)
    arguments = {
        name: _argument(value, compiler, f"call.args.{name}") for name, value in call.args.items()
    }
    try:
        args = msgspec.convert(arguments, function.args, strict=True)
    except msgspec.ValidationError as error:
        raise compiler.refuse(str(error), "call.args") from error
    kind = kind_of(spec.subject.partition(".")[0])
    read = {path for path in function.reads if kind_of(path[0]) in (None, kind)}
    compiler.fields.update(read)
    compiler.reads.update(name for path in read if (name := evidence_name(path)))
    body = function.body
    return lambda view: body(view, args)


def _argument(value: Any, compiler: Compiler, at: str) -> Any:
    if not isinstance(value, dict):
        return value
    name = value.get("param")
    if set(value) != {"param"} or not isinstance(name, str) or name not in compiler.params:
        raise compiler.refuse("an argument is a literal or {param: NAME}", at)
    compiler.used_params.add(name)
    return compiler.params[name]


def subject_collection(spec: CheckSpec, compiler: Compiler) -> Path | None:
    """The collection that the subject names with ``[*]``; None for the asset as a whole."""
    first, *below = spec.subject.split("[*]")
    path = first.split(".")
    if kind_of(path[0]) is None or path[0] in GIVEN:
        raise compiler.refuse(f"no kind of asset has a root {path[0]!r}", "subject")
    if path == [spec.subject]:
        return None
    for part in below[:-1]:
        path += [EACH, *part.removeprefix(".").split(".")]
    if not below or below[-1]:
        raise compiler.refuse(f"the subject is {path[0]!r} or a collection with [*]", "subject")
    if spec.call is None:
        return compiler.collection(path, "subject")[0]
    try:
        shape_at(tuple(path), None)
    except UnknownFieldError as error:
        raise compiler.refuse(str(error), "subject") from error
    return tuple(path)


def _same_kind(spec: CheckSpec, compiler: Compiler) -> None:
    """A check looks at documents of the kind of its subject, and no other."""
    kind = kind_of(spec.subject.partition(".")[0])
    for path in compiler.fields:
        if (other := kind_of(path[0])) not in (None, kind):
            what = f"the subject is of kind {kind}, and {'.'.join(path)} is of kind {other}"
            raise compiler.refuse(what, "subject")


def _param(name: str, param: Param, given: Mapping[str, Any], where: str) -> Any:
    """The policy's value of a param, or its default."""
    try:
        check_bounds(param)
        value = value_of(param, param.default)
    except ValueError as error:
        raise AuditError("ST-AUDT-001", str(error), where, f"a default of {param.type}") from error
    if name not in given:
        return value
    try:
        return set_by_policy(param, given[name])
    except ValueError as error:
        fix = "securetrain audit --explain CHECK shows the params and their bounds"
        raise PolicyError("ST-PLCY-002", str(error), f"audit.params: {where}", fix) from error


def tuned(checks: Sequence[Check], policy: Policy) -> list[Check]:
    """The checks with the params that a policy sets; a check of another name is not its business.

    Raises:
        PolicyError: ST-PLCY-002 for a param that there is not, or a value outside of its bounds.
    """
    return [_tuned(check, policy.audit.params.get(check.id)) for check in checks]


def _tuned(check: Check, given: Mapping[str, Any] | None) -> Check:
    if not given:
        return check
    if unknown_names := sorted(set(given) - set(check.spec.params)):
        what = f"{check.id} has no param {', '.join(unknown_names)}"
        known = f"it has {', '.join(check.spec.params)}" if check.spec.params else "it has none"
        raise PolicyError("ST-PLCY-002", what, f"audit.params: {check.id}", known)
    return compile_check(check.spec, check.source, given)


def _gates(spec: CheckSpec) -> tuple[Path, ...]:
    """A function needs all of its evidence, or asks itself; predicates ask a reading themselves."""
    if spec.call and FUNCTIONS[spec.call.fn].asks:
        return ()
    paths = (tuple(name.split(".")) for name in spec.evidence)
    return tuple(path for path in paths if spec.call or not is_reading(path))


def _same_evidence(spec: CheckSpec, compiler: Compiler) -> None:
    unknown_names = [name for name in spec.evidence if name not in EVIDENCE]
    if unknown_names:
        raise compiler.refuse(f"there is no evidence {unknown_names[0]!r}", "evidence")
    declared, read = set(spec.evidence), compiler.reads
    if len(spec.evidence) != len(declared):
        raise compiler.refuse("an evidence is listed twice", "evidence")
    if declared != read:
        raise compiler.refuse(f"declares {sorted(declared)} and reads {sorted(read)}", "evidence")


def _asked(expression: Expression, view: View) -> Asked | None:
    found = view.document.root("cluster").objects
    return next((one for one in found if one.digest == expression.digest), None)


def is_asked(expression: Expression, view: View) -> Truth:
    """Return whether there is an object that an expression is about."""
    asked = _asked(expression, view)
    return truth(asked is None or asked.objects > 0)


def said_of(expression: Expression, view: View) -> list[Judgement]:
    """The answers of an expression, but for those that say yes."""
    asked = _asked(expression, view)
    if asked is None:
        why = "these facts were collected without this check: give --checks with -f"
        return [Judgement(label="", good=unknown(why))]
    judged = []
    for one in asked.said:
        known = one.holds.outcome is Outcome.OK
        good = truth(value=False, at=one.at) if known else unknown(one.holds.reason, one.at)
        why = f"not so: {expression.cel}"[:200] if known else one.holds.reason
        seen = {"field": one.field, "cel": expression.cel}
        judged.append(Judgement(label=one.object, good=good, why=why, evidence=seen))
    return judged
