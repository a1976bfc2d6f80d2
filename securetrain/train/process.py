# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The process group of one rank, and its device."""

from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist


def start_group(environment: Mapping[str, str], timeout: timedelta) -> torch.device:
    """Join the default process group; alone, make one of a single rank.

    Args:
        environment: RANK, WORLD_SIZE and the rest, as the launcher sets them.
        timeout: How long collectives may take.

    Returns:
        The device of this rank: its GPU where there is one, else the CPU.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(environment.get("LOCAL_RANK", "0"))) if cuda else None
    if device is not None:
        torch.cuda.set_device(device)
    # Small bookkeeping travels as CPU tensors, so Gloo is there beside NCCL.
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if "RANK" in environment:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(
            backend,
            store=dist.HashStore(),  # type: ignore[attr-defined]
            rank=0,
            world_size=1,
            timeout=timeout,
        )
    return device or torch.device("cpu")
