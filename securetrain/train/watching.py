# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attach the guard to a parallel model: the mesh says which ranks can be compared."""

from collections.abc import Callable, Iterator
from typing import Final

import torch.distributed as dist

from securetrain.guard import GradientGuard, StepRecord, Verdict
from securetrain.ledger import events
from securetrain.parallel import ParallelModel
from securetrain.policy.schema import Gradients, GuardMode


def attach_guard(
    model: ParallelModel,
    settings: Gradients,
    on_record: Callable[[StepRecord], None] | None = None,
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
    )
    guard.attach(*model.parts)
    return guard


_TEXT: Final = 1000
"""Characters of a verdict's reason that an event keeps."""


def verdict_events(verdict: Verdict) -> Iterator[events.Observed]:
    """The ledger's entries about who is excluded, on what evidence, and what came of the step."""
    subject, codes, reason = f"step {verdict.step}", " ".join(verdict.codes), verdict.reason[:_TEXT]
    if verdict.settled:
        yield events.StepSettled(subject=subject, codes=codes, reason=reason)
    for rank in verdict.newly_excluded:
        yield events.RankExcluded(
            subject=subject,
            rank=rank,
            codes=codes,
            evidence=reason,
            effect="reduced without it" if rank in verdict.excluded else "step dropped",
        )
    for rank in verdict.readmitted:
        yield events.RankReadmitted(subject=subject, rank=rank)
