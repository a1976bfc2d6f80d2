# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signed words of ranks in a dispute about a reduction, and what follows from them. Pure.

A reduction that is disputed is done again in the open (guard.dispute). Every rank then says digests
of the shards that it sent to each owner, of those that it heard as an owner, of its whole gradient,
and of the table of everybody's words as it holds it. A launcher signs that for its worker, once for
each number (launch.signing.rules). So afterwards, without the ranks:

1. what a rank said is signed, and the others have signed the table in which it said it: nobody
   denies it, not even who did not sign;
2. a sender and an owner whose signed digests of the same shard differ contradict each other. One of
   them is wrong, or the link; two digests do not say which;
3. a rank that signed two different gradients of one piece in one step, or another shard to itself
   than it heard from itself, contradicts **itself**, and is named.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, SecureTrainError, UsageError
from securetrain.identity import dsse
from securetrain.identity.keys import PublicKey

VERSION: Final = 1
MESSAGE_LIMIT: Final = 2 << 10
TRANSCRIPT_LIMIT: Final = 64 << 20
MOST_ATTEMPTS: Final = 32
"""In one transcript."""
_PREFIX: Final = b"securetrain/dispute/1\n"
_CERTIFICATE: Final = 16 << 10
_MOST_RANKS: Final = 1 << 16

Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Rank = Annotated[int, Meta(ge=0, lt=_MOST_RANKS)]
Text = Annotated[str, Meta(min_length=1, max_length=256)]


