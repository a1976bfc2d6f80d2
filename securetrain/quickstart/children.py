# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run a command of securetrain as a child, and leave nothing of it behind.

Rules:

1. the child has a session of its own: Ctrl-C in the terminal reaches the parent only, which then
   ends the child and everything that the child started, politely first;
2. torchelastic gives each worker yet another session, so everything that the child starts carries a
   random mark in its environment, and what carries the mark is what gets killed;
3. the child's output goes through a pipe to a log file; when the log cannot be written (a full
   disk) the last of it is still in memory, so that the error can be shown;
4. a child that ends with an error passes its refusal code on: the parent ends with the same one.
"""

import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from securetrain.core import CODES, all_stats, environment_of
from securetrain.core.errors import RuntimeRefusal, SecureTrainError

MARK_VARIABLE: Final = "ST_QUICKSTART_MARK"
"""Not SECURETRAIN_*: the launcher keeps those from its workers, and this must reach them."""
POLITE_SECONDS: Final = 12.0
KILL_SECONDS: Final = 5.0
DRAIN_SECONDS: Final = 0.5
TAIL_LINES: Final = 200
_LINE_BYTES: Final = 8192
_ERROR: Final = re.compile(r"^(?:error |\[rank\d+\]: ?)?(ST-[A-Z]{4}-\d{3}): (.*)")
_WORKER_FAILED: Final = "ST-RUNT-004"
_ABOVE: Final = "its output above"
"""Where the launcher says that a worker's words are."""


@dataclass(slots=True)
class Child:
    """A running command."""

    process: "subprocess.Popen[bytes]"
    log: Path
    mark: str
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    """The last lines of its output."""
    reader: threading.Thread = field(default_factory=threading.Thread)

    def running(self) -> bool:
        """Return whether the process still runs."""
        return self.process.poll() is None

    def wait(self, poll: Callable[[], None], interval: float = 0.2) -> None:
        """Wait for the end, calling `poll` now and then.

        Raises:
            SecureTrainError: what the child refused, when it ended with an error.
        """
        while self.running():
            poll()
            time.sleep(interval)
        poll()
        if self.process.returncode != 0:
            raise self.failure()

    def failure(self) -> SecureTrainError:
        """The refusal that the child printed last, or ST-RUNT-004.

        A worker's own refusal tells more than the launcher's word that a worker failed.
        """
        self.reader.join(DRAIN_SECONDS)
        lines = list(self.tail)
        refusals = list(_refusals(lines, str(self.log)))
        telling = [error for error in refusals if error.code != _WORKER_FAILED]
        if found := (telling or refusals)[-1:]:
            return found[0]
        code = self.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        last = next((line for line in reversed(lines) if line.strip()), "nothing was printed")
        what = f"the command {how}; the last that it printed: {last.strip()[:300]}"
        return RuntimeRefusal(_WORKER_FAILED, what, str(self.log))


def _refusals(lines: Sequence[str], log: str) -> Iterator[SecureTrainError]:
    """Every refusal in the output, as data."""
    for index, line in enumerate(lines):
        found = _ERROR.search(line)
        if found and found[1] in CODES:
            rest = {
                name: text.strip()
                for after in lines[index + 1 : index + 3]
                for name, colon, text in [after.strip().partition(":")]
                if colon and name in {"where", "fix"}
            }
            where = rest.get("where", log)
            if where.startswith(_ABOVE):  # it went into the log, and nobody saw it
                where = log
            yield SecureTrainError(found[1], found[2], where, rest.get("fix", ""))


@contextmanager
def child(command: Sequence[str], log: Path, environ: dict[str, str]) -> Iterator[Child]:
    """Start a command; when the block ends, so has everything that it started.

    Args:
        command: the program and its arguments.
        log: where its output goes; appended to.
        environ: its environment.
    """
    mark = secrets.token_hex(16)
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environ, MARK_VARIABLE: mark, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None, "a pipe was asked for"
    running = Child(process=process, log=log, mark=mark)
    running.reader = threading.Thread(target=_drain, args=(process.stdout, running), daemon=True)
    running.reader.start()
    try:
        yield running
    finally:
        _end(running)
        running.reader.join(KILL_SECONDS)
        process.stdout.close()


def _drain(pipe: IO[bytes], running: Child) -> None:
    """Copy the output to the log and to memory; a full disk only ends the copying."""
    file: IO[bytes] | None = None
    with suppress(OSError):
        file = running.log.open("ab", buffering=0)
    with suppress(ValueError, OSError):
        for line in iter(lambda: pipe.readline(_LINE_BYTES), b""):
            running.tail.append(line.decode("utf-8", "replace").rstrip("\n"))
            if file is not None:
                try:
                    file.write(line)
                except OSError:
                    file.close()
                    file = None
    if file is not None:
        file.close()


def _end(running: Child) -> None:
    """Ask, wait, then kill everything that carries the mark."""
    with suppress(KeyboardInterrupt):
        if running.running():
            with suppress(ProcessLookupError):
                running.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(POLITE_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := marked(running.mark)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # a killed child of ours is gone once it is reaped; the others are init's
        running.process.poll()
        time.sleep(0.02)
    running.process.wait()


def marked(mark: str) -> list[int]:
    """Every living process of this user that carries `mark`, but this one."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for pid, _ in all_stats():
        with suppress(OSError):  # a process of somebody else, or one that is gone
            if pid != os.getpid() and wanted in environment_of(pid):
                found.append(pid)
    return found
