# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The signed result of steps that were done again: an in-toto statement about the checkpoints.

Whoever did them signs with a key of the role ``ci`` of the trust root by which the statement is
read. The result is that party's word; what it is about is said by digest: each checkpoint's tree
and statement, and the checkpoint that its steps began with.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from securetrain import __version__
from securetrain.chain.documents import Count, Hex32, Name, Text, Time
from securetrain.chain.records import Number
from securetrain.core.errors import IdentityError
from securetrain.core.files import read_file
from securetrain.identity import dsse, statement
from securetrain.identity.keys import Signer
from securetrain.identity.trust import TrustRole, TrustRoot

PREDICATE_TYPE: Final = f"{statement.PREDICATE_BASE}/replay/v1"
VERIFIER_ID: Final = "https://securetrain.dev/replay"
TREE: Final = "securetrainTree1"
LIMIT: Final = 16 << 20
MAX_SEGMENTS: Final = 4096


class Comparison(StrEnum):
    """The comparison of steps that were done again with the recorded ones."""

    EXACT = "exact"
    """Bit by bit: same mesh, same environment."""
    BOUND = "bound"
    """Within what another order of the same sums changes."""


class Word(StrEnum):
    """The result about one segment."""

    VERIFIED = "verified"
    """Its steps were done again, and gave the checkpoint."""
    PLAUSIBLE = "plausible"
    """Its steps were not done again; no weight went further than AdamW can carry it."""
    OPEN = "open"
    """Its steps cannot be done again."""
    BROKEN = "broken"


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the predicate."""


class ReplayedSegment(_Struct, frozen=True, kw_only=True):
    """The result about the steps that end with one checkpoint."""

    after: Count
    last: Count
    begin: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
    """The tree of the checkpoint that they began with; empty for the beginning of the run."""
    end: Hex32
    statement: Hex32
    """SHA-256 of what was signed about the checkpoint that they ended with."""
    word: Word
    problems: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    difference: Number = "0x0.0p+0"
    largest: Number = "0x0.0p+0"
    numbers: Number = "0x0.0p+0"
    reach: Number = "0x0.0p+0"


class Sample(_Struct, frozen=True, kw_only=True):
    """The draw of segments."""

    confidence: Number
    forged: Number
    drawn: Count
    of: Count
    log_checkpoint: Hex32
    """SHA-256 of the signed checkpoint of the log that drew them."""
    cosigned: Time
    """When the last of its witnesses cosigned it."""


class Verifier(_Struct, frozen=True, kw_only=True):
    """The program that did the steps again."""

    id: Name = VERIFIER_ID
    version: Name = __version__


class Replay(_Struct, frozen=True, kw_only=True):
    """The predicate."""

    verifier: Verifier = Verifier()
    run: Name
    at: Time
    comparison: Comparison
    why: Text = ""
    """Why it was not the exact one."""
    mesh: Text
    world: Count
    environment: Hex32
    sample: Sample | None = None
    segments: Annotated[tuple[ReplayedSegment, ...], Meta(min_length=1, max_length=MAX_SEGMENTS)]


def sign_replay(said: Replay, key: Signer) -> bytes:
    """The statement in a DSSE envelope."""
    subjects = [statement.Subject(f"step-{one.last:08d}", {TREE: one.end}) for one in said.segments]
    return statement.sign(subjects, PREDICATE_TYPE, said, key)


def read_replay(path: Path, trust: TrustRoot) -> Replay:
    """A signed result.

    Raises:
        IdentityError: ST-IDEN-001 to 006, it is signed by nobody who may, or malformed.
        UsageError: ST-USAG-002, the file cannot be read.
    """
    data = read_file(path, LIMIT)
    payload = trust.verify(data, dsse.IN_TOTO, TrustRole.CI, str(path))
    read = statement.parse(payload, PREDICATE_TYPE, Replay, str(path))
    said = read.predicate
    if [one.digest for one in read.subjects] != [{TREE: one.end} for one in said.segments]:
        raise IdentityError(
            "ST-IDEN-004", "its subjects are not its segments' checkpoints", str(path)
        )
    return said
