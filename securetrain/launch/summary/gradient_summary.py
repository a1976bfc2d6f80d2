# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Gradients that were watched or not: from the workers' reports to one sentence."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from securetrain.core.vocabulary import NOT_WATCHED
from securetrain.launch.agent.elastic_agent import Plan
from securetrain.launch.process.workerlog import GradientReport, WorkerReport
from securetrain.launch.setup import RunSetup
from securetrain.launch.summary.run_summary import GradientSummary
from securetrain.ledger import Ledger, events
from securetrain.policy.schema import Gradients, GuardMode

NOT_YET: Final = "gradients: not watched yet"
"""Known when a model is wrapped."""
OFF: Final = "the policy turns the guard off (gradients.mode)"
WITHOUT_SHIM: Final = "the workers run without the shim"
_Word = TypeVar("_Word")
_SHOWN: Final = 3
"""Reasons in the sentence."""


def at_start(settings: Gradients, *, protected: bool) -> GradientSummary:
    """Say what is known before the workers start."""
    why = OFF if settings.mode is GuardMode.OFF else "" if protected else WITHOUT_SHIM
    if why:
        return GradientSummary(label=f"{NOT_WATCHED}: {why}", watched=False, reasons=(why,))
    return GradientSummary(label=NOT_YET)


def at_end(
    settings: Gradients, reports: Sequence[WorkerReport], *, protected: bool, num_workers: int
) -> GradientSummary:
    """Say what came of it.

    Args:
        settings: The policy's section.
        reports: Of all attempts; the latest of each rank counts.
        protected: Whether the workers ran under the shim.
        num_workers: On this node.
    """
    start = at_start(settings, protected=protected)
    if start.watched is False:
        return start
    latest: dict[int, GradientReport] = {}
    for report in sorted(reports, key=lambda one: one.attempt):
        if report.gradients is not None and not (report.child and report.rank in latest):
            latest[report.rank] = report.gradients
    for report in reports:  # processes that a worker started, where it made no step itself
        made = report.gradients
        if report.child and made is not None and report.has_news:
            latest[report.rank] = _merged(latest.get(report.rank), made)
    said = latest.values()
    judged = min((one.judged for one in said), default=0)
    refused = max((one.refused for one in said), default=0)
    settled = max((one.settled for one in said), default=0)
    excluded = sorted(_most(said, lambda one: one.excluded))
    named: dict[str, tuple[str, ...]] = {}
    for rank in sorted(_most(said, lambda one: one.named), key=lambda r: (len(r), r)):
        codes = _most(said, lambda one, rank=rank: one.named.get(rank, ()))  # type: ignore[misc]
        named[rank] = tuple(sorted(codes))
    reasons = [reason for one in said for reason in one.reasons]
    steps = max((one.judged + one.unwatched_steps for one in said), default=0)
    if (missing := num_workers - len(latest)) > 0 and steps:
        reasons.append(f"{missing} of {num_workers} workers left no report")
    reasons = list(dict.fromkeys(reasons))
    figures = _figures(judged, refused, settled, named, excluded)
    if reasons:
        more = f" and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
        label = f"{NOT_WATCHED}: {'; '.join(reasons[:_SHOWN])}{more} ({figures})"
    elif judged:
        label = f"gradients: watched; {figures}"
    else:
        label = "gradients: no step of two or more ranks was seen"
    return GradientSummary(
        label=label,
        watched=False if reasons else True if judged else None,
        judged=judged,
        refused=refused,
        settled=settled,
        named=named,
        excluded=tuple(excluded),
        reasons=tuple(reasons),
    )


def _merged(one: GradientReport | None, other: GradientReport) -> GradientReport:
    """The words of a rank and of processes of its own, as one."""
    if one is None or not (one.judged or one.unwatched_steps or one.reasons):
        return other
    return msgspec.structs.replace(
        one,
        judged=max(one.judged, other.judged),
        refused=max(one.refused, other.refused),
        unwatched_steps=one.unwatched_steps + other.unwatched_steps,
        reasons=tuple(dict.fromkeys((*one.reasons, *other.reasons))),
    )


def _most(
    said: Collection[GradientReport], words: Callable[[GradientReport], Iterable[_Word]]
) -> set[_Word]:
    """Words of more than half of the ranks: one rank can have no other one named."""
    counts = Counter(word for one in said for word in set(words(one)))
    return {word for word, count in counts.items() if 2 * count > len(said)}


def _figures(
    judged: int, refused: int, settled: int, named: dict[str, tuple[str, ...]], excluded: list[int]
) -> str:
    figures = f"{_count(judged, 'step')} judged, {refused} refused"
    if settled:
        figures += f", {settled} reduced again"
    if named:
        figures += f"; named: {words_of(named)}"
    if excluded:
        figures += f"; excluded: rank {', '.join(map(str, excluded))}"
    return figures


def words_of(named: dict[str, tuple[str, ...]]) -> str:
    """Ranks with the codes that name them."""
    return ", ".join(f"rank {rank} ({' '.join(codes)})" for rank, codes in named.items())


def gradients_of(
    setup: RunSetup, plan: Plan | None, reports: Sequence[WorkerReport] | None
) -> GradientSummary | None:
    """Say what is known; None without workers.

    Args:
        setup: The run.
        plan: The workers.
        reports: Theirs; None before the end.
    """
    if plan is None:
        return None
    settings = setup.policy.policy.gradients
    if reports is None:
        return at_start(settings, protected=plan.protected)
    return at_end(settings, reports, protected=plan.protected, num_workers=plan.num_workers)


def record_gradients(
    found: GradientSummary | None, ledger: Ledger, say: Callable[[str], None]
) -> None:
    """Record and say the end of it, if there were workers."""
    if found is None:
        return
    say(found.label)
    if found.judged:
        ledger.write(
            events.GradientsJudged(
                judged=found.judged,
                refused=found.refused,
                settled=found.settled,
                named=words_of(found.named)[:2000],
                excluded=", ".join(map(str, found.excluded))[:2000],
            )
        )
    if found.watched is False:
        ledger.write(
            events.GradientsNotWatched(
                subject="end of the run", reason="; ".join(found.reasons)[:500]
            )
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
