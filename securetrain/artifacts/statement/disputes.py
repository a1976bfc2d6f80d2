# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Check the kept words of a disputed reduction, long after it: whose they are, and what follows.

The keys must be certified for ranks of this run (members.py), each by a certificate that the trust
root's role ``node`` verifies. What the words say about each other is read by `identity.words`.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from securetrain.artifacts.statement.members import certified_key
from securetrain.core.errors import SecureTrainError, UsageError, reason
from securetrain.core.files import read_file
from securetrain.identity import words
from securetrain.identity.keys import PublicKey
from securetrain.identity.trust import TrustRoot


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWords:
    """A transcript that was read and checked."""

    transcript: words.Transcript
    ruling: words.Ruling
    uncertified: dict[int, str]
    """Ranks whose key counts for nothing, and why."""
    digest: str

    @property
    def is_signed(self) -> bool:
        """Every rank has signed every word, with a key that counts."""
        return not self.ruling.unsigned


def check_words(path: Path, trust: TrustRoot) -> CheckedWords:
    """Check a transcript.

    Raises:
        UsageError: ST-USAG-002 or ST-USAG-008; the latter also when the file is not what it is
            named after.
    """
    data = read_file(path, words.TRANSCRIPT_LIMIT)
    digest = hashlib.sha256(data).hexdigest()
    if path.stem != digest:
        raise UsageError(
            "ST-USAG-008",
            f"its SHA-256 is {digest}, which is not its name",
            str(path),
            "give a file of the run's disputes folder as it is; the ledger names its digest",
        )
    transcript = words.read_transcript(data)
    known: dict[str, PublicKey | str] = {"": "it has no certificate"}
    for text in transcript.certificates:
        if text not in known:
            known[text] = _key(text, transcript.run_id, trust)
    found = [known[text] for text in transcript.certificates]
    keys = [key if isinstance(key, PublicKey) else None for key in found]
    return CheckedWords(
        transcript=transcript,
        ruling=words.rule(transcript, keys),
        uncertified={
            rank: why
            for rank, why in zip(transcript.ranks, found, strict=True)
            if isinstance(why, str)
        },
        digest=digest,
    )


def _key(text: str, run_id: str, trust: TrustRoot) -> PublicKey | str:
    try:
        key, said = certified_key(text, trust, "the certificate")
    except SecureTrainError as error:
        return reason(error)
    if said.run_id != run_id:
        return f"its certificate is for run {said.run_id}, not {run_id}"
    return key
