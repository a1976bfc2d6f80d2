# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a job on disk, so that another coordinator can go on where one was killed.

Rules:

1. it is written as it is decided, before nodes hear of it: the epoch with its members, the store,
   votes, evictions, and until when each member is believed. Whole or not at all, and synced;
2. it is signed with the coordinator's ledger key, and read back strictly and bounded. A file that
   is malformed, of another job or signed by another key is refused (ST-ADMN-037), not ignored;
3. it never goes back: a file that knows an older epoch than the ledger beside it is refused. (The
   ledger is written first, so it may be one epoch ahead, of which nobody has heard.) Where both
   were put back, members notice: they refuse a coordinator whose epoch is older (ST-ADMN-006), and
   it refuses them (ST-ADMN-036);
4. no secret is in it. Pre-shared keys are drawn anew with the next epoch.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError, IdentityError, UsageError
from securetrain.core.files import PRIVATE_FILE, read_file, write_atomic
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.rendezvous.wire.membership import Evicted, Membership
from securetrain.rendezvous.wire.protocol import Count, Digest, Epoch, Name, Store

STATE_LIMIT: Final = 8 << 20
_MAX_NODES: Final = 1 << 14
_LABEL: Final = b"securetrain-coordinator-state-v1\0"

Names = Annotated[tuple[Name, ...], Meta(max_length=_MAX_NODES)]


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A member of the epoch that may come back."""

    node: Name
    key: Digest
    """SHA-256 (hex) of its public key."""
    lease_ends: datetime
    proven: datetime


class JobState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that the next coordinator must know."""

    job: Name
    round: Count
    membership: Membership
    """Of the current epoch, without floors."""
    members: Annotated[tuple[Held, ...], Meta(max_length=_MAX_NODES)]
    """Those that are still in the round."""
    store: Store | None
    closed: bool
    restart: bool
    """Whether a member has gone, so that the others are to meet for another round."""
    finished: Names
    """Votes that the job is over."""
    done: Names
    """Members whose workers have ended well."""
    evicted: Annotated[tuple[Evicted, ...], Meta(max_length=_MAX_NODES)]
    out: Names
    """Members of the epoch that are out of it."""
    last: dict[Name, Epoch]
    """The last epoch of each node that was ever in one."""
    led: Names
    """Nodes that were ever rank 0."""


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    body: bytes
    signature: Annotated[bytes, Meta(max_length=512)]


def encode_state(state: JobState, key: PrivateKey) -> bytes:
    """The file's bytes."""
    body = canonical.encode(state)
    return canonical.encode(_Signed(body=body, signature=key.sign(_LABEL + body)))


def decode_state(data: bytes, key: PublicKey, where: str = "coordinator state") -> JobState:
    """Read the file's bytes.

    Raises:
        AdmissionError: ST-ADMN-037.
    """
    try:
        signed = canonical.decode(data, _Signed, limit=STATE_LIMIT, canonical=True)
        key.verify(signed.signature, _LABEL + signed.body)
        return canonical.decode(signed.body, JobState, limit=STATE_LIMIT, canonical=True)
    except (UsageError, IdentityError) as error:
        raise AdmissionError("ST-ADMN-037", error.what[:300], where) from error


@dataclass(frozen=True, slots=True)
class JobMemory:
    """The file of one coordinator."""

    path: Path
    key: PrivateKey

    def save(self, state: JobState) -> None:
        """Put a state in place of the last one.

        Raises:
            UsageError: ST-USAG-002 or ST-USAG-006.
        """
        write_atomic(self.path, encode_state(state, self.key), mode=PRIVATE_FILE)

    def load(self, job: str, last_epoch: int) -> JobState | None:
        """Load the state that the last coordinator of a job left, if it left one.

        Args:
            job: The job's id.
            last_epoch: Of the ledger.

        Raises:
            AdmissionError: ST-ADMN-037.
        """
        if not self.path.exists():
            return None
        where = str(self.path)
        state = decode_state(read_file(self.path, STATE_LIMIT), self.key.public, where)
        if state.job != job or state.membership.job != job:
            raise AdmissionError("ST-ADMN-037", f"it is of job {state.job}", where)
        epoch = state.membership.epoch
        if not last_epoch - 1 <= epoch <= last_epoch:
            raise AdmissionError(
                "ST-ADMN-037", f"it knows epoch {epoch}, the ledger {last_epoch}", where
            )
        return state
