# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Proof that an envelope was logged, in one file (https://c2sp.org/tlog-proof, ``.tlog-proof``).

It holds the index, the hashes that lead from the entry to the root, and the checkpoint with its
cosignatures: enough to judge it offline, years later, with the trust root alone. What a reader
checks, in order:

1. at most 128 KiB, the exact first line, no extra data, an index, at most 64 hashes, a checkpoint;
2. the checkpoint is the log's, and enough witnesses cosigned it (`log.checkpoint`);
3. the entry that the envelope makes (`log.entry`) stands at that index of that tree.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from securetrain.core.errors import IdentityError
from securetrain.identity.keys import PublicKey
from securetrain.identity.log import merkle, note
from securetrain.identity.log.checkpoint import LogPolicy, SignedCheckpoint, open_checkpoint
from securetrain.identity.log.entry import entry_of

LIMIT: Final = 320 << 10
SUFFIX: Final = ".tlog-proof"
_HEADER: Final = "c2sp.org/tlog-proof@v1"
_INDEX: Final = re.compile(r"index (0|[1-9][0-9]{0,15})")


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof that nobody has judged yet."""

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: bytes

    def encode(self) -> bytes:
        """Its bytes."""
        hashes = [base64.b64encode(value).decode() for value in self.hashes]
        return "\n".join([_HEADER, f"index {self.index}", *hashes, "", ""]).encode() + (
            self.checkpoint
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Something that is proven to be in the log."""

    index: int
    signed: SignedCheckpoint
    seen: datetime | None
    """When the quorum of witnesses had seen it in the log: it was signed by then. None without."""


def parse_proof(data: bytes, where: str = "") -> Proof:
    """Read a proof.

    Raises:
        IdentityError: ST-IDEN-041.
    """
    if len(data) > LIMIT:
        raise _bad(f"{len(data)} bytes, the limit is {LIMIT}", where)
    head, separator, checkpoint = data.partition(b"\n\n")
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise _bad("it is not ASCII before the checkpoint", where) from error
    if not separator or lines[0] != _HEADER or len(lines) < 2:
        raise _bad(f"it does not begin with {_HEADER}", where)
    index = _INDEX.fullmatch(lines[1])
    if index is None or int(index[1]) > merkle.MAX_SIZE:
        raise _bad("no index in its second line", where)
    if len(lines) - 2 > merkle.MAX_PROOF:
        raise _bad(f"{len(lines) - 2} hashes", where)
    return Proof(int(index[1]), parse_hashes(lines[2:], where), checkpoint)


def parse_hashes(lines: Sequence[str], where: str = "") -> tuple[bytes, ...]:
    """One hash in base64 a line.

    Raises:
        IdentityError: ST-IDEN-041.
    """
    try:
        hashes = tuple(note.unbase64(line) for line in lines)
    except IdentityError as error:
        raise _bad(error.what, where) from error
    if any(len(value) != merkle.HASH_SIZE for value in hashes):
        raise _bad("a hash that is not 32 bytes long", where)
    return hashes


def verify_logged(  # noqa: PLR0917 - what is judged, by what, and when
    envelope: bytes,
    proof: bytes,
    verifiers: Mapping[str, PublicKey],
    policy: LogPolicy,
    now: datetime,
    where: str = "",
) -> Logged:
    """Verify that an envelope was logged.

    Args:
        envelope: the envelope as it is stored.
        proof: the proof's bytes.
        verifiers: the keys of the envelope's signers, by key id: usually ``trust.keys``, which has
            those that were revoked too.
        policy: which log counts: usually ``LogPolicy.from_trust_root(trust)``.
        now: the time.
        where: for the refusal.

    Raises:
        IdentityError: ST-IDEN-040, ST-IDEN-041, ST-IDEN-044, ST-IDEN-047, and those of
            `log.entry.entry_of`.
    """
    found = parse_proof(proof, where)
    signed = open_checkpoint(found.checkpoint, policy, now, where)
    leaf = merkle.leaf_hash(entry_of(envelope, verifiers, where))
    state = signed.checkpoint
    merkle.check_inclusion(leaf, found.index, state.size, found.hashes, state.root, where)
    return Logged(index=found.index, signed=signed, seen=signed.seen_at(policy.quorum))


def _bad(what: str, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-041", f"not a proof: {what}", where)
