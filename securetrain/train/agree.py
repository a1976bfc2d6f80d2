# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Things that one rank decides for all.

A file system may show different ranks different things, so what only has to be looked at once is
looked at by rank 0, and the others hear an integer. When rank 0 refuses, all stop, at once and not
after a time-out.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist

from securetrain.core.errors import RuntimeRefusal, SecureTrainError
from securetrain.ledger import Journal, events

HEARTBEAT_SECONDS: Final = 5.0
"""Seconds between two words from a rank that others wait for."""
_DONE, _WORKING, _FAILED = 0, 1, 2


def rank_zero_decides(decide: Callable[[], int], device: torch.device) -> int:
    """Run `decide` on rank 0 and return its result on every rank of the default group.

    Raises:
        SecureTrainError: on rank 0 what `decide` raised, on the others ST-RUNT-004.
    """
    told = torch.zeros(2, dtype=torch.int64, device=device)
    if dist.get_rank() == 0:
        try:
            told[1] = decide()
        except BaseException:
            told[0] = 1
            dist.broadcast(told, src=0)
            raise
    dist.broadcast(told, src=0)
    refused, value = told.tolist()
    if refused:
        raise RuntimeRefusal("ST-RUNT-004", "rank 0 refused to go on", "rank 0")
    return int(value)


def run_together(work: Iterator[object], device: torch.device) -> None:
    """Do this rank's part of something long, which others wait for (collective).

    Every few seconds all ranks hear whether anybody is still at work, so that nobody takes the
    others for lost; and when one fails, all stop.

    Args:
        work: Every `next` does a short piece; a rank that has nothing to do gives an empty one.
        device: Of this rank.

    Raises:
        SecureTrainError: what this rank's part raised; ST-RUNT-004 when another's did.
    """
    told = torch.ones(1, dtype=torch.int64, device=device)
    while told.item() == _WORKING:
        failure = None
        try:
            told[0] = _WORKING if _advance(work) else _DONE
        except Exception as error:  # noqa: BLE001 - raised again, once the others know
            failure, told[0] = error, _FAILED
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        if failure is not None:
            raise failure
    if told.item() == _FAILED:
        raise RuntimeRefusal("ST-RUNT-004", "another rank refused to go on")


def _advance(work: Iterator[object]) -> bool:
    """Work for a while; whether there is more to do."""
    until = time.monotonic() + HEARTBEAT_SECONDS
    return any(time.monotonic() >= until for _ in work)


@contextmanager
def recording_refusals(
    ledger: Journal, event: type[events.PlainRefused], subject: str
) -> Iterator[None]:
    """Write a refusal into the ledger on its way out, whichever rank meets it."""
    try:
        yield
    except SecureTrainError as error:
        match error.definition.family:
            case "RUNT":
                pass
            case "GRAD":  # the guard ends the run, whatever this rank was at
                ledger.write(events.RunHalted.of(error, "gradients"))
            case _:
                ledger.write(event.of(error, subject))
        raise
