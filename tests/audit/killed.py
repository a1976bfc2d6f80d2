# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Work that is killed (a real SIGKILL) at each of its system calls, or has one of them fail."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

CALLS = ("mkdir", "open", "fsync", "link", "unlink", "rename", "replace")


def kills(work: Callable[[int], Any]) -> Iterator[int]:
    """Do `work(n)` in a child that is killed before its n-th call, until one ends by itself.

    After each, the caller looks at what is left.
    """
    for limit in range(1, 200):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _count(limit, lambda: os.kill(os.getpid(), signal.SIGKILL))
                work(limit)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            yield limit
            continue
        assert os.waitstatus_to_exitcode(status) == 0
        assert limit > 2, "nothing was counted"
        return
    raise AssertionError("it never ends")


def _count(limit: int, then: Callable[[], Any]) -> None:
    seen = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == limit:
                then()
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
