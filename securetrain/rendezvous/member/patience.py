# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Waits that end: torch's blocking calls, made where they hold nobody up.

A call into torch's store blocks in C++: no signal handler of Python runs meanwhile, and a node that
is switched off answers to nothing for as long as TCP has patience. So the call is made in a thread
of its own, and who wants its result looks, several times a second, whether it is still worth it.
What is not waited for any more ends with its socket, or with the process.
"""

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SLICE_SECONDS: Final = 0.1


class _Call(Generic[T]):
    """One call and what came of it."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._result: T
        self._error: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            self._result = self._action()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
            self._error = error
        finally:
            self.ended.set()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result


def patiently(action: Callable[[], T], look: Callable[[], None]) -> T:
    """The result of a blocking call.

    Args:
        action: The call; it is made in a thread of its own.
        look: Is called while it lasts, and raises when it is waited for no longer.
    """
    call = _Call(action)
    threading.Thread(target=call.run, name="store-call", daemon=True).start()
    while not call.ended.wait(SLICE_SECONDS):
        look()
    return call.result()
