# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``verify`` for the words of a disputed reduction."""

from collections.abc import Iterator, Sequence

from securetrain.artifacts import CheckedWords
from securetrain.core import ExitCode
from securetrain.report.document import Document


def words(checked: CheckedWords) -> Document:
    """The words, whose they are, and what they say about the ranks."""
    ruling, transcript = checked.ruling, checked.transcript
    code = ExitCode.OK if checked.is_signed else ExitCode.BAD_SIGNATURE
    data = {
        "kind": "dispute",
        "digest": checked.digest,
        "run_id": transcript.run_id,
        "turn": transcript.turn,
        "ranks": transcript.ranks,
        "attempts": len(transcript.attempts),
        "disputes": [list(pair) for pair in ruling.disputes],
        "named": {str(rank): why for rank, why in sorted(ruling.named.items())},
        "unsigned": list(ruling.unsigned),
        "uncertified": {str(r): why for r, why in sorted(checked.uncertified.items())},
        "exit": int(code),
    }
    return Document(text=list(_lines(checked)), data=data, exit_code=code)


def _lines(checked: CheckedWords) -> Iterator[str]:
    ruling, transcript = checked.ruling, checked.transcript
    yield f"words of {len(transcript.ranks)} ranks of {transcript.run_id}, turn {transcript.turn}"
    for one, other in ruling.disputes:
        yield f"dispute: rank {one} and rank {other} contradict each other; neither is named"
    for rank, why in sorted(ruling.named.items()):
        yield f"named: rank {rank} {why}"
    for rank in ruling.unsigned:
        why = checked.uncertified.get(rank, "its signature is missing or does not verify")
        yield f"not signed: rank {rank}: {why}"
    if not (ruling.disputes or ruling.named):
        yield "no two words contradict each other"
    if checked.is_signed:
        yield f"signed by all: {_listed(transcript.ranks)}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
