# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The file of a fleet's reference values: read and verified, signed and written whole."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from securetrain.attest.session.floors import require_newest_values
from securetrain.attest.session.inventory_file import open_pages, remove_pages, write_pages
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import AttestationError, SecureTrainError, reason
from securetrain.core.files import locked, read_file, remove_temporaries, write_atomic
from securetrain.evidence import (
    FILE_LIMIT,
    INLINE_NODES,
    EditedNodes,
    PagedNodes,
    PagesRoot,
    ReferenceValues,
    SignedReferenceValues,
    open_reference_values,
    sign_reference_values,
    trusted_keys,
    unusable,
)
from securetrain.identity.keys import Signer


def write_reference_values(path: Path, values: ReferenceValues, key: Signer) -> None:
    """Sign and write atomically, if a verifier will be able to read it; keep the last edition.

    Raises:
        AttestationError: ST-ATTS-018; the edition that is there stands.
        IdentityError: as the key.
        UsageError: ST-USAG-002 or ST-USAG-006 when it cannot be written; the same.
    """
    edited = EditedNodes(values.nodes)
    before = edited.base.root if isinstance(edited.base, PagedNodes) else None
    root = None
    try:
        if len(values.nodes) > INLINE_NODES:
            taken_over = before is not None and not edited.changes
            root = before if taken_over else write_pages(path, values.nodes)
        made = msgspec.structs.replace(
            values, pages=root, nodes={} if root is not None else dict(values.nodes.items())
        )
        envelope = sign_reference_values(made, key)
        if len(envelope) > FILE_LIMIT:
            raise unusable(f"{len(envelope)} bytes, the limit is {FILE_LIMIT}", str(path), "")
        read = open_reference_values(
            envelope, {key.key_id: key.public}, str(path), partial(open_pages, path)
        )
        _check_same(read.values, made, edited)
    except AttestationError as error:
        _tidy(path, before)
        raise AttestationError("ST-ATTS-018", error.what, error.where or str(path)) from error
    except BaseException:
        _tidy(path, before)
        raise
    if path.exists():
        write_atomic(last_edition(path), read_file(path, FILE_LIMIT))
    write_atomic(path, envelope)
    remove_temporaries(last_edition(path))
    remove_pages(path, [one for one in (before, root) if one is not None])


def last_edition(path: Path) -> Path:
    """The file with the edition before the one at `path`."""
    return path.with_name(f"{path.name}.last")


@contextmanager
def editing(path: Path) -> Iterator[None]:
    """One edition of a file at a time: others wait.

    Raises:
        UsageError: ST-USAG-002 when the file's folder cannot be written to.
    """
    with locked(path.with_name(f".{path.name}.lock")):
        yield


def _check_same(read: ReferenceValues, made: ReferenceValues, edited: EditedNodes) -> None:
    """Compare what a verifier would read with what was to be written, node by node."""
    heads = [msgspec.structs.replace(one, nodes={}) for one in (read, made)]
    is_same = heads[0] == heads[1] and len(read.nodes) == len(edited)
    wanted = edited.changes if isinstance(edited.base, PagedNodes) else edited
    left = sum(1 for node in wanted.values() if node is not None)
    for name, node in read.nodes.items():
        if name in wanted:
            is_same = is_same and wanted[name] == node
            left -= 1
    if not is_same or left:
        raise unusable("it would be read as something else", "", "")


def _tidy(path: Path, before: PagesRoot | None) -> None:
    """Leave no pages of an edition that is not to be, beside those of the last one."""
    with suppress(SecureTrainError):
        remove_pages(path, () if before is None else (before,))


def load_reference_values(
    path: Path, signed_by: Sequence[str], now: datetime, state: StateStore
) -> SignedReferenceValues:
    """Read a file and check signature, time, and that it did not go back.

    Args:
        path: the file.
        signed_by: public keys (SPKI, base64) of which one must have signed, from the policy.
        now: the time, timezone-aware.
        state: knows the editions that were accepted before.

    Raises:
        AttestationError: ST-ATTS-009; ST-ATTS-015 or 017 about the state.
    """
    found = read_reference_values(path, signed_by, state)
    found.check_time(now)
    return found


def read_reference_values(
    path: Path, signed_by: Sequence[str], state: StateStore
) -> SignedReferenceValues:
    """Read a file as `load_reference_values` does; it may be over: the next edition comes from it.

    Raises:
        AttestationError: ST-ATTS-009; ST-ATTS-015 or 017 about the state.
    """
    where = str(path)
    keys = trusted_keys(signed_by, where)
    try:
        envelope = read_file(path, FILE_LIMIT)
    except SecureTrainError as error:
        fix = "name the key that signed it, or sign it again"
        raise unusable(reason(error), where, fix) from error
    found = open_reference_values(envelope, keys, where, partial(open_pages, path))
    require_newest_values(state, found)
    return found
