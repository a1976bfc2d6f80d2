# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Chores beside the workers: done again and again, and a refusal ends the run."""

import threading

import pytest

from securetrain.core.errors import IdentityError
from securetrain.identity.trust import TrustRole
from securetrain.launch.keeper import Keeper
from securetrain.ledger import events, verify_ledger
from securetrain.testing.runs import make_run


@pytest.fixture
def made(tmp_path):
    return make_run(tmp_path / "run")


def refusals(made):
    keys = made.trust.keys_for(TrustRole.LEDGER)
    entries = verify_ledger(made.run_dir.ledger.read_bytes(), keys).entries
    return [(e.body.event.event, e.body.event.code) for e in entries if e.body.event.code]


def test_chores_are_done_until_the_end_and_once_more(made):
    done, often = [], threading.Event()

    def chore():
        done.append(threading.current_thread().name)
        if len(done) > 3:
            often.set()

    keeper = Keeper(chores={events.NewestRefused: chore}, ledger=made.ledger(), pause=0.001)
    keeper.start()
    assert often.wait(60)
    keeper.stop()
    assert done[-1] == threading.main_thread().name
    count = len(done)
    keeper.stop()
    assert len(done) == count
    assert keeper.problem is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IdentityError("ST-IDEN-043", "two histories"), "ST-IDEN-043"),
        (KeyError("x"), "ST-CKPT-200"),
    ],
    ids=["refused", "unforeseen"],
)
def test_a_refusal_ends_the_run_and_the_chores(made, error, code):
    ended, after = threading.Event(), []

    def refuse():
        raise error

    keeper = Keeper(
        chores={events.LogRefused: refuse, events.NewestRefused: lambda: after.append(1)},
        ledger=made.ledger(),
        end_run=ended.set,
        pause=0.001,
    )
    keeper.start()
    assert ended.wait(60)
    keeper.stop()
    assert keeper.problem is not None
    assert keeper.problem.code == code
    assert refusals(made) == [("log-refused", code)]
    assert after == []


def test_a_refusal_at_the_very_end_is_kept_and_nobody_is_ended(made):
    def refuse():
        raise IdentityError("ST-IDEN-042", "it shrank")

    keeper = Keeper(
        chores={events.LogRefused: refuse},
        ledger=made.ledger(),
        end_run=lambda: pytest.fail("it is over"),
    )
    assert not keeper.turn()
    assert keeper.problem is not None
    assert not keeper.turn()
    assert refusals(made) == [("log-refused", "ST-IDEN-042")]


def test_a_keeper_that_was_never_started_may_be_stopped(made):
    Keeper(
        chores={events.LogRefused: lambda: pytest.fail("not started")}, ledger=made.ledger()
    ).stop()


def test_a_run_that_ends_waits_a_little_for_what_is_unfinished(made):
    turns = []
    keeper = Keeper(
        chores={events.NewestRefused: lambda: turns.append(1)},
        ledger=made.ledger(),
        unfinished=lambda: len(turns) < 5,
        pause=0.001,
    )
    assert keeper.settle(60)
    assert len(turns) == 5
    turns.clear()
    assert keeper.settle(0)  # and no longer than it may
    assert len(turns) == 1


def test_what_is_asked_at_the_end_is_asked_once_and_last(made):
    asked = []

    def require():
        asked.append(1)
        raise IdentityError("ST-IDEN-044", "too few")

    keeper = Keeper(chores={}, ledger=made.ledger(), at_end=require, pause=0.001)
    keeper.start()
    keeper.stop()
    keeper.stop()
    assert asked == [1]
    assert keeper.problem is not None
    assert refusals(made) == [("end-refused", "ST-IDEN-044")]
