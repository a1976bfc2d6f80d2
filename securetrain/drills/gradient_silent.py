# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-GRAD-SILENT.

One rank sends its gradient and then says nothing more. Plain: the others wait in their next
collective until the process group gives up, which names nobody. Hardened: the guard's messages have
a deadline of their own, and the refusal names the rank (ST-GRAD-010).
"""

import time
from pathlib import Path
from typing import Final

from securetrain.drills.gradient_group import BAD, Case, _model, batch
from securetrain.drills.ranks import run_ranks
from securetrain.drills.registry import DRILLS, Outcome, Side

CODE: Final = DRILLS["D-GRAD-SILENT"].expected_code
WORLD: Final = 4
STOPS_AT: Final = 3
SILENT_SECONDS: Final = 12.0
DEADLINE_SECONDS: Final = 3.0
_CASE: Final = Case(name="silent")


def plain(_workdir: Path) -> Outcome:
    """Wait for a silent rank without a guard."""
    said = run_ranks(train, WORLD, False, timeout=60.0)
    waited = [(seconds, text) for rank, (seconds, text, _) in enumerate(said) if rank != BAD]
    named = [text for _, text in waited if f"rank {BAD}" in text]
    least = min(seconds for seconds, _ in waited)
    return Outcome(
        side=Side.PLAIN,
        succeeded=least > DEADLINE_SECONDS + 1 and not named,
        evidence=(
            f"Rank {BAD} of {WORLD} was silent for {SILENT_SECONDS:.0f} s: the others waited"
            f" {least:.0f} s, and were told nothing of it."
        ),
    )


def hardened(_workdir: Path) -> Outcome:
    """The same with the guard."""
    said = run_ranks(train, WORLD, True, timeout=60.0)
    others = [one for rank, one in enumerate(said) if rank != BAD]
    good = all(code == CODE and f"rank {BAD} did not speak" in text for _, text, code in others)
    blamed = [n for _, text, _ in others for n in range(WORLD) if n != BAD and f"rank {n}" in text]
    return Outcome(
        side=Side.HARDENED,
        succeeded=not good,
        refused=good and not blamed,
        code=others[0][2],
        evidence=f"After {max(seconds for seconds, _, _ in others):.0f} s: {others[0][1]}",
    )


def train(guarded: bool) -> tuple[float, str, str]:  # noqa: FBT001 - called through run_ranks
    """Train on this rank; returns how long the silence lasted for it, and what it was told."""
    import torch.distributed as dist  # noqa: PLC0415 - only the ranks load torch
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from securetrain.core.errors import GuardError  # noqa: PLC0415

    model = _model(_CASE)
    guard = _deadline_guard(model) if guarded else None
    for step in range(STOPS_AT + 1):
        x, y = batch(step, dist.get_rank())
        cross_entropy(model(x), y).backward()
        begin = time.monotonic()
        if step == STOPS_AT and dist.get_rank() == BAD:
            time.sleep(SILENT_SECONDS)
            return SILENT_SECONDS, "", ""
        try:
            if guard is not None:
                guard.judge(step)
            elif step == STOPS_AT:
                _next_step(model, step)
        except GuardError as error:
            return time.monotonic() - begin, str(error), error.code
        except RuntimeError as error:
            return time.monotonic() - begin, str(error), ""
        model.zero_grad()
    return time.monotonic() - begin, "", ""


def _next_step(model: "torch.nn.Module", step: int) -> None:  # type: ignore[name-defined]  # noqa: F821
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    x, y = batch(step + 1, 0)
    cross_entropy(model(x), y).backward()


def _deadline_guard(model: "torch.nn.Module"):  # type: ignore[no-untyped-def,name-defined]  # noqa: ANN202, F821
    from securetrain.guard import GradientGuard  # noqa: PLC0415
    from securetrain.policy.schema import Gradients  # noqa: PLC0415

    guard = GradientGuard(None, Gradients(deadline_seconds=DEADLINE_SECONDS))
    guard.attach(model)
    return guard
