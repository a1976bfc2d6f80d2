# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of a job's settings against its device and backend, before anything is built.

Rules:

1. asynchronous tensor parallelism reads the memory of other GPUs (symmetric memory): CUDA only;
2. float8 needs matrix units for it, which GPUs have from capability 8.9 on, and torchao. Gloo does
   not reduce float8 at all;
3. gradients travel as float16 on every backend. bfloat16 and PowerSGD travel on NCCL only: torch's
   hook refuses Gloo for the first, and on Gloo the second died in its callbacks, or hung, in three
   of five runs (torch 2.13);
4. nothing that was asked for is left out in silence: it is refused.
"""

from importlib.util import find_spec
from typing import Final

import torch

from securetrain.core import install_hint
from securetrain.core.errors import UsageError
from securetrain.parallel.plan import Compression, Settings

FLOAT8_CAPABILITY: Final = (8, 9)
"""Ada; Hopper is 9.0."""


def check_device(
    settings: Settings, device: torch.device, capability: tuple[int, int] | None = None
) -> None:
    """Check what a job asks for against `device`.

    Args:
        settings: The job's settings.
        device: Where a rank computes.
        capability: The GPU's, if it is known already.

    Raises:
        UsageError: ST-USAG-007 naming the field, ST-USAG-004 when torchao is missing.
    """
    cuda = device.type == "cuda"
    if settings.async_tp and not cuda:
        raise _cannot(
            "tensor-parallel messages overlap through GPUs' symmetric memory, and this is the"
            f" {device.type}",
            "parallel.async_tp",
            "async_tp: false",
        )
    if settings.compression in {Compression.BF16, Compression.POWERSGD} and not cuda:
        raise _cannot(
            f"{settings.compression} gradients travel by NCCL only: Gloo"
            + (
                " has no hook for bfloat16"
                if settings.compression is Compression.BF16
                else " loses connections in PowerSGD's callbacks"
            ),
            "parallel.compression",
            "compression: fp16",
        )
    if settings.float8:
        found = capability or (torch.cuda.get_device_capability(device) if cuda else None)
        _check_float8(found)


def _check_float8(capability: tuple[int, int] | None) -> None:
    if capability is None or capability < FLOAT8_CAPABILITY:
        shown = "the CPU" if capability is None else "a GPU of capability {}.{}".format(*capability)
        raise _cannot(
            f"float8 needs a GPU of capability 8.9 or more, and this is {shown}",
            "compute.float8",
            "float8: false",
        )
    if find_spec("torchao") is None:
        raise UsageError(
            "ST-USAG-004",
            "float8 needs torchao, which is not installed",
            "compute.float8",
            f"{install_hint('float8')}, or set compute.float8: false",
        )


def _cannot(what: str, field: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-007", what, field, fix)
