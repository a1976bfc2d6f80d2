# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run is told to trackers from its signed ledger: what is told, and what happens when one fails.

The trackers here are made up; test_trackers.py has the real libraries.
"""

import itertools
import json
import threading
from typing import Any

import pytest

from securetrain.core.vocabulary import NOT_WATCHED, UNATTESTED
from securetrain.integrations import check_trackers, follow_run
from securetrain.integrations.trackers.delivery import Delivery
from securetrain.integrations.trackers.items import Began, Ended, Measured, Span
from securetrain.integrations.trackers.story import STEPS_LABEL
from securetrain.ledger import events
from tests.integrations.runs import BEGIN, NODE, PLACE, TOKEN, MadeRun
from tests.tables import items
from tests.vocabulary import refused


class Kept:
    """A tracker that keeps what it is given."""

    def __init__(self):
        self.items = []
        self.closed = False

    def give(self, items):
        self.items += items

    def close(self):
        self.closed = True

    def spans(self, name):
        return [one for one in self.items if isinstance(one, Span) and one.name == name]


class Down(Kept):
    """A tracker that is down for so many calls."""

    def __init__(self, failures):
        super().__init__()
        self.failures = failures

    def give(self, items):
        if self.failures:
            self.failures -= 1
            raise ConnectionError(f"https://user:{TOKEN}@tracker.example refused")
        super().give(items)


def follow(run, *trackers, names=False, ended=lambda _: True, sleep=lambda _: None):
    ticks = itertools.count()
    return follow_run(
        run.root,
        [(f"t{n}", tracker) for n, tracker in enumerate(trackers)],
        names=names,
        now=BEGIN,
        ended=ended,
        clock=lambda: float(next(ticks)),
        sleep=sleep,
    )


@pytest.fixture
def run(tmp_path):
    return MadeRun(tmp_path)


def test_a_run_is_told_in_spans_and_figures(run):
    run.whole()
    kept = Kept()
    followed = follow(run, kept)
    assert followed.problem is None
    assert followed.told[0].delivered == len(kept.items)
    assert followed.told[0].undelivered == 0
    assert kept.closed
    began, ended = kept.items[0], kept.items[-1]
    assert isinstance(began, Began)
    assert (began.run, began.number, began.said["policy_id"]) == ("run-7", 1, "dev")
    assert isinstance(ended, Ended)
    assert ended.outcome == "succeeded"
    assert set(ended.labels) == {UNATTESTED, NOT_WATCHED, STEPS_LABEL}
    (admission,) = kept.spans("admission")
    assert admission.end - admission.begin == 2.0  # since the coordinator listens
    assert admission.said["tier"] == "self-asserted"
    assert admission.said["labels"] == UNATTESTED
    assert [one.step for one in kept.spans("step")] == list(range(1, 12))
    assert all(one.end - one.begin == pytest.approx(0.5) for one in kept.spans("step"))
    (save,) = kept.spans("save")
    assert (save.step, save.said["digest"]) == (10, "cd" * 32)
    (refusal,) = kept.spans("refusal")
    assert (refusal.code, refusal.said["event"]) == ("ST-GRAD-002", "step-refused")
    (epoch,) = kept.spans("epoch")
    assert epoch.end > epoch.begin
    figures = [one for one in kept.items if isinstance(one, Measured)]
    assert [one.values["grad_norm"] for one in figures] == [1.0 + n for n in range(1, 12)]
    assert figures[-1].verdict == "refused"


def test_no_name_and_no_path_is_told_unless_it_is_asked_for(run):
    run.whole()
    quiet, loud = Kept(), Kept()
    follow(run, quiet)
    follow(run, loud, names=True)
    for word in (NODE, PLACE, TOKEN, "10.0.0.7"):
        assert word in repr(loud.items), "the control: it is there to be told"
        assert word not in repr(quiet.items)
    assert quiet.spans("admission")[0].said["node"] == "node-1"


def test_telling_twice_tells_the_same_keys(run):
    run.whole()
    first, second = Kept(), Kept()
    follow(run, first)
    follow(run, second)
    assert first.items == second.items
    keys = [one.key for one in first.items if isinstance(one, Span)]
    assert len(set(keys)) == len(keys)


def test_a_run_is_followed_while_it_grows(run):
    """Also a line that is half written, and steps that are done again after the run went back."""
    run.begin()
    kept = Kept()
    rest = iter(range(5))

    def sleep(_):
        match next(rest):
            case 0:
                run.train(1, 4)
                with run.run.metrics.open("a") as file:
                    file.write('{"step": 5, "lo')
            case 1:
                with run.run.metrics.open("a") as file:
                    file.write('ss": 1.0, "seconds": 1, "ended": 1780315300.0}\n')
            case 2:  # back to step 3, as the trainer does it: a new file without the later lines
                lines = run.run.metrics.read_text().splitlines(keepends=True)[:3]
                other = run.root / "new"
                other.write_text("".join(lines))
                other.replace(run.run.metrics)
                run.seconds = 1780315300.0 - BEGIN.timestamp() + 1
                run.step(4)
            case 3:
                run.end()
            case _:
                raise AssertionError("it did not end with the ledger")

    follow(run, kept, ended=lambda closed: closed, sleep=sleep)
    assert [one.step for one in kept.spans("step")] == [1, 2, 3, 4, 5, 4]
    assert isinstance(kept.items[-1], Ended)


def test_a_second_launch_in_the_directory_is_told_as_one(run):
    run.begin()
    run.train(1, 2)
    run.end("failed")
    run.begin()
    run.train(3, 4)
    run.end()
    kept = Kept()
    follow(run, kept)
    order: list[Any] = []
    for item in kept.items:
        match item:
            case Began():
                order.append("began")
            case Ended():
                order.append("ended")
            case Measured():
                order.append(item.step)
    assert order == ["began", 1, 2, "ended", "began", 3, 4, "ended"]
    assert [one.number for one in kept.items if isinstance(one, Began)] == [1, 2]


def test_an_edited_ledger_is_told_up_to_the_edit_and_refused(run):
    """A plain reader of the JSON lines, as log shippers are, takes the edit."""
    run.whole()
    lines = run.run.ledger.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if "step-refused" in line)
    forged = lines[at].replace("step-refused", "step-settled").replace("ST-GRAD-002", "")
    run.run.ledger.write_text("".join([*lines[:at], forged, *lines[at + 1 :]]))
    plain = run.run.ledger.read_text().splitlines()
    read = [json.loads(line)["body"]["event"]["event"] for line in plain]
    assert "step-settled" in read, "the attack works on who does not verify"
    assert "step-refused" not in read
    kept = Kept()
    followed = follow(run, kept)
    assert followed.problem is not None
    assert followed.problem.code == "ST-LEDG-003"
    assert [one.code for one in kept.spans("refusal")] == ["ST-LEDG-003"]
    assert kept.items[-1].outcome == ""


@items(
    "id, line",
    ("empty", "\n"),
    ("half", "{\n"),
    ("negative", '{"step": -1, "seconds": 1}\n'),
    ("twice", '{"step": 1, "step": 1}\n'),
    ("long", "x" * (3 << 20) + "\n"),
    ("infinite", '{"step": 1, "seconds": 1, "loss": 1e400}\n'),
    ("text", '{"step": "<script>", "seconds": 1}\n'),
)
def test_what_a_worker_writes_is_bounded_and_counted(line, run):
    run.begin()
    run.step(1)
    with run.run.metrics.open("a") as file:
        file.write(line)
    run.step(2)
    run.end()
    kept = Kept()
    followed = follow(run, kept)
    assert followed.bad_lines >= 1
    assert [one.step for one in kept.spans("step")] == [1, 2]


def test_a_tracker_that_was_down_is_told_all_of_it_later_and_others_do_not_wait(run):
    run.whole()
    down, kept = Down(1), Kept()
    followed = follow(run, down, kept)
    assert down.items == kept.items
    assert [one.undelivered for one in followed.told] == [0, 0]


def test_a_tracker_that_stays_down_is_counted_and_its_words_are_not_repeated(run):
    run.whole()
    kept = Kept()
    followed = follow(run, Down(10**6), kept)
    assert followed.told[0].undelivered == len(kept.items) == followed.told[1].delivered
    assert followed.told[0].problem == "ConnectionError"
    assert TOKEN not in repr(followed)


def test_the_queue_is_bounded_and_the_oldest_are_lost():
    down = Down(10**6)
    delivery = Delivery("t", down, limit=10)
    delivery.put(Measured(step=n, time=None, values={}, verdict="") for n in range(25))
    delivery.push(0.0)
    assert (delivery.waiting, delivery.lost) == (10, 15)
    down.failures = 0
    delivery.push(0.5)
    assert delivery.waiting == 10, "it pauses after a failure"
    delivery.push(5.0)
    assert [one.step for one in down.items] == list(range(15, 25))


def test_an_unknown_tracker_and_an_absent_library_are_refused(monkeypatch):
    import importlib.metadata

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    for name, code in (("tensorboard", "ST-USAG-001"), ("wandb", "ST-USAG-004")):
        refused(Exception, code, check_trackers, [name])


def test_what_stands_before_the_first_launch_is_not_told(run):
    run.say(events.CoordinatorStarted(subject="job", address="x", policy="y"))
    run.whole()
    kept = Kept()
    follow(run, kept)
    assert isinstance(kept.items[0], Began)


def test_following_ends_while_a_tracker_hangs_no_run(run):
    """A tracker that hangs holds up its own process alone; see tests/launch/test_telemetry.py."""
    run.whole()
    entered, free = threading.Event(), threading.Event()

    class Hangs(Kept):
        def give(self, items):
            entered.set()
            free.wait(60)

    thread = threading.Thread(target=follow, args=(run, Hangs()))
    thread.start()
    assert entered.wait(60)
    run.say(events.RunStarted(subject="run-8"))  # the ledger is not locked by its reader
    free.set()
    thread.join(60)
    assert not thread.is_alive()
