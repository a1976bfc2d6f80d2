# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The guard's part of a report: exclusions and what came of them, curves, and the budget."""

import msgspec

from securetrain.core.errors import GuardError
from securetrain.ledger import events
from securetrain.policy.gradients import Gradients
from securetrain.report.graph import plots
from securetrain.report.run import guard as guard_record
from securetrain.report.run.guard import Step, budget_words, expected_false_alarms, view
from securetrain.report.run.model import GuardView


def line(step: int, *evidence: float, ok: bool = True, layers=()) -> Step:
    table = [
        {"rank": rank, "norm": 1.0, "cosine": 0.5, "evidence": one, "limit": 10.0}
        for rank, one in enumerate(evidence)
    ]
    said = [{"group": name, "rank": rank, "evidence": one} for name, rank, one in layers]
    verdict = {
        "step": step,
        "ok": ok,
        "codes": [] if ok else ["ST-GRAD-002"],
        "integrity": 0.1,
        "reason": "why",
        "table": table,
        "layers": said,
    }
    return msgspec.convert({"verdict": verdict}, Step)


def excluded(step: int, rank: int) -> events.RankExcluded:
    return events.RankExcluded(
        subject=f"step {step}", rank=rank, codes="ST-GRAD-002", evidence="is odd", effect="dropped"
    )


SAID = (
    excluded(5, 2),
    events.RankSuspected(subject="rank 2", rank=2, cause="ST-GRAD-011", said="x"),
    events.RankReadmitted(subject="step 60", rank=2),
    excluded(70, 2),
    excluded(71, 3),
    events.RolledBack(subject="step 71", to=64, ranks="3", evidence="x"),
    events.RankSuspected(subject="rank 1", rank=1, cause="ST-GRAD-010", said="never excluded"),
    events.RunHalted.of(GuardError("ST-GRAD-005", "the fifth"), "step 80"),
)


POLICY = Gradients()


def seen(*lines: Step, said=(), settings=POLICY) -> GuardView:
    found = view(lines, said, settings)
    assert found is not None
    return found


def test_what_came_of_every_exclusion():
    found = seen(line(1, 0.0), said=SAID)
    assert [(one.rank, one.since, one.outcome) for one in found.exclusions] == [
        (2, 5, "reported as ST-GRAD-011, let in again at step 60"),
        (2, 70, "excluded to the end"),
        (3, 71, "back to step 64, excluded to the end"),
    ]
    assert [(one.step, one.what) for one in found.timeline] == [
        (5, "rank 2 excluded (dropped)"),
        (None, "rank 2 reported to the rendezvous"),
        (60, "rank 2 counts again"),
        (70, "rank 2 excluded (dropped)"),
        (71, "rank 3 excluded (dropped)"),
        (71, "back to step 64"),
        (None, "rank 1 reported to the rendezvous"),
        (80, "run halted"),
    ]


def test_a_step_that_was_done_again_counts_once_as_it_was_done_last():
    found = seen(line(1, 0.0), line(2, 9.0, ok=False), line(1, 0.5), line(2, 1.0))
    assert found.num_steps == 2
    assert found.refused_steps == ()
    assert [(point.step, point.evidence) for point in found.points] == [(1, 0.5), (2, 1.0)]


def test_the_budget_says_what_it_allows_and_what_it_does_not():
    found = seen(line(1, 0.0, 1.0), line(2, 0.0, 5.0))
    assert expected_false_alarms(found) == 4 * 20 / 1e6
    words = budget_words(found)
    assert "ln E 5.0 of 10.0 (50% of the limit)" in words
    assert "at most once in 148 rank-steps" in words
    assert "is not found by any of these tests" in words
    guilty = seen(line(1, 0.0, 1.0, 9.5), said=[excluded(5, 2)])
    assert "ln E 1.0 of 10.0" in budget_words(guilty), "who was excluded does not count"
    calm = budget_words(seen(line(1, 0.0)))
    assert "by chance" not in calm
    assert "0% of the limit" in calm
    assert budget_words(seen(line(1, 0.0), settings=None)) == ""


def test_groups_have_curves_and_silence_is_zero():
    found = seen(
        line(1, 0.0),
        line(2, 3.0, layers=[("layers.0", 1, 2.0)]),
        line(3, 6.0, layers=[("layers.0", 1, 4.0), ("head", 0, 1.5)]),
    )
    drawn = {plot.title: plot for plot in plots.draw((), found)}
    plot = drawn["Evidence by group of parameters"]
    assert "layers.0 reached 4, against rank 1" in plot.caption
    assert "head" in plot.svg
    assert "Evidence against each rank, of all steps so far" in drawn
    assert not [title for title in _titles(seen(line(1, 0.0))) if "by group" in title]


def _titles(found: GuardView) -> list[str]:
    return [plot.title for plot in plots.draw((), found)]


def test_nothing_is_made_of_nothing():
    assert view((), SAID, Gradients()) is None
    assert guard_record.view([line(1)], (), None) is not None
