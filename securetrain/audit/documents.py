# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts: a set of documents, each about one asset and of one kind.

Rules:

1. a document is about one asset, ``KIND:NAME`` as in ``node:gpu-17``; no two are about the same;
2. its kind says which roots a check may address in it (`ROOTS`); ``policy`` is there for each kind;
3. a check names one kind, by its subject, and runs once for each document of that kind.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from securetrain.audit.facts import FACTS_LIMIT, Job, Node, NodeFacts, decode_facts
from securetrain.core.errors import AuditError
from securetrain.core.files import read_file
from securetrain.policy.schema import Policy

MAX_DOCUMENTS: Final = 10_000


class Kind(StrEnum):
    """The kind of an asset."""

    NODE = "node"


ROOTS: Final[Mapping[Kind, Mapping[str, type]]] = {Kind.NODE: {"node": Node, "job": Job}}
"""The roots of each kind, and the type of each."""

EVERYWHERE: Final[Mapping[str, type]] = {"policy": Policy}
"""Roots that are there for every kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The facts about one asset."""

    asset: str
    kind: str
    """One of `Kind`."""
    at: datetime
    """The time of their collection."""
    digest: str
    """SHA-256 of the document's bytes, as they were read or would be saved."""
    body: NodeFacts

    def root(self, name: str) -> Any:
        """The record at one of the roots of its kind."""
        return getattr(self.body, name)


@dataclass(frozen=True, slots=True)
class Facts:
    """Documents in the order of their assets.

    Raises:
        AuditError: ST-AUDT-002 when two are about the same asset.
    """

    documents: tuple[Document, ...]

    def __post_init__(self) -> None:
        """Rule 1."""
        ordered = sorted(self.documents, key=lambda document: document.asset)
        for one, other in pairwise(ordered):
            if one.asset == other.asset:
                raise AuditError("ST-AUDT-002", "two documents are about one asset", one.asset)
        object.__setattr__(self, "documents", tuple(ordered))

    def of(self, kind: Kind) -> Iterator[Document]:
        """Yield the documents of a kind."""
        return (document for document in self.documents if document.kind == kind)


def facts_of(nodes: Iterable[NodeFacts]) -> Facts:
    """The set of these documents."""
    return Facts(tuple(_document(node, node.to_json()) for node in nodes))


def _document(node: NodeFacts, data: bytes) -> Document:
    return Document(
        asset=node.asset,
        kind=Kind.NODE,
        at=node.collected.at,
        digest=hashlib.sha256(data).hexdigest(),
        body=node,
    )


def read_facts(path: Path) -> Facts:
    """Read a facts document, or every ``*.json`` of a folder.

    Raises:
        AuditError: ST-AUDT-002 when one is malformed, two are about one asset, or there is none.
        UsageError: ST-USAG-002 when one cannot be read.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or len(files) > MAX_DOCUMENTS:
        what = f"{len(files)} facts documents, expected 1 to {MAX_DOCUMENTS}"
        raise AuditError("ST-AUDT-002", what, str(path))
    return Facts(tuple(_read(file) for file in files))


def _read(file: Path) -> Document:
    data = read_file(file, FACTS_LIMIT)
    return _document(decode_facts(data, str(file)), data)
