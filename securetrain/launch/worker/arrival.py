# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The way of a worker into its first default group, and for whom it waits there.

Rules:

1. a worker that begins to make the group says so in the group's store, under a key of its own;
2. while it waits, another connection to that store tells which ranks have not said so. What torch's
   own calls wait for is not looked at: the keys are a backend's own, and not every rank has one;
3. the group is there when `init_process_group` returns. NCCL returns before it has spoken with
   anybody: there it is when its communicator is, at the end of the first collective;
4. groups that the script makes afterwards are its own business.

A rank that says so and does nothing more is not seen here, but by the group's own time-out.
"""

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

from securetrain.launch.process.workerlog import GroupReport

KEY: Final = "securetrain/arrival"
LOOK_SECONDS: Final = 1.0
MAX_MISSING: Final = 64
"""Ranks that are looked for one by one; the others in their turn."""
_NCCL_SECONDS: Final = 600.0
_TORCH_SECONDS: Final = 1800.0


class ArrivalWatch:
    """One process's way into the group."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """Prepare.

        Args:
            changed: There is something to report.
        """
        self._changed = changed
        self._over = threading.Event()
        self._begun = time.monotonic()
        self._timeout = _TORCH_SECONDS
        self.report: GroupReport | None = None
        """None before the script makes a group."""

    def rendezvous(self, meet: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Wrap distributed_c10d's `rendezvous`: rules 1 and 2."""

        @functools.wraps(meet)
        def met(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for store, rank, world in meet(*args, **kwargs):
                if self.report is not None and not self._over.is_set() and world > 1:
                    store.set(f"{KEY}/{rank}", b"1")
                    look = functools.partial(self._look, store.clone(), rank, world)
                    threading.Thread(target=look, name="arrival", daemon=True).start()
                yield store, rank, world

        return met

    def group(self, make_group: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `init_process_group`: rules 3 and 4."""

        @functools.wraps(make_group)
        def made(*args: Any, **kwargs: Any) -> Any:
            if self.report is not None:
                return make_group(*args, **kwargs)
            self._timeout = _timeout_of(inspect.signature(make_group), args, kwargs)
            self._say(arrived=False)
            try:
                group = make_group(*args, **kwargs)
            except BaseException:
                self._over.set()
                raise
            if (nccl := _lazy_backend()) is None:
                self._arrive()
            else:
                threading.Thread(target=self._await, args=(nccl,), daemon=True).start()
            return group

        return made

    def _say(self, *, arrived: bool, missing: tuple[int, ...] = ()) -> None:
        self.report = GroupReport(
            arrived=arrived, missing=missing, timeout=self._timeout, begun=self._begun
        )

    def _arrive(self) -> None:
        self._over.set()
        self._say(arrived=True)

    def _await(self, nccl: Any) -> None:
        """Rule 3."""
        while not nccl._is_initialized():  # noqa: SLF001 - torch has no public word for it
            time.sleep(LOOK_SECONDS)
        self._arrive()
        self._changed()

    def _look(self, store: Any, own: int, world: int) -> None:
        """Rule 2, until the group is there or its making has failed."""
        left = [rank for rank in range(world) if rank != own]
        missing: tuple[int, ...] = ()
        while left and not self._over.wait(LOOK_SECONDS):
            try:
                if store.check([f"{KEY}/{rank}" for rank in left]):
                    left = []
                there = [rank for rank in left[:MAX_MISSING] if store.check([f"{KEY}/{rank}"])]
            except RuntimeError:
                return  # the store is gone: what torch says of that is reported
            left = [rank for rank in left if rank not in there]
            before, missing = missing, tuple(left[:MAX_MISSING])
            if missing != before and not self._over.is_set():
                self._say(arrived=False, missing=missing)
                self._changed()


def _timeout_of(signature: inspect.Signature, args: Any, kwargs: Any) -> float:
    """The seconds that a call of `init_process_group` gives the group."""
    given = signature.bind_partial(*args, **kwargs).arguments
    timeout = given.get("timeout")
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    backend = given.get("backend")
    return _NCCL_SECONDS if "nccl" in str(backend) else _TORCH_SECONDS


def _lazy_backend() -> Any:
    """The NCCL backend of the default group, where it has one."""
    import torch  # noqa: PLC0415 - it has been imported by whoever made the group

    group = torch.distributed.group.WORLD
    if group is None or "cuda" not in str(group._device_types):  # noqa: SLF001
        return None
    backend = group._get_backend(torch.device("cuda"))  # noqa: SLF001
    return backend if hasattr(backend, "_is_initialized") else None
