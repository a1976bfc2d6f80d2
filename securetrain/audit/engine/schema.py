# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A check as it stands in policies/checks/*.yaml, its params, and the questions without a check.

Rules:

1. unknown keys and ids of another shape are ST-AUDT-001 when the check is loaded;
2. a check has a test for each of pass, fail and unknown;
3. a policy sets a param by check and name (``audit.params``), and only one with ``bounds``. A value
   outside of them is a mistake of the policy, never cut to fit; of a list, the bounds are those of
   each element, and ``most`` is the number of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta
from packaging.version import InvalidVersion, Version

from securetrain.core.vocabulary import Boundary, Severity, State

CHECK_ID: Final = r"^ST-[A-Z0-9]{3}-[0-9]{3}$"

CheckId: TypeAlias = Annotated[str, Meta(pattern=CHECK_ID)]
ControlId: TypeAlias = Annotated[str, Meta(pattern=r"^C-[A-Z0-9]+(-[A-Z0-9]+)*\Z")]
AtlasId: TypeAlias = Annotated[str, Meta(pattern=r"^AML\.[TM]\d{4}(\.\d{3})?@\d+\.\d+\.\d+\Z")]
KindName: TypeAlias = Annotated[str, Meta(pattern=r"^([a-z0-9.*-]+/){0,2}([A-Z]\w{0,62}|\*)\Z")]
Sentence: TypeAlias = Annotated[str, Meta(min_length=10, max_length=1200)]


MOST: int = 256


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


class Bounds(_Base, frozen=True, kw_only=True):
    """The values that a policy may give a param; without any of them, all of its type."""

    min: int | str | None = None
    """The least number, or the least version."""
    max: int | str | None = None
    """The largest number, or the mode whose bits are the only ones."""
    only: Annotated[tuple[int | str, ...], Meta(max_length=MOST)] = ()
    most: Annotated[int, Meta(ge=1, le=MOST)] = MOST


class Param(_Base, frozen=True, kw_only=True):
    """A number or list that a check compares with."""

    type: ParamType
    default: int | str | list[int | str]
    bounds: Bounds | None = None


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
    not_applicable: tuple[str, ...] = msgspec.field(name="not-applicable", default=())

    @property
    def by_state(self) -> dict[State, tuple[str, ...]]:
        """The fixtures of each state."""
        return {
            State.PASS: self.passes,
            State.FAIL: self.fail,
            State.UNKNOWN: self.unknown,
            State.NOT_APPLICABLE: self.not_applicable,
        }


class InContext(_Base, frozen=True, kw_only=True):
    """The weight of a failure in some surroundings."""

    when: dict[str, Any]
    severity: Severity
    because: Sentence


class OtherKind(_Base, frozen=True, kw_only=True):
    """The same question about another kind of asset."""

    subject: str
    evidence: tuple[str, ...]
    in_context: tuple[InContext, ...] = ()
    tests: Tests


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
    controls: tuple[ControlId, ...] = ()
    """The controls of a threat model that it belongs to, where the model does not list it."""
    subject: str = ""
    applies: dict[str, Any] | None = None
    evidence: tuple[str, ...] = ()
    params: dict[str, Param] = {}
    asserts: dict[str, Any] | None = msgspec.field(name="assert", default=None)
    call: Call | None = None
    kinds: tuple[KindName, ...] = ()
    """With `cel`: the objects of manifests that it is about, as in ``Pod``, ``batch/v1/Job``."""
    cel: str | None = None
    """What must hold of each of them, as ``object``: in place of subject, evidence and assert."""
    in_context: tuple[InContext, ...] = ()
    also: tuple[OtherKind, ...] = ()
    """Other kinds of assets that it asks, by the same ``assert`` or ``call``."""
    rationale: Sentence
    remediation: Sentence
    fixed_by: FixedBy
    refs: Refs
    tests: Tests


