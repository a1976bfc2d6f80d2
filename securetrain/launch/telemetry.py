# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Trackers that follow a run while it is launched (``--telemetry``).

Rules:

1. each tracker is followed by a process of its own (``securetrain follow``), outside of the
   workers' sandbox and with the user's environment, so that workers need no key of a tracker;
2. it reads the run directory and is asked nothing: a tracker that is slow, down or lying changes
   nothing for the run. Only a library that is not installed refuses the start;
3. at the end it has `PATIENCE` to deliver the rest, and is killed then, with all that it started.
   How many items were delivered is said;
4. what it prints is one line of ours. Its library's output goes nowhere: it may hold a token.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from securetrain.core import RUN_DIR_VARIABLE, SIGNER_VARIABLE, install_hint
from securetrain.core.errors import UsageError

PATIENCE: Final = 20.0
"""Seconds for the rest, after the run has ended."""
START_PATIENCE: Final = 60.0
"""Seconds for the interpreter to start; a busy machine is not refused, but left without."""
LINE_LIMIT: Final = 1 << 16
READY: Final = b"ready\n"


@dataclass(slots=True)
class Follower:
    """The process of one tracker."""

    tracker: str
    process: "subprocess.Popen[bytes]"
    held: bytes = b""
    """What it has said and nobody has read."""

    @classmethod
    def start(cls, tracker: str, command: Sequence[str], environ: Mapping[str, str]) -> "Follower":
        """Start the program that follows, and hear that it can.

        Raises:
            UsageError: ST-USAG-001 and ST-USAG-004, as its process says.
        """
        ours = {RUN_DIR_VARIABLE, SIGNER_VARIABLE}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in environ.items() if name not in ours},
            start_new_session=True,  # Ctrl-C is for the run; its end ends this
        )
        started = cls(tracker, process)
        line = started.line(START_PATIENCE, first=True)
        if line and line != READY:
            started.kill()
            raise _refused(line, tracker)
        return started

    def line(self, patience: float, *, first: bool = False) -> bytes:
        """The next line; empty when there is none in time.

        The first one says that it is ready, or is read with all that follows.
        """
        out: IO[bytes] = self.process.stdout  # type: ignore[assignment]
        found, deadline = self.held, time.monotonic() + patience
        while len(found) < LINE_LIMIT:
            if b"\n" in found and (not first or found.startswith(READY)):
                break
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                return b""
            piece = os.read(out.fileno(), LINE_LIMIT)
            if not piece:
                return found
            found += piece
        line, newline, self.held = found.partition(b"\n")
        return line + newline

    def end(self, patience: float) -> str:
        """Let it deliver the rest, and end it; how it went, for people."""
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        said = self.line(patience)
        self.kill()
        try:
            row: Any = json.loads(said)["trackers"][0]
            delivered, left = int(row["delivered"]), int(row["undelivered"])
            problem = str(row["problem"])[:100]
        except (ValueError, KeyError, IndexError, TypeError):
            return f"{self.tracker}: NOT KNOWN what was delivered: it did not end in time"
        if left or problem:
            why = problem or "its queue was full"
            return f"{self.tracker}: {delivered} items delivered, {left} NOT ({why})"
        return f"{self.tracker}: {delivered} items delivered"

    def kill(self) -> None:
        """End it, and all that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.stdout.close()  # type: ignore[union-attr]


def follow_command(tracker: str, root: Path) -> list[str]:
    """The program that follows a run for one tracker."""
    given = [sys.executable, "-m", "securetrain", "follow", str(root), "--to", tracker]
    return [*given, "--watch-stdin", "--json"]


@contextmanager
def followed(
    root: Path,
    trackers: Sequence[str],
    environ: Mapping[str, str],
    say: Callable[[str], None],
    *,
    patience: float = PATIENCE,
    command: Callable[[str, Path], Sequence[str]] = follow_command,
) -> Iterator[None]:
    """Have trackers follow the run in `root` for as long as the block lasts.

    Raises:
        UsageError: ST-USAG-001 and ST-USAG-004, before anything of the run is started.
    """
    followers: list[Follower] = []
    try:
        for name in dict.fromkeys(trackers):
            follower = Follower.start(name, command(name, root), environ)
            followers.append(follower)
        yield
    finally:
        until = time.monotonic() + patience
        for follower in followers:
            say(f"telemetry: {follower.end(max(0.5, until - time.monotonic()))}")


def _refused(line: bytes, tracker: str) -> UsageError:
    """Its error, as one of this process."""
    try:
        error: Any = json.loads(line)["error"]
        code, what, fix = (str(error[name])[:500] for name in ("code", "what", "fix"))
        return UsageError(code, what, "--telemetry", fix)
    except (ValueError, KeyError, TypeError):
        what = f"{tracker} cannot be followed"
        return UsageError("ST-USAG-004", what, "--telemetry", install_hint("integrations"))
