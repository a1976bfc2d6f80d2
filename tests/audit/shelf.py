# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A kind of asset that is there for tests only."""

from typing import Annotated

import msgspec

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    Body,
    End,
    Entry,
    Fact,
    Location,
    Outcome,
    Reading,
)


class Box(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    line: int = 0
    privileged: Reading[bool]
    added: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]] = Reading(outcome=Outcome.OK, value=())

    @property
    def label(self):
        return self.name

    @property
    def location(self):
        return Location(path="a.yaml", line=self.line)


class Rack(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    boxes: Reading[tuple[Box, ...]]

    @property
    def label(self):
        return self.name


class Shelf(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    auth: Reading[str]
    racks: Annotated[tuple[Rack, ...], MAY_BE_EMPTY] = ()
    labels: Annotated[dict[str, str], MAY_BE_EMPTY] = msgspec.field(default_factory=dict)
    limits: dict[str, Reading[int]] = msgspec.field(default_factory=dict)


class ShelfFacts(Body, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="sample"):
    path: str
    shelf: Shelf

    @property
    def asset(self):
        return f"sample:{self.path}"


CHECK = """\
apiVersion: securetrain.dev/policy/v1
kind: CheckSet
metadata: {{id: x, version: 1.0.0}}
checks:
- id: ST-XXX-001
  title: A box of the shelf is privileged
  severity: critical
  boundary: scheduler
  threats: [T-HST-001]
  subject: {subject}
  evidence: [{evidence}]
  assert: {predicate}
  rationale: Because it matters.
  remediation: Change the setting.
  fixed_by: user
  refs: {{nist: [CM-6]}}
  tests: {{pass: [a], fail: [b], unknown: [c]}}
"""


def ok(value, line=0):
    return Reading(outcome=Outcome.OK, value=value, at=Location(path="a.yaml", line=line))


def read(*bears_on):
    at = Location(path="a.yaml")
    return Entry(unit="document", at=at, end=End.READ, bears_on=bears_on or ("shelf",))


def not_ok(outcome, reason, line=0):
    return Reading(outcome=Outcome(outcome), reason=reason, at=Location(path="a.yaml", line=line))
