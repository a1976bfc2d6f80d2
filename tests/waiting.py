# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Waits of tests: one that ends without what it waited for is told from a wrong answer."""

import time
from collections.abc import Callable
from typing import Any


def in_time(deadline: float, what: object = "it never happened") -> None:
    """End a wait that has gone on for too long.

    Args:
        deadline: By `time.monotonic`.
        what: The thing that was waited for, or what tells it when it is too late.

    Raises:
        TimeoutError: It is too late. `make test` runs the test once more, alone (`tests.flaky`).
    """
    if time.monotonic() >= deadline:
        raise TimeoutError(what() if callable(what) else what)


def until(
    holds: Callable[[], object],
    what: object = "it never happened",
    *,
    seconds: float = 240.0,
    alive: Any = None,
) -> None:
    """Wait for a condition.

    Args:
        holds: The condition.
        what: As for `in_time`.
        seconds: After so many it is too late, on a busy machine, too.
        alive: A process (`subprocess.Popen`) without which it does not come about.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        assert alive is None or alive.poll() is None, what() if callable(what) else what
        in_time(deadline, what)
        time.sleep(0.02)
