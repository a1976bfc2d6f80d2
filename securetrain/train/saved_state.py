# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a trainer as checkpoints hold it: tensors and plain values under names."""

from dataclasses import asdict
from typing import Any, Final

import msgspec

from securetrain.artifacts.statement.statements import GradientRecord, GradientVerdict
from securetrain.core import canonical
from securetrain.train.optim import optimizer_state
from securetrain.train.trainer import Progress, Trainer

PROGRESS: Final = "progress"
GUARD: Final = "guard"
GUARD_LIMIT: Final = 64 << 20


def gradient_record(progress: Progress, *, watched: bool) -> GradientRecord:
    """Summarize, for the statement, the gradients that led to a state.

    Refused steps were dropped and are not in the weights: they are counted. The verdict is refused
    when a step that the guard did not like was applied all the same (response 'observe').
    """
    if not watched or progress.unwatched:
        verdict = GradientVerdict.UNWATCHED
    elif progress.observed:
        verdict = GradientVerdict.REFUSED
    else:
        verdict = GradientVerdict.CLEAN
    return GradientRecord(
        verdict=verdict,
        judged=progress.step - progress.unwatched,
        refused=min(progress.step - progress.unwatched, progress.refused + progress.observed),
        clean_steps=progress.clean_steps if watched else 0,
    )


def state_of(trainer: Trainer) -> dict[str, Any]:
    """The trainer's own tensors under names, and plain values."""
    state: dict[str, Any] = {}
    model = trainer.model
    for name, parameter in model.named_parameters():
        state[f"model.{name}"] = parameter.detach()
    # Equal on all ranks that have them.
    state.update((f"model.{name}", buffer) for name, buffer in model.named_buffers())
    state.update((f"optim.{n}", t) for n, t in optimizer_state(model, trainer.optimizer))
    state[PROGRESS] = asdict(trainer.progress)
    # One value: its inner names change from step to step, and torch wants them equal on loading.
    guard = trainer.guard.state_dict() if trainer.guard is not None else None
    state[GUARD] = msgspec.json.encode(guard).decode()
    return state


def restore(trainer: Trainer, state: dict[str, Any], *, with_guard: bool = True) -> None:
    """Take over a state that was loaded into the tensors of `state_of`."""
    trainer.progress = Progress(**state[PROGRESS])
    if not with_guard:
        return
    guard = canonical.loads(state[GUARD].encode(), limit=GUARD_LIMIT, where=GUARD)
    if trainer.guard is not None and guard is not None:
        trainer.guard.load_state_dict(guard)
