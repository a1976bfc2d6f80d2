# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run a pipeline of stages by torch's schedules.

Rules:

1. what stages send each other is declared before the first step: shapes and dtypes come from the
   job, so that no rank learns them from what another one sends. Torch asks all stages whether they
   are declared, and reads pickled objects when one says no: here that is refused (ST-RUNT-001);
2. positions are the same for every microbatch, but schedules cut keyword arguments along their
   first dimension: they are repeated once for each;
3. gradients are not scaled by the schedule: the loss is already divided by all tokens;
4. evaluation passes rows through the stages one after the other: torch 2.13's V schedules lose
   their way without a backward pass.
"""

from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import DTensor, Shard

from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel.loss import detach_loss, loss_parallel_context
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.objective import Objective, sums_of
from securetrain.parallel.plan import ParallelPlan, Precision, Settings
from securetrain.parallel.schedule import num_stages, rank_of_stage

GRADIENT_SYNC: Final = "set_requires_gradient_sync"
"""The method of FSDP with which a stage asks."""


class DeclaredStage(PipelineStage):
    """A stage that neither sends nor reads objects that say what shapes are."""

    def _recv_meta(self, src_stage: int) -> NoReturn:
        del src_stage
        raise _asked()

    def _send_meta(self, meta: object, dst_stage: int) -> NoReturn:
        del meta, dst_stage
        raise _asked()


class PipelineEngine:
    """This rank's stages, and the schedule that runs them.

    Args:
        stages: This rank's stages by number.
        mesh: The ranks.
        plan: The model's plan.
        settings: The job's settings.
        device: Where it computes.
        objective: What is to become small.
    """

    def __init__(
        self,
        stages: dict[int, nn.Module],
        mesh: Mesh,
        plan: ParallelPlan,
        settings: Settings,
        device: torch.device,
        *,
        objective: Objective,
    ) -> None:
        self.sums: list[torch.Tensor] = []
        self._objective = objective
        self._stages = stages
        self._mesh = mesh
        self._plan = plan
        self._settings = settings
        self._device = device
        self._total = num_stages(settings.schedule, mesh.degrees.pp)
        self._first = 0 in stages
        self._last = self._total - 1 in stages
        # Between stages positions are cut among tensor-parallel ranks, logits along the vocabulary.
        bf16 = settings.precision is Precision.BF16
        self._dtype = torch.bfloat16 if bf16 else torch.float32
        self._divisor: float | torch.Tensor = 1.0
        if self._last:
            stages[self._total - 1].register_forward_hook(_local)
        self._schedule: Any = None
        self._rows: torch.Size | None = None

    def forward_backward(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        positions: torch.Tensor,
        divisor: float | torch.Tensor,
    ) -> torch.Tensor:
        """See `Engine`."""
        self._divisor = divisor
        if self._schedule is None:
            self._schedule, self._rows = self._build(inputs), inputs.shape
        if inputs.shape != self._rows:
            raise ValueError(f"the pipeline was built for rows of {self._rows}, not {inputs.shape}")
        found: list[torch.Tensor] = []
        self.sums = self._objective.nothing(self._device)
        with loss_parallel_context(tp=self._mesh.degrees.tp > 1):
            self._schedule.step(
                *((inputs,) if self._first else ()),
                positions=positions.repeat(self._settings.microbatches),
                target=targets if self._last else None,
                losses=found if self._last else None,
                return_outputs=False,
            )
        if not self._last:
            return torch.zeros((), device=self._device)
        return torch.stack([detach_loss(loss) for loss in found]).sum()

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """See `Engine`."""
        self.sums = self._objective.nothing(self._device)
        degrees, part = self._mesh.degrees, next(iter(self._stages.values()))
        shape = (inputs.shape[0], inputs.shape[1] // degrees.tp, self._plan.hidden_size(part))
        group, x = self._mesh.pp.get_group(), inputs
        for number, stage in sorted(self._stages.items()):
            if number and (before := self._owner(number - 1)) != group.rank():
                x = torch.empty(shape, dtype=self._dtype, device=self._device)
                dist.recv(x, group_src=before, group=group)
            x = stage(x, positions)
            if number < self._total - 1 and (after := self._owner(number + 1)) != group.rank():
                dist.send(x.contiguous(), group_dst=after, group=group)
        if not self._last:
            return torch.zeros((), device=self._device)
        with loss_parallel_context(tp=degrees.tp > 1):
            return detach_loss(self._sum(x, targets))

    def _owner(self, stage: int) -> int:
        return rank_of_stage(self._settings.schedule, stage, self._mesh.degrees.pp)

    def _build(self, inputs: torch.Tensor) -> Any:
        kind: Any = get_schedule_class(self._settings.schedule.value)
        stages = [self._stage(number, part, inputs) for number, part in self._stages.items()]
        return kind(
            stages if len(stages) > 1 else stages[0],
            n_microbatches=self._settings.microbatches,
            loss_fn=self._loss,
            scale_grads=False,
        )

    def _stage(self, number: int, part: nn.Module, inputs: torch.Tensor) -> PipelineStage:
        rows, length = inputs.shape[0] // self._settings.microbatches, inputs.shape[1]
        tp = self._mesh.degrees.tp
        first, last = number == 0, number == self._total - 1
        tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")

        def floats(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=self._dtype, device="meta", requires_grad=True)

        hidden = floats(rows, length // tp, self._plan.hidden_size(part))
        if self._settings.reduce_each_microbatch:
            # Stages ask not to before each backward pass; the default is to reduce.
            setattr(part, GRADIENT_SYNC, _keep_reducing)
        return DeclaredStage(
            part,
            number,
            self._total,
            self._device,
            input_args=tokens if first else hidden,
            output_args=floats(rows, length, self._plan.vocabulary(part) // tp) if last else hidden,
            group=self._mesh.pp.get_group(),
        )

    def _loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self._sum(logits, targets) / self._divisor

    def _sum(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self._mesh.degrees.tp > 1:
            logits = DTensor.from_local(logits, self._mesh.tp, [Shard(-1)], run_check=False)
        found = sums_of(self._objective.metrics, logits, targets)
        self.sums = [a + b for a, b in zip(self.sums, found, strict=True)]
        return self._objective.loss(logits, targets)


def _asked() -> RuntimeRefusal:
    return RuntimeRefusal(
        "ST-RUNT-001",
        "another stage says that shapes are not declared, and its objects would be read",
        "pipeline",
        "exclude its node: every stage of one program declares them",
    )


def _keep_reducing(*_asked: object, **_named: object) -> None:
    """Ignore a request to keep gradients whole."""


def _local(_module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
    """Schedules check what a stage returns, and take ordinary tensors."""
    return output.to_local() if isinstance(output, DTensor) else output
