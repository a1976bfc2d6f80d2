# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Compile each block. Blocks are alike, so one compilation serves all of them.

Rules:

1. the unit is a block's `forward`: hooks of the data-parallel wrapper run outside of the compiled
   region, and parameters keep their names;
2. nothing that is still under way enters a compiled region. Torch 2.13 exchanges an
   AsyncCollectiveTensor among its inputs for its value *outside of autograd*: with tensor
   parallelism the embedding then gets a gradient of exactly zero, without a word
   (torch/_functorch/_aot_autograd/frontend_utils.py: process_inputs; pytorch pull request 179849).
   `wait_for_inputs` waits for it inside autograd;
3. a machine without a C++ compiler cannot compile for the CPU: refused before the first step.
"""

import os
import shutil
from typing import Any, Final

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from securetrain.core.errors import UsageError
from securetrain.parallel.plan import ParallelPlan

BACKEND: Final = "inductor"
COMPILERS: Final = ("g++", "clang++", "c++")


def apply_compile(
    model: nn.Module, plan: ParallelPlan, device: torch.device, *, backend: str | None = None
) -> None:
    """Compile the blocks of `model`, in place, at their first call.

    Args:
        model: Its blocks are final but for the data-parallel wrapper.
        plan: Names the blocks.
        device: Where they run.
        backend: The backend of torch.compile; None for Inductor.

    Raises:
        UsageError: ST-USAG-004 when there is no compiler for `device`.
    """
    backend = backend or BACKEND
    if backend == "inductor":
        check_compiler(device)
    for block in plan.blocks(model).values():
        block.register_forward_pre_hook(wait_for_inputs, with_kwargs=True)
        block.forward = torch.compile(block.forward, backend=backend)


def wait_for_inputs(
    _block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A forward pre-hook: wait for what is still under way, where autograd sees it (rule 2)."""
    return tuple(map(_wait, inputs)), {name: _wait(value) for name, value in named.items()}


def check_compiler(device: torch.device) -> None:
    """Inductor's CPU code is C++.

    Raises:
        UsageError: ST-USAG-004.
    """
    wanted = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    if device.type == "cpu" and not any(shutil.which(name) for name in wanted):
        raise UsageError(
            "ST-USAG-004",
            f"compiling for the CPU needs a C++ compiler, and there is no {' or '.join(wanted)}",
            "compute.compile",
            "install g++, or set compute.compile: false",
        )


def _wait(value: Any) -> Any:
    # Cloning is an operation on the tensor: it waits, and has a backward of its own.
    return value.clone() if isinstance(value, AsyncCollectiveTensor) else value
