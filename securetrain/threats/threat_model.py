# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Threat models as data: zones, flows across the twelve boundaries, threats and what meets them.

Rules:

1. a model is one YAML document of the safe subset; unknown keys are errors (ST-THRT-001);
2. ids have a prefix by kind, and each stands once;
3. whether what a model refers to exists is judged by `resolve`, not here.

The vocabulary follows the OWASP Threat Model Library schema where it has a word.
"""

from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.audit import CheckId, Refs, read_document
from securetrain.core.vocabulary import Boundary
from securetrain.policy.load import bundled_dir

SCHEMA: Final = "securetrain.threatmodel/v1"
FILE_LIMIT: Final = 1 << 20

Text: TypeAlias = Annotated[str, Meta(min_length=3, max_length=2000)]
Reason: TypeAlias = Annotated[str, Meta(min_length=15, max_length=2000)]
ThreatId: TypeAlias = Annotated[str, Meta(pattern=r"^T-[A-Z0-9]{3,5}-\d{3}\Z")]
Code: TypeAlias = Annotated[str, Meta(pattern=r"^ST-[A-Z]{4}-\d{3}\Z")]


class Stride(StrEnum):
    """The six kinds of threat to a flow."""

    SPOOFING = "S"
    TAMPERING = "T"
    REPUDIATION = "R"
    DISCLOSURE = "I"
    DENIAL = "D"
    ELEVATION = "E"


class Grade(StrEnum):
    """A rough measure."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


class Zone(_Base, frozen=True, kw_only=True):
    """A place whose contents share the same trust."""

    id: Annotated[str, Meta(pattern=r"^z-[a-z0-9-]+\Z")]
    title: Text
    sp800_223: Literal["access", "management", "computing", "storage", "outside"]
    """The zone of NIST SP 800-223 that it is."""


class Crossing(_Base, frozen=True, kw_only=True):
    """A trust boundary, and between which zones it runs."""

    id: Boundary
    between: tuple[str, str]


class Persona(_Base, frozen=True, kw_only=True):
    """A possible attacker."""

    id: Annotated[str, Meta(pattern=r"^p-[a-z0-9-]+\Z")]
    title: Text
    skill: Literal["user", "engineer", "expert"]
    access: Literal["outside", "user", "node", "operator", "supplier"]
    malicious: bool


class Asset(_Base, frozen=True, kw_only=True):
    """A thing worth protecting: confidentiality, integrity, availability."""

    id: Annotated[str, Meta(pattern=r"^a-[a-z0-9-]+\Z")]
    title: Text
    cia: tuple[Grade, Grade, Grade]


class Component(_Base, frozen=True, kw_only=True):
    """A part of the system; ours name the package that is it."""

    id: Annotated[str, Meta(pattern=r"^c-[a-z0-9-]+\Z")]
    title: Text
    zone: str
    code: str = ""


class Flow(_Base, frozen=True, kw_only=True):
    """Something that crosses a boundary, with a decision for each letter of STRIDE.

    A decision is a list of threats, or a sentence that says why there is none.
    """

    id: Annotated[str, Meta(pattern=r"^f-[a-z0-9-]+\Z")]
    source: str = msgspec.field(name="from")
    to: str
    protocol: Text
    data: tuple[str, ...]
    encrypted: bool
    authenticated: Literal["none", "one-way", "mutual"]
    crosses: Boundary
    stride: dict[Stride, Annotated[tuple[ThreatId, ...], Meta(min_length=1)] | Reason]


class Status(StrEnum):
    """The state of a control."""

    ACTIVE = "active"
    PLANNED = "planned"


class Control(_Base, frozen=True, kw_only=True):
    """The answer to a threat: code that refuses, checks that find, drills and tests that prove."""

    id: Annotated[str, Meta(pattern=r"^C-[A-Z0-9]+(-[A-Z0-9]+)*\Z")]
    title: Text
    status: Status
    checks: tuple[CheckId, ...] = ()
    enforced_by: tuple[Annotated[str, Meta(pattern=r"^[a-z_.]+:[A-Za-z_][\w.]*\Z")], ...] = ()
    codes: tuple[Code, ...] = ()
    drills: tuple[str, ...] = ()
    tests: tuple[Annotated[str, Meta(pattern=r"^tests/[\w/]+\.py::\w+(::\w+)?\Z")], ...] = ()


class Residual(_Base, frozen=True, kw_only=True):
    """The risk that is left, its owner, and when it is looked at again."""

    level: Grade
    reason: Reason
    owner: Text
    review_by: date


class Threat(_Base, frozen=True, kw_only=True):
    """One way in which things go wrong."""

    id: ThreatId
    title: Text
    flow: str
    stride: Annotated[tuple[Stride, ...], Meta(min_length=1)]
    persona: str
    assets: Annotated[tuple[str, ...], Meta(min_length=1)]
    refs: Refs
    likelihood: Literal["unlikely", "possible", "likely"]
    impact: Literal["minor", "moderate", "severe"]
    controls: tuple[Control, ...]
    residual: Residual


class OutOfScope(_Base, frozen=True, kw_only=True):
    """A limit of the model, and why; refusal codes that answer no threat stand here too."""

    id: Annotated[str, Meta(pattern=r"^X-[A-Z0-9-]+\Z")]
    reason: Reason
    codes: tuple[Code, ...] = ()


class ThreatModel(_Base, frozen=True, kw_only=True):
    """One model."""

    schema: Literal["securetrain.threatmodel/v1"]
    id: Annotated[str, Meta(pattern=r"^tm-[a-z0-9-]+\Z")]
    title: Text
    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+\Z")]
    zones: tuple[Zone, ...]
    boundaries: tuple[Crossing, ...]
    personas: tuple[Persona, ...]
    assets: tuple[Asset, ...]
    components: tuple[Component, ...]
    flows: tuple[Flow, ...]
    threats: Annotated[tuple[Threat, ...], Meta(min_length=1)]
    out_of_scope: tuple[OutOfScope, ...] = ()


def models_dir() -> Path:
    """The folder of the shipped models."""
    return bundled_dir("threat_models")


def shipped_models() -> tuple[Path, ...]:
    """The shipped models' files."""
    return tuple(sorted(models_dir().glob("*.yaml")))


def locate(name_or_path: str) -> Path:
    """A shipped model by its file's name without .yaml, or a file."""
    shipped = models_dir() / f"{name_or_path}.yaml"
    return shipped if "/" not in name_or_path and shipped.is_file() else Path(name_or_path)


def load_model(path: Path) -> ThreatModel:
    """Load one model.

    Raises:
        AuditError: ST-THRT-001 with the file and the field.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    return read_document(
        path,
        ThreatModel,
        limit=FILE_LIMIT,
        code="ST-THRT-001",
        fix="compare with threat_models/training-cluster.yaml",
    )
