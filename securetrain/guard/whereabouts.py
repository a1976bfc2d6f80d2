# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Questions about where a script is when a seam is reached."""

import inspect
from typing import Final

import torch
import torch.distributed as dist
from torch.optim import Optimizer

_STEP: Final = Optimizer.profile_hook_step(lambda: None).__code__
"""What torch puts around the step of each class of optimizers."""


def is_distributed() -> bool:
    """True in a job of two or more ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def backward_pass() -> int:
    """The number of the backward pass that runs here, or -1."""
    return torch._C._current_graph_task_id()  # noqa: SLF001 - there is no public question


def in_backward() -> bool:
    """True in a backward pass."""
    return backward_pass() != -1


def is_inner(optimizer: Optimizer) -> bool:
    """True when one step of an optimizer is in another one."""
    # Counted from the stack, because a step that raises says nothing afterwards.
    frame, steps = inspect.currentframe(), 0
    while frame is not None and steps < 2:
        steps += frame.f_code is _STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return steps == 2
