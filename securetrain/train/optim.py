# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""AdamW, its learning rate, and its state as plain tensors.

Every hyper-parameter comes from the job file and the step, so the state that a checkpoint carries
is tensors under names and nothing else: there is no object to unpickle.
"""

import math
from collections.abc import Iterator
from typing import Final, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from securetrain.train.config import AUTO, OptimizerJob, RateSchedule

DECAY: Final = 5
"""`auto`: one step in so many is one of the decay."""
STATES: Final = ("exp_avg", "exp_avg_sq")


class Parameters(Protocol):
    """A source of parameters to optimize: a parallel model, or any module."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All of this rank."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The same with their names."""


def make_optimizer(model: Parameters, job: OptimizerJob) -> torch.optim.AdamW:
    """AdamW over all parameters; vectors (norms) do not decay.

    One group for each mesh that parameters lie on: a fused step takes tensors of one mesh only.
    """
    groups: dict[tuple[object, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((mesh, parameter.ndim > 1), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": job.weight_decay if decays else 0.0}
            for (_, decays), parameters in groups.items()
        ],
        lr=job.lr,
        betas=job.betas,
        fused=True,
    )


def lr_at(step: int, steps: int, job: OptimizerJob) -> float:
    """The learning rate of step number `step` (from 1) of `steps`."""
    if step <= job.warmup_steps:
        return job.lr * step / job.warmup_steps
    match job.schedule:
        case RateSchedule.CONSTANT:
            return job.lr
        case RateSchedule.COSINE:
            done = (step - job.warmup_steps) / max(1, steps - job.warmup_steps)
            return job.lr * (job.floor + (1 - job.floor) * 0.5 * (1 + math.cos(math.pi * done)))
        case RateSchedule.WSD:
            asked = steps // DECAY if job.decay_steps == AUTO else int(job.decay_steps)
            decay = min(asked, steps - job.warmup_steps)
            left = min(1.0, (steps - step) / decay) if decay else 1.0
            return job.lr * (job.floor + (1 - job.floor) * left)
        case _:
            raise ValueError(f"unknown schedule {job.schedule!r}")


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def optimizer_state(
    model: Parameters, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of the state, made where a parameter has none yet.

    The tensors are the optimizer's own: filling them restores it.
    """
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        if not state:
            # As AdamW itself makes it at its first step (fused: the count lies with the parameter).
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for key in STATES:
                state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        yield f"{name}.step", state["step"]
        for key in STATES:
            yield f"{name}.{key}", state[key]
