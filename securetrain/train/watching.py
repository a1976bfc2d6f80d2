# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attach the guard to a parallel model: the mesh says which ranks can be compared."""

from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.distributed as dist

from securetrain.guard import (
    RETAIN_BYTES,
    GradientGuard,
    OnSuspicion,
    StepRecord,
    WordSigner,
)
from securetrain.parallel import ParallelModel
from securetrain.policy.schema import Gradients, GuardMode

SHARE: Final = 32
"""Of a GPU's memory: a share in so many may hold gradients that wait for a seed."""


def retained(device: torch.device) -> int:
    """Bytes of local gradients that the guard may keep in a backward pass before it has to wait for
    the device and draw a seed. On the CPU nothing runs ahead, so a little is enough.
    """
    if device.type != "cuda":
        return RETAIN_BYTES
    return max(RETAIN_BYTES, torch.cuda.get_device_properties(device).total_memory // SHARE)


def attach_guard(
    model: ParallelModel,
    settings: Gradients,
    *,
    on_record: Callable[[StepRecord], None] | None = None,
    nodes: Sequence[int] | None = None,
    on_suspicion: OnSuspicion | None = None,
    signer: WordSigner | None = None,
) -> GradientGuard | None:
    """A guard that sees every gradient of `model` (collective); None when the policy wants none.

    Ranks of one stage and one tensor-parallel coordinate are compared with each other. Where the
    mesh has several of these groups, what one of them refuses all ranks refuse.

    Raises:
        GuardError: ST-GRAD-006, a gradient would not be seen.
    """
    if settings.mode is GuardMode.OFF:
        return None
    mesh = model.mesh
    groups = [g for g in (mesh.comparable, mesh.comparable_experts) if g is not None]
    pieces = any(group.size() < dist.get_world_size() for group in groups)
    guard = GradientGuard(
        mesh.comparable,
        settings,
        experts=mesh.comparable_experts,
        on_record=on_record,
        job_group=dist.group.WORLD if pieces else None,
        nodes=nodes,
        on_suspicion=on_suspicion,
        signer=signer,
        retain_bytes=retained(model.device),
    )
    guard.attach(*model.parts)
    return guard
