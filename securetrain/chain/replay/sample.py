# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The segments that are done again, when not all are.

Rules:

1. so many are drawn that, if the forged part is as large as was said or larger, one of them is
   among the drawn with the confidence that was asked for (without replacement: hypergeometric);
2. whoever forged must not know which. They are drawn by a checkpoint of the transparency log that
   the quorum of witnesses cosigned **after** they had seen the run's last checkpoint: the draw
   hashes the witnesses' own signatures, which nobody can work out without their keys;
3. the same log checkpoint draws the same segments for everybody.

The holder of the log can ask the witnesses for one checkpoint after the other and show the one that
suits it: each costs one cosignature of the quorum, and who asks for the sample should name the
checkpoint, or take the newest.
"""

import hashlib
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from securetrain.chain.records import number
from securetrain.chain.replayed import Sample
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.core.files import read_file
from securetrain.identity.log import LogPolicy, note, open_checkpoint
from securetrain.identity.trust import TrustRoot

REFUSED: Final = "ST-CHAN-024"
CHECKPOINT_LIMIT: Final = 1 << 20


def needed(segments: int, forged: float, confidence: float) -> int:
    """The number of some segments that have to be drawn (rule 1).

    Args:
        segments: How many there are.
        forged: The part that is forged at least, above 0 and up to 1.
        confidence: With which one of them is drawn, from 0 and below 1; at 1 all are.

    Raises:
        UsageError: ST-USAG-001 for other numbers.
    """
    if not (0 < forged <= 1 and 0 <= confidence <= 1) or segments < 1:
        raise UsageError(
            "ST-USAG-001",
            f"a part of {forged} with confidence {confidence} of {segments} segments",
            "--sample, --forged",
            "give a confidence such as 0.99 and a part such as 0.1",
        )
    bad = max(1, math.ceil(forged * segments - 1e-9))
    missed, drawn = 1.0, 0
    while missed > 1 - confidence + 1e-12 and drawn < segments:
        missed *= max(0, segments - bad - drawn) / (segments - drawn)
        drawn += 1
    return drawn


def draw(segments: Sequence[str], count: int, seed: bytes) -> list[int]:
    """The places of the drawn segments, in order: those whose names hash lowest under the seed."""

    def place(number: int) -> bytes:
        said = b"securetrain/replay/1\n" + seed + segments[number].encode()
        return hashlib.sha256(said).digest()

    return sorted(sorted(range(len(segments)), key=place)[:count])


def seed_of(
    path: Path, trust: TrustRoot, *, after: datetime, subject: str, now: datetime
) -> tuple[bytes, datetime]:
    """The seed that a log checkpoint gives for a run, and when its quorum had cosigned it (rule 2).

    Args:
        path: The signed checkpoint of the log, with its cosignatures.
        trust: Names the log and its witnesses.
        after: When the run's last checkpoint had been seen, or was made.
        subject: The statement of that checkpoint.
        now: The time.

    Raises:
        IdentityError: ST-IDEN-040, ST-IDEN-044, it is no checkpoint of that log that counts.
        IntegrityError: ST-CHAN-024, it was cosigned before the run had ended.
    """
    data = read_file(path, CHECKPOINT_LIMIT)
    policy = LogPolicy.from_trust_root(trust)
    signed = open_checkpoint(data, policy, now, str(path))
    first = min(signed.cosigned.values(), default=None)
    if first is None or first <= after:
        raise IntegrityError(
            REFUSED,
            f"a witness cosigned this log checkpoint at {first}, and the run's last checkpoint was"
            f" there at {after}: its maker could have known which steps are asked for",
            str(path),
        )
    # Each of them verified above: `open_checkpoint` refuses one that does not.
    lines = sorted(
        str(line).encode()
        for line in note.parse(data, str(path)).lines
        if any(line.id == note.cosigner_id(line.name, key) for key in policy.witnesses.values())
    )
    digest = hashlib.sha256(b"securetrain/replay/seed/1\n" + subject.encode() + b"\n")
    digest.update(signed.checkpoint.text.encode())
    for line in lines:
        digest.update(line + b"\n")
    return digest.digest(), max(signed.cosigned.values())


def sample_of(
    path: Path, numbers: tuple[float, float], counts: tuple[int, int], seen: datetime
) -> Sample:
    """The draw of segments by the log checkpoint in a file."""
    (confidence, forged), (drawn, of) = numbers, counts
    return Sample(
        confidence=number(confidence),
        forged=number(forged),
        drawn=drawn,
        of=of,
        log_checkpoint=hashlib.sha256(read_file(path, CHECKPOINT_LIMIT)).hexdigest(),
        cosigned=seen,
    )
