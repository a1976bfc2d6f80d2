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

from securetrain.drills.gradient_group import BAD, Case, batch, guard_of, model_of
from securetrain.drills.ranks import run_ranks
from securetrain.drills.registry import DRILLS, Outcome

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
    return Outcome.of_plain(
        least > DEADLINE_SECONDS + 1 and not named,
        f"Rank {BAD} of {WORLD} was silent for {SILENT_SECONDS:.0f} s: the others waited"
        f" {least:.0f} s, and were told nothing of it.",
    )


def hardened(_workdir: Path) -> Outcome:
    """The same with the guard."""
    said = run_ranks(train, WORLD, True, timeout=60.0)
    others = [one for rank, one in enumerate(said) if rank != BAD]
    good = all(code == CODE and f"rank {BAD} did not speak" in text for _, text, code in others)
    blamed = [n for _, text, _ in others for n in range(WORLD) if n != BAD and f"rank {n}" in text]
    return Outcome.of_hardened(
        not good,
        good and not blamed,
        others[0][2],
        f"After {max(seconds for seconds, _, _ in others):.0f} s: {others[0][1]}",
    )


def train(guarded: bool) -> tuple[float, str, str]:  # noqa: FBT001 - called through run_ranks
    """Train on this rank; returns how long the silence lasted for it, and what it was told."""
    import torch.distributed as dist  # noqa: PLC0415 - only the ranks load torch
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from securetrain.core.errors import GuardError  # noqa: PLC0415

    model = model_of(_CASE)
    guard = guard_of(model, deadline_seconds=DEADLINE_SECONDS) if guarded else None
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
                ahead, told = batch(step + 1, 0)
                cross_entropy(model(ahead), told).backward()
        except GuardError as error:
            return time.monotonic() - begin, str(error), error.code
        except RuntimeError as error:
            return time.monotonic() - begin, str(error), ""
        model.zero_grad()
    return time.monotonic() - begin, "", ""
