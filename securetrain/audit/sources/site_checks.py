# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of a site's own, in a folder: definitions and fixtures, no code.

::

    DIR/st-abc-001.yaml            a CheckSet, as in policies/checks
    DIR/fixtures/st-abc-001.yaml   fixtures: NAME to the evidence that it has

A fixture gives the value of each piece of evidence, or null where it could not be read; nothing
else is in it. That of a check of ``kinds`` and ``cel`` is an ``object``: a mapping, or the text of
a template. Every check is judged against its fixtures when it is loaded: one that does not say of
each what its ``tests`` say is not used.
"""

import json
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.audit.cel.evaluator import Evaluator, is_installed
from securetrain.audit.cel.expression import Expression
from securetrain.audit.documents import BODIES, GIVEN, ROOTS, Document, document_of
from securetrain.audit.engine.check import Check
from securetrain.audit.engine.fields import View
from securetrain.audit.engine.findings import worst_states
from securetrain.audit.engine.judging import judge
from securetrain.audit.facts import (
    SCHEMA,
    Entry,
    Location,
    Reading,
    Section,
    body_of,
)
from securetrain.audit.ledger import read_at
from securetrain.audit.parser.files import Text, read_document
from securetrain.audit.parser.objects import Reader
from securetrain.audit.subjects.kubernetes.collect.expressions import Answers
from securetrain.audit.subjects.launches.collect.tasks import started_in
from securetrain.core import install_hint
from securetrain.core.errors import AuditError, UsageError
from securetrain.core.files import make_missing_dir, write_atomic
from securetrain.policy.load import load_policy
from securetrain.policy.schema import Policy

FIXTURES_LIMIT: Final = 1 << 20
_FIX: Final = "fixtures: NAME to a mapping of evidence to its value, null where it was not read"
_THEN: Final = datetime(2026, 1, 1, tzinfo=UTC)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    fixtures: dict[str, dict[str, Any]]


def verify_fixtures(checks: tuple[Check, ...], folder: Path) -> None:
    """Judge each check of a folder against its fixtures.

    Raises:
        AuditError: ST-AUDT-001 naming the check, the fixture, and what it says instead.
    """
    policy = load_policy("baseline").policy
    read: dict[str, Mapping[str, Any]] = {}
    with Evaluator() as evaluator:
        for check in checks:
            path = folder / "fixtures" / check.source
            if check.source not in read:
                read[check.source] = read_document(
                    path, _File, limit=FIXTURES_LIMIT, code="ST-AUDT-001", fix=_FIX
                ).fixtures
            if check.expression is not None:
                _compile(check, check.expression, evaluator)
            _verify(check, read[check.source], str(path), policy, evaluator)


def _compile(check: Check, expression: Expression, evaluator: Evaluator) -> None:
    if not is_installed():
        raise UsageError("ST-USAG-004", f"{check.id} asks CEL", check.source, install_hint("cel"))
    answer = evaluator.ask(expression.cel, b"{}")
    if not answer.compiles:
        raise AuditError("ST-AUDT-001", answer.why, f"{check.source}: {check.id}: cel")


def _verify(
    check: Check, fixtures: Mapping[str, Any], path: str, policy: Policy, evaluator: Evaluator
) -> None:
    if check.across is not None:
        raise AuditError(
            "ST-AUDT-001", "a fixture is one asset, and this check compares them", check.id
        )
    for state, names in check.spec.tests.by_state.items():
        for name in names:
            where = f"{path}: {name}"
            if name not in fixtures:
                raise AuditError("ST-AUDT-001", f"{check.id} names no such fixture", where, _FIX)
            document = (
                _document(check.kind, fixtures[name], where)
                if check.expression is None
                else _of_object(check.expression, fixtures[name], where, evaluator)
            )
            findings = judge(check, View(document=document, policy=policy, now=_THEN))
            said = worst_states(findings)[check.id]
            if said is not state:
                what = f"{check.id} says {said} of a fixture for {state}: {findings[0].reason}"
                raise AuditError("ST-AUDT-001", what, where, "correct the check or the fixture")


def _of_object(
    expression: Expression, fixture: Mapping[str, Any], where: str, evaluator: Evaluator
) -> Document:
    """A document of what an expression says of an object."""
    given = fixture.get("object")
    if set(fixture) != {"object"} or not isinstance(given, (str, dict)):
        raise AuditError("ST-AUDT-001", "it has an object and nothing else", where, _FIX)
    text = given if isinstance(given, str) else json.dumps(given, default=str)
    ledger: list[Entry] = []
    answers = Answers([expression], evaluator)
    for one in Reader(ledger.append, started_in).objects(Text("fixture", text, is_script=False)):
        answers.take(one)
    asked = answers.facts()
    if not asked[0].objects:
        raise AuditError("ST-AUDT-001", "it has no object of the check's kinds", where, _FIX)
    evidence = msgspec.to_builtins({"cluster.objects": asked})
    return _document("cluster", evidence, where, ledger)


def _document(
    kind: str, evidence: Mapping[str, Any], where: str, ledger: Sequence[Entry] = ()
) -> Document:
    """A document of a kind that has this evidence and nothing else, all of which was read."""
    body = BODIES[kind]
    collected = {"at": _THEN.isoformat(), "hostname": "fixture", "collector": "fixture"}
    plain: dict[str, Any] = {"schema": SCHEMA, "kind": kind, "collected": collected}
    for name, hint in typing.get_type_hints(body).items():
        if name not in {"schema", "collected"}:
            plain[name] = _blank(hint)
    read = read_at("document", Location(path="fixture"), *ROOTS[kind])
    plain["ledger"] = msgspec.to_builtins([read, *ledger])
    for name, value in evidence.items():
        root, _, field = name.partition(".")
        known = ROOTS[kind][root].__struct_fields__ if root in ROOTS[kind] else ()
        if field not in known or root in GIVEN:
            raise AuditError("ST-AUDT-001", f"there is no evidence {name!r}", where, _FIX)
        least = plain[root].get(field)
        wraps = isinstance(least, dict) and "outcome" in least
        if value is not None or not wraps:
            plain[root][field] = {"outcome": "ok", "value": value} if wraps else value
    try:
        made = body_of(plain, BODIES, where)
    except AuditError as error:
        raise AuditError("ST-AUDT-001", error.what, error.where, _FIX) from error
    return document_of(made, made.to_json())


def _blank(hint: Any) -> Any:
    """The least value of a type: what could be read is out of reach, and collections are empty.

    A record has the fields that have no default, and those that are evidence.
    """
    origin = typing.get_origin(hint) or hint
    if origin in (Section, Reading):
        return {"outcome": "denied", "reason": "not in this fixture", "value": None}
    if origin in (dict, tuple):
        return origin()
    if origin is typing.Literal:
        return typing.get_args(hint)[0]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint)).value
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = typing.get_type_hints(hint)
        return {
            one.name: _blank(hints[one.name])
            for one in msgspec.structs.fields(hint)
            if one.required or typing.get_origin(one.type) in (Section, Reading)
        }
    for kind, least in ((bool, False), (int, 0), (str, "fixture")):
        if isinstance(hint, type) and issubclass(hint, kind):
            return least
    return None


CHECK: Final = """\
# {id}: what is wrong, in a sentence; then correct every line below.
apiVersion: securetrain.dev/policy/v1
kind: CheckSet
metadata: {{id: {name}, version: 1.0.0}}
checks:
- id: {id}
  title: Name the setting here, as in Filesystem of shared memory
  severity: medium
  boundary: host
  threats: [T-HST-001]
  subject: node
  evidence: [node.sysctls]
  assert:
    all:
    - {{field: [node, sysctls, kernel.kptr_restrict], op: exists}}
    - {{field: [node, sysctls, kernel.kptr_restrict], op: ge, value: 1}}
  rationale: >-
    Say here what somebody can do while it is wrong.
  remediation: >-
    Say here what to change, and where.
  fixed_by: administrator
  refs: {{nist: [CM-6]}}
  tests:
    pass: [well]
    fail: [wrong, absent]
    unknown: [not-read]
"""

FIXTURES: Final = """\
# What {id} must say of each. They are judged whenever the check is loaded.
fixtures:
  well:
    node.sysctls: {{kernel.kptr_restrict: {{outcome: ok, value: 1}}}}
  wrong:
    node.sysctls: {{kernel.kptr_restrict: {{outcome: ok, value: 0}}}}
  absent:
    node.sysctls: {{kernel.kptr_restrict: {{outcome: absent, reason: no such setting}}}}
  not-read:
    node.sysctls: null
"""


def scaffold(check_id: str, folder: Path) -> tuple[Path, Path]:
    """Write a check that loads and its fixtures, for a person to change; returns both files.

    Raises:
        UsageError: ST-USAG-005 when one of them is there.
    """
    name = check_id.lower()
    files = folder / f"{name}.yaml", folder / "fixtures" / f"{name}.yaml"
    for file in files:
        if file.exists():
            raise UsageError("ST-USAG-005", "it is there already", str(file), "choose another id")
    make_missing_dir(files[1].parent)
    for file, text in zip(files, (CHECK, FIXTURES), strict=True):
        write_atomic(file, text.format(id=check_id, name=name).encode(), replace=False)
    return files
