# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read the weights and rows that a pack holds: nothing is handed out that was not signed.

Rules:

1. what is held belongs to an artifact whose statement verified, and each artifact is held once;
2. a whole artifact has exactly the files that its statement leads to, and each leads to its signed
   root or digest; of rows, exactly the leaves are there that the records of those steps lead to;
3. sizes are compared before bytes are read, and bytes are read a piece at a time;
4. a directory is written under another name, and appears when every byte of it was verified. Of
   rows, its files have their signed sizes, and holes where nothing is held: a reader of signed
   datasets refuses those.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from securetrain.artifacts import STATEMENT, Kind
from securetrain.artifacts.statement.statements import Opened
from securetrain.chain import documents, held
from securetrain.chain.container import Pack
from securetrain.core.errors import IntegrityError, UsageError, os_error
from securetrain.core.files import staged_dir
from securetrain.core.hashtree import TreeParams, TreeWriter

STATEMENT_LIMIT: Final = 64 << 20
MALFORMED: Final = "ST-PACK-101"
Rows = Callable[[tuple[int, int]], Mapping[str, set[int]]]
"""The leaves that the rows of some steps touch, by the records of those steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The bytes of one artifact that a pack holds, all of them verified."""

    opened: Opened
    envelope: str
    """SHA-256 of its signed statement, as it lies in the pack."""
    held: held.Held
    num_bytes: int

    @property
    def name(self) -> str:
        """The directory's name among all that a pack holds."""
        if self.opened.kind is Kind.DATASET:
            return "dataset"
        return f"step-{self.opened.checkpoint.step:08d}"

    @property
    def steps(self) -> tuple[int, int] | None:
        """The steps whose rows these are; None of a whole artifact."""
        return self.held.steps


def check(pack: Pack, digest: str, envelope: str, opened: Opened, rows: Rows) -> Holding:
    """Verify what a pack holds of an artifact, byte by byte.

    Args:
        pack: The pack.
        digest: The `Held` document.
        envelope: The artifact's signed statement.
        opened: The same, verified.
        rows: Says which leaves have to be there.

    Raises:
        IntegrityError: ST-PACK-101 malformed, or of another artifact; ST-PACK-131 other bytes than
            were signed; ST-PACK-140 or ST-PACK-142 something is not there.
    """
    found = _listed(pack, digest, opened)
    count = 0
    for one in _verified(pack, found, opened, rows):
        count += one
    return Holding(opened=opened, envelope=envelope, held=found, num_bytes=count)


def unpack(pack: Pack, holding: Holding, folder: Path) -> Path:
    """Write what a pack holds of an artifact as the signed directory that it was; every byte is
    verified once more while it is written.

    Args:
        pack: The pack that the holding was found in.
        holding: What `check` gave.
        folder: The new directory.

    Returns:
        The directory.

    Raises:
        IntegrityError: As `check`; the pack was changed since.
        UsageError: ST-USAG-002, 005 or 006 when it cannot be written, or is there.
    """
    with staged_dir(folder) as staging:
        (staging / STATEMENT).write_bytes(pack.read(holding.envelope, STATEMENT_LIMIT))
        if holding.held.steps is None:
            _write_whole(pack, holding, staging)
        else:
            _write_rows(pack, holding, staging)
    return folder


def _listed(pack: Pack, digest: str, opened: Opened) -> held.Held:
    data = pack.read(digest, documents.DOCUMENT_LIMIT)
    try:
        found = documents.decode(data, held.Held)
    except IntegrityError as error:
        raise _malformed(pack, error.what) from error
    names = [one.name for one in found.files]
    if found.artifact != opened.digest:
        raise _malformed(pack, f"bytes of {found.artifact[:16]} as those of {opened.digest[:16]}")
    if names != sorted(set(names)):
        raise _malformed(pack, "a file that is held twice, or out of order")
    if found.steps is not None and (opened.kind is not Kind.DATASET or not _is_range(found.steps)):
        raise _malformed(pack, f"rows of the steps {found.steps[0]} to {found.steps[1]}")
    for one in found.files:
        if bool(one.leaves) != (found.steps is not None) or bool(one.leaves) != bool(one.table):
            raise _malformed(pack, f"{one.name}: neither whole nor a part")
    return found


def _is_range(steps: tuple[int, int]) -> bool:
    return 1 <= steps[0] <= steps[1]


def _verified(pack: Pack, found: held.Held, opened: Opened, rows: Rows) -> Iterator[int]:
    """The number of bytes of each file, once it is verified."""
    files = {one.name: one for one in found.files}
    if found.steps is None:
        signed = held.signed_files(opened)
        _complete(pack, files.keys(), signed.keys())
        for name, one in files.items():
            size, digest = signed[name]
            yield _pour(pack, one, size, digest, None)
        return
    try:
        wanted = rows(found.steps)
    except UsageError as error:
        raise _malformed(pack, error.what) from error
    _complete(pack, files.keys(), wanted.keys())
    for name, one in files.items():
        if one.leaves != held.runs_of(wanted[name]):
            raise _incomplete(pack, f"{name}: other leaves than the rows of these steps are in")
        way = _way_up(opened, one)
        for _ in _leaves(pack, one, way):
            pass
        yield way.data_size


