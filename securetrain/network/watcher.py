# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Waits in a thread for the end of what a job network stands on, and tells it once.

An engine that is a process is waited for through a descriptor of it, so that its end is known at
once; a device of the kernel, or what protects RDMA, is looked for every second.
"""

import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Final, Protocol

_POLL_MS: Final = 1000


class Watchable(Protocol):
    """A thing that can be watched: an engine's device, or RDMA under a profile."""

    def failure_reason(self) -> str:
        """Explain why it is gone; empty while it is there."""
        ...

    def process(self) -> int | None:
        """Its pid, when it is a process."""
        ...


class Watcher:
    """Made and started for something that is there; `stop` ends it."""

    def __init__(self, device: Watchable, died: Callable[[str], None]) -> None:
        self._device = device
        self._died = died
        # A socket that was closed is never another file's descriptor by mistake.
        self._stopped, self._stop = socket.socketpair()
        pid = device.process()
        self._process = None if pid is None else os.pidfd_open(pid)
        self._thread = threading.Thread(target=self._wait, name="securetrain-overlay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say nothing from here on. Does not wait, so that `died` itself may call it."""
        self._stop.close()

    def _wait(self) -> None:
        try:
            how = self._failure_reason()
        finally:
            self._stopped.close()
            if self._process is not None:
                os.close(self._process)
        if how:
            self._died(how)

    def _failure_reason(self) -> str:
        """Explain why the device is gone; empty when this was stopped."""
        poll = select.poll()
        poll.register(self._stopped, select.POLLIN | select.POLLHUP)
        if self._process is not None:
            poll.register(self._process, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll(_POLL_MS)}
            if self._stopped.fileno() in ready:
                return ""
            if self._process is not None and self._process not in ready:
                continue
            how = self._device.failure_reason()
            if how:
                # A device that was stopped meanwhile was taken down on purpose.
                return "" if self._is_stopped() else how

    def _is_stopped(self) -> bool:
        return bool(select.select([self._stopped], [], [], 0)[0])
