# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The difference between two editions of reference values, field by field and node by node.

Pages that both editions have are not read: of a fleet of 100,000 nodes only what changed is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.attest.session.inventory_file import open_pages
from securetrain.attest.session.reference_file import last_edition
from securetrain.core.errors import UsageError
from securetrain.core.files import read_file
from securetrain.evidence import (
    FILE_LIMIT,
    EnrolledNode,
    PagedNodes,
    ReferenceValues,
    open_reference_values,
    trusted_keys,
)

_NOT_COMPARED: Final = ("nodes", "pages")


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of what changed."""

    where: str
    """The field, as in the document."""
    old: str
    """The value that went; empty for one that came."""
    new: str
    """The value that came; empty for one that went."""


def compare_files(old: Path | None, new: Path, signed_by: Sequence[str]) -> Iterator[Difference]:
    """Compare two files of reference values, which may be over: nobody is judged by them.

    Args:
        old: one file; None for the edition before `new`, which the writer keeps.
        new: the other.
        signed_by: public keys (SPKI, base64) of which one must have signed each of them.

    Raises:
        AttestationError: ST-ATTS-009.
        UsageError: ST-USAG-002 when one is not there.
    """
    before = last_edition(new) if old is None else old
    if old is None and not before.exists():
        raise UsageError(
            "ST-USAG-002",
            "there is no edition before it",
            str(before),
            "name two files, or change the values first",
        )
    pages_of = new if old is None else old
    return compare(_read(before, pages_of, signed_by), _read(new, new, signed_by))


def compare(old: ReferenceValues, new: ReferenceValues) -> Iterator[Difference]:
    """Compare two editions: what went, what came, what is another now."""
    heads = [msgspec.to_builtins(msgspec.structs.replace(one, nodes={})) for one in (old, new)]
    for name in heads[1]:
        if name not in _NOT_COMPARED:
            yield from _compared(name, heads[0][name], heads[1][name])
    before, after = _unshared(old.nodes, new.nodes)
    for name in sorted({*before, *after}):
        pair = [msgspec.to_builtins(side.get(name)) for side in (before, after)]
        if pair[0] is None or pair[1] is None:
            shown = ["" if one is None else _text(one) for one in pair]
            yield Difference(f"nodes.{name}", *shown)
        else:
            yield from _compared(f"nodes.{name}", *pair)


def _read(file: Path, pages_of: Path, signed_by: Sequence[str]) -> ReferenceValues:
    keys = trusted_keys(signed_by, str(file))
    data = read_file(file, FILE_LIMIT)
    return open_reference_values(data, keys, str(file), partial(open_pages, pages_of)).values


def _unshared(
    old: Mapping[str, EnrolledNode], new: Mapping[str, EnrolledNode]
) -> tuple[dict[str, EnrolledNode], dict[str, EnrolledNode]]:
    """Nodes of pages that only one of the two has."""
    pages = [
        {page.sha256 for page in side.table} if isinstance(side, PagedNodes) else set()
        for side in (old, new)
    ]
    shared = pages[0] & pages[1]
    return _of_pages(old, shared), _of_pages(new, shared)


def _of_pages(nodes: Mapping[str, EnrolledNode], skipped: set[str]) -> dict[str, EnrolledNode]:
    if not isinstance(nodes, PagedNodes):
        return dict(nodes.items())
    wanted = (i for i, page in enumerate(nodes.table) if page.sha256 not in skipped)
    return {name: node for index in wanted for name, node in nodes.page(index).items()}


def _compared(where: str, old: Any, new: Any) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from _compared(f"{where}.{name}", old.get(name), new.get(name))
    elif isinstance(old, list | tuple | None) and isinstance(new, list | tuple | None):
        before, after = ([_text(one) for one in side or ()] for side in (old, new))
        known, kept = set(before), set(after)
        yield from (Difference(where, one, "") for one in before if one not in kept)
        yield from (Difference(where, "", one) for one in after if one not in known)
    elif old != new:
        yield Difference(where, *("" if one is None else _text(one) for one in (old, new)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
