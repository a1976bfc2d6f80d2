# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Train any module on any mesh that its plan allows, in one call.

A script of one's own calls `fit` with what describes the module, makes rows and adds up a loss; it
is started by `securetrain run` like any other. The same rules hold as for the built-in trainer: the
loss is a sum divided by the count of all ranks, one sum over all ranks carries what they decide by,
the host waits for the device once a step, and numbers that are not finite never reach the weights.
Before the first step the module, or a small one in its place, is compared with one process.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from securetrain.core.errors import GuardError, UsageError
from securetrain.parallel import (
    Degrees,
    Description,
    Mesh,
    Objective,
    ParallelModel,
    ParallelPlan,
    PlainPlan,
    RequestedDegrees,
    Settings,
    Sum,
    call_at_positions,
    call_plainly,
    clip_grads,
    initialize_as_built,
    make_mesh,
    parallelize,
    resolve_degrees,
    self_check,
    squared_norm_share,
)
from securetrain.train.data import share
from securetrain.train.process import start_group
from securetrain.train.randomness import seed_step

TIMEOUT: Final = timedelta(minutes=10)
MOST_CHECKED: Final = 4_000_000
"""Parameters of a module that the self-check takes as it is."""
MAX_REFUSED: Final = 3
"""Steps in a row whose numbers are not finite."""

Rows: TypeAlias = Callable[[int, range], tuple[Any, Any]]
"""A step, from 1, and numbers of rows to their inputs and targets; on the CPU."""
MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitStep:
    """One step, the same on every rank."""

    step: int
    loss: float
    """The mean over what all ranks counted."""
    grad_norm: float
    """Before clipping."""
    metrics: Mapping[str, float]
    """Means, by name."""
    taken: bool
    """False when a number was not finite: the weights are as before."""
    model: ParallelModel
    optimizer: torch.optim.Optimizer


def fit(
    build: Callable[[], nn.Module],
    rows: Rows,
    loss: Sum,
    *,
    steps: int,
    batch_rows: int,
    metrics: Mapping[str, Sum] | None = None,
    count: Callable[[Any], torch.Tensor | int] | None = None,
    positions: bool = False,
    mesh: Degrees | RequestedDegrees | None = None,
    plan: ParallelPlan | None = None,
    settings: Settings | None = None,
    optimizer: MakeOptimizer | None = None,
    clip: float = 1.0,
    seed: int = 0,
    weights: Callable[[], nn.Module] | None = None,
    small: Callable[[], nn.Module] | None = None,
    check: bool = True,
    on_step: Callable[[FitStep], None] | None = None,
) -> ParallelModel:
    """Train (collective over all processes of the job).

    Args:
        build: Makes the module, with random weights.
        rows: Makes some of the `batch_rows` rows of a step.
        loss: Outputs and targets to a **sum** over rows.
        steps: How many.
        batch_rows: Rows of a step over all ranks.
        metrics: Other sums, by name.
        count: Targets to what the loss is the mean over; without it, rows.
        positions: The module is called with inputs (B, S) and positions (S,); else as
            `call_plainly` says.
        mesh: The mesh; without it, all ranks share one copy.
        plan: What the module says about itself; without it, copies and shards are possible.
        settings: How it is made parallel.
        optimizer: Makes it; AdamW without.
        clip: The largest norm of a gradient.
        seed: Of weights and of random numbers in steps.
        weights: Makes the whole module with the values to begin from, in host memory on every
            rank; without it, `build` does under `seed`.
        small: Makes a module of few and narrow layers that takes the same rows, for the
            self-check; without it the module itself is checked, if it is small.
        check: Whether to compare with one process before the first step.
        on_step: Called after each step on every rank; without it rank 0 prints.

    Raises:
        UsageError: ST-USAG-007 for a number or a mesh that cannot be, ST-USAG-014 when `rows` has
            no more of them.
        GuardError: ST-GRAD-001, numbers were not finite several times in a row.
        RuntimeRefusal: ST-RUNT-013 naming what differs from one process; others as
            `parallelize`.
    """
    _check(steps=steps, batch_rows=batch_rows, clip=clip)
    started = not dist.is_initialized()
    device = start_group(os.environ, TIMEOUT) if started else _device()
    try:
        asked = settings or Settings()
        degrees = _degrees(mesh, batch_rows, asked)
        objective = Objective(
            loss=loss, call=call_at_positions if positions else call_plainly, metrics=metrics or {}
        )

        def describe(make: Callable[[], nn.Module]) -> Description:
            begin = weights if weights is not None and make is build else make
            fill = initialize_as_built(begin, seed)
            return Description(
                build=make, materialize=fill, plan=plan or PlainPlan(), objective=objective
            )

        arranged = make_mesh(degrees, device.type)
        if checked := _checked(build, small, check=check):
            few = min(batch_rows, 2 * degrees.dp * asked.microbatches)
            _compare(
                describe(checked), arranged, asked, device, lambda: _batch(rows, 1, range(few))
            )
        model = parallelize(describe(build), arranged, asked, device)
        made = (optimizer or torch.optim.AdamW)(model.parameters())
        _check_rates(made)
        loop, refused = _Loop(model, made, batch_rows, count, clip), 0
        for step in range(1, steps + 1):
            seed_step(seed, step, rows=arranged.dp_rank, stage=arranged.pp_rank)
            mine = share(batch_rows, arranged.dp_rank, degrees.dp)
            done = loop.step(step, _batch(rows, step, mine))
            (on_step or _print)(done)
            refused = 0 if done.taken else refused + 1
            if refused == MAX_REFUSED:
                raise GuardError(
                    "ST-GRAD-001",
                    f"step {step} is number {refused} in a row whose loss or gradient is not"
                    " finite",
                    "fit",
                )
    finally:
        if started:
            dist.destroy_process_group()
    return model