def each_kind(spec: CheckSpec) -> Iterator[CheckSpec]:
    """Yield the check for the kind of its own subject, then for each kind of ``also``.

    What applies is asked of its own kind only, and a quantifier over the collection of its subject
    is one over that of the other.
    """
    yield spec
    own = spec.subject.removesuffix("[*]").split(".")
    for one in spec.also:
        path = one.subject.removesuffix("[*]").split(".")
        asserts = {k: path if v == own else v for k, v in (spec.asserts or {}).items()}
        yield msgspec.structs.replace(
            spec,
            subject=one.subject,
            evidence=one.evidence,
            in_context=one.in_context,
            applies=None,
            asserts=asserts or None,
            tests=one.tests,
        )


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


_TYPES: Mapping[ParamType, Any] = {
    ParamType.INT: int,
    ParamType.STR: str,
    ParamType.INTS: list[int],
    ParamType.STRS: list[str],
    ParamType.MODE: Annotated[str, Meta(pattern=r"^[0-7]{4}\Z")],
    ParamType.VERSION: str,
}


def value_of(param: Param, raw: Any) -> Any:
    """A value of the param's type.

    Raises:
        ValueError: saying what does not fit.
    """
    try:
        value = msgspec.convert(raw, _TYPES[param.type], strict=True)
        if param.type is ParamType.VERSION:
            Version(value)
    except (msgspec.ValidationError, InvalidVersion) as error:
        raise ValueError(f"{error} (a value of the type {param.type})") from error
    return value


def set_by_policy(param: Param, raw: Any) -> Any:
    """A value that a policy gives the param.

    Raises:
        ValueError: saying what does not fit.
    """
    bounds = param.bounds
    if bounds is None:
        raise ValueError("the check lets no policy set this param")
    value = value_of(param, raw)
    each = value if isinstance(value, list) else [value]
    if len(each) > bounds.most:
        raise ValueError(f"{len(each)} values, at most {bounds.most}")
    for one in each:
        if why := _outside(param.type, bounds, one):
            raise ValueError(why)
    return value


def _outside(kind: ParamType, bounds: Bounds, value: Any) -> str:
    if bounds.only and value not in bounds.only:
        return f"{value} is not one of {', '.join(map(str, bounds.only))}"
    if kind is ParamType.MODE:
        more = bounds.max is not None and int(value, 8) & ~int(str(bounds.max), 8)
        return f"{value} is more than {bounds.max}" if more else ""
    order: Any = Version if kind is ParamType.VERSION else int
    if bounds.min is not None and order(value) < order(bounds.min):
        return f"{value} is less than {bounds.min}"
    if bounds.max is not None and order(value) > order(bounds.max):
        return f"{value} is more than {bounds.max}"
    return ""


def check_bounds(param: Param) -> None:
    """Check that the bounds are of the param's type and hold its default.

    Raises:
        ValueError: saying what does not fit.
    """
    if (bounds := param.bounds) is None:
        return
    single = {ParamType.INTS: ParamType.INT, ParamType.STRS: ParamType.STR}
    kind = single.get(param.type, param.type)
    limits = [one for one in (bounds.min, bounds.max) if one is not None]
    if limits and kind is ParamType.STR:
        raise ValueError("text has no min and max; list the values under only")
    if kind is ParamType.MODE and bounds.min is not None:
        raise ValueError("a mode has a max only")
    for one in (*limits, *bounds.only):
        value_of(Param(type=kind, default=0), one)
    set_by_policy(param, param.default)


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A question of the catalogue that no check answers, and why."""

    boundary: Boundary
    title: str
    because: str


NOT_JUDGED: Final[Mapping[str, NotJudged]] = {
    "ST-RDZ-001": NotJudged(
        Boundary.RENDEZVOUS,
        "A store answers whoever asks",
        "it takes a question to the running store, and an audit asks nobody over a network;"
        " ST-RDZ-002 sees where a store listens",
    ),
    "ST-RDZ-007": NotJudged(
        Boundary.RENDEZVOUS,
        "The rendezvous can be reached from users' or login machines",
        "it takes an attempt from there; ST-NET-006 and ST-FAB-018 see the node's own filters",
    ),
    "ST-INT-003": NotJudged(
        Boundary.GRADIENTS,
        "Ranks do not compare their parameters",
        "no control of this project hashes parameters across ranks: the guard compares what ranks"
        " send (ST-INT-001), and checkpoints say what each rank wrote",
    ),
}
"""By the id that a check would have."""
