# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard's part of the report: curves from the sketches file, exclusions from the ledger.

Rules:

1. who was excluded, on what evidence and what came of it is read from the verified ledger; the
   curves are in no signature and shown as recorded;
2. a run that was taken back does steps again: the later record of a step counts, and what was done
   before stands in the timeline;
3. a budget of false alarms is a rate. How many it allowed for the rank-steps that were judged, and
   how near the evidence against a rank that was never named came to its limit, are two numbers, and
   neither says that a rank that was not named is good.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from securetrain.ledger import LedgerEvent, events
from securetrain.policy.schema import Gradients
from securetrain.report.document import picked
from securetrain.report.run.model import (
    ExclusionView,
    GuardView,
    LayerPoint,
    RankPoint,
    TimelineEntry,
)

_STEP: Final = re.compile(r"step (\d{1,18})\b")
MAX_TIMELINE: Final = 200
_TIMELINE: Final[Mapping[type[LedgerEvent], tuple[str, str]]] = {
    events.StepRefused: ("step refused", "{0.code} {0.what}"),
    events.StepSettled: ("step reduced again", "{0.codes} {0.reason}"),
    events.RankExcluded: ("rank {0.rank} excluded ({0.effect})", "{0.evidence}"),
    events.RankReadmitted: ("rank {0.rank} counts again", ""),
    events.RankSuspected: ("rank {0.rank} reported to the rendezvous", "{0.cause}"),
    events.RolledBack: ("back to step {0.to}", "without rank {0.ranks}"),
    events.RollbackImpossible: ("no checkpoint to go back to", "rank {0.ranks}"),
    events.RunHalted: ("run halted", "{0.code} {0.what}"),
    events.GradientsNotWatched: ("gradients: NOT WATCHED", "{0.reason}"),
}
"""What the guard did, by the word of the ledger: what, and why."""


class _Score(msgspec.Struct, frozen=True):
    rank: int
    norm: float | None = None
    cosine: float | None = None
    evidence: float | None = None
    limit: float | None = None


class _Verdict(msgspec.Struct, frozen=True):
    step: int
    ok: bool
    codes: list[str] = []
    integrity: float | None = None
    reason: str = ""
    table: list[_Score] = []
    layers: list[LayerPoint] = []


class Step(msgspec.Struct, frozen=True):
    """The part of a line of the sketches file (guard.verdict.StepRecord) that is shown."""

    verdict: _Verdict


def view(
    lines: Sequence[Step], said: Sequence[LedgerEvent], settings: Gradients | None
) -> GuardView | None:
    """The guard's part of a run; None when it recorded nothing.

    Args:
        lines: Of the sketches file, in its order.
        said: The events of the verified ledger.
        settings: The policy's section.
    """
    by_step = {line.verdict.step: line.verdict for line in lines}
    steps = [by_step[step] for step in sorted(by_step)]
    if not steps:
        return None
    refused = [step for step in steps if not step.ok]
    scores = [(step.step, score) for step in steps for score in step.table]
    exclusions = _exclusions(said)
    limit = max((score.limit for _, score in scores if score.limit), default=None)
    return GuardView(
        points=tuple(
            RankPoint(step=step, **picked(one, "rank norm evidence cosine")) for step, one in scores
        ),
        layers=tuple(replace(one, step=step.step) for step in steps for one in step.layers),
        integrity=tuple(
            (step.step, step.integrity) for step in steps if step.integrity is not None
        ),
        num_steps=len(steps),
        steps=tuple(step.step for step in steps),
        refused_steps=tuple(step.step for step in refused),
        reasons=tuple(
            f"step {step.step}: {' '.join(step.codes)} {step.reason}" for step in refused[:20]
        ),
        limit=limit,
        peak=_peak(scores, {one.rank for one in exclusions}, limit),
        num_rank_steps=len(scores),
        budget=None if settings is None else settings.budget,
        exclusions=exclusions,
        timeline=tuple(islice(_timeline(said), MAX_TIMELINE)),
    )


def _peak(
    scores: Sequence[tuple[int, _Score]], excluded: Collection[int], limit: float | None
) -> float:
    """The largest evidence against a rank that was never excluded, as a share of the limit."""
    found = [one.evidence for _, one in scores if one.evidence and one.rank not in excluded]
    return max(found, default=0.0) / limit if limit else 0.0


def _exclusions(said: Sequence[LedgerEvent]) -> tuple[ExclusionView, ...]:
    """Every exclusion, and what came of it, in the order in which they began.

    What is said of a rank that never was excluded is in the timeline alone.
    """
    found: list[ExclusionView] = []
    for event in said:
        match event:
            case events.RankExcluded():
                told = picked(event, "rank codes evidence effect")
                found.append(ExclusionView(since=_step(event.subject), **told))
            case events.RankReadmitted():
                _amend(found, [event.rank], until=_step(event.subject))
            case events.RolledBack():
                ranks = [int(word) for word in event.ranks.split(", ") if word.isdigit()]
                _amend(found, ranks, rolled_back_to=event.to)
            case events.RankSuspected():
                _amend(found, [event.rank], reported=event.cause)
    return tuple(found)


def _amend(found: list[ExclusionView], ranks: Sequence[int], **changes: object) -> None:
    """Add to the last exclusion of each rank."""
    places = {one.rank: place for place, one in enumerate(found)}
    for place in (places[rank] for rank in ranks if rank in places):
        found[place] = replace(found[place], **changes)


def _timeline(said: Sequence[LedgerEvent]) -> Iterator[TimelineEntry]:
    for event in said:
        if type(event) in _TIMELINE:
            what, why = (words.format(event) for words in _TIMELINE[type(event)])
            yield TimelineEntry(step=_step(event.subject), what=what, why=why)


def expected_false_alarms(view: GuardView) -> float | None:
    """The false exclusions that the budget allows, at most, for the rank-steps that were judged."""
    return None if view.budget is None else view.num_rank_steps * view.budget / 1e6


def budget_words(view: GuardView) -> str:
    """The budget that was spent, in words."""
    allowed = expected_false_alarms(view)
    if allowed is None or view.limit is None:
        return ""
    reached, chance = view.peak * view.limit, ""
    if reached > 0:
        chance = (
            f": an honest rank gets there by chance at most once in {math.exp(reached):,.0f}"
            " rank-steps"
        )
    return (
        f"{view.num_rank_steps:,} rank-steps were judged, for which a budget of"
        f" {view.budget:g} in a million allows {allowed:.2g} false exclusions. The strongest"
        f" evidence against a rank that was never excluded is ln E {reached:.1f} of"
        f" {view.limit:.1f} ({view.peak:.0%} of the limit){chance}. What stays below the limit is"
        " not proven honest: a lie that is small enough, or that moves from rank to rank, is not"
        " found by any of these tests."
    )


def _step(subject: str) -> int | None:
    found = _STEP.match(subject)
    return int(found[1]) if found else None
