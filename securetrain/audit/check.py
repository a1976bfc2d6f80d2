# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A check: its definition as it stands in policies/checks/*.yaml, and its compiled form.

Rules:

1. unknown keys, ids of another shape, paths, operators, functions and params that do not exist are
   ST-AUDT-001 when the check is loaded;
2. ``evidence`` lists exactly what the check reads: an undeclared read and an unused declaration are
   errors, because the engine answers unknown for every declared section that is not there;
3. a subject that ends in ``[*]`` gives one finding for each element that is not as it should be;
   then ``assert`` is ``none`` or ``every`` over that collection, or a ``call``;
4. a check has a test for each of pass, fail and unknown;
5. ``in_context`` lists where a failure weighs less or more, and the sentence that says why. The
   first whose ``when`` is known to be true counts; what is not known changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta
from packaging.version import InvalidVersion, Version

from securetrain.audit.documents import Kind
from securetrain.audit.facts import EVIDENCE
from securetrain.audit.fields import Missing, Path, View, evidence_name, kind_of, resolve
from securetrain.audit.functions.base import Function, Judgement
from securetrain.audit.functions.registry import FUNCTIONS
from securetrain.audit.predicates import Compiler, Predicate, missing_reasons, shown_values
from securetrain.core.errors import AuditError
from securetrain.core.vocabulary import Boundary, Severity

CHECK_ID: Final = r"^ST-[A-Z0-9]{3}-[0-9]{3}$"

CheckId: TypeAlias = Annotated[str, Meta(pattern=CHECK_ID)]
AtlasId: TypeAlias = Annotated[str, Meta(pattern=r"^AML\.[TM]\d{4}(\.\d{3})?@\d+\.\d+\.\d+\Z")]
Sentence: TypeAlias = Annotated[str, Meta(min_length=10, max_length=1200)]


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


class ParamType(StrEnum):
    """The type of a param's value."""

    INT = "int"
    STR = "str"
    INTS = "ints"
    STRS = "strs"
    MODE = "mode"
    VERSION = "version"


class Param(_Base, frozen=True, kw_only=True):
    """A number or list that a check compares with."""

    type: ParamType
    default: int | str | list[int | str]


class Call(_Base, frozen=True, kw_only=True):
    """A named function and its arguments; an argument ``{param: NAME}`` takes a param's value."""

    fn: str
    args: dict[str, Any] = {}


class Refs(_Base, frozen=True, kw_only=True):
    """The sources of the check; an ATLAS id is pinned to its release."""

    atlas: tuple[AtlasId, ...] = ()
    cwe: tuple[int, ...] = ()
    nist: tuple[Annotated[str, Meta(pattern=r"^[A-Z]{2}-\d{1,2}(\(\d{1,2}\))?\Z")], ...] = ()
    cve: tuple[Annotated[str, Meta(pattern=r"^CVE-\d{4}-\d{4,}\Z")], ...] = ()
    other: tuple[str, ...] = ()


class Tests(_Base, frozen=True, kw_only=True):
    """Names of fixtures: what the check must say about each."""

    passes: Annotated[tuple[str, ...], Meta(min_length=1)] = msgspec.field(name="pass")
    fail: Annotated[tuple[str, ...], Meta(min_length=1)]
    unknown: Annotated[tuple[str, ...], Meta(min_length=1)]


class InContext(_Base, frozen=True, kw_only=True):
    """The weight of a failure in some surroundings."""

    when: dict[str, Any]
    severity: Severity
    because: Sentence


class FixedBy(StrEnum):
    """The party that can make the check pass."""

    USER = "user"
    ADMINISTRATOR = "administrator"


class CheckSpec(_Base, frozen=True, kw_only=True):
    """One check as it is written."""

    id: CheckId
    title: Sentence
    severity: Severity
    boundary: Boundary
    threats: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^T-[A-Z0-9]{3,5}-\d{3}\Z")], ...], Meta(min_length=1)
    ]
    subject: str
    applies: dict[str, Any] | None = None
    evidence: tuple[str, ...]
    params: dict[str, Param] = {}
    asserts: dict[str, Any] | None = msgspec.field(name="assert", default=None)
    call: Call | None = None
    in_context: tuple[InContext, ...] = ()
    rationale: Sentence
    remediation: Sentence
    fixed_by: FixedBy
    refs: Refs
    tests: Tests


class SetMetadata(_Base, frozen=True, kw_only=True):
    """The identity of a check set."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}\Z")]
    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+\Z")]


class CheckSet(_Base, frozen=True, kw_only=True):
    """One file of policies/checks."""

    apiVersion: Literal["securetrain.dev/policy/v1"]  # noqa: N815 - the field's name in the file
    kind: Literal["CheckSet"]
    metadata: SetMetadata
    checks: tuple[CheckSpec, ...]


Judge: TypeAlias = Callable[[View], list[Judgement]]


@dataclass(frozen=True, slots=True)
class Weight:
    """One compiled entry of ``in_context``."""

    when: Predicate
    severity: Severity
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check ready to run."""

    spec: CheckSpec
    source: str
    """The file that defines it."""
    applies: Predicate | None
    judge: Judge
    weights: tuple[Weight, ...] = ()
    reads: frozenset[Path] = frozenset()
    """Every field of the facts that it looks at."""

    @property
    def id(self) -> str:
        """Its id."""
        return self.spec.id

    @property
    def kind(self) -> Kind:
        """The kind of asset that it is about."""
        kind = kind_of(self.spec.subject.partition(".")[0])
        assert kind is not None, "it was checked when the check was compiled"
        return kind

    @property
    def title(self) -> str:
        """The message of a failure, in a line."""
        return self.spec.title

    @property
    def severity(self) -> Severity:
        """The severity of a failure."""
        return self.spec.severity

    @property
    def boundary(self) -> Boundary:
        """The boundary that it looks at."""
        return self.spec.boundary

    @property
    def remediation(self) -> str:
        """The steps that make it pass."""
        return self.spec.remediation


