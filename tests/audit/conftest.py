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

from securetrain.audit import documents
from securetrain.audit.documents import (
    BODIES,
    GIVEN,
    ROOTS,
    Document,
    Facts,
    document_of,
    facts_of,
)
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.check import Check
from securetrain.audit.facts import Collected, body_of, decode_body
from securetrain.audit.sources.catalogue import load_check_file, load_checks
from securetrain.audit.subjects.storage.collect.files import collect_storage
from securetrain.policy.load import load_policy, parse_yaml
from securetrain.policy.schema import Policy
from tests.audit.declared import added, declared, missing, missing_evidence
from tests.audit.shelf import CHECK, Shelf, ShelfFacts, ok
from tests.audit.shelf import read as read_entry

FIXTURES = Path(__file__).parent / "fixtures"
NOW = datetime(2026, 11, 20, 13, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Case:
    """Facts and a policy that belong together."""

    facts: Facts
    policy: Policy
    now: datetime = NOW

    @property
    def document(self) -> Document:
        (document,) = self.facts.documents
        return document


COLLECTORS: Mapping[str, Callable[[Path], list[Any]]] = {
    "storage": lambda path: collect_storage([path], now=NOW),
}
"""Kinds whose fixtures are files in fixtures/KIND, each the content of one document."""


def _plain(bodies: list[Any]) -> dict[str, Any]:
    (body,) = bodies
    plain: dict[str, Any] = json.loads(body.to_json())
    return plain


class Fixtures:
    """The reference asset of each kind and what each named fixture changes in it.

    A fixture ``no-X`` takes the field X of the kind's own root away. One with ``nodes`` is several
    nodes, each with changes of its own. A check that compares assets sees a fixture of one node
    beside two reference nodes.
    """

    def __init__(self) -> None:
        self.references: dict[str, dict[str, Any]] = {}
        self.changes: dict[str, Mapping[str, Any]] = {}
        for kind in BODIES:
            stem = "reference" if kind == "node" else kind
            path = FIXTURES / ("mutations.yaml" if kind == "node" else f"{kind}.yaml")
            if path.exists():
                self.references[kind] = json.loads((FIXTURES / f"{stem}.json").read_text())
                self.changes[kind] = parse_yaml(path.read_text(), str(path))["fixtures"]
        for kind, collect in COLLECTORS.items():
            if not (FIXTURES / kind).is_dir():
                continue
            found = {
                path.name.partition(".")[0]: _plain(collect(path))
                for path in sorted((FIXTURES / kind).iterdir())
            }
            self.references[kind] = found.pop("reference")
            self.changes[kind] = {name: [{"whole": plain}] for name, plain in found.items()}
        for file in declared(FIXTURES):
            there = dict(self.changes[file.kind])
            self.changes[file.kind] = added(there, dict(file.fixtures), file.check)
        self.reference = self.references["node"]
        self.mutations = self.changes["node"]
        self.policy = load_policy("baseline").policy
        self._cases: dict[tuple[str, str], Case] = {}
        self._without: dict[tuple[str, str, str], Facts] = {}

    def case(self, name: str, kind: str = "node") -> Case:
        """The case of a fixture, made once: nobody changes facts."""
        if (kind, name) not in self._cases:
            self._cases[kind, name] = self._made(name, kind)
        return self._cases[kind, name]

    def facts_without(self, field: str, kind: str, outcome: str) -> Facts:
        """The reference of a kind with one of its evidence taken away, made once."""
        key = (field, kind, outcome)
        if key not in self._without:
            self._without[key] = read(self.without(field, kind, outcome))
        return self._without[key]

    def _made(self, name: str, kind: str) -> Case:
        policy, now = self.policy, NOW
        edits: list[dict[str, Any]]
        if name == "reference":
            edits = []
        elif name not in self.changes[kind] and name.startswith("no-"):
            field = name[3:].replace("-", "_")
            return Case(read(self.without(field, kind)), policy)
        elif name in self.changes[kind]:
            edits = self.changes[kind][name]
        else:
            pytest.fail(missing(name, kind, load_checks()), pytrace=False)
        one, several = copy.deepcopy(self.references[kind]), []
        for edit in edits:
            if "policy" in edit:
                policy = override(policy, edit["policy"])
            elif "whole" in edit:
                one = copy.deepcopy(edit["whole"])
            elif "now" in edit:
                now = datetime.fromisoformat(edit["now"])
            elif "nodes" in edit:
                several = [self.node(i, changes) for i, changes in enumerate(edit["nodes"])]
            else:
                apply(one, edit)
        return Case(read(*(several or [one])), policy, now)

    def case_of(self, check: Check, name: str) -> Case:
        """The case that a check is shown: what it compares has neighbours."""
        there = self.case(name, check.kind)
        if check.across is None or len(there.facts.documents) > 1:
            return there
        plain = json.loads(there.document.body.to_json())
        return Case(read(plain, *self.neighbours(check.kind)), there.policy, there.now)

    def neighbours(self, kind: str) -> list[dict[str, Any]]:
        one = {"node": self.node, "slurm": self.cluster}[kind]
        return [one(number, []) for number in range(2)]

    def cluster(self, number: int, edits: list[dict[str, Any]]) -> dict[str, Any]:
        document = copy.deepcopy(self.references["slurm"])
        document["name"] = f"cluster-{number}"
        for key in document["slurm"]["keys"]["value"]:
            if key["mark"]["value"]:
                key["mark"]["value"] += f"-{number}"
        for edit in edits:
            apply(document, edit)
        return document

    def node(self, number: int, edits: list[dict[str, Any]]) -> dict[str, Any]:
        document = copy.deepcopy(self.reference)
        document["collected"]["hostname"] = f"node-{number}"
        own = document["node"]["machine"]["value"]
        own["machine_id"]["value"] = f"machine-{number}"
        own["boot_id"]["value"] = f"boot-{number}"
        own["host_keys"]["value"] = [{"fingerprint": f"key-{number}"}]
        own["addresses"]["value"] = [{"address": f"02:00:00:00:01:0{number}"}]
        for edit in edits:
            apply(document, edit)
        return document

    def without(self, field: str, kind: str, outcome: str = "denied") -> dict[str, Any]:
        """The reference of a kind with one of its evidence taken away."""
        document = copy.deepcopy(self.references[kind])
        root = next(root for root in ROOTS[kind] if root not in GIVEN)
        record = document[root]
        if field not in record:
            pytest.fail(missing_evidence(f"{root}.{field}", kind), pytrace=False)
        there = record[field]
        if isinstance(there, dict) and "outcome" in there:
            record[field] = gone(outcome) | ({"at": there["at"]} if "at" in there else {})
        else:
            record[field] = type(there)()
        return document

    @staticmethod
    def gone(outcome: str) -> dict[str, Any]:
        return gone(outcome)

    @staticmethod
    def facts_of(*documents: Mapping[str, Any]) -> Facts:
        return read(*documents)

    @staticmethod
    def document_of(plain: Mapping[str, Any]) -> Document:
        """A document of plain data, checked as a saved one is; its digest is nothing's."""
        return document_of(body_of(plain, BODIES, "fixture"), b"")


def gone(outcome: str) -> dict[str, Any]:
    return {"outcome": outcome, "reason": "taken away by the test", "value": None}


def read(*documents: Mapping[str, Any]) -> Facts:
    found = []
    for one in documents:
        data = json.dumps(one).encode()
        found.append(document_of(decode_body(data, BODIES, "fixture"), data))
    return Facts(found)


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
    """The checks of one node, whoever is beside it."""
    return tuple(c for c in load_checks() if c.kind == "node" and c.across is None)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def sample_kind(monkeypatch):
    roots = {"shelf": Shelf}
    monkeypatch.setitem(documents.BODIES, "sample", ShelfFacts)
    monkeypatch.setitem(documents.ROOTS, "sample", roots)
    names = {f"shelf.{name}" for name in Shelf.__struct_fields__}
    monkeypatch.setattr("securetrain.audit.engine.fields.EVIDENCE", documents.EVIDENCE | names)
    monkeypatch.setattr("securetrain.audit.engine.check.EVIDENCE", documents.EVIDENCE | names)


@pytest.fixture
def run_check(sample_kind, tmp_path, fixtures, now):
    def go(*bodies, subject, evidence, predicate):
        path = tmp_path / "x.yaml"
        path.write_text(CHECK.format(subject=subject, evidence=evidence, predicate=predicate))
        return audit(facts_of(bodies), load_check_file(path), fixtures.policy, now).findings

    return go


@pytest.fixture
def shelf(sample_kind, now):
    def make(path="a", **fields):
        collected = Collected(at=now, hostname="h", collector="test")
        fields.setdefault("auth", ok("munge"))
        ledger = fields.pop("ledger", (read_entry(),))
        return ShelfFacts(collected=collected, ledger=ledger, path=path, shelf=Shelf(**fields))

    return make


def named(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The same node as another machine: its name, and what no two machines share."""
    one = copy.deepcopy(document)
    one["collected"]["hostname"] = name
    machine = one["node"]["machine"]["value"]
    machine["machine_id"]["value"] = f"id-{name}"
    machine["boot_id"]["value"] = f"boot-{name}"
    machine["host_keys"]["value"] = [{"fingerprint": f"key-{name}"}]
    machine["addresses"]["value"] = [{"address": f"02:00:{name}"}]
    return one
