# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Work of one rank for all: the others wait, and learn how it ended by one number.

No object crosses between ranks: frameworks have their own broadcasts, and those unpickle.
"""

import sys
from collections.abc import Callable

from securetrain.core.errors import UsageError


def rank() -> int:
    """The rank of this process; 0 where there is no group."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0
    found: int = dist.get_rank()
    return found


def on_rank_zero(do: Callable[[], None], what: str) -> None:
    """Do something on rank 0 when all have come here, and let all know how it ended. Collective.

    Raises:
        UsageError: ST-USAG-002 on the other ranks, when rank 0 could not; there its own error.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        do()
        return
    dist.barrier()
    failed: BaseException | None = None
    if dist.get_rank() == 0:
        try:
            do()
        except BaseException as error:  # noqa: BLE001 - the others wait; it is raised below
            failed = error
    said = _number(failed is not None)
    dist.broadcast(said, 0)
    if failed is not None:
        raise failed
    if int(said):
        raise UsageError(
            "ST-USAG-002", "rank 0 could not sign it", what, "read what rank 0 says about it"
        )


def _number(value: int):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a tensor: torch is loaded late
    import torch

    dist = torch.distributed
    gpu = "nccl" in str(dist.get_backend())
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    return torch.tensor(int(value), device=device)