@dataclass(frozen=True, slots=True)
class _Loop:
    model: ParallelModel
    optimizer: torch.optim.Optimizer
    batch_rows: int
    count: Callable[[Any], torch.Tensor | int] | None
    clip: float

    def step(self, step: int, batch: tuple[Any, Any]) -> FitStep:
        """Take one step with this rank's rows."""
        model, degrees = self.model, self.model.mesh.degrees
        over = self._divisor(batch[1])
        self.optimizer.zero_grad(set_to_none=True)
        local = model.forward_backward(*batch, over)
        square = squared_norm_share(model.parameters(), degrees.world // degrees.pp)
        sums = model.metric_sums
        said = [local.double(), square.to(local.device), *(x / over for x in sums.values())]
        shared = torch.stack(said)
        dist.all_reduce(shared)
        norm = shared[1].sqrt()
        shared[1] = norm
        # Decide with all ranks: the only place where the host waits for the device.
        total, length, *others = shared.tolist()
        taken = math.isfinite(total) and math.isfinite(length)
        if taken:
            clip_grads(model.parameters(), norm, self.clip)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return FitStep(
            step=step,
            # Ranks that share matrices have computed the same.
            loss=total / degrees.tp,
            grad_norm=length,
            metrics={n: x / degrees.tp for n, x in zip(sums, others, strict=True)},
            taken=taken,
            model=model,
            optimizer=self.optimizer,
        )

    def _divisor(self, targets: Any) -> float | torch.Tensor:
        """The number that the loss is the mean over, on all ranks."""
        if self.count is None:
            return float(self.batch_rows)
        degrees, found = self.model.mesh.degrees, self.count(targets)
        over = torch.as_tensor(found, dtype=torch.float64)
        over = over.to(self.model.device, non_blocking=True)
        dist.all_reduce(over)
        return over * (degrees.dp / degrees.world)  # some ranks have the same rows


def _checked(
    build: Callable[[], nn.Module], small: Callable[[], nn.Module] | None, *, check: bool
) -> Callable[[], nn.Module] | None:
    """Choose a module to compare with one process; None, said by rank 0, if none can be."""
    if not check:
        _say("not compared with one process (check=False)")
        return None
    if small is not None:
        return small
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in build().parameters())
    if count <= MOST_CHECKED:
        return build
    _say(
        f"not compared with one process: {count:,} parameters are too many for it; give fit"
        " small=, which makes a module of few and narrow layers"
    )
    return None


def _compare(
    model: Description,
    mesh: Mesh,
    settings: Settings,
    device: torch.device,
    batch: Callable[[], tuple[Any, Any]],
) -> None:
    """Compare two steps of the same rows with one process (collective)."""
    found = self_check(model, mesh, settings, device, batch=lambda _step, _rows: batch())
    if found.left_out:
        _say(f"not compared with one process: {', '.join(found.left_out)}")


def _say(words: str) -> None:
    if dist.get_rank() == 0:
        print(f"fit: {words}", file=sys.stderr, flush=True)  # noqa: T201 - a script's own words


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if _has_gpu() else torch.device("cpu")


def _has_gpu() -> bool:
    return torch.cuda.is_available() and "nccl" in dist.get_backend_config()


def _degrees(
    mesh: Degrees | RequestedDegrees | None, batch_rows: int, settings: Settings
) -> Degrees:
    world = dist.get_world_size()
    degrees = (
        mesh
        if isinstance(mesh, Degrees)
        else resolve_degrees(mesh or RequestedDegrees(), world=world, where="fit")
    )
    unit = degrees.dp * settings.microbatches
    if batch_rows % unit:
        raise _bad(
            f"{batch_rows} rows do not divide among {degrees.dp} ranks and"
            f" {settings.microbatches} microbatches",
            "batch_rows",
            f"batch_rows={-(-batch_rows // unit) * unit}",
        )
    return degrees


def _check(*, steps: int, batch_rows: int, clip: float) -> None:
    if steps < 1:
        raise _bad(f"{steps} steps", "steps", "steps=1 or more")
    if batch_rows < 1:
        raise _bad(f"{batch_rows} rows a step", "batch_rows", "batch_rows=1 or more")
    if not clip > 0:
        raise _bad(f"gradients of a norm of {clip}", "clip", "clip=1.0, or math.inf for none")


def _check_rates(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        rate = float(group.get("lr", 0.0))
        if not 0 <= rate < math.inf:
            raise _bad(f"a learning rate of {rate}", "optimizer", "a finite lr")


def _batch(rows: Rows, step: int, mine: range) -> tuple[Any, Any]:
    try:
        batch = rows(step, mine)
    except StopIteration:
        batch = None
    if batch is None:
        raise UsageError(
            "ST-USAG-014",
            f"there are no rows for step {step}",
            "fit: rows",
            "ask for fewer steps, or begin again from the first row",
        )
    return batch


def _print(done: FitStep) -> None:
    if dist.get_rank():
        return
    shown = "".join(f", {name} {value:.4g}" for name, value in done.metrics.items())
    print(  # noqa: T201 - a script's own words
        f"step {done.step}: loss {done.loss:.4f}, gradient norm {done.grad_norm:.4f}{shown}",
        flush=True,
    )


def _bad(what: str, where: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-007", what, f"fit: {where}", fix)
