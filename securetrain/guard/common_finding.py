# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make what a step's messages mean the same on all ranks of a group, before anybody acts on it.

With four ranks or more by one_verdict.py. With two or three a liar cannot be outvoted: they compare
a hash of table and finding, with the next step's first message or, where the policy confirms
tables, at once, and refuse the step in which it differs (ST-GRAD-004). A policy that only observes
compares so too, because nobody acts there.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from securetrain.guard.after import NOT_SAME, TEXTS, Contradictions
from securetrain.guard.agreement import code_of
from securetrain.guard.beacon import Beacon
from securetrain.guard.common_word import LEAST
from securetrain.guard.detector import Detector
from securetrain.guard.exclusion import Exclusion, Ground
from securetrain.guard.one_verdict import TOLD_OTHERWISE, Agreed, Heard, OneVerdict
from securetrain.guard.response import Findings
from securetrain.policy.schema import Gradients, GuardResponse

CODE: Final = "ST-GRAD-004"
_FLAGS: Final = ("refused", "contested", "undecided", "upstream", "overflow", "attributed")
_GROUNDS: Final = list(Ground)
_CODES: Final = 4
"""Bytes."""


class Learner(Protocol):
    """`Detector`."""

    def rewind(self, before: Detector) -> None:
        """Forget what came since."""
        ...


class CommonFinding:
    """The comparisons of one group of ranks. Collective.

    Args:
        channel: the group.
        beacon: carries the hash, where it travels with the next step.
        ranks: of the group, by their numbers in the job.
        exclusion: their record; only looked at.
        settings: the policy's section.
    """

    def __init__(
        self,
        channel: Heard,
        beacon: Beacon,
        ranks: Sequence[int],
        exclusion: Exclusion,
        settings: Gradients,
    ) -> None:
        self._channel = channel
        self._beacon = beacon
        self._ranks = ranks
        self._exclusion = exclusion
        acts = settings.response is not GuardResponse.OBSERVE
        self._one = OneVerdict(channel, exclusion.limit) if acts and channel.size >= LEAST else None
        channel.is_asked = self._one is not None
        self._confirm = settings.confirm_tables
        self._before: Detector | None = None

    @property
    def barred(self) -> frozenset[int]:
        """Ranks, by place, whose words are not read: they tell each rank something else."""
        return frozenset() if self._one is None else self._one.barred

    @property
    def is_agreed(self) -> bool:
        """True when findings are the same on all honest ranks, with one liar among them."""
        return self._one is not None

    def readable(self, rows: Sequence[bytes]) -> list[bytes]:
        """A table without the words of who is barred."""
        return [bytes(len(row)) if at in self.barred else row for at, row in enumerate(rows)]

    def begin(self, findings: Findings, told: Sequence[bytes], detector: Learner) -> None:
        """Compare what the ranks told with their first draw: the hash of the step before."""
        if self._one is None and len(set(told)) > 1:
            findings.add_disagreement()
            if self._before is not None:
                detector.rewind(self._before)

    def settle(
        self, findings: Findings, before: Detector, detector: Learner, rows: Sequence[bytes] = ()
    ) -> int:
        """Make a finding common; returns bytes sent.

        Args:
            findings: this rank's, of the present step.
            before: the detector before it.
            detector: and behind it.
            rows: the table.
        """
        self._before = before
        findings.offences = [one for one in findings.offences if one[0] not in self.barred]
        if self._one is not None:
            mine = pack(findings, self._ranks)
            agreed = self._one.agree(mine, self._channel.take())
            if not agreed.learn:
                detector.rewind(before)
            self._take_over(findings, agreed)
            return len(mine)
        said = hashlib.sha256(b"".join(rows))
        said.update(msgspec.json.encode((findings.codes, sorted(findings.outliers))))
        if not self._confirm:
            self._beacon.tell = said.digest()
        elif len(set(self._channel.all_gather(said.digest()))) > 1:
            findings.add_disagreement()
            detector.rewind(before)  # what differs from rank to rank must not be learned
        return said.digest_size * int(self._confirm)

    def end(self) -> None:
        """The step's consequences are drawn."""
        if self._one is not None:
            self._one.barred &= frozenset(self._exclusion.excluded)
            self._beacon.quiet = self._one.quiet

    def _bar(self, guilty: Sequence[int]) -> None:
        assert self._one is not None
        self._one.barred |= frozenset(guilty)
        self._beacon.quiet = self._one.quiet

    def compare(self) -> tuple[bool, tuple[int, ...]]:
        """Compare all that was told since the last comparison; returns whether it can be used, and
        the ranks that are guilty of telling others otherwise.
        """
        if self._one is None:
            return True, ()
        usable, guilty = self._one.same(self._channel.take())
        self._bar(guilty)
        return usable, guilty

    def choose(self, mine: bytes) -> bytes | None:
        """Return the message of most ranks; as long on every rank."""
        return mine if self._one is None else self._one.choose(mine)

    def after(self, found: Contradictions | None) -> Contradictions | None:
        """Make common what was found in numbers after the verdict."""
        if self._one is None:
            return found
        said = self._one.choose(pack_after(found, len(self._ranks)))
        return Contradictions(note=NOT_SAME) if said is None else unpack_after(said)

    def _take_over(self, findings: Findings, agreed: Agreed) -> None:
        if agreed.finding is None:
            findings.codes.clear()
            findings.reasons.clear()
            findings.outliers.clear()
            findings.proven.clear()
            findings.held = self._exclusion.held
            findings.overflow = False
            findings.add_disagreement()
        else:
            unpack(agreed.finding, findings, self._ranks)
            if not agreed.mine:
                findings.reasons.clear()
                findings.note("this rank was told otherwise than most: what they found counts")
        findings.disputes |= {(self._ranks[a], self._ranks[b]) for a, b in agreed.disputes}
        if agreed.disputes:
            findings.note("two ranks contradict each other about what the one told the other")
        for index in agreed.guilty:
            findings.offend(index, Ground.PROOF, self._ranks)
            if CODE not in findings.codes:
                findings.codes.append(CODE)
            findings.note(f"rank {self._ranks[index]} {TOLD_OTHERWISE}")
        self._bar(agreed.guilty)


