# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that were set aside: intact and signed, and still not to be used.

When a node turns out not to be what it was admitted as, everything made since it last proved itself
is in doubt; when the guard takes a run back, everything made since a rank's offence. Such a
checkpoint is kept, for whoever wants to find out what happened:

1. the directory gets one more file, ``quarantine.json``: a statement about the checkpoint's digest,
   signed by a checkpoint key, which says why. It travels with the directory;
2. the directory gets another name, so that the run can save that step again and nothing that looks
   for the newest checkpoint finds it;
3. loading and verifying refuse a checkpoint that has such a file (ST-CKPT-160), whatever is in it:
   a record that cannot be believed is no reason to believe the checkpoint.

A record can be deleted by whoever can write to the directory. The run's ledger names the checkpoint
too, and a run that resumes by itself goes by its ledger.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.artifacts.lineage.folder import SET_ASIDE, CheckpointFiles
from securetrain.artifacts.statement.statements import DIGEST_NAME, Opened
from securetrain.artifacts.tree.layout import QUARANTINE, Kind, Problem
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.core.errors import SecureTrainError, os_error
from securetrain.core.files import sync_dir, write_atomic
from securetrain.identity import dsse, statement
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot

QUARANTINE_TYPE: Final = f"{statement.PREDICATE_BASE}/quarantine/v1"
RECORD: Final = QUARANTINE
LIMIT: Final = 64 << 10


class Quarantine(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"
):
    """The reason why a checkpoint was set aside."""

    node: Annotated[str, Meta(max_length=64)]
    """The node that is not believed any more."""
    code: Annotated[str, Meta(pattern=r"^ST-[A-Z]{4}-\d{3}\Z")]
    """What it was evicted with."""
    last_good: Annotated[datetime, Meta(tz=True)]
    """When it proved itself for the last time, by the clock of who set the checkpoint aside."""
    epoch: Annotated[int, Meta(ge=0)]
    """The last epoch that the node was a member of."""
    created: Annotated[datetime, Meta(tz=True)]
    """When the checkpoint was set aside."""
    ranks: Annotated[str, Meta(max_length=200)] = ""
    """Ranks whose gradients may be in it, where the guard took the run back; `node` is empty."""
    to: Annotated[int, Meta(ge=-1)] = -1
    """The step to which the run was taken back."""


def set_aside(path: Path, opened: Opened, why: Quarantine, key: PrivateKey) -> Path:
    """Write a checkpoint's record and give its directory another name; returns the new path.

    Args:
        path: The checkpoint's directory.
        opened: Its verified statement.
        why: What the record says.
        key: A checkpoint key.

    Raises:
        UsageError: ST-USAG-002 or 006 on I/O errors.
    """
    subject = statement.Subject(path.name, {DIGEST_NAME: opened.digest})
    write_atomic(path / QUARANTINE, statement.sign([subject], QUARANTINE_TYPE, why, key))
    target = path.with_name(f"{path.name}{SET_ASIDE}{opened.checkpoint.save_id[:12]}")
    try:
        os.rename(path, target)  # noqa: PTH104 - never onto another checkpoint: that is not empty
    except OSError as error:
        raise os_error(error, str(path)) from error
    sync_dir(path.parent)
    return target


def check(root: Path | CheckpointFiles, opened: Opened, trust: TrustRoot) -> list[Problem]:
    """The problem of a checkpoint that was set aside: at most one, ST-CKPT-160.

    Args:
        root: The checkpoint's directory, or what a pack took over of it.
        opened: Its verified statement.
        trust: The keys that may say so.
    """
    storage = LocalStorage(root) if isinstance(root, Path) else root
    if opened.kind is not Kind.CHECKPOINT:
        return []
    try:
        if not storage.has(QUARANTINE):
            return []
    except OSError as error:
        # Whether it was set aside is not known, and so it is not taken for good.
        return [Problem("ST-CKPT-200", str(error), QUARANTINE)]
    return [Problem("ST-CKPT-160", _reason(storage, opened, trust), QUARANTINE)]


def _reason(root: CheckpointFiles, opened: Opened, trust: TrustRoot) -> str:
    try:
        data = root.read(QUARANTINE, LIMIT)
        payload = trust.verify(data, dsse.IN_TOTO, TrustRole.CHECKPOINT, QUARANTINE)
        said = statement.parse(payload, QUARANTINE_TYPE, Quarantine, QUARANTINE)
    except SecureTrainError as error:
        return f"set aside, and the record that says why cannot be believed: {error.what[:500]}"
    if [subject.digest for subject in said.subjects] != [{DIGEST_NAME: opened.digest}]:
        return "set aside by a record about another checkpoint"
    why = said.predicate
    if why.ranks:
        return (
            f"set aside at {why.created.isoformat()}: the gradients of rank {why.ranks} may be in"
            f" it ({why.code}), and the run was taken back to step {why.to}"
        )
    return (
        f"set aside at {why.created.isoformat()}: node {why.node} was evicted ({why.code}), and had"
        f" proved itself for the last time at {why.last_good.isoformat()}"
    )
