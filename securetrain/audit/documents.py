# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts: a set of documents, each about one asset and of one kind.

Rules:

1. a document is about one asset, as in ``node:gpu-17``; no two are about the same;
2. its kind says which roots a check may address in it: the records of its body (`BODIES`);
   ``policy`` is there for each kind;
3. a check names one kind, by its subject, and runs once for each document of that kind;
4. a saved document says its kind, and is read as that and nothing else;
5. a section or a reading says itself how it was read. Any other evidence was read only where the
   ledger of the document says so, and is open where an entry that was not understood bears on it.
"""

import hashlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from securetrain.audit.facts import (
    Body,
    Collected,
    End,
    Entry,
    Fact,
    Location,
    Observed,
    Outcome,
    Reading,
    Section,
)
from securetrain.audit.subjects.kubernetes.facts.cluster import ClusterFacts
from securetrain.audit.subjects.kubernetes.facts.workload import WorkloadFacts
from securetrain.audit.subjects.launches.facts import LaunchFacts
from securetrain.audit.subjects.node.facts.node import NodeFacts
from securetrain.audit.subjects.run.facts import RunFacts
from securetrain.audit.subjects.slurm.facts import SlurmFacts
from securetrain.audit.subjects.storage.facts import StorageFacts
from securetrain.core.errors import AuditError
from securetrain.policy.schema import Policy

BODIES: Final[dict[str, type[Body]]] = {
    str(body.__struct_config__.tag): body
    for body in (
        NodeFacts,
        StorageFacts,
        WorkloadFacts,
        ClusterFacts,
        LaunchFacts,
        SlurmFacts,
        RunFacts,
    )
}
"""The facts of each kind; its roots are the records in there."""

ROOTS: Final[dict[str, Mapping[str, type[Fact]]]] = {
    kind: {
        name: hint
        for name, hint in typing.get_type_hints(body).items()
        if isinstance(hint, type) and issubclass(hint, Fact) and hint is not Collected
    }
    for kind, body in BODIES.items()
}
"""The roots of each kind, and the type of each."""

GIVEN: Final = frozenset({"job"})
"""Roots that every document of their kind has whole, and which are no evidence."""

EVIDENCE: Final = frozenset(
    f"{root}.{field}"
    for roots in ROOTS.values()
    for root, record in roots.items()
    if root not in GIVEN
    for field in record.__struct_fields__
)
"""The names that a check may list under ``evidence``: ``node.listeners``, ``workload.pods``."""


SAYS_ITSELF: Final = frozenset(
    f"{root}.{field}"
    for roots in ROOTS.values()
    for root, record in roots.items()
    for field, hint in typing.get_type_hints(record).items()
    if typing.get_origin(hint) in (Section, Reading)
)
"""Evidence whose type holds how it was read (rule 5)."""

EVERYWHERE: Final[Mapping[str, type]] = {"policy": Policy}
"""Roots that are there for every kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The facts about one asset."""

    asset: str
    kind: str
    """A key of `BODIES`."""
    at: datetime
    """The time of their collection."""
    digest: str
    """SHA-256 of the document's bytes, as they were read or would be saved."""
    body: Body

    def unread(self, evidence: Iterable[str]) -> Entry | None:
        """The entry that keeps some of this evidence from counting as read; None: all was read."""
        ledger = self.body.ledger
        read = {name for entry in ledger if entry.end is End.READ for name in entry.bears_on}
        for name in evidence:
            root = name.partition(".")[0]
            for entry in ledger:
                if entry.end is End.NOT_UNDERSTOOD and not {name, root}.isdisjoint(entry.bears_on):
                    return entry
            if name not in SAYS_ITSELF and read.isdisjoint((name, root)):
                why = f"{name}: nothing says that it was read"
                at = Location(path=self.asset.partition(":")[2])
                return Entry(
                    unit="section", at=at, end=End.NOT_UNDERSTOOD, why=why, bears_on=(name,)
                )
        return None

    @property
    def holds_nothing(self) -> bool:
        """True where its reader was given folders, and found nothing in them to read."""
        read = {entry.unit for entry in self.body.ledger if entry.end is End.READ}
        return read == {"folder"}

    def denied(self, evidence: Iterable[str]) -> bool:
        """Return whether some of this evidence may not be read, and nothing else is wrong in it."""
        records = [
            getattr(self.root(root), name)
            for root, _, name in (one.partition(".") for one in evidence)
        ]
        ends = {one.outcome for record in records for one in _observed(record)}
        return Outcome.DENIED in ends and ends <= {Outcome.OK, Outcome.ABSENT, Outcome.DENIED}

    @property
    def roots(self) -> Mapping[str, type[Fact]]:
        """The roots of its kind."""
        return ROOTS[self.kind]

    def root(self, name: str) -> Any:
        """The record at one of the roots of its kind."""
        return getattr(self.body, name)


def _observed(value: Any) -> Iterator[Observed]:
    """Everything below a value that says how it was read."""
    if isinstance(value, Observed):
        yield value
    if isinstance(value, Fact):
        value = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str):
        for one in value:
            yield from _observed(one)


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that does not count as facts about anything, and why."""

    source: str
    reason: str


class Facts:
    """A set of documents, and what is known of those that should be in it.

    Raises:
        AuditError: ST-AUDT-002 when two are about the same asset.
    """

    expected: frozenset[str] = frozenset()
    """The assets of the inventory; none where nobody gave one."""
    notes: tuple[str, ...] = ()
    """How far the documents can be relied on."""

    def __init__(self, documents: Iterable[Document]) -> None:
        """Take documents that are at hand."""
        self._documents = tuple(sorted(documents, key=lambda document: document.asset))
        list(self)

    def __iter__(self) -> Iterator[Document | Refused]:
        """Yield the documents, and what is none, in the order in which they are read."""
        seen: set[str] = set()
        for one in self._read():
            if isinstance(one, Document):
                if one.asset in seen:
                    raise twice(one.asset)
                seen.add(one.asset)
            yield one

    def _read(self) -> Iterable[Document | Refused]:
        return self._documents

    @property
    def count(self) -> int:
        """The number of documents, and of what is none."""
        return len(self._documents)

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, in the order of their assets."""
        found = (one for one in self if isinstance(one, Document))
        return tuple(sorted(found, key=lambda document: document.asset))


def facts_of(bodies: Iterable[Body]) -> Facts:
    """The set of these documents."""
    return Facts(document_of(body, body.to_json()) for body in bodies)


def document_of(body: Body, data: bytes) -> Document:
    """The document of a body and its bytes."""
    return Document(
        asset=body.asset,
        kind=str(body.__struct_config__.tag),
        at=body.collected.at,
        digest=hashlib.sha256(data).hexdigest(),
        body=body,
    )


def twice(asset: str) -> AuditError:
    """The error for facts that hide each other."""
    if asset.startswith("slurm:"):
        what = "two clusters have one name (ClusterName), or one cluster was given twice"
        return AuditError("ST-AUDT-002", what, asset, "audit one of them by itself")
    return AuditError("ST-AUDT-002", "two documents are about one asset", asset)
