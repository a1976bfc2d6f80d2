# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attach the guard to a parallel model: the mesh says which ranks can be compared."""

from collections.abc import Callable, Sequence

import torch.distributed as dist

from securetrain.guard import GradientGuard, OnSuspicion, StepRecord
from securetrain.parallel import ParallelModel
from securetrain.policy.schema import Gradients, GuardMode


def attach_guard(
    model: ParallelModel,
    settings: Gradients,
    on_record: Callable[[StepRecord], None] | None = None,
    nodes: Sequence[int] | None = None,
    on_suspicion: OnSuspicion | None = None,
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
    )
    guard.attach(*model.parts)
    return guard
