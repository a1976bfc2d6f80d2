# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Everything of a fleet that ends: what `fleet status` lists, and what a coordinator warns of."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from securetrain.attest.session.cache import Index
from securetrain.evidence import ReferenceValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Something that ends, and then somebody is refused."""

    kind: str
    """``reference values``, ``accepted value``, ``cache``, ``collateral``, ``certificate``,
    ``token``, ``lease``."""
    name: str
    ends: datetime


def endings_of_values(values: ReferenceValues, name: str, now: datetime) -> Iterator[Ending]:
    """The end of reference values, and of each entry that they accept until a day to come."""
    yield Ending(kind="reference values", name=name, ends=values.expires.astimezone(UTC))
    for group, entries in values.until.items():
        for entry, ends in entries.items():
            if ends > now:
                of = f"{group}: {entry}" if group else entry
                yield Ending(kind="accepted value", name=of, ends=ends.astimezone(UTC))


def endings_of_cache(index: Index, folder: Path) -> Iterator[Ending]:
    """The ends of a cache of collateral, and of each document in it that has one of its own."""
    yield Ending(kind="cache", name=str(folder), ends=index.expires.astimezone(UTC))
    for one in index.entries:
        if one.expires is not None:
            ends = one.expires.astimezone(UTC)
            yield Ending(kind="collateral", name=f"{one.kind} {one.id}", ends=ends)
