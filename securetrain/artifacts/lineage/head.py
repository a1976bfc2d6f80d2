# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signed head of a run: which checkpoint is its newest.

``head.json`` lies in the folder of a run's checkpoints and is replaced after every save, signed
with a checkpoint key. Rules for a reader, in order:

1. signed for the role ``checkpoint``, of the closed schema;
2. not expired: a store that keeps handing out the same head is noticed (a freeze);
3. of the run that the checkpoint is of. Rules 2 and 3 are asked by `machine`.

A head names the one before it by the digest of its bytes, so that heads are a chain, and where the
transparency log has it.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from securetrain.artifacts.lineage.folder import CheckpointFiles
from securetrain.artifacts.lineage.machine import HEAD, Head
from securetrain.artifacts.statement.statements import CheckpointPredicate, Verifies, digest_of
from securetrain.artifacts.tree.problems import Problem
from securetrain.artifacts.tree.storage import LocalStorage, Storage
from securetrain.core import ExitCode, canonical
from securetrain.core.errors import SecureTrainError, reason
from securetrain.core.files import locked
from securetrain.identity import dsse
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot

_LOCK: Final = ".head.lock"
PAYLOAD_TYPE: Final = "application/vnd.securetrain.head+json"
LIMIT: Final = 64 << 10
LIFETIME: Final = timedelta(days=30)
"""Readers refuse a head after this time without a newer one."""
EXCHANGES: Final = 5
"""Looks at a head in a store without locks, that others put there at the same time."""


def sign_head(head: Head, key: Signer) -> bytes:
    """The head's envelope."""
    return dsse.sign(canonical.encode(head), PAYLOAD_TYPE, [key], keyless=True)


def read_message(message: bytes) -> Head:
    """Read the message that a head's signature covers, before it is signed.

    Raises:
        IdentityError: ST-IDEN-004 when it is of another type.
        UsageError: ST-USAG-008 when it is malformed.
    """
    payload = dsse.payload_of(message, PAYLOAD_TYPE)
    return canonical.decode(payload, Head, limit=LIMIT, canonical=True)


def open_head(data: bytes, trust: Verifies, where: str = "") -> Head:
    """Rule 1.

    Raises:
        IntegrityError: ST-CKPT-110 or 120 for its signatures, ST-CKPT-152 when it is malformed.
    """
    return _open(data, trust, where)[0]


def _open(data: bytes, trust: Verifies, where: str) -> tuple[Head, frozenset[str]]:
    try:
        payload = trust.verify(data, PAYLOAD_TYPE, TrustRole.CHECKPOINT, where)
        head = canonical.decode(payload.data, Head, limit=LIMIT, canonical=True)
    except SecureTrainError as error:
        problem = Problem(_code(error.exit_code), f"the head of the run: {reason(error)}", HEAD)
        raise problem.error(where) from error
    return head, payload.key_ids


def _code(refused: ExitCode) -> str:
    match refused:
        case ExitCode.BAD_SIGNATURE:
            return "ST-CKPT-110"
        case ExitCode.POLICY:
            return "ST-CKPT-120"
        case _:
            return "ST-CKPT-152"


@dataclass(frozen=True, slots=True)
class ShownHead:
    """A head that verifies, its bytes, and who signed it: what others are shown, and believe."""

    head: Head
    data: bytes
    key_ids: frozenset[str]


def shown_head(data: bytes, trust: TrustRoot, run_id: str, where: str = "") -> ShownHead:
    """Judge a head that somebody shows of a run. It may have expired: the checkpoint existed.

    Raises:
        IntegrityError: see `open_head`; ST-CKPT-170 when it is of another run.
    """
    head, key_ids = _open(data, trust, where)
    if head.run_id != run_id:
        what = f"the head is of run {head.run_id}, not of run {run_id}"
        raise Problem("ST-CKPT-170", what, HEAD).error(where)
    return ShownHead(head, data, key_ids)


def read_bytes(folder: CheckpointFiles) -> bytes | None:
    """The head's bytes in a folder of checkpoints, not judged; None when there is none.

    Raises:
        IntegrityError: ST-CKPT-152 when it cannot be read.
    """
    try:
        if not folder.has(HEAD):
            return None
        return folder.read(HEAD, LIMIT)
    except OSError as error:
        problem = Problem("ST-CKPT-152", f"cannot be read: {error}", HEAD)
        raise problem.error(folder.name) from error
    except SecureTrainError as error:
        problem = Problem("ST-CKPT-152", f"cannot be read: {error.what}", HEAD)
        raise problem.error(folder.name) from error


def read_head(folder: CheckpointFiles, trust: TrustRoot) -> Head | None:
    """The head in a folder of checkpoints; None when there is none.

    Raises:
        IntegrityError: see `open_head`; ST-CKPT-152 when it cannot be read.
    """
    data = read_bytes(folder)
    return None if data is None else open_head(data, trust, folder.name)


def advance(
    folder: Storage,
    predicate: CheckpointPredicate,
    key: Signer,
    trust: TrustRoot,
    now: datetime,
) -> Head:
    """Make a saved checkpoint the head of its run.

    Args:
        folder: Where the checkpoints lie.
        predicate: What was saved.
        key: A checkpoint key.
        trust: By which the present head is judged.
        now: The time.

    Raises:
        IntegrityError: ST-CKPT-171 when the head is of this number or a later one already;
            see also `open_head`.
    """

    def next_head(data: bytes | None) -> Head:
        if data is not None:
            present = open_head(data, trust, folder.name)
            if present.run_id == predicate.run_id and present.seq >= predicate.seq:
                raise Problem(
                    "ST-CKPT-171",
                    f"the head is checkpoint {present.seq} already, {predicate.seq} cannot be",
                    HEAD,
                ).error(folder.name)
        return Head(
            run_id=predicate.run_id,
            seq=predicate.seq,
            step=predicate.step,
            digest=digest_of(predicate),
            prev="" if data is None else hashlib.sha256(data).hexdigest(),
            created=now,
            expires=now + LIFETIME,
        )

    head = _exchange(folder, key, next_head)
    assert head is not None
    return head


def note_logged(
    folder: Storage, digest: str, log_index: int, key: Signer, trust: TrustRoot
) -> Head | None:
    """Say in the head where the log has its checkpoint's statement; its times stay.

    Returns:
        The new head; None when the head is of another checkpoint (by now), or says so already.

    Raises:
        IntegrityError: see `open_head`.
    """

    def noted(data: bytes | None) -> Head | None:
        if data is None:
            return None
        present = open_head(data, trust, folder.name)
        if present.digest != digest or present.log_index == log_index:
            return None
        prev = hashlib.sha256(data).hexdigest()
        return msgspec.structs.replace(present, log_index=log_index, prev=prev)

    return _exchange(folder, key, noted)


def _exchange(
    folder: Storage, key: Signer, make: Callable[[bytes | None], Head | None]
) -> Head | None:
    """Put what `make` makes of the head's bytes in their place, unless it is None.

    In S3 there is no lock: whoever finds that another one was faster looks again.
    """
    with _alone(folder):
        for left in reversed(range(EXCHANGES)):
            data = read_bytes(folder)
            head = make(data)
            if head is None:
                return None
            try:
                folder.exchange(HEAD, sign_head(head, key), data)
            except FileExistsError:
                if not left:
                    raise
                continue
            return head
    raise AssertionError


@contextmanager
def _alone(folder: Storage) -> Iterator[None]:
    """Nobody else changes the head meanwhile: a saver and a launcher's agent both do."""
    if not isinstance(folder, LocalStorage):
        yield
        return
    with locked(folder.path / _LOCK):
        yield
