# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Signals and addresses of the verbs that listen."""

import ipaddress
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop(threading.Event):
    """Set by the first signal."""

    number = 0
    """The signal's, once there was one."""


@contextmanager
def told_to_stop() -> Iterator[Stop]:
    """An event that the first signal sets; the second one interrupts."""
    stop = Stop()

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        if stop.is_set():
            raise KeyboardInterrupt
        stop.number = number
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_any(address: str) -> bool:
    """Tell whether an address means every interface."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False
