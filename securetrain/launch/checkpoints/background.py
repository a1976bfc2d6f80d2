# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Background tasks of a node's agent for the checkpoints of its run, beside the workers.

A thread of the launcher goes through a few tasks, about once a second, for as long as the run
goes on, and once more at its end. Rules:

1. a run that ends is given a little time until nothing is unfinished any more;
2. a task that is refused something says so in the ledger, is not done again, and the first such
   refusal ends the run: what it stands for (a log that witnesses watch, for example) would be
   missing, and nobody looks at a message of a run that goes on;
3. the tasks of one node are done one after the other, so that they need no locks among themselves;
   what other processes share is locked where it lies.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from securetrain.core.errors import IntegrityError, SecureTrainError
from securetrain.ledger import Ledger, events

PAUSE_SECONDS: Final = 1.0
LINGER_SECONDS: Final = 10.0
"""As long as a node's agent waits for the others at the end of a job."""

Task: TypeAlias = Callable[[], None]


def _end_workers() -> None:
    """Have the main thread end the workers, as a dead job network does."""
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True, kw_only=True)
class BackgroundTasks:
    """The tasks of one run; `start` once, `stop` on every way out."""

    tasks: Mapping[type[events.PlainRefused], Task]
    """By what stands in the ledger when one is refused something."""
    ledger: Ledger
    unfinished: Callable[[], bool] = lambda: False
    """Whether another turn may do what could not be done yet."""
    at_end: Callable[[], None] = lambda: None
    """The last check, when nothing further will be done."""
    end_run: Callable[[], None] = _end_workers
    pause: float = PAUSE_SECONDS
    problem: SecureTrainError | None = None
    """The first refusal."""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._thread.start()

    def stop(self, linger: float = LINGER_SECONDS) -> None:
        """Go through the tasks once more, and end; without effect the second time.

        Args:
            linger: Seconds to go on for as long as something is unfinished.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopped.set()
        thread.join()
        if self.settle(linger):
            self._do(events.EndRefused, self.at_end)

    def settle(self, seconds: float) -> bool:
        """Go through the tasks until nothing is unfinished, or time is up; whether all were done
        that could be.
        """
        deadline = time.monotonic() + seconds
        while self.run_once():
            if not self.unfinished() or time.monotonic() >= deadline:
                return True
            time.sleep(self.pause / 4)
        return False

    def run_once(self) -> bool:
        """Go through the tasks once; whether all were done."""
        with self._turn:
            return all(self._do(refused, task) for refused, task in self.tasks.items())

    def _do(self, refused: type[events.PlainRefused], task: Task) -> bool:
        if self.problem is None:
            try:
                task()
            except SecureTrainError as error:
                self._end(refused, error)
            except Exception as error:  # noqa: BLE001 - fail closed, whatever it was
                self._end(refused, _unforeseen(refused, error))
        return self.problem is None

    def _run(self) -> None:
        while self.run_once() and not self._stopped.wait(self.pause):
            pass
        if self.problem is not None and not self._stopped.is_set():
            self.end_run()

    def _end(self, refused: type[events.PlainRefused], error: SecureTrainError) -> None:
        self.problem = error
        self.ledger.write(refused.of(error))


def _unforeseen(refused: type[events.PlainRefused], error: Exception) -> SecureTrainError:
    name = refused.NAME.removesuffix("-refused")
    return IntegrityError(
        "ST-CKPT-200", f"{name}: {type(error).__name__}: {error}", "the launcher's background tasks"
    )
