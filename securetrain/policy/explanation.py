# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Explain a policy: every field, its value, where that came from, and who enforces it.

The schema itself says what a field means; a field without a description or without somebody who
enforces it is a defect of the schema, and the tests look for it.
"""

import types
import typing
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from securetrain.core.errors import UsageError
from securetrain.policy.load import LoadedPolicy
from securetrain.policy.schema import SECTIONS, Policy

DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One field of a policy."""

    section: str
    boundary: str
    """The trust boundary that the section is about; ``audit`` for the audit itself."""
    field: str
    """Dotted below the section: ``allow_self_asserted.max_nodes``; empty where it has no fields."""
    value: Any
    """Plain data."""
    source: str
    """The file that set it, or ``default``."""
    enforced_by: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """The schema's documentation of one field."""

    path: tuple[str, ...]
    description: str
    enforced_by: tuple[str, ...]


def explain(loaded: LoadedPolicy, section: str | None = None) -> list[Row]:
    """Every field of a loaded policy, in the order of the schema.

    Args:
        loaded: The policy.
        section: One section only; with '-' or '_'.

    Raises:
        UsageError: ST-USAG-001 for a section that does not exist.
    """
    wanted = section.replace("-", "_") if section else None
    if wanted is not None and wanted not in SECTIONS:
        names = ", ".join(name.replace("_", "-") for name in SECTIONS)
        raise UsageError(
            "ST-USAG-001", f"there is no section {section!r}", "", f"name one of {names}"
        )
    plain = msgspec.to_builtins(loaded.policy)
    rows = []
    for doc in documented_fields():
        name, *rest = doc.path
        if wanted not in (None, name):
            continue
        value, there = _value(plain[name], rest)
        if not there:
            continue  # below an optional part that is not set; the part itself has a row
        rows.append(
            Row(
                section=name,
                boundary=name.replace("_", "-"),
                field=".".join(rest),
                value=value,
                source=DEFAULT if value is None else _source(loaded, doc.path),
                enforced_by=doc.enforced_by,
                description=doc.description,
            )
        )
    return rows


def documented_fields() -> list[FieldDoc]:
    """Every field of every section as the schema documents it, nested ones after their parent."""
    hints = typing.get_type_hints(Policy, include_extras=True)
    whole = [_doc(("enforcement",), hints["enforcement"]), *_fields_of(hints["chain"], ("chain",))]
    return [*whole, *(doc for name in SECTIONS for doc in _fields_of(hints[name], (name,)))]


def _fields_of(struct: Any, prefix: tuple[str, ...]) -> list[FieldDoc]:
    docs = []
    for name, hint in typing.get_type_hints(struct, include_extras=True).items():
        docs.append(_doc((*prefix, name), hint))
        for inner in _structs_in(hint):
            docs += _fields_of(inner, (*prefix, name))
    return docs


def _doc(path: tuple[str, ...], hint: Any) -> FieldDoc:
    meta = next(
        (
            m
            for m in getattr(hint, "__metadata__", ())
            if isinstance(m, msgspec.Meta) and m.extra is not None
        ),
        msgspec.Meta(),
    )
    return FieldDoc(
        path=path,
        description=meta.description or "",
        enforced_by=tuple((meta.extra or {}).get("enforced_by", ())),
    )


def _structs_in(hint: Any) -> list[Any]:
    """The struct types of a field: Annotated and Optional opened."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _structs_in(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return [struct for arg in typing.get_args(hint) for struct in _structs_in(arg)]
    return [hint] if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else []


def _value(section: Any, rest: list[str]) -> tuple[Any, bool]:
    value = section
    for name in rest:
        if not isinstance(value, dict):
            return None, False
        value = value[name]
    return value, True


def _source(loaded: LoadedPolicy, path: tuple[str, ...]) -> str:
    """The file that set `path`."""
    return loaded.sources.get(".".join(path), DEFAULT)
