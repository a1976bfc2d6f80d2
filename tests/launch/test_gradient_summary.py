# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""From workers' reports to one sentence about gradients."""

from typing import Any

import pytest

from securetrain.core.vocabulary import NOT_WATCHED
from securetrain.launch.process.workerlog import GradientReport, WorkerReport
from securetrain.launch.seams.gradients import GradientWatch
from securetrain.launch.summary.gradient_summary import (
    NOT_YET,
    OFF,
    WITHOUT_SHIM,
    at_end,
    at_start,
    gradients_of,
    record_gradients,
    words_of,
)
from securetrain.launch.summary.run_summary import GradientSummary
from securetrain.policy.schema import Gradients, GuardMode

DETECT = Gradients()
NAMED: dict[str, tuple[str, ...]] = {"1": ("ST-GRAD-002",)}


def worker(rank: int, attempt: int = 0, **said: Any) -> WorkerReport:
    return WorkerReport(
        rank=rank, attempt=attempt, gradients=GradientReport(**said) if said else None
    )


def end(*reports, workers=None, settings=DETECT, protected=True):
    number = len(reports) if workers is None else workers
    return at_end(settings, reports, protected=protected, num_workers=number)


def test_the_start_knows_only_what_is_off():
    assert at_start(DETECT, protected=True) == GradientSummary(label=NOT_YET)
    for settings, protected, why in (
        (Gradients(mode=GuardMode.OFF), True, OFF),
        (DETECT, False, WITHOUT_SHIM),
        (Gradients(mode=GuardMode.OFF), False, OFF),
    ):
        found = at_start(settings, protected=protected)
        assert found.label == f"{NOT_WATCHED}: {why}"
        assert (found.watched, found.reasons) == (False, (why,))
        # What was off stays off, whatever the workers say.
        assert end(worker(0, judged=9), settings=settings, protected=protected) == found


def test_in_its_midst_a_process_says_nothing_of_a_step_to_come():
    """A report that is written between the first gradient and the first step may be the last one,
    where another process of the script ends this one.
    """
    watch = GradientWatch(
        settings=DETECT,
        say=lambda _line: None,
        record=lambda _make: None,
        sketches=None,
        changed=lambda: None,
        backwards=1,
    )
    assert watch.report(is_last=False) == GradientReport()
    assert watch.report(is_last=True).reasons == (watch.by_hand,)
    assert watch.by_hand


def test_all_steps_of_all_ranks_were_judged():
    found = end(worker(0, judged=7, refused=1), worker(1, judged=7, refused=1, settled=2))
    assert (found.watched, found.judged, found.refused, found.settled) == (True, 7, 1, 2)
    assert found.label == "gradients: watched; 7 steps judged, 1 refused, 2 reduced again"

    less = end(worker(0, judged=7), worker(1, judged=1)).label
    assert less == "gradients: watched; 1 step judged, 0 refused"
    none = end(worker(0), worker(1, judged=0))
    assert (none.watched, none.label[11:]) == (None, "no step of two or more ranks was seen")


def test_one_rank_that_was_not_watched_is_enough():
    found = end(worker(0, judged=7), worker(1, judged=6, unwatched_steps=1, reasons=("why",)))
    assert (found.watched, found.reasons) == (False, ("why",))
    assert found.label == f"{NOT_WATCHED}: why (6 steps judged, 0 refused)"


def test_a_missing_report_of_a_run_with_steps_is_not_watched():
    found = end(worker(0, judged=7), worker(1), workers=3)
    assert not found.watched
    assert found.reasons == ("2 of 3 workers left no report",)
    assert end(worker(0, unwatched_steps=1, reasons=("why",)), workers=2).reasons == (
        "why",
        "1 of 2 workers left no report",
    )


def test_many_reasons_are_counted_and_kept():
    reasons = tuple("abcde")
    found = end(worker(0, judged=1, reasons=reasons), worker(1, judged=1, reasons=("a", "f")))
    assert found.reasons == (*reasons, "f")
    assert found.label.startswith(f"{NOT_WATCHED}: a; b; c and 3 more (")


def test_the_latest_attempt_of_each_rank_counts():
    found = end(worker(0, 1, judged=3), worker(0, 0, judged=9), worker(0, 2), workers=1)
    assert found.judged == 3


def test_named_and_excluded_ranks_are_in_order_and_in_the_sentence():
    named = {"10": ("ST-GRAD-002",), "9": ("ST-GRAD-002", "ST-GRAD-001")}
    said: dict[str, Any] = {"judged": 5, "named": named, "excluded": (10, 9)}
    found = end(worker(0, **said), worker(1, **said), worker(2, judged=5))
    assert list(found.named) == ["9", "10"]
    assert found.named["9"] == ("ST-GRAD-001", "ST-GRAD-002")
    assert found.excluded == (9, 10)
    assert found.label.endswith(
        "; named: rank 9 (ST-GRAD-001 ST-GRAD-002), rank 10 (ST-GRAD-002); excluded: rank 9, 10"
    )


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_one_rank_cannot_put_another_ones_name_into_the_summary(ranks):
    liar = worker(0, judged=5, named=NAMED, excluded=(1,))
    found = end(liar, *(worker(rank, judged=5) for rank in range(1, ranks)))
    assert (found.named, found.excluded) == ({}, ())
    # Nor a code that the others do not say.
    reports = [worker(rank, judged=5, named=NAMED) for rank in range(2)]
    liar = worker(2, judged=5, named={"1": ("ST-GRAD-002", "ST-GRAD-012")})
    assert end(*reports, liar).named == NAMED
    # A node with one worker has its word.
    assert end(worker(0, judged=5, named=NAMED, excluded=(1,))).named == NAMED


def test_without_workers_there_is_nothing_to_say():
    nobody: Any = None
    assert gradients_of(nobody, None, ()) is None
    record_gradients(None, nobody, nobody)


class Written:
    """A ledger and a screen."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.said: list[str] = []

    def write(self, event):
        self.events.append(event)


def test_what_is_said_is_recorded():
    written: Any = Written()
    found = end(worker(0, judged=5, refused=1, named=NAMED, excluded=(1,), reasons=("why",)))
    record_gradients(found, written, written.said.append)
    assert written.said == [found.label]
    judged, unwatched = written.events
    assert (judged.judged, judged.refused, judged.excluded) == (5, 1, "1")
    assert judged.named == words_of(NAMED) == "rank 1 (ST-GRAD-002)"
    assert (unwatched.subject, unwatched.reason) == ("end of the run", "why")


def test_a_run_without_steps_records_nothing():
    written: Any = Written()
    record_gradients(end(worker(0)), written, written.said.append)
    assert written.events == []
    assert len(written.said) == 1
