# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From evidence to a verdict: which codes, what to say, what to do. Pure.

Evidence comes from groups of ranks (watch.py) that count from zero each; a verdict names the ranks
of the job. Rules:

1. a sentence names a rank only where the evidence does: its own numbers, statistics that name it
   alone, or the word of a majority about it. One rank's word about another names neither;
2. a step that was **settled** (reduced again without whoever spoiled it, rereduction.py) is not
   refused any more: nothing of what was found is in the gradients. Its codes and reasons stay;
3. the policy's response is what happens to a step that stays refused:

   ===============  ==============================================================================
   ``observe``      it is applied all the same, and only recorded; nobody is excluded
   ``skip-step``    it is dropped; who was named is excluded from the next step on
   ``exclude-rank`` the same, but a step that can be reduced again within itself is not dropped
   ``evict-node``   as ``exclude-rank``: statistics exclude, only an audit's evidence evicts
   ``clip``         as ``exclude-rank``, and a step that nobody can be excluded for is clipped
                    tensor by tensor to what accepted steps had, if its numbers are finite
   ``rollback``     as ``exclude-rank``, and the trainer goes back to the newest good checkpoint
                    when statistics have named a rank (it was in the weights before) and when nobody
                    can be excluded
   ``halt``         the run ends at once
   ===============  ==============================================================================

