# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Things that one rank decides for all.

A file system may show different ranks different things, so what only has to be looked at once is
looked at by rank 0, and the others hear an integer. When rank 0 refuses, all stop, at once and not
after a time-out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from securetrain.core.errors import RuntimeRefusal, SecureTrainError
from securetrain.core.vocabulary import Boundary
from securetrain.ledger import Ledger


def rank_zero_decides(decide: Callable[[], int], device: torch.device) -> int:
    """What `decide` returns on rank 0, on every rank of the default group.

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
        raise RuntimeRefusal(
            "ST-RUNT-004", "rank 0 refused to go on", "rank 0", "its own message says why"
        )
    return int(value)


@contextmanager
def recorded(ledger: Ledger, boundary: Boundary, event: str, subject: str) -> Iterator[None]:
    """Write a refusal into the ledger on its way out, whichever rank meets it."""
    try:
        yield
    except SecureTrainError as error:
        if error.definition.family != "RUNT":
            ledger.refuse(boundary, event, error, subject)
        raise
