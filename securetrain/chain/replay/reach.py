# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The farthest that AdamW can carry a weight, whatever its gradients were.

With m = (1-b1) sum b1^i g and v = (1-b2) sum b2^i g^2, the Cauchy-Schwarz inequality gives for
every element and step t

    |m| <= (1-b1) / sqrt(1-b2) * sqrt((1-r^t) / (1-r)) * sqrt(v),    r = b1^2 / b2,

and after the corrections of bias |m^| / sqrt(v^) <= `step_limit`. A step moves a weight by at most
the learning rate times that, besides its decay (Kingma and Ba 2015, arXiv:1412.6980, section 2.1;
Loshchilov and Hutter 2019, arXiv:1711.05101). So two checkpoints and the learning rates between
them say how far each weight can have gone, and nothing has to be done again for it.

The learning rates are those of the records; they are compared with the declared schedule, which is
written down here a second time: a verifier trusts no trainer, and a test compares the two.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

SLACK: Final = 1e-5
"""Rounding: so much of what is compared may be added."""
_DECAY: Final = 5
"""``auto``: one step in so many is one of the decay."""


def moment_limit(step: int, betas: tuple[float, float]) -> float:
    """The most that |m| can be of sqrt(v), after so many steps of the optimizer."""
    first, second = betas
    ratio = first * first / second if second else 0.0
    total = float(step) if ratio == 1.0 else (1 - ratio**step) / (1 - ratio)
    return (1 - first) / math.sqrt(1 - second) * math.sqrt(total)


def step_limit(step: int, betas: tuple[float, float]) -> float:
    """The most that step number `step` moves a weight, in learning rates."""
    first, second = betas
    return moment_limit(step, betas) * math.sqrt(1 - second**step) / (1 - first**step)


def allowed(
    rates: Sequence[float], done: int, decay: float, betas: tuple[float, float]
) -> tuple[float, float]:
    """The factor by which decay alone changes a weight, and how far it can be from there.

    Args:
        rates: Of the steps that were applied.
        done: Steps that the optimizer had done before.
        decay: The weight decay of this tensor.
        betas: Of the moments.
    """
    factor, distance = 1.0, 0.0
    for step, rate in enumerate(rates, done + 1):
        factor *= 1 - rate * decay
        distance = distance * abs(1 - rate * decay) + rate * step_limit(step, betas)
    return factor, distance


def rate_at(step: int, settings: Mapping[str, Any]) -> float:
    """The learning rate of a step (from 1) by a job's declared settings.

    Raises:
        ValueError: The settings name no schedule that is known.
    """
    try:
        steps, said = settings["steps"], settings["optimizer"]
        peak, warm, floor = said["lr"], said["warmup_steps"], said["floor"]
        schedule, decay_steps = said["schedule"], said["decay_steps"]
        if step <= warm:
            return float(peak * step / warm)
        match schedule:
            case "constant":
                return float(peak)
            case "cosine":
                done = (step - warm) / max(1, steps - warm)
                return float(peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))))
            case "wsd":
                asked = steps // _DECAY if decay_steps == "auto" else int(decay_steps)
                decay = min(asked, steps - warm)
                left = min(1.0, (steps - step) / decay) if decay else 1.0
                return float(peak * (floor + (1 - floor) * left))
    except (LookupError, TypeError, ValueError, OverflowError, ArithmeticError) as error:
        raise ValueError(f"no learning rate by the declared settings: {error}") from error
    raise ValueError(f"the schedule {schedule!r} is not known")
