# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Advisories: known faults of packages and programs, in a dated file of their own.

::

    apiVersion: securetrain.dev/policy/v1
    kind: Advisories
    metadata: {id: training, version: 1.0.0}
    dated: 2026-11-19
    items:
    - id: CVE-2025-32434
      package: torch
      affected: "<2.6.0"
      summary: ...
      source: https://...
      confirmed: 2026-11-23

Rules:

1. ``affected`` is a range of versions (PEP 440), or several of which one is enough; ``package`` is
   the normalised name of a Python distribution, ``product`` that of a program;
2. a version that is none matches nothing and clears nothing: it is unknown;
3. a list that is too old clears nothing either. What it matches still fails;
4. ``source`` is where the ranges come from, and ``confirmed`` the day on which somebody compared
   them with it. One without that day is matched like any other, and the finding says so.
"""

from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from securetrain.audit.parser.files import read_document
from securetrain.core.errors import AuditError
from securetrain.policy.load import bundled_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIMIT: Final = 4 << 20
MAX_ITEMS: Final = 20_000


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Strict keys."""


_Name: TypeAlias = Annotated[str, Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,126}[a-z0-9])?)?\Z")]
_Range: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
_Listed: TypeAlias = "tuple[Advisory, tuple[SpecifierSet, ...]]"


class Advisory(_Base, frozen=True, kw_only=True):
    """One known fault."""

    id: Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9-]{2,63}\Z")]
    package: _Name = ""
    """A Python distribution."""
    product: _Name = ""
    """A program that is none; one of the two is given."""
    affected: _Range | Annotated[tuple[_Range, ...], Meta(min_length=1, max_length=32)]
    summary: Annotated[str, Meta(min_length=10, max_length=300)]
    source: Annotated[str, Meta(max_length=300)] = ""
    """The record that says which versions are affected."""
    confirmed: date | None = None
    """The day on which that record was last compared with this entry."""

    @property
    def ranges(self) -> tuple[str, ...]:
        """Ranges of versions, each of which is affected."""
        return (self.affected,) if isinstance(self.affected, str) else self.affected

    def __str__(self) -> str:
        """Give one sentence for people."""
        unsure = "" if self.confirmed else " (not compared with its source)"
        return f"{self.id} ({' or '.join(self.ranges)}): {self.summary}{unsure}"


class _Metadata(_Base, frozen=True, kw_only=True):
    id: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}\Z")]
    version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+\Z")]


class _File(_Base, frozen=True, kw_only=True):
    apiVersion: Literal["securetrain.dev/policy/v1"]  # noqa: N815 - the field's name in the file
    kind: Literal["Advisories"]
    metadata: _Metadata
    dated: date
    items: Annotated[tuple[Advisory, ...], Meta(min_length=1, max_length=MAX_ITEMS)]


@dataclass(frozen=True, slots=True)
class Advisories:
    """The advisories of one file, by what they are about."""

    dated: date
    by_package: "Mapping[str, Sequence[_Listed]]"
    by_product: "Mapping[str, Sequence[_Listed]]"

    @classmethod
    def read(cls, path: Path) -> "Advisories":
        """Read a file of advisories.

        Raises:
            AuditError: ST-AUDT-005 naming the file and the item.
            UsageError: ST-USAG-002 when it cannot be read.
        """
        fix = (
            "kind: Advisories with a date and items of id, package or product, affected and summary"
        )
        file = read_document(path, _File, limit=LIMIT, code="ST-AUDT-005", fix=fix)
        packages: dict[str, list[_Listed]] = {}
        products: dict[str, list[_Listed]] = {}
        for item in file.items:
            where = f"{path}: {item.id}"
            try:
                ranges = tuple(map(SpecifierSet, item.ranges))
            except InvalidSpecifier as error:
                raise AuditError("ST-AUDT-005", str(error), where, fix) from error
            if bool(item.package) == bool(item.product):
                raise AuditError(
                    "ST-AUDT-005", "neither or both of package and product", where, fix
                )
            named = packages if item.package else products
            named.setdefault(item.package or item.product, []).append((item, ranges))
        return cls(file.dated, packages, products)

    def listed(self) -> "dict[str, Any]":
        """All of them, as plain data in their order."""
        both = (self.by_package, self.by_product)
        items = [item for named in both for some in named.values() for item, _ in some]
        plain = msgspec.to_builtins(sorted(items, key=lambda item: item.id))
        return {"dated": self.dated.isoformat(), "items": plain}

    def about(self, package: str, version: str) -> list[Advisory]:
        """The advisories that a version of a package is affected by.

        Raises:
            InvalidVersion: when it is none.
        """
        return _matching(self.by_package.get(package, ()), version)

    def about_product(self, product: str, version: str) -> list[Advisory]:
        """The advisories that a version of a program is affected by.

        Raises:
            InvalidVersion: when it is none.
        """
        return _matching(self.by_product.get(product, ()), version)


def _matching(listed: "Sequence[_Listed]", version: str) -> list[Advisory]:
    found = Version(version)
    return [one for one, ranges in listed if any(_affects(range_, found) for range_ in ranges)]


def _affects(range_: SpecifierSet, version: Version) -> bool:
    """Return whether a version is in a range.

    PEP 440 takes 2.0rc1 out of ``<2.0``; what is wrong up to 2.0 is wrong in it.
    """
    return all(
        version < Version(one.version) if one.operator == "<" else one.contains(version, True)
        for one in range_
    )


@cache
def shipped_advisories() -> Advisories:
    """The list that comes with this release."""
    return Advisories.read(bundled_dir("policies") / "advisories" / "training.yaml")