4. one bad rank never ends a run unless the policy says `halt`. `max_refused_steps` in a row end it
   where nobody *can* be excluded: more ranks are bad than the bound allows (`undecided`), or all of
   them are (`upstream`: the cause is in parameters, loss scale or data). A dispute that stays open
   does not count, because one liar can keep it open: such steps are dropped, and that is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from securetrain.guard.exclusion import Ground
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
_UPSTREAM = "no rank is named, look upstream: at the parameters, the loss scale and the data"
EXCLUDING = frozenset(
    {
        GuardResponse.SKIP_STEP,
        GuardResponse.CLIP,
        GuardResponse.EXCLUDE_RANK,
        GuardResponse.ROLLBACK,
        GuardResponse.EVICT_NODE,
    }
)
"""Responses under which a named rank is excluded."""


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
    refused: bool = False
    """Something found is in the gradients that the optimizer would see."""
    contested: bool = False
    """A refusal has no culprit, and one rank alone can be behind it."""
    undecided: bool = False
    upstream: bool = False
    excluded: set[int] = field(default_factory=set)
    """Ranks whose gradients count zero in this step's result."""
    newly_excluded: set[int] = field(default_factory=set)
    readmitted: set[int] = field(default_factory=set)
    stale: bool = False
    """Statistics named a rank now: it was in the weights before."""
    disputes: set[tuple[int, int]] = field(default_factory=set)
    """Pairs that contradict each other; no word against either."""
    offences: list[tuple[int, Ground]] = field(default_factory=list)
    """Of this group, by place in it."""

    def add(
        self, code: str, reason: str, *, attributed: bool = True, hopeless: bool = False
    ) -> None:
        """Note one refusal.

        Args:
            code: of the refusal.
            reason: a sentence.
            attributed: the evidence names who it was.
            hopeless: it does not, and a dispute would not find out.
        """
        if code not in self.codes:
            self.codes.append(code)
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.attributed = self.attributed and attributed
        self.refused = True
        self.contested = self.contested or not (attributed or hopeless)

    def note(self, reason: str) -> None:
        """Note what happened, without refusing."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def offend(self, index: int, ground: Ground, ranks: Sequence[int]) -> None:
        """Note what a rank of the group has done."""
        self.offences.append((index, ground))
        self.outliers.add(ranks[index])

    def settle(self) -> None:
        """The step was reduced again: nothing of what was found is in it."""
        self.refused = False

    def merge(self, other: "Findings") -> None:
        """Take over what was found about another piece of the model."""
        self.codes += [code for code in other.codes if code not in self.codes]
        self.reasons += [reason for reason in other.reasons if reason not in self.reasons]
        self.outliers |= other.outliers
        self.attributed = self.attributed and other.attributed
        self.table += other.table
        self.calibrating = self.calibrating or other.calibrating
        if other.integrity is not None:
            self.integrity = max(other.integrity, self.integrity or 0.0)
        self.refused = self.refused or other.refused
        self.contested = self.contested or other.contested
        self.undecided = self.undecided or other.undecided
        self.upstream = self.upstream or other.upstream
        self.excluded |= other.excluded
        self.newly_excluded |= other.newly_excluded
        self.readmitted |= other.readmitted
        self.stale = self.stale or other.stale
        self.disputes |= other.disputes

    def add_disagreement(self) -> None:
        """The ranks' transcripts or tables differ."""
        self.add("ST-GRAD-004", "the ranks do not hold the same table", attributed=False)

    def add_unopened(self, accusations: list[set[int]], ranks: Sequence[int]) -> None:
        """Each rank's set of ranks that did not open their commitment."""
        for index in sorted(set().union(*accusations)):
            if sum(index in by for by in accusations) > len(accusations) / 2:
                self.offend(index, Ground.PROOF, ranks)
                self.add("ST-GRAD-004", f"rank {ranks[index]} did not open its commitment")
            else:
                self.add(
                    "ST-GRAD-004",
                    "some say that a commitment was not opened, and most say that it was",
                    attributed=False,
                )

    def add_assessment(
        self,
        assessment: Assessment,
        threshold: float,
        ranks: Sequence[int],
        excluded: Sequence[int] = (),
    ) -> None:
        """Add the detector's findings; those about excluded ranks are evidence and refuse nothing.

        Args:
            assessment: of the group.
            threshold: its limit, for the text.
            ranks: the group's, by their numbers in the job.
            excluded: places in the group that count zero already.
        """
        self.table += tuple(
            msgspec.structs.replace(score, rank=ranks[score.rank]) for score in assessment.table
        )
        self.calibrating = assessment.calibrating
        live = [index for index in range(len(ranks)) if index not in excluded]
        self._add_not_finite(assessment.not_finite, live, ranks)
        outliers = [i for i in assessment.outliers if assessment.table[i].flags != (Test.CLOSE,)]
        copies = [ranks[i] for i in assessment.outliers if i not in outliers]
        if copies:
            named = ", ".join(map(str, copies))
            self.note(f"the gradients of ranks {named} are copies; who copied cannot be known")
        sure = assessment.attributed or bool(copies)
        for index in outliers:
            if index not in live:
                self.offences.append((index, Ground.STATISTICS))
                continue
            self._add_outlier(assessment.table[index], index, threshold, ranks, sure=sure)
        if not assessment.outliers and not assessment.attributed:
            self.undecided = True
            text = "one of two ranks is off; which is not known"
            self.add("ST-GRAD-002", text, attributed=False, hopeless=True)
        if assessment.spike:
            self._add_spike(ranks)

    def _add_not_finite(
        self, not_finite: Sequence[int], live: list[int], ranks: Sequence[int]
    ) -> None:
        everybody = bool(live) and set(live) <= set(not_finite)
        self.upstream = self.upstream or everybody
        if everybody and len(ranks) > 1:
            text = f"the gradients of all ranks are not finite: {_UPSTREAM}"
            self.add("ST-GRAD-001", text, attributed=False, hopeless=True)
            return
        for index in not_finite:
            if index not in live:
                self.offences.append((index, Ground.NOT_FINITE))
                continue
            self.offend(index, Ground.NOT_FINITE, ranks)
            self.add("ST-GRAD-001", f"rank {ranks[index]}'s gradient is not finite")

    def _add_outlier(
        self, score: RankScore, index: int, threshold: float, ranks: Sequence[int], *, sure: bool
    ) -> None:
        why = ", ".join(_TEXTS[test] for test in score.flags if test in _TEXTS)
        z = max(v for v in (score.z, score.direction, score.history, 0.0) if v is not None)
        rank = ranks[index]
        if sure:
            self.offend(index, Ground.STATISTICS, ranks)
        else:
            self.outliers.add(rank)
            self.undecided = True
        self.add(
            "ST-GRAD-002",
            f"rank {rank}'s gradient is an outlier: {why} (z {z:.1f}, limit {threshold:g})",
            attributed=sure,
            hopeless=True,
        )

    def _add_spike(self, ranks: Sequence[int]) -> None:
        alone = len(ranks) == 1
        if alone:
            self.outliers.add(ranks[0])
        self.upstream = True
        self.add(
            "ST-GRAD-002",
            "the gradient's norm left its own past"
            if alone
            else f"the norm of all ranks' gradients left its own past: {_UPSTREAM}",
            attributed=alone,
            hopeless=True,
        )

    def add_integrity(self, result: IntegrityResult) -> None:
        """Add a mismatch between the reduction and what the ranks sent."""
        self.integrity = finite_or_none(result.ratio)
        if result.ok:
            return
        self.add(
            "ST-GRAD-003",
            "the reduced gradient is not the mean of what the ranks say they sent: a sender, a link"
            " or a receiver is wrong, and this does not show which",
            attributed=False,
        )

    def verdict(
        self, step: int, totals: Totals, response: GuardResponse, max_refused_steps: int
    ) -> tuple[Verdict, Totals]:
        """Decide, and count."""
        codes = list(self.codes)
        hopeless = self.refused and (self.undecided or self.upstream)
        in_a_row = totals.refused_in_a_row + 1 if self.refused else 0
        hopeless_in_a_row = totals.hopeless_in_a_row + 1 if hopeless else 0
        act = self._act(response, ends=hopeless_in_a_row >= max_refused_steps)
        if act is GuardResponse.HALT:
            codes.append("ST-GRAD-005")
        totals = msgspec.structs.replace(
            totals,
            judged=totals.judged + 1,
            calibrating=totals.calibrating + int(self.calibrating),
            refused=totals.refused + int(self.refused),
            refused_in_a_row=in_a_row,
            hopeless_in_a_row=hopeless_in_a_row,
            settled=totals.settled + int(bool(self.codes) and not self.refused),
            without=totals.without + int(bool(self.excluded) and not self.refused),
        )
        verdict = Verdict(
            step=step,
            ok=not self.codes,
            response=act,
            codes=tuple(sorted(codes)),
            outliers=tuple(sorted(self.outliers)),
            attributed=self.attributed,
            calibrating=self.calibrating,
            integrity=self.integrity,
            reason="; ".join(self.reasons),
            table=self.table,
            settled=bool(self.codes) and not self.refused,
            excluded=tuple(sorted(self.excluded)),
            newly_excluded=tuple(sorted(self.newly_excluded)),
            readmitted=tuple(sorted(self.readmitted)),
            undecided=self.undecided,
            disputes=tuple(sorted(self.disputes)),
        )
        return verdict, totals

    def _act(self, response: GuardResponse, *, ends: bool) -> GuardResponse:
        """The action to take now (rules 3 and 4)."""
        match response:
            case GuardResponse.OBSERVE:
                return response
            case GuardResponse.HALT:
                return response if self.codes else GuardResponse.OBSERVE
            case GuardResponse.ROLLBACK if self.stale or (self.refused and self._hopeless):
                return GuardResponse.HALT if ends else response
            case _ if not self.refused:
                # Nothing of what was found is in the gradients.
                return GuardResponse.EXCLUDE_RANK if self.codes else GuardResponse.OBSERVE
            case _ if ends:
                return GuardResponse.HALT
            case GuardResponse.CLIP if self._hopeless and "ST-GRAD-001" not in self.codes:
                return response
            case (
                GuardResponse.SKIP_STEP
                | GuardResponse.CLIP
                | GuardResponse.EXCLUDE_RANK
                | GuardResponse.EVICT_NODE
                | GuardResponse.ROLLBACK
            ):
                return GuardResponse.SKIP_STEP
            case _:
                raise ValueError(f"unknown response {response!r}")

    @property
    def _hopeless(self) -> bool:
        return self.undecided or self.upstream
