# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From evidence to a verdict: which codes, what to say, what to do. Pure.

Evidence comes from groups of ranks (watch.py) that count from zero each; a verdict names the ranks
of the job.

The policy's response decides what a refused step does: `observe` goes on and only records,
`skip-step` drops the gradients and halts after `max_refused_steps` in a row, `halt` halts at
once. Statistics refuse steps; they never evict a rank for good.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from securetrain.guard.integrity import IntegrityResult
from securetrain.guard.outliers import Assessment
from securetrain.guard.verdict import RankScore, Test, Totals, Verdict, finite_or_none
from securetrain.policy.schema import GuardResponse

_TEXTS = {
    Test.NORM: "its norm is out of line",
    Test.FAR: "it is far from the others",
    Test.CLOSE: "it equals another rank's",
    Test.COSINE: "it points another way",
    Test.DIRECTION: "it keeps pointing another way",
    Test.HISTORY: "it keeps pulling the same way",
    Test.PAIR: "it left its own past",
}


@dataclass(kw_only=True)
class Findings:
    """Collects what is wrong with one step, in order."""

    codes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    outliers: set[int] = field(default_factory=set)
    attributed: bool = True
    table: tuple[RankScore, ...] = ()
    calibrating: bool = False
    integrity: float | None = None
    disputed: set[int] = field(default_factory=set)
    """Ranks that say they received something else than was sent: a dispute begins there."""
    partial_norms: dict[int, float] = field(default_factory=dict)
    """Norms, estimated, of the part of the reduced gradient that each rank holds."""

    def add(self, code: str, reason: str, *, attributed: bool = True) -> None:
        """Note one refusal."""
        if code not in self.codes:
            self.codes.append(code)
        self.reasons.append(reason)
        self.attributed = self.attributed and attributed

    def merge(self, other: "Findings") -> None:
        """Take over what was found about another piece of the model."""
        self.codes += [code for code in other.codes if code not in self.codes]
        self.reasons += [reason for reason in other.reasons if reason not in self.reasons]
        self.outliers |= other.outliers
        self.attributed = self.attributed and other.attributed
        self.table += other.table
        self.disputed |= other.disputed
        self.partial_norms.update(other.partial_norms)
        self.calibrating = self.calibrating or other.calibrating
        if other.integrity is not None:
            self.integrity = max(other.integrity, self.integrity or 0.0)

    def add_disagreement(self) -> None:
        """The ranks' transcripts or tables differ."""
        self.add("ST-GRAD-004", "the ranks do not hold the same table", attributed=False)

    def add_unopened(self, unopened: Sequence[int], ranks: Sequence[int]) -> None:
        """The ranks whose value does not open their commitment, as every rank sees for itself.

        Who was told other values than the rest shows by its transcript, and then nobody is named.
        """
        for index in unopened:
            self.outliers.add(ranks[index])
            self.add("ST-GRAD-004", f"rank {ranks[index]} did not open its commitment")

    def add_assessment(
        self, assessment: Assessment, threshold: float, ranks: Sequence[int]
    ) -> None:
        """Add the detector's findings."""
        self.table += tuple(
            msgspec.structs.replace(score, rank=ranks[score.rank]) for score in assessment.table
        )
        self.calibrating = assessment.calibrating
        for index in assessment.not_finite:
            self.outliers.add(ranks[index])
            self.add("ST-GRAD-001", f"rank {ranks[index]}'s gradient is not finite")
        for index in assessment.outliers:
            score, rank = assessment.table[index], ranks[index]
            why = ", ".join(_TEXTS[test] for test in score.flags if test in _TEXTS)
            z = max(v for v in (score.z, score.direction, score.history, 0.0) if v is not None)
            self.outliers.add(rank)
            self.add(
                "ST-GRAD-002",
                f"rank {rank}'s gradient is an outlier: {why} (z {z:.1f}, limit {threshold:g})",
                attributed=assessment.attributed,
            )
        if not assessment.outliers and not assessment.attributed:
            self.add("ST-GRAD-002", "one of two ranks is off; which is not known", attributed=False)
        if assessment.spike:
            alone = len(assessment.table) == 1
            if alone:
                self.outliers.add(ranks[0])
            self.add(
                "ST-GRAD-002",
                "the gradient's norm left its own past"
                if alone
                else "the norm of all ranks' gradients left its own past",
                attributed=alone,
            )

    def add_integrity(
        self, result: IntegrityResult, ranks: Sequence[int], groups: Sequence[str]
    ) -> None:
        """Add a mismatch between the reduction and what the ranks sent; names nobody."""
        self.integrity = finite_or_none(result.ratio)
        self.disputed.update(ranks[index] for index in result.holders)
        if result.holders:
            self.add(
                "ST-GRAD-003",
                f"{len(result.holders)} of {len(ranks)} results are not the mean of what the ranks"
                " sent",
                attributed=False,
            )
        for index in result.groups:
            self.add(
                "ST-GRAD-003",
                f"the reduced gradient of {groups[index]} is not the mean of what the ranks sent",
                attributed=False,
            )

    def verdict(
        self, step: int, totals: Totals, response: GuardResponse, max_refused_steps: int
    ) -> tuple[Verdict, Totals]:
        """Decide, and count."""
        ok = not self.codes
        codes = list(self.codes)
        in_a_row = 0 if ok else totals.refused_in_a_row + 1
        act = GuardResponse.OBSERVE
        if not ok:
            match response:
                case GuardResponse.OBSERVE | GuardResponse.HALT:
                    act = response
                case GuardResponse.SKIP_STEP:
                    halt = in_a_row >= max_refused_steps
                    act = GuardResponse.HALT if halt else GuardResponse.SKIP_STEP
                case _:
                    raise ValueError(f"unknown response {response!r}")
        if act is GuardResponse.HALT:
            codes.append("ST-GRAD-005")
        totals = msgspec.structs.replace(
            totals,
            judged=totals.judged + 1,
            calibrating=totals.calibrating + int(self.calibrating),
            refused=totals.refused + int(not ok),
            refused_in_a_row=in_a_row,
        )
        verdict = Verdict(
            step=step,
            ok=ok,
            response=act,
            codes=tuple(sorted(codes)),
            outliers=tuple(sorted(self.outliers)),
            attributed=self.attributed,
            calibrating=self.calibrating,
            integrity=self.integrity,
            reason="; ".join(self.reasons),
            table=self.table,
        )
        return verdict, totals
