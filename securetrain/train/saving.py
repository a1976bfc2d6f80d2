# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written while the run goes on.

Rules:

1. nothing is said about a checkpoint (head, ledger, log) before it is there, whole and signed;
2. all ranks hear of it at the same step: while one is being written, every step asks all ranks for
   theirs in one small all-reduce. One that failed anywhere ends the run everywhere, at that step;
3. the next save, and the end of the run, wait for the one before.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import torch
import torch.distributed as dist

from securetrain.artifacts import SavedCheckpoint
from securetrain.core.errors import RuntimeRefusal

_FAILED: Final = 0
_WRITING: Final = 1
_DONE: Final = 2

Saved = Callable[[SavedCheckpoint], None]


class Background:
    """At most one save under way; every method is collective.

    Args:
        device: Of this rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._future: Future[SavedCheckpoint] | None = None
        self._then: Saved | None = None

    def begin(self, future: Future[SavedCheckpoint], then: Saved) -> None:
        """A save has begun; `then` is called on this rank once it is there on all."""
        assert self._future is None, "the one before is settled first"
        self._future, self._then = future, then

    def settle(self, *, wait: bool) -> None:
        """Finish the save if all ranks have; with `wait`, as soon as they have.

        Raises:
            SecureTrainError: this rank's part failed; ST-RUNT-004 when another's did.
        """
        future, then = self._future, self._then
        if future is None or then is None:
            return
        if wait:
            future.exception()
        word = self._status(future)
        told = torch.tensor(word, device=self._device)
        dist.all_reduce(told, op=dist.ReduceOp.MIN)
        if told.item() == _WRITING:
            return
        self._future = self._then = None
        if word == _FAILED:
            future.result()
        if told.item() == _FAILED:
            raise RuntimeRefusal(
                "ST-RUNT-004", "another rank could not write its part of a checkpoint"
            )
        then(future.result())

    @staticmethod
    def _status(future: Future[SavedCheckpoint]) -> int:
        if not future.done():
            return _WRITING
        return _DONE if future.exception() is None else _FAILED