def _complete(pack: Pack, has: AbstractSet[str], wanted: AbstractSet[str]) -> None:
    if gone := wanted - has:
        raise _incomplete(pack, f"{min(gone)} is not there, and {len(gone) - 1} more")
    if extra := has - wanted:
        raise _malformed(pack, f"{min(extra)}, which nothing that was signed leads to")


def _pour(
    pack: Pack,
    one: held.HeldFile,
    size: int,
    signed: held.Check,
    sink: Callable[[bytes], object] | None,
) -> int:
    """Read a whole file against its signed root or digest."""
    _sized(pack, one.data, size, one.name)
    params = signed[0] if isinstance(signed, tuple) else TreeParams()
    tree, state = TreeWriter(params), sha256()
    for chunk in pack.chunks(one.data):
        if isinstance(signed, tuple):
            tree.update(chunk)
        else:
            state.update(chunk)
        if sink is not None:
            sink(chunk)
    if isinstance(signed, tuple):
        same = tree.finish().root.hex() == signed[1]
    else:
        same = state.hexdigest() == signed
    if not same:
        raise _altered(pack, one.name)
    return size


def _way_up(opened: Opened, one: held.HeldFile) -> held.WayUp:
    entry = next(file for file in opened.predicate.files if file.name == one.name)
    params = opened.predicate.tree.params
    return held.WayUp(params=params, size=entry.size, root=entry.root, runs=one.leaves)


def _leaves(
    pack: Pack,
    one: held.HeldFile,
    way: held.WayUp,
    keep: Callable[[int, bytes], object] | None = None,
) -> Iterator[tuple[int, bytes]]:
    assert one.table is not None
    _sized(pack, one.table, way.table_size, one.name)
    _sized(pack, one.data, way.data_size, one.name)
    table, data = (_reader(pack, digest) for digest in (one.table, one.data))
    yield from way.leaves(table, data, _altered(pack, one.name), keep=keep)


def _reader(pack: Pack, digest: str) -> held.Read:
    return lambda at, length: b"".join(pack.chunks(digest, at, length))


def _sized(pack: Pack, digest: str, size: int, name: str) -> None:
    """Rule 3."""
    described = pack.layers.get(digest)
    if described is None:
        raise IntegrityError(
            "ST-PACK-140", f"no document {digest[:16]}... of {name}", str(pack.path)
        )
    if described.size != size:
        raise _altered(pack, name, f"{described.size} bytes, {size} were signed")


def _write_whole(pack: Pack, holding: Holding, staging: Path) -> None:
    opened = holding.opened
    signed, said = held.signed_files(opened), opened.predicate
    data = {file.name for file in said.files}
    for one in holding.held.files:
        size, digest = signed[one.name]
        tree = TreeWriter(said.tree.params)
        path = staging / one.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:

            def sink(chunk: bytes) -> None:
                file.write(chunk)
                tree.update(chunk)  # noqa: B023

            _pour(pack, one, size, digest, sink)
        if one.name in data:
            table = staging / opened.kind.table_of(one.name)
            table.parent.mkdir(parents=True, exist_ok=True)
            made = tree.finish()
            above = held.hashes_of_pages(made) if opened.kind is Kind.DATASET else b""
            table.write_bytes(above + made.leaves)


def _write_rows(pack: Pack, holding: Holding, staging: Path) -> None:
    opened = holding.opened
    params = opened.predicate.tree.params
    files = {one.name: one for one in holding.held.files}
    try:
        for entry in opened.predicate.files:
            path, table = staging / entry.name, staging / opened.kind.table_of(entry.name)
            for place, size in (
                (path, entry.size),
                (table, opened.kind.table_size(params, entry.size)),
            ):
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("xb") as file:
                    file.truncate(size)
            one = files.get(entry.name)
            if one is None:
                continue
            with path.open("r+b") as data, table.open("r+b") as above:
                way = _way_up(opened, one)
                keep = lambda at, part: os.pwrite(above.fileno(), part, at)  # noqa: E731
                for leaf, part in _leaves(pack, one, way, keep):
                    os.pwrite(data.fileno(), part, leaf * params.leaf_size)
    except OSError as error:
        raise os_error(error, str(staging)) from error


def _malformed(pack: Pack, what: str) -> IntegrityError:
    return IntegrityError(MALFORMED, what, str(pack.path))


def _incomplete(pack: Pack, what: str) -> IntegrityError:
    return IntegrityError("ST-PACK-142", what, str(pack.path))


def _altered(
    pack: Pack, name: str, what: str = "its bytes are not what was signed"
) -> IntegrityError:
    return IntegrityError("ST-PACK-131", f"{name}: {what}", str(pack.path))