def pack(findings: Findings, ranks: Sequence[int]) -> bytes:
    """Code what follows from a finding, all but words and numbers; as long on every rank."""
    codes = sum(1 << int(code[-3:]) for code in set(findings.codes))
    flags = sum(1 << bit for bit, name in enumerate(_FLAGS) if getattr(findings, name))
    grounds = bytearray(len(ranks))
    for place, ground in findings.offences:
        grounds[place] = max(grounds[place], 1 + _GROUNDS.index(ground))
    named = bytes(
        (place in findings.held) | (rank in findings.outliers) << 1 | (rank in findings.proven) << 2
        for place, rank in enumerate(ranks)
    )
    return codes.to_bytes(_CODES, "big") + bytes([flags]) + grounds + named


def unpack(data: bytes, findings: Findings, ranks: Sequence[int]) -> None:
    """Put what was packed in the place of what a finding has."""
    codes, size = int.from_bytes(data[:_CODES], "big"), len(ranks)
    said = [code_of(bit) for bit in range(8 * _CODES) if codes >> bit & 1]
    findings.codes = sorted(said, key=[*findings.codes, *said].index)
    for bit, name in enumerate(_FLAGS):
        setattr(findings, name, bool(data[_CODES] >> bit & 1))
    grounds, named = data[_CODES + 1 :][:size], data[_CODES + 1 + size :]
    findings.offences = [(at, _GROUNDS[n - 1]) for at, n in enumerate(grounds) if n]
    findings.held = tuple(at for at, bits in enumerate(named) if bits & 1)
    own = {rank for rank, bits in zip(ranks, named, strict=True) if bits & 2}
    findings.outliers = {*(findings.outliers - {*ranks}), *own}
    findings.proven = {rank for rank, bits in zip(ranks, named, strict=True) if bits & 4}


_NOTES: Final = 2


def pack_after(found: Contradictions | None, size: int) -> bytes:
    """Code what was found in numbers after the verdict; as long on every rank."""
    if found is None:
        return bytes(1 + _NOTES + size)
    ranks = bytes((at in found.named) | (at in found.corrected) << 1 for at in range(size))
    return bytes([1, TEXTS.index(found.text), TEXTS.index(found.note)]) + ranks


def unpack_after(data: bytes) -> Contradictions | None:
    """Read what was packed."""
    if not data[0]:
        return None
    ranks = list(enumerate(data[1 + _NOTES :]))
    return Contradictions(
        named=tuple(at for at, bits in ranks if bits & 1),
        corrected=tuple(at for at, bits in ranks if bits & 2),
        text=TEXTS[data[1]],
        note=TEXTS[data[2]],
    )
