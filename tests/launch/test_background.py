# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tasks beside the workers: done again and again, and a refusal ends the run."""

import threading

import pytest

from securetrain.core.errors import IdentityError
from securetrain.identity.trust import TrustRole
from securetrain.launch.checkpoints.background import BackgroundTasks
from securetrain.ledger import events, verify_ledger
from securetrain.testing.runs import make_run
from tests.tables import items


@pytest.fixture
def made(tmp_path):
    return make_run(tmp_path / "run")


def refusals(made):
    keys = made.trust.keys_for(TrustRole.LEDGER)
    entries = verify_ledger(made.run_dir.ledger.read_bytes(), keys).entries
    return [(e.body.event.event, e.body.event.code) for e in entries if e.body.event.code]


def test_tasks_are_done_until_the_end_and_once_more(made):
    done, often = [], threading.Event()

    def task():
        done.append(threading.current_thread().name)
        if len(done) > 3:
            often.set()

    background = BackgroundTasks(
        tasks={events.NewestRefused: task}, ledger=made.ledger(), pause=0.001
    )
    background.start()
    assert often.wait(60)
    background.stop()
    assert done[-1] == threading.main_thread().name
    count = len(done)
    background.stop()
    assert len(done) == count
    assert background.problem is None


@items(
    "id, error, code",
    ("refused", IdentityError("ST-IDEN-043", "two histories"), "ST-IDEN-043"),
    ("unforeseen", KeyError("x"), "ST-CKPT-200"),
)
def test_a_refusal_ends_the_run_and_the_tasks(made, error, code):
    ended, after = threading.Event(), []

    def refuse():
        raise error

    background = BackgroundTasks(
        tasks={events.LogRefused: refuse, events.NewestRefused: lambda: after.append(1)},
        ledger=made.ledger(),
        end_run=ended.set,
        pause=0.001,
    )
    background.start()
    assert ended.wait(60)
    background.stop()
    assert background.problem is not None
    assert background.problem.code == code
    assert refusals(made) == [("log-refused", code)]
    assert after == []


def test_a_refusal_at_the_very_end_is_kept_and_nobody_is_ended(made):
    def refuse():
        raise IdentityError("ST-IDEN-042", "it shrank")

    background = BackgroundTasks(
        tasks={events.LogRefused: refuse},
        ledger=made.ledger(),
        end_run=lambda: pytest.fail("it is over"),
    )
    assert not background.run_once()
    assert background.problem is not None
    assert not background.run_once()
    assert refusals(made) == [("log-refused", "ST-IDEN-042")]


def test_a_keeper_that_was_never_started_may_be_stopped(made):
    BackgroundTasks(
        tasks={events.LogRefused: lambda: pytest.fail("not started")}, ledger=made.ledger()
    ).stop()


def test_a_run_that_ends_waits_a_little_for_what_is_unfinished(made):
    turns = []
    background = BackgroundTasks(
        tasks={events.NewestRefused: lambda: turns.append(1)},
        ledger=made.ledger(),
        unfinished=lambda: len(turns) < 5,
        pause=0.001,
    )
    assert background.settle(60)
    assert len(turns) == 5
    turns.clear()
    assert background.settle(0)  # and no longer than it may
    assert len(turns) == 1


def test_what_is_asked_at_the_end_is_asked_once_and_last(made):
    asked = []

    def require():
        asked.append(1)
        raise IdentityError("ST-IDEN-044", "too few")

    background = BackgroundTasks(tasks={}, ledger=made.ledger(), at_end=require, pause=0.001)
    background.start()
    background.stop()
    background.stop()
    assert asked == [1]
    assert background.problem is not None
    assert refusals(made) == [("end-refused", "ST-IDEN-044")]
