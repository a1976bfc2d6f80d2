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
   ``rollback``     as ``exclude-rank``; where earlier steps were applied with what the rank is
                    named for, the run also goes back to the state before them
   ``evict-node``   as ``exclude-rank``, and the rank is reported to the rendezvous, which evicts
                    its node for proof alone: what statistics say is recorded and not counted
   ``clip``         as ``exclude-rank``, and a step that nobody can be excluded for is clipped
                    tensor by tensor to what accepted steps had, if its numbers are finite
   ``halt``         the run ends at once
   ===============  ==============================================================================

4. one bad rank never ends a run unless the policy says `halt`. `max_refused_steps` in a row end it
   where nobody *can* be excluded: more ranks are bad than the bound allows (`undecided`), or all of
   them are (`upstream`: the cause is in parameters, loss scale or data). A dispute that stays open
   does not count, because one liar can keep it open: such steps are dropped, and that is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from securetrain.guard.assessment import Assessment
from securetrain.guard.exclusion import Ground
from securetrain.guard.integrity import IntegrityResult
from securetrain.guard.verdict import LayerScore, RankScore, Totals, Verdict, finite_or_none
from securetrain.policy.schema import GuardResponse

_UPSTREAM = "no rank is named, look upstream: at the parameters, the loss scale and the data"
_APART: Final = 4.0
"""Norms that differ by more are not those of ranks that see data of one kind."""
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
    layers: tuple[LayerScore, ...] = ()
    calibrating: bool = False
    integrity: float | None = None
    peak: float = 0.0
    """The largest evidence of an honest rank so far, as a share of the limit."""
    held: tuple[int, ...] = ()
    """Ranks of this group, by place, that the detector keeps on probation."""
    disputed: set[int] = field(default_factory=set)
    """Ranks that say they received something else than was sent: a dispute begins there."""
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
    proven: set[int] = field(default_factory=set)
    """Ranks that the protocol has caught, in front of a majority."""
    reaches_back: bool = False
    """Earlier steps were applied with what a newly excluded rank is named for."""
    since: int | None = None
    """The last step before that, where this rank's group knows it."""
    disputes: set[tuple[int, int]] = field(default_factory=set)
    """Pairs that contradict each other; no word against either."""
    scaled: bool = False
    """A loss scaler looks at the gradients before they are used."""
    overflow: bool = False
    """They are not finite, and the scaler skips the step."""
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

    def leave_to_scaler(self, reason: str) -> None:
        """Refuse a step that a loss scaler skips by itself: nobody is named, nothing halts."""
        self.overflow = True
        self.add("ST-GRAD-001", reason, attributed=False, hopeless=True)

    def note(self, reason: str) -> None:
        """Note what happened, without refusing."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def offend(self, index: int, ground: Ground, ranks: Sequence[int]) -> None:
        """Note what a rank of the group has done."""
        self.offences.append((index, ground))
        self.outliers.add(ranks[index])
        if ground is Ground.PROOF:
            self.proven.add(ranks[index])

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
        self.layers += other.layers
        self.disputed |= other.disputed
        self.peak = max(self.peak, other.peak)
        self.calibrating = self.calibrating or other.calibrating
        if other.integrity is not None:
            self.integrity = max(other.integrity, self.integrity or 0.0)
        self.refused = self.refused or other.refused
        self.contested = self.contested or other.contested
        self.overflow = self.overflow or other.overflow
        self.undecided = self.undecided or other.undecided
        self.upstream = self.upstream or other.upstream
        self.excluded |= other.excluded
        self.newly_excluded |= other.newly_excluded
        self.readmitted |= other.readmitted
        self.proven |= other.proven
        self.disputes |= other.disputes

    def add_disagreement(self) -> None:
        """The ranks' transcripts or tables differ."""
        # What else was found may be something else on another rank.
        self.offences.clear()
        self.undecided = self.upstream = False
        self.add("ST-GRAD-004", "the ranks do not hold the same table", attributed=False)

    def accuse(
        self, code: str, reason: str, index: int, ranks: Sequence[int], known: Sequence[int]
    ) -> None:
        """Refuse for what a rank itself has done, for all to see.

        Args:
            code: of the refusal.
            reason: a sentence.
            index: the rank's place in the group.
            ranks: of the group.
            known: places of ranks that are excluded: what they do is evidence and refuses nothing.
        """
        if index in known:
            self.offences.append((index, Ground.PROOF))
            return
        self.offend(index, Ground.PROOF, ranks)
        self.add(code, reason)

    def add_unopened(
        self, unopened: Sequence[int], ranks: Sequence[int], known: Sequence[int] = ()
    ) -> None:
        """The ranks whose value does not open their commitment, as every rank sees for itself.

        Who was told other values than the rest shows by its transcript, and then nobody is named.
        """
        for index in unopened:
            text = f"rank {ranks[index]} did not open its commitment"
            self.accuse("ST-GRAD-004", text, index, ranks, known)

    def add_assessment(
        self, assessment: Assessment, ranks: Sequence[int], excluded: Sequence[int] = ()
    ) -> None:
        """Add the detector's findings; those about excluded ranks are evidence and refuse nothing.

        Args:
            assessment: of the group.
            ranks: the group's, by their numbers in the job.
            excluded: places in the group that count zero already.
        """
        self.table += tuple(_score(assessment, index, rank) for index, rank in enumerate(ranks))
        self.calibrating = assessment.learning
        self.peak = max(self.peak, assessment.peak)
        self.layers += tuple(
            LayerScore(group=group, rank=ranks[place], evidence=evidence)
            for group, place, evidence in assessment.layers
        )
        self.held = assessment.named
        live = [index for index in range(len(ranks)) if index not in excluded]
        self._add_not_finite(assessment.not_finite, live, ranks)
        if assessment.copies:
            self.note("the gradients of two ranks are copies; who copied cannot be known")
        for index in assessment.gross:
            self._add_outlier(assessment, index, Ground.GROSS, live, ranks)
        for index in assessment.newly_named:
            self._add_outlier(assessment, index, Ground.STATISTICS, live, ranks)
        if assessment.pair and not assessment.gross:
            self.undecided = True
            text = "one of two ranks is off; which is not known"
            self.add("ST-GRAD-002", text, attributed=False, hopeless=True)
        if assessment.undecided:
            self._add_undecided(assessment, live)
        if assessment.spike:
            self._add_spike(ranks)

    def _add_undecided(self, assessment: Assessment, live: Sequence[int]) -> None:
        """More ranks are off than may be excluded, or one that cannot be named."""
        norms = [n for i in live if (n := assessment.norms[i]) is not None and n > 0]
        if norms and max(norms) > _APART * min(norms):
            self.undecided = True
            text = "more ranks are far off than may be excluded"
            self.add("ST-GRAD-002", text, attributed=False, hopeless=True)
        else:
            self.note("some rank is off in most steps, and which one is undecided: audit the run")

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
        self,
        assessment: Assessment,
        index: int,
        ground: Ground,
        live: Sequence[int],
        ranks: Sequence[int],
    ) -> None:
        if index not in live:
            self.offences.append((index, ground))
            return
        self.offend(index, ground, ranks)
        why = str(assessment.why.get(index, "its gradient is out of line"))
        if ground is Ground.STATISTICS:
            why += f" (ln E {assessment.evidence[index]:.1f}, limit {assessment.limit:.1f})"
        self.add("ST-GRAD-002", f"rank {ranks[index]} is an outlier: {why}", hopeless=True)

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

    def add_integrity(self, result: IntegrityResult, ranks: Sequence[int]) -> None:
        """Add a mismatch between the reduction and what the ranks sent."""
        self.integrity = finite_or_none(result.ratio)
        self.disputed.update(ranks[index] for index in result.holders)
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
        back = act is GuardResponse.ROLLBACK
        since = None if not back else step - 1 if self.since is None else self.since
        totals = msgspec.structs.replace(
            totals,
            judged=totals.judged + 1,
            calibrating=totals.calibrating + int(self.calibrating),
            refused=totals.refused + int(self.refused),
            refused_in_a_row=in_a_row,
            hopeless_in_a_row=hopeless_in_a_row,
            settled=totals.settled + int(bool(self.codes) and not self.refused),
            without=totals.without + int(bool(self.excluded) and not self.refused),
            rolled_back=totals.rolled_back + int(back),
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
            layers=self.layers,
            peak=self.peak,
            settled=bool(self.codes) and not self.refused,
            excluded=tuple(sorted(self.excluded)),
            newly_excluded=tuple(sorted(self.newly_excluded)),
            readmitted=tuple(sorted(self.readmitted)),
            undecided=self.undecided,
            overflow=self.overflow,
            disputes=tuple(sorted(self.disputes)),
            proven=tuple(sorted(self.proven)),
            roll_back_to=since,
        )
        return verdict, totals

    def _act(self, response: GuardResponse, *, ends: bool) -> GuardResponse:
        """The action to take now (rules 3 and 4)."""
        match response:
            case GuardResponse.OBSERVE:
                return response
            case _ if self.overflow and len(self.codes) == 1:
                return GuardResponse.SKIP_STEP
            case GuardResponse.HALT:
                return response if self.codes else GuardResponse.OBSERVE
            case GuardResponse.ROLLBACK if self.newly_excluded and self.reaches_back:
                return response
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
                | GuardResponse.ROLLBACK
                | GuardResponse.EVICT_NODE
            ):
                return GuardResponse.SKIP_STEP
            case _:
                raise ValueError(f"unknown response {response!r}")

    @property
    def _hopeless(self) -> bool:
        return self.undecided or self.upstream


def _score(assessment: Assessment, index: int, rank: int) -> RankScore:
    norm = assessment.norms[index]
    return RankScore(
        rank=rank,
        finite=index not in assessment.not_finite,
        norm=norm,
        cosine=assessment.cosines[index] if assessment.cosines else None,
        evidence=assessment.evidence[index] if assessment.evidence else None,
        limit=assessment.limit or None,
        why=str(assessment.why[index]) if index in assessment.why else "",
    )
