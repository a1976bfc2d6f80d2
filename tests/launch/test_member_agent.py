# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""torch's agent under ours: a lost node is no failed worker, and who is told to end says so."""

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousConnectionError
from torch.distributed.launcher import api as launcher

from securetrain.core import RunDir
from securetrain.launch.agent import member_agent
from securetrain.launch.agent.member_agent import MemberAgent
from securetrain.launch.process import workerlog
from securetrain.launch.seams import saves
from securetrain.launch.seams.saves import SaveWatch
from tests.tables import items
from tests.vocabulary import refused


class FakeHandler:
    def __init__(self, waiting=0, *, closed=False, error=None):
        self.waiting, self.closed, self.error = waiting, closed, error
        self.said: list[str] = []
        self.lost: tuple[str, ...] = ()
        self.member: Any = self
        self.looks_away = 0

    def num_nodes_waiting(self):
        if self.error is not None:
            raise self.error
        return self.waiting

    def is_closed(self):
        return self.closed

    def say_going(self):
        self.said.append("going")

    connected, owed = True, False

    @property
    def away(self):
        """The coordinator is lost for so many looks."""
        self.looks_away -= 1
        return self.looks_away >= 0

    def prove_again(self, seconds):
        assert seconds > 0
        self.said.append("prove")
        return self.waiting == 0

    def leave(self):
        self.said.append("leave")


def agent_of(handler):
    made: Any = object.__new__(MemberAgent)
    made._rdzv_handler = handler
    made._pcontext = made._worker_watchdog = made._health_check_server = None
    made._shutdown_timeout, made._remaining_restarts = 30, 1
    return made


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(member_agent, "NEWS_SECONDS", 0.1)


def monitored(monkeypatch, handler, state, nodes=2):
    monkeypatch.setattr(
        LocalElasticAgent, "_monitor_workers", lambda _self, _group: RunResult(state=state)
    )
    group: Any = SimpleNamespace(group_world_size=nodes)
    return agent_of(handler)._monitor_workers(group).state


@pytest.mark.parametrize("state", [WorkerState.FAILED, WorkerState.UNHEALTHY])
def test_workers_that_fail_while_the_members_meet_again_have_not_failed(monkeypatch, state):
    assert monitored(monkeypatch, FakeHandler(waiting=1), state) is WorkerState.HEALTHY
    assert monitored(monkeypatch, FakeHandler(waiting=1), state, nodes=1) is state
    assert monitored(monkeypatch, FakeHandler(), state) is state
    assert monitored(monkeypatch, FakeHandler(closed=True), state) is state
    out = FakeHandler(error=RendezvousConnectionError("out"))
    assert monitored(monkeypatch, out, state) is state


def test_a_failure_waits_for_the_news_of_a_coordinator_that_is_lost(monkeypatch):
    """Nobody can say meanwhile whether another node has gone."""
    handler = FakeHandler()
    handler.looks_away = 6  # 0.3 s, three times as long as it waits else
    began = time.monotonic()
    assert monitored(monkeypatch, handler, WorkerState.FAILED) is WorkerState.FAILED
    assert handler.looks_away < 0
    assert time.monotonic() - began > 0.3
    # It is back, and says that a node has gone.
    handler.looks_away = 6
    monkeypatch.setattr(handler, "num_nodes_waiting", lambda: int(handler.looks_away < 0))
    assert monitored(monkeypatch, handler, WorkerState.FAILED) is WorkerState.HEALTHY


def test_a_lease_that_ends_without_it_is_the_reason_and_not_the_workers(monkeypatch):
    handler = FakeHandler()
    handler.looks_away = 6

    def waiting():
        if handler.looks_away < 3:
            raise RendezvousConnectionError("ST-ADMN-007")
        return 0

    monkeypatch.setattr(handler, "num_nodes_waiting", waiting)
    given = monitored, monkeypatch, handler, WorkerState.FAILED
    refused(RendezvousConnectionError, "ST-ADMN-007", *given)


def test_news_that_come_after_the_failure_are_waited_for(monkeypatch):
    monkeypatch.setattr(member_agent, "NEWS_SECONDS", 3600)
    handler = FakeHandler()
    answers = iter([0, 0, 1])
    monkeypatch.setattr(handler, "num_nodes_waiting", lambda: next(answers))
    assert monitored(monkeypatch, handler, WorkerState.FAILED) is WorkerState.HEALTHY
    for other in (WorkerState.HEALTHY, WorkerState.SUCCEEDED):
        assert monitored(monkeypatch, FakeHandler(waiting=1), other) is other


