# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Waivers: operators let one checkpoint be used although it is old or was set aside.

A waiver counts when it is signed by the threshold of the trust role ``operator``, names exactly the
digest of the checkpoint and its run, gives a reason, and has not expired. It excuses a rollback and
a quarantine, nothing else: never a signature, never content.

One that somebody gives must count, or its reader is told. Those that lie in the run's directory, or
in a pack of it, are looked for when there is something to excuse: what does not count there is as
if it were not there.
"""

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.lineage.folder import CheckpointFiles
from securetrain.artifacts.statement.reading import read_statement
from securetrain.artifacts.statement.statements import Hex32, Opened, Text, Time, open_statement
from securetrain.artifacts.tree.layout import Kind, Problem
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError, reason
from securetrain.core.files import read_file
from securetrain.identity import dsse
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot

PAYLOAD_TYPE: Final = "application/vnd.securetrain.checkpoint-waiver+json"
FOLDER: Final = "waivers"
"""Of a run's directory (`core.rundir`)."""
LIMIT: Final = 256 << 10
MAX_WAIVERS: Final = 64


class Waiver(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The document that operators sign."""

    run_id: Text
    digest: Hex32
    """The one checkpoint that it is about."""
    reason: Annotated[str, Meta(min_length=1, max_length=4096)]
    issued: Time
    expires: Time


def sign_waiver(waiver: Waiver, operators: Sequence[Signer]) -> bytes:
    """The envelope; further operators add theirs with `dsse.add_signatures`."""
    return dsse.sign(canonical.encode(waiver), PAYLOAD_TYPE, operators, keyless=True)


def waive(
    path: Path,
    trust: TrustRoot,
    operators: Sequence[Signer],
    term: tuple[datetime, datetime],
    why: str,
) -> tuple[Waiver, bytes]:
    """Sign a new waiver for the checkpoint at a path, whose statement verifies.

    Args:
        path: The checkpoint.
        trust: Names the keys that sign checkpoints.
        operators: The first who sign.
        term: From when, and until when it counts.
        why: The reason, for later readers.
    """
    run_id, digest = _named(path, trust)
    issued, expires = (time.replace(microsecond=0) for time in term)
    waiver = Waiver(run_id=run_id, digest=digest, reason=why, issued=issued, expires=expires)
    return waiver, sign_waiver(waiver, operators)


def waive_too(
    path: Path, trust: TrustRoot, operators: Sequence[Signer], file: Path
) -> tuple[Waiver, bytes]:
    """Sign what other operators have signed for the checkpoint at a path.

    Raises:
        UsageError: ST-USAG-001 when it is about another one.
    """
    before = read_file(file, LIMIT)
    waiver = read_unverified(before)
    if (waiver.run_id, waiver.digest) != _named(path, trust):
        raise UsageError(
            "ST-USAG-001",
            f"the waiver is about {waiver.digest[:16]} of run {waiver.run_id}",
            str(file),
            "name the checkpoint that it is about",
        )
    return waiver, dsse.add_signatures(before, PAYLOAD_TYPE, operators)


def _named(path: Path, trust: TrustRoot) -> tuple[str, str]:
    """Run and digest of a checkpoint whose statement verifies."""
    kind = Kind.CHECKPOINT
    opened = open_statement(read_statement(path, kind), kind, trust, str(path))
    return opened.checkpoint.run_id, opened.digest


def open_waiver(data: bytes, trust: TrustRoot, now: datetime) -> Waiver:
    """Read a waiver that counts.

    Raises:
        IntegrityError: ST-CKPT-123.
    """
    try:
        payload = trust.verify(data, PAYLOAD_TYPE, TrustRole.OPERATOR, "the waiver")
        waiver = canonical.decode(payload.data, Waiver, limit=LIMIT, canonical=True)
    except SecureTrainError as error:
        raise _refused(reason(error)) from error
    if not waiver.issued <= now < waiver.expires:
        raise _refused(f"it counts from {waiver.issued} to {waiver.expires}, and it is {now}")
    return waiver


def read_waivers(folder: Path) -> tuple[bytes, ...]:
    """The waivers in a folder, which nobody has judged yet; none when there is no folder.

    Raises:
        UsageError: ST-USAG-002 when one cannot be read, or is too large.
        IntegrityError: ST-CKPT-123 when there are too many.
    """
    found = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if len(found) > MAX_WAIVERS:
        raise _refused(f"{len(found)} files in {folder}, the limit is {MAX_WAIVERS}")
    return tuple(read_file(path, LIMIT) for path in found)


def read_unverified(data: bytes) -> Waiver:
    """Read a waiver for an operator who is asked to sign it too. It proves nothing yet.

    Raises:
        IntegrityError: ST-CKPT-123 when it is malformed.
    """
    try:
        envelope = canonical.decode(data, dsse.Envelope, limit=LIMIT, canonical=True)
        payload = base64.b64decode(envelope.payload, validate=True)
        return canonical.decode(payload, Waiver, limit=LIMIT, canonical=True)
    except (UsageError, ValueError) as error:
        raise _refused(f"malformed: {reason(error)}") from error


def excused(
    envelopes: Sequence[bytes], trust: TrustRoot, run_id: str, now: datetime
) -> frozenset[str]:
    """The digests of the run's checkpoints that waivers excuse.

    Raises:
        IntegrityError: ST-CKPT-123: a waiver that does not count is never passed over.
    """
    waivers = [open_waiver(data, trust, now) for data in envelopes]
    return frozenset(waiver.digest for waiver in waivers if waiver.run_id == run_id)


def lying(storage: CheckpointFiles) -> Iterator[bytes]:
    """The files that may be waivers of a checkpoint's run, unverified: as they lie in the folder
    `FOLDER` of its directory, or in a pack.
    """
    run = storage.above().above()
    with suppress(OSError):  # a folder that cannot be listed excuses nothing
        for name in sorted(run.names(FOLDER))[:MAX_WAIVERS]:
            with suppress(OSError, UsageError):
                yield run.read(name, LIMIT)


def excuse(storage: CheckpointFiles, opened: Opened, trust: TrustRoot, now: datetime) -> bool:
    """Tell whether one of them excuses a checkpoint."""
    for data in lying(storage):
        with suppress(IntegrityError):
            if opened.digest in excused([data], trust, opened.checkpoint.run_id, now):
                return True
    return False


def _refused(what: str) -> Exception:
    return Problem("ST-CKPT-123", what).error("the waiver")
