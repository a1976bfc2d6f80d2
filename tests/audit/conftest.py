# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from securetrain.audit.catalogue import load_checks
from securetrain.audit.check import Check
from securetrain.audit.documents import Document, Facts, facts_of
from securetrain.audit.facts import decode_facts
from securetrain.audit.fields import View
from securetrain.policy.load import load_policy, parse_yaml
from securetrain.policy.schema import Policy

FIXTURES = Path(__file__).parent / "fixtures"
NOW = datetime(2026, 11, 20, 13, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Case:
    """Facts and a policy that belong together."""

    facts: Facts
    policy: Policy

    @property
    def document(self) -> Document:
        (document,) = self.facts.documents
        return document


class Fixtures:
    """The reference node and what each named fixture changes in it."""

    def __init__(self) -> None:
        self.reference: dict[str, Any] = json.loads((FIXTURES / "reference.json").read_text())
        path = FIXTURES / "mutations.yaml"
        self.mutations: Mapping[str, Any] = parse_yaml(path.read_text(), str(path))["fixtures"]
        self.policy = load_policy("baseline").policy

    def case(self, name: str) -> Case:
        document, policy = copy.deepcopy(self.reference), self.policy
        edits: list[dict[str, Any]]
        if name == "reference":
            edits = []
        elif name not in self.mutations and name.startswith("no-"):
            edits = [{"at": ["node", name[3:].replace("-", "_")], "set": gone("denied")}]
        else:
            edits = self.mutations[name]
        for edit in edits:
            if "policy" in edit:
                policy = override(policy, edit["policy"])
            else:
                apply(document, edit)
        return Case(read(document), policy)

    @staticmethod
    def gone(outcome: str) -> dict[str, Any]:
        return gone(outcome)

    @staticmethod
    def facts_of(*documents: Mapping[str, Any]) -> Facts:
        return read(*documents)


def view_of(fixtures: Fixtures, document: Mapping[str, Any], policy: Policy | None = None) -> View:
    """What a check sees of a document that a test wrote."""
    (read_back,) = fixtures.facts_of(document).documents
    return View(document=read_back, policy=policy or fixtures.policy, now=NOW)


def gone(outcome: str) -> dict[str, Any]:
    return {"outcome": outcome, "reason": "taken away by the test", "value": None}


def read(*documents: Mapping[str, Any]) -> Facts:
    return facts_of(decode_facts(json.dumps(one).encode(), "fixture") for one in documents)


def override(policy: Policy, changes: Mapping[str, Any]) -> Policy:
    plain = msgspec.to_builtins(policy)
    for section, values in changes.items():
        plain[section].update(msgspec.to_builtins(values))
    return msgspec.convert(plain, Policy)


def apply(document: Any, edit: Mapping[str, Any]) -> None:
    *way, last = edit["at"]
    parent = document
    for step in way:
        parent = parent[find(parent, step)]
    key = find(parent, last)
    if "append" in edit:
        parent[key].append(edit["append"])
    elif edit.get("delete"):
        del parent[key]
    else:
        parent[key] = edit["set"]


def find(parent: Any, step: Any) -> Any:
    if not isinstance(step, dict):
        return step
    ((key, value),) = step.items()
    return next(i for i, element in enumerate(parent) if element[key] == value)


@pytest.fixture(scope="session")
def fixtures() -> Fixtures:
    return Fixtures()


@pytest.fixture(scope="session")
def case(fixtures: Fixtures) -> Callable[[str], Case]:
    return fixtures.case


@pytest.fixture(scope="session")
def catalogue() -> tuple[Check, ...]:
    return load_checks()


@pytest.fixture
def now() -> datetime:
    return NOW