def shut_down(handler, error):
    agent = agent_of(handler) if isinstance(handler, FakeHandler) else handler
    try:
        raise error
    except BaseException:  # noqa: BLE001 - as torch's agent catches it
        agent._shutdown()
    return agent._rdzv_handler.said


def test_who_is_told_to_end_says_so_and_leaves():
    told = SignalException("told", signal.SIGTERM)
    # torch's is an Exception; ours is not.
    assert shut_down(FakeHandler(), told) == ["going", "prove", "leave"]
    assert shut_down(FakeHandler(), KeyboardInterrupt()) == ["going", "prove", "leave"]
    assert shut_down(FakeHandler(waiting=1), told)[-1] == "leave", "also when it could not"
    gone = FakeHandler()
    gone.connected = False
    assert shut_down(gone, told) == ["going", "leave"]
    assert shut_down(FakeHandler(), ValueError()) == []
    quiet = FakeHandler()
    agent_of(quiet)._shutdown()
    assert quiet.said == []
    unjoined = FakeHandler()
    unjoined.member = None
    assert shut_down(unjoined, told) == []


ASKED = "import signal, sys, time"
STUBBORN = f"{ASKED}; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
SAVING = f"{ASKED}; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(7)))"


@pytest.fixture
def working():
    """Makes an agent with a worker."""
    with ExitStack() as stack:

        def start(script, handler, seconds):
            code = [sys.executable, "-c", f"{script}; print(1, flush=True); time.sleep(600)"]
            worker = stack.enter_context(
                subprocess.Popen(code, stdout=subprocess.PIPE, start_new_session=True)
            )
            stack.callback(worker.kill)
            assert worker.stdout is not None
            assert worker.stdout.readline()
            made = agent_of(handler)
            made._shutdown_timeout = seconds
            made._pcontext = SimpleNamespace(
                subprocess_handlers={0: SimpleNamespace(proc=worker)},
                close=lambda death_sig, _timeout: worker.send_signal(death_sig),
            )
            return made, worker

        yield start


def test_workers_whose_node_is_gone_get_little_time(monkeypatch, working):
    """A collective that they are in never ends; without a loss they would have half a minute."""
    monkeypatch.setattr(member_agent, "LOST_SECONDS", 0.1)
    handler = FakeHandler()
    handler.lost = ("node-1",)
    agent, worker = working(STUBBORN, handler, 3600)
    agent._stop_workers(None)
    assert worker.wait(60) == -signal.SIGKILL


def test_workers_that_end_when_asked_are_not_waited_for(working):
    agent, worker = working(ASKED, FakeHandler(), 3600)
    agent._stop_workers(None)
    assert worker.poll() == -signal.SIGTERM


@items("wanted, ended", (600.0, 7), (0.0, -signal.SIGKILL))
def test_a_save_longer_than_torchs_time_is_waited_for(monkeypatch, working, wanted, ended):
    monkeypatch.setattr(MemberAgent, "wanted", staticmethod(lambda: wanted))
    agent, worker = working(SAVING, FakeHandler(), 0.1)
    shut_down(agent, SignalException("told", signal.SIGTERM))
    assert worker.wait(60) == ended


def test_the_time_to_end_follows_from_what_workers_took(tmp_path, monkeypatch):
    """By their own word, so it is bounded."""
    run, told = RunDir(tmp_path), list[workerlog.SaveReport]()
    monkeypatch.setattr(saves, "_LONG", 0.05)
    here: dict[str, Any] = {"is_required": False, "is_first": True, "say": print, "record": print}
    watch = SaveWatch(**here, changed=lambda: told.append(watch.report()))
    watch._timed(time.sleep)(0.5)
    assert [(one.seconds, one.is_saving) for one in told] == [(0, True), (1, False)]
    long, step = workerlog.SaveReport(seconds=40), workerlog.GradientReport(seconds=9)
    for said, seconds in ((None, 39), (long, 79), (told[0], 600)):
        report = workerlog.WorkerReport(rank=0, attempt=0, saves=said, gradients=step)
        workerlog.write_report(run, report)
        assert workerlog.shutdown_seconds(run) == seconds


def test_torchs_launcher_uses_it_for_as_long_as_the_block_lasts():
    before = vars(launcher)["LocalElasticAgent"]
    with member_agent.in_place():
        assert issubclass(vars(launcher)["LocalElasticAgent"], MemberAgent)
    assert vars(launcher)["LocalElasticAgent"] is before
