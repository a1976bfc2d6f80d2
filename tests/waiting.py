# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Waits of tests: one that ends without what it waited for is told from a wrong answer."""

import time


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