def compile_check(spec: CheckSpec, source: str) -> Check:
    """Check a definition against the schema of facts and compile it.

    Raises:
        AuditError: ST-AUDT-001 with the file, the check and the place in it.
    """
    where = f"{source}: {spec.id}"
    params = {name: _param(param, f"{where}: params.{name}") for name, param in spec.params.items()}
    compiler = Compiler(where=where, params=params)
    applies = compiler.compile(spec.applies, "applies") if spec.applies is not None else None
    match (spec.asserts, spec.call):
        case (dict() as predicate, None):
            judge = _judge_of_assert(spec, predicate, compiler)
        case (None, Call() as call):
            judge = _judge_of_call(spec, call, compiler)
        case _:
            raise compiler.refuse("needs either assert or call", "assert")
    _same_evidence(spec, compiler)
    unused = set(params) - compiler.used_params
    if unused:
        raise compiler.refuse(f"params {sorted(unused)} are not used", "params")
    surroundings = Compiler(where=where, params={})
    weights = tuple(
        Weight(surroundings.compile(one.when, f"in_context[{i}].when"), one.severity, one.because)
        for i, one in enumerate(spec.in_context)
    )
    return Check(
        spec=spec,
        source=source,
        applies=applies,
        judge=judge,
        weights=weights,
        reads=frozenset(compiler.fields | surroundings.fields),
    )


def _judge_of_assert(spec: CheckSpec, predicate: dict[str, Any], compiler: Compiler) -> Judge:
    collection = subject_collection(spec, compiler)
    if collection is None:
        paths_from = len(compiler.shown)
        whole = compiler.compile(predicate, "assert")
        paths = compiler.shown[paths_from:]
        return lambda view: [
            Judgement(
                label="",
                good=whole(view),
                why=missing_reasons(view, paths),
                evidence=shown_values(view, paths),
            )
        ]
    quantifier = next(iter(set(predicate) & {"none", "every"}), None)
    if quantifier is None or set(predicate) != {quantifier, "where"}:
        raise compiler.refuse("a subject with [*] needs none or every at the top", "assert")
    path, item = compiler.collection(predicate[quantifier], f"assert.{quantifier}")
    if path != collection:
        raise compiler.refuse("assert is over another collection than the subject", "assert")
    where = compiler.element(predicate["where"], item, "assert.where", path)
    return _each(path, where, bad=quantifier == "none")


def _each(path: Path, where: Predicate, *, bad: bool) -> Judge:
    def judge(view: View) -> list[Judgement]:
        items = resolve(view, path)
        if isinstance(items, Missing):
            raise TypeError("the engine judges only what it has evidence for")
        judged = []
        for item in items:
            there = view.on(item)
            holds = where(there)
            good = ~holds if bad else holds
            evidence = {} if good.value else msgspec.to_builtins(item)
            judged.append(
                Judgement(label=item.label, good=good, location=item.location, evidence=evidence)
            )
        return judged

    return judge


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
    compiler.fields.update(function.reads)
    compiler.reads.update(name for path in function.reads if (name := evidence_name(path)))
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
    """The collection that the subject names with ``[*]``; None for the node as a whole."""
    if spec.subject == "node":
        return None
    if not spec.subject.endswith("[*]"):
        raise compiler.refuse("the subject is 'node' or a collection with [*]", "subject")
    path = spec.subject.removesuffix("[*]").split(".")
    if spec.call is None:
        return compiler.collection(path, "subject")[0]
    if ".".join(path) not in EVIDENCE:
        raise compiler.refuse(f"there is no {'.'.join(path)}", "subject")
    return tuple(path)


def _param(param: Param, where: str) -> Any:
    wanted: Any
    match param.type:
        case ParamType.INT:
            wanted = int
        case ParamType.STR:
            wanted = str
        case ParamType.INTS:
            wanted = list[int]
        case ParamType.STRS:
            wanted = list[str]
        case ParamType.MODE:
            wanted = Annotated[str, Meta(pattern=r"^[0-7]{4}\Z")]
        case ParamType.VERSION:
            wanted = str
        case _:
            raise ValueError(param.type)
    try:
        value = msgspec.convert(param.default, wanted, strict=True)
        if param.type is ParamType.VERSION:
            Version(str(value))
    except (msgspec.ValidationError, InvalidVersion) as error:
        raise AuditError("ST-AUDT-001", str(error), where, f"a default of {param.type}") from error
    return value


def _same_evidence(spec: CheckSpec, compiler: Compiler) -> None:
    unknown_names = [name for name in spec.evidence if name not in EVIDENCE]
    if unknown_names:
        raise compiler.refuse(f"there is no evidence {unknown_names[0]!r}", "evidence")
    declared, read = set(spec.evidence), compiler.reads
    if len(spec.evidence) != len(declared):
        raise compiler.refuse("an evidence is listed twice", "evidence")
    if declared != read:
        raise compiler.refuse(f"declares {sorted(declared)} and reads {sorted(read)}", "evidence")
