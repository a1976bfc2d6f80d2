# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a log (https://c2sp.org/tlog-checkpoint) and who must have seen them.

A checkpoint is a signed note: origin, size and root hash. A reader checks, in order:

1. it is a note (`log.note`) with exactly three lines of the exact form: extension lines are
   refused, since nobody audits them;
2. the origin is the one that the policy names, so that an index means one thing;
3. enough keys of the log signed it under the origin's name, and no line of such a key fails; where
   both signatures of a pair are asked for, the companion's line is there too (ST-IDEN-024);
4. enough different witnesses cosigned it: the quorum counts keys, not lines or names, and none of
   the log's own. A cosignature from the future is refused.

How old a checkpoint may be is for the caller: `LogPolicy.max_age`.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from securetrain.core.errors import IdentityError
from securetrain.identity.keys import PublicKey, Signer
from securetrain.identity.log import merkle, note
from securetrain.identity.trust import Signatures, TrustRole, TrustRoot

CLOCK_SKEW: Final = timedelta(minutes=5)
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The signed state of a log."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPolicy:
    """The log that counts, and the witnesses that must have seen its checkpoints."""

    origin: str
    keys: Mapping[str, PublicKey]
    """The log's keys, by key id."""
    threshold: int = 1
    """How many of them must have signed."""
    both: bool = False
    """Whether each must have with its companion too."""
    witnesses: Mapping[str, PublicKey] = field(default_factory=dict)
    quorum: int = 0
    """How many different witnesses must have cosigned."""
    max_age: timedelta | None = None
    """How long ago the quorum was reached at most; None for any time."""

    @classmethod
    def from_trust_root(cls, trust: TrustRoot, max_age: timedelta | None = None) -> "LogPolicy":
        """Read from a trust root the origin and keys of its log, its witnesses and their quorum.

        Raises:
            IdentityError: ST-IDEN-044 when it names no witnesses, so that nothing would stand in
                the way of a log with two histories; ST-IDEN-040 when it names no log.
        """
        keys = trust.keys_for(TrustRole.LOG)
        if not trust.document.log_origin or not keys:
            raise note.bad("the trust root names no log (log_origin, and keys of the role log)")
        witnesses = trust.keys_for(TrustRole.WITNESS)
        if not witnesses:
            raise _unwitnessed("the trust root names no witnesses", "")
        return cls(
            origin=trust.document.log_origin,
            keys=keys,
            threshold=trust.threshold(TrustRole.LOG),
            both=trust.signatures(TrustRole.LOG) is Signatures.BOTH,
            witnesses=witnesses,
            quorum=trust.threshold(TrustRole.WITNESS),
            max_age=max_age,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCheckpoint:
    """A checkpoint that the log signed, and when which witnesses cosigned it."""

    checkpoint: Checkpoint
    cosigned: Mapping[str, datetime]
    """By the witness's key id."""

    def seen_at(self, quorum: int) -> datetime | None:
        """The time by which `quorum` witnesses had cosigned; None when they have not or need not.

        What is in the log was there by then, whatever the log says.
        """
        times = sorted(self.cosigned.values())
        return times[quorum - 1] if 1 <= quorum <= len(times) else None


def sign(checkpoint: Checkpoint, key: Signer) -> note.Note:
    """The log's own signature, under its origin's name."""
    lines = note.sign_lines(checkpoint.text, checkpoint.origin, key)
    return note.Note(checkpoint.text, lines)


def parse_text(text: str, where: str = "") -> Checkpoint:
    """Read a checkpoint's text.

    Raises:
        IdentityError: ST-IDEN-040.
    """
    lines = text.split("\n")
    if len(lines) != 4 or lines[3]:
        raise note.bad("not three lines: origin, size, root hash", where)
    origin, size, root = lines[:3]
    if not note.is_name(origin):
        raise note.bad(f"not an origin: {origin[:80]!r}", where)
    if not _SIZE.fullmatch(size) or int(size) > merkle.MAX_SIZE:
        raise note.bad(f"not a size: {size[:40]!r}", where)
    data = note.unbase64(root, where)
    if len(data) != merkle.HASH_SIZE or (size == "0" and data != merkle.EMPTY_ROOT):
        raise note.bad("not a root hash of a tree of this size", where)
    return Checkpoint(origin, int(size), data)


def open_signed(data: bytes, policy: LogPolicy, where: str = "") -> tuple[Checkpoint, note.Note]:
    """A checkpoint that the log signed: steps 1 to 3, which are what a witness begins with.

    Raises:
        IdentityError: ST-IDEN-040, ST-IDEN-024.
    """
    signed = note.parse(data, where)
    found = parse_text(signed.text, where)
    origin, keys = policy.origin, policy.keys.values()
    if found.origin != origin:
        raise note.bad(f"it is of {found.origin}, not of {origin}", where)
    by = [key for key in keys if note.signed_by(signed, key, origin, where)]
    if len(by) < policy.threshold or not by:
        raise note.bad(
            f"signed by {len(by)} of the {len(keys)} keys of {origin}, {policy.threshold} needed",
            where,
        )
    whole = [key for key in by if note.signed_by_companion(signed, key, origin, where)]
    if policy.both and len(whole) < policy.threshold:
        raise IdentityError(
            "ST-IDEN-024",
            f"{origin} signed it with {len(whole)} pairs of keys, {policy.threshold} needed",
            where,
        )
    return found, signed


def open_checkpoint(
    data: bytes, policy: LogPolicy, now: datetime, where: str = ""
) -> SignedCheckpoint:
    """Verify a checkpoint; see the module.

    Raises:
        IdentityError: ST-IDEN-040, ST-IDEN-044 below the quorum, ST-IDEN-047 too old.
    """
    found, signed = open_signed(data, policy, where)
    cosigned: dict[str, datetime] = {}
    for key_id, key in policy.witnesses.items():
        time = note.cosigned_by(signed, key, where)
        if time is not None and key_id not in policy.keys:
            cosigned[key_id] = _moment(time, now, where)
    result = SignedCheckpoint(checkpoint=found, cosigned=cosigned)
    if len(cosigned) < policy.quorum:
        raise _unwitnessed(
            f"{len(cosigned)} of {len(policy.witnesses)} witnesses cosigned it, {policy.quorum}"
            " are needed",
            where,
        )
    if policy.max_age is not None:
        _check_age(result, policy, policy.max_age, now, where)
    return result


def _check_age(
    found: SignedCheckpoint, policy: LogPolicy, max_age: timedelta, now: datetime, where: str
) -> None:
    # The newest times that reach the quorum: a witness that cosigned again is current.
    times = sorted(found.cosigned.values(), reverse=True)
    seen = times[policy.quorum - 1] if policy.quorum else None
    if seen is None or now - seen > max_age:
        raise IdentityError(
            "ST-IDEN-047",
            f"its witnesses last saw it at {seen}, and it may be {max_age} old",
            where,
        )


def _moment(time: int, now: datetime, where: str) -> datetime:
    try:
        moment = datetime.fromtimestamp(time, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise note.bad(f"a cosignature of time {time}", where) from error
    if moment > now + CLOCK_SKEW:
        raise note.bad(f"a cosignature of {moment}, and it is {now}", where)
    return moment


def _unwitnessed(what: str, where: str) -> IdentityError:
    return IdentityError("ST-IDEN-044", what, where)
