# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The process group of one rank, its device, and what it uses."""

import os
import resource
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from securetrain.core.errors import os_error

REPRODUCIBLE: Final = ("MKL_CBWR", "AUTO,STRICT")
"""MKL rounds its products alike wherever in memory the numbers are (its reference, "Conditional
Numerical Reproducibility"). Otherwise a resumed run may differ in the last bit."""


def start_group(environment: Mapping[str, str], timeout: timedelta) -> torch.device:
    """Join the default process group; alone, make one of a single rank.

    Args:
        environment: RANK, WORLD_SIZE and the rest, as the launcher sets them.
        timeout: How long collectives may take.

    Returns:
        The device of this rank: its GPU where there is one, else the CPU.
    """
    os.environ.setdefault(*REPRODUCIBLE)  # MKL reads it with its first product
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(environment.get("LOCAL_RANK", "0"))) if cuda else None
    if device is not None:
        torch.cuda.set_device(device)
    # Small bookkeeping travels as CPU tensors, so Gloo is there beside NCCL.
    backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    # A group that knows its device connects at once, and others are split off it.
    if "RANK" in environment:
        dist.init_process_group(backend, timeout=timeout, device_id=device)
    else:
        dist.init_process_group(
            backend,
            store=dist.HashStore(),  # type: ignore[attr-defined]
            rank=0,
            world_size=1,
            timeout=timeout,
            device_id=device,
        )
    return device or torch.device("cpu")


RECORDED: Final = 2000
"""Collectives that the flight recorder remembers."""


def record_collectives(folder: Path) -> None:
    """Have NCCL write down its last collectives when one of them never ends; before `start_group`.

    One file for each rank, by torch (``TORCH_FR_*``); nothing without GPUs. The files are pickles:
    nothing in this project reads them, and whoever does should use a restricted unpickler.

    Raises:
        UsageError: ST-USAG-002 when the folder cannot be made.
    """
    if not torch.cuda.is_available():
        return
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise os_error(error, str(folder)) from error
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(RECORDED)
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / "rank-")


def peak_memory(device: torch.device) -> int:
    """The most memory that this rank has used: its GPU's, or else the machine's (bytes)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