class Word(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """The content of what one rank signs."""

    run_id: Text
    world_size: Annotated[int, Meta(ge=1, le=_MOST_RANKS)]
    rank: Rank
    group: Hex
    """Of the numbers of the ranks that reduce together."""
    guard: Annotated[int, Meta(ge=0, lt=1 << 20)]
    """The number of the guard in its process."""
    turn: Count
    """Steps that this guard has judged before."""
    number: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
    """Of the disputed attempts of this guard and group, from one."""
    piece: Hex
    """Of the names of what is reduced."""
    table: Hex
    """Of everybody's words, as this rank holds them."""
    whole: Hex
    sent: Hex
    """Of the digests of what it sent, part by part."""
    heard: Hex
    """Of the digests of what it heard, rank by rank; of nothing where it owns no part."""


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One rank's word with the digests in it."""

    whole: Hex
    sent: list[Hex]
    heard: list[Hex]
    sig: Annotated[str, Meta(max_length=1024)] = ""
    """Base64; empty when the rank did not sign."""


class Attempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reduction in the open that was disputed."""

    number: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
    piece: Hex
    table: Hex
    owners: list[Rank]
    """The place of each part's owner in the group."""
    said: list[Said]
    """By place."""


class Transcript(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"
):
    """The disputed attempts of one step."""

    version: int = VERSION
    run_id: Text
    world_size: Annotated[int, Meta(ge=1, le=_MOST_RANKS)]
    ranks: list[Rank]
    guard: Annotated[int, Meta(ge=0, lt=1 << 20)]
    turn: Count
    attempts: Annotated[list[Attempt], Meta(min_length=1, max_length=MOST_ATTEMPTS)]
    certificates: list[Annotated[str, Meta(max_length=16 << 10)]]
    """Of each rank's key, by place; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The conclusions from a transcript; ranks by their numbers in the job."""

    disputes: tuple[tuple[int, int], ...]
    """Pairs that contradict each other; no word against either."""
    named: Mapping[int, str]
    """Ranks whose own words contradict each other, and how."""
    unsigned: tuple[int, ...]
    """Ranks of which a word has no signature that verifies."""


def group_digest(ranks: Sequence[int]) -> str:
    """The name of a group in a word."""
    return hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()


def root(digests: Sequence[str]) -> str:
    """One digest of several."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def message_of(word: Word) -> bytes:
    """The bytes that are signed."""
    return _PREFIX + canonical.encode(word)


def read_message(message: bytes) -> Word:
    """Read a word before it is signed.

    Raises:
        UsageError: ST-USAG-008 when it is not exactly what `message_of` makes.
    """
    if not message.startswith(_PREFIX):
        raise UsageError("ST-USAG-008", "not the word of a rank in a dispute")
    body = message.removeprefix(_PREFIX)
    return canonical.decode(body, Word, limit=MESSAGE_LIMIT, canonical=True)


def read_transcript(data: bytes) -> Transcript:
    """Read a transcript, whose lengths must fit together.

    Raises:
        UsageError: ST-USAG-008.
    """
    found = canonical.decode(data, Transcript, limit=TRANSCRIPT_LIMIT, canonical=True)
    size = len(found.ranks)
    fits = (
        found.version == VERSION
        and len(set(found.ranks)) == size
        and all(rank < found.world_size for rank in found.ranks)
        and len(found.certificates) == size
        and all(a.number < b.number for a, b in pairwise(found.attempts))
        and all(_fits(attempt, size) for attempt in found.attempts)
    )
    if not fits:
        raise UsageError("ST-USAG-008", "the lists of the transcript do not fit together")
    return found


def _fits(attempt: Attempt, size: int) -> bool:
    owners = attempt.owners
    return (
        len(attempt.said) == size
        and len(set(owners)) == len(owners)
        and all(owner < size for owner in owners)
        and all(
            len(one.sent) == len(owners) and len(one.heard) == (size if place in owners else 0)
            for place, one in enumerate(attempt.said)
        )
    )


def word_of(transcript: Transcript, attempt: Attempt, place: int) -> Word:
    """The word that a rank must have signed."""
    said = attempt.said[place]
    return Word(
        run_id=transcript.run_id,
        world_size=transcript.world_size,
        rank=transcript.ranks[place],
        group=group_digest(transcript.ranks),
        guard=transcript.guard,
        turn=transcript.turn,
        number=attempt.number,
        piece=attempt.piece,
        table=attempt.table,
        whole=said.whole,
        sent=root(said.sent),
        heard=root(said.heard),
    )


def rule(transcript: Transcript, keys: Sequence[PublicKey | None]) -> Ruling:
    """Read a transcript by itself.

    Args:
        transcript: From `read_transcript`.
        keys: Of the ranks, by place; None where nobody has certified one.
    """
    ranks = transcript.ranks
    pairs: set[tuple[int, int]] = set()
    named: dict[int, str] = {}
    unsigned: set[int] = set()
    wholes: dict[tuple[int, str], str] = {}
    for attempt in transcript.attempts:
        signed = {
            place
            for place, key in enumerate(keys)
            if key is not None
            and _verifies(key, attempt.said[place].sig, word_of(transcript, attempt, place))
        }
        unsigned |= {ranks[place] for place in range(len(ranks)) if place not in signed}
        for part, owner in enumerate(attempt.owners):
            for place, one in enumerate(attempt.said):
                if one.sent[part] == attempt.said[owner].heard[place]:
                    continue
                if place != owner:
                    pairs.add((min(ranks[place], ranks[owner]), max(ranks[place], ranks[owner])))
                elif place in signed:
                    named.setdefault(ranks[place], "signed that it sent itself something else")
        for place in signed:
            whole = attempt.said[place].whole
            if wholes.setdefault((place, attempt.piece), whole) != whole:
                named.setdefault(ranks[place], "signed two different gradients in one step")
    return Ruling(disputes=tuple(sorted(pairs)), named=named, unsigned=tuple(sorted(unsigned)))


def key_in(certificate: str) -> PublicKey | None:
    """The key that a certificate names, unverified: to say early whether words fit together."""
    try:
        envelope = canonical.decode(certificate.encode(), dsse.Envelope, limit=_CERTIFICATE)
        said = canonical.loads(base64.b64decode(envelope.payload, validate=True))
        return PublicKey.from_spki(base64.b64decode(said["key"], validate=True))
    except (SecureTrainError, binascii.Error, ValueError, KeyError, TypeError):
        return None


def _verifies(key: PublicKey, signature: str, word: Word) -> bool:
    try:
        key.verify(base64.b64decode(signature, validate=True), message_of(word))
    except (IdentityError, binascii.Error, ValueError):
        return False
    return True
