# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""torch's elastic agent, which tells a lost node from a failed worker.

Rules:

1. when a node goes, the workers of the others fail too: their connections break. A worker that
   fails while the members of the epoch are about to meet again has not failed by itself: it is
   restarted with the others, and no restart is counted. The news may come after the failure, so a
   failure waits for it for a moment. There is no news while the coordinator is lost: then it
   waits until this node is back, or out because its lease has ended, which is the reason then, and
   until all members are that the coordinator waits for. Workers that have failed by themselves
   (`arrivals`) wait for no news;
2. workers that are stopped get torch's time to save and end, and longer as far as their saves and
   steps take longer (`in_place`). Once a node of theirs is gone they can finish no collective any
   more, and get little;
3. a node that is told to end says so first, and leaves when its workers have ended: meanwhile the
   others stop theirs, and what all save together is saved. Before it leaves it proves itself once
   more, or else what it saved last would be in doubt (`rendezvous.coordinator.evictions`).
"""

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher import api as launcher

from securetrain.launch.agent.arrivals import NodeArrival

NEWS_SECONDS: Final = 2.0
"""Time in which a failure may turn out to be another node's going."""
LOST_SECONDS: Final = 3.0
"""Time that workers get to end when a node of their epoch is gone."""
PROVE_SECONDS: Final = 3.0
"""Time that a node which leaves has to prove itself once more."""
_POLL_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 1.0

_launcher: Any = launcher
log = logging.getLogger(__name__)


class MemberAgent(LocalElasticAgent):
    """The agent of one member of a job."""

    wanted: ClassVar[Callable[[], float]] = staticmethod(lambda: 0.0)
    arrival: ClassVar[NodeArrival | None] = None
    """Says where this node's ranks are; None where nobody sees them."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """See base class."""
        if self.arrival is not None:
            self.arrival.started()
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """See base class. By rule 1: healthy workers are what the agent restarts for others."""
        result: RunResult = super()._monitor_workers(worker_group)
        failed = result.state in {WorkerState.UNHEALTHY, WorkerState.FAILED}
        nodes: Any = worker_group.group_world_size
        if nodes <= 1:
            return result
        part = self._look(worker_group, result, failed=failed)
        if failed and self._others_meet_again(part * NEWS_SECONDS):
            return RunResult(state=WorkerState.HEALTHY)
        member = getattr(self._rdzv_handler, "member", None)
        if failed and member is not None and self._remaining_restarts <= 0:
            member.failed = True
            member.say_closing()
        return result

    def _look(self, worker_group: WorkerGroup, result: RunResult, *, failed: bool) -> float:
        """Say where the ranks are; how much of `NEWS_SECONDS` a failure is worth."""
        member, arrival = getattr(self._rdzv_handler, "member", None), self.arrival
        if member is None or arrival is None:
            return 1.0
        attempt = worker_group.spec.max_restarts - self._remaining_restarts
        if failed:
            return arrival.patience(member, result.failures, attempt)
        if result.state in {WorkerState.HEALTHY, WorkerState.SUCCEEDED}:
            ended = result.state is WorkerState.SUCCEEDED  # it counts after the arrival
            ranks = [w.global_rank for w in worker_group.workers]
            arrival.look(member, ranks, attempt, at_once=ended)
        return 1.0

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """See base class; by rule 2."""
        del worker_group
        self._wait_for_workers(signal.SIGTERM)
        self._shutdown(signal.SIGKILL if _some_run(self._pcontext) else signal.SIGTERM)

    def _wait_for_workers(self, death_sig: signal.Signals) -> None:
        """Rule 2. A second signal of torch's ends the wait as an exception."""
        context: Any = self._pcontext
        for handle in context.subprocess_handlers.values() if context is not None else ():
            if handle.proc.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(handle.proc.pid, death_sig)
        began = time.monotonic()
        deadline, lost, said = began + self._shutdown_timeout, math.inf, False
        while _some_run(context) and (now := time.monotonic()) < lost:
            if now >= deadline:  # looked at again and again: a save that ends gets no more time
                deadline = min(began + type(self).wanted(), now + _LOOK_SECONDS)
                if now >= deadline:
                    break
                if not said:
                    log.warning("the workers get longer than %d s to save", self._shutdown_timeout)
                    said = True
            if lost == math.inf and self._is_lost():
                lost = now + LOST_SECONDS
            time.sleep(_POLL_SECONDS)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """See base class; by rule 3."""
        error = sys.exc_info()[1]
        told_to_end = isinstance(error, SignalException) or (
            error is not None and not isinstance(error, Exception)
        )
        member = getattr(self._rdzv_handler, "member", None)
        if told_to_end and member is not None:
            member.say_going()
        try:
            if told_to_end and death_sig != signal.SIGKILL:
                try:
                    self._wait_for_workers(death_sig)
                finally:
                    death_sig = signal.SIGKILL if _some_run(self._pcontext) else death_sig
                    super()._shutdown(death_sig, timeout)
            else:
                super()._shutdown(death_sig, timeout)
        finally:
            if told_to_end and member is not None:
                if member.connected and not member.prove_again(PROVE_SECONDS):
                    log.warning("this node leaves without having proven itself once more")
                member.leave()

    def _others_meet_again(self, patience: float) -> bool:
        member = getattr(self._rdzv_handler, "member", None)
        deadline, was_away = time.monotonic() + patience, False
        while True:
            try:
                if self._rdzv_handler.num_nodes_waiting() > 0:
                    return True
            except RendezvousError:
                if was_away:
                    raise
                return False  # this node is out
            if member is not None and (member.away or member.owed):
                deadline, was_away = time.monotonic() + NEWS_SECONDS, True
            if self._rdzv_handler.is_closed() or time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)

    def _is_lost(self) -> bool:
        member = getattr(self._rdzv_handler, "member", None)
        return member is not None and bool(member.lost)


def _some_run(context: Any) -> bool:
    """Tell whether a worker has not ended."""
    handles = context.subprocess_handlers.values() if context is not None else ()
    return any(handle.proc.poll() is None for handle in handles)


@contextmanager
def in_place(
    wanted: Callable[[], float] = lambda: 0.0, *, arrival: NodeArrival | None = None
) -> Iterator[None]:
    """Have torch's launcher use this agent.

    Args:
        wanted: Seconds in which workers that are told to end can save and end, as it stands.
        arrival: Says where this node's ranks are, where they are seen.
    """
    before = _launcher.LocalElasticAgent
    own = {"wanted": staticmethod(wanted), "arrival": arrival}
    _launcher.LocalElasticAgent = type("MemberAgent", (MemberAgent,), own)
    try:
        yield
    finally:
        _launcher.LocalElasticAgent = before
