# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run a parallel model forward and backward, whatever its mesh.

The loss is the sum over tokens divided by the tokens of all ranks: gradients of all ranks and
microbatches add up to the gradient of the mean.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from securetrain.parallel.context import head_tail
from securetrain.parallel.copies import CopyCheck
from securetrain.parallel.kind import DataParallelism
from securetrain.parallel.loss import detach_loss, loss_parallel_context
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.objective import (
    Objective,
    map_tensors,
    pieces_of,
    sums_of,
    tensors_of,
    to_device,
)
from securetrain.parallel.plan import Precision, Settings, Zero


class Engine(Protocol):
    """The computation of one step."""

    sums: list[torch.Tensor]
    """This rank's part of each metric of the objective, over the last step or forward pass."""

    def forward_backward(
        self,
        inputs: Any,
        targets: Any,
        positions: torch.Tensor,
        divisor: float | torch.Tensor,
    ) -> torch.Tensor:
        """Leave gradients in the parameters; return this rank's part of the loss, detached."""
        ...

    def forward(self, inputs: Any, targets: Any, positions: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum of losses, detached."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """A model that is ready to train."""

    parts: tuple[nn.Module, ...]
    """This rank's modules: one, or the stages of a pipeline. The guard attaches to them."""
    mesh: Mesh
    device: torch.device
    engine: Engine
    copies: CopyCheck | None = None
    """Compares gradients that must be equal; None where nothing is copied."""
    objective: Objective = field(default_factory=Objective)
    _positions: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """This rank's of rows of each length, on the host and on the device."""

    def forward_backward(
        self, inputs: Any, targets: Any, divisor: float | torch.Tensor
    ) -> torch.Tensor:
        """Compute the gradients of a step (collective).

        Args:
            inputs: This data-parallel rank's rows, whole; (B, S) int64, or what the objective
                takes.
            targets: Likewise.
            divisor: Tokens of the step over all ranks, or what else the loss is the mean over. A
                number on the device makes nobody wait.

        Returns:
            This rank's part of the mean loss, detached: the parts of all ranks, divided by the
            tensor-parallel degree, add up to it.
        """
        inputs, targets, positions = self._local_batch(inputs, targets)
        loss = self.engine.forward_backward(inputs, targets, positions, divisor)
        if self.copies is not None:
            self.copies.after_backward()
        return loss

    @property
    def metric_sums(self) -> dict[str, torch.Tensor]:
        """This rank's part of each metric of the last step, as `forward_backward` returns the
        loss.
        """
        return dict(zip(self.objective.metrics, self.engine.sums, strict=True))

    @torch.no_grad()
    def loss_sum(self, inputs: Any, targets: Any) -> torch.Tensor:
        """This rank's part of the sum of losses (collective); as in `forward_backward`."""
        inputs, targets, positions = self._local_batch(inputs, targets)
        loss = self.engine.forward(inputs, targets, positions)
        for module in self._sharded():
            # No backward pass follows that would do it, and whoever looks at parameters now (a
            # checkpoint, the optimizer) must find the shards.
            module.reshard()
        return loss

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank under the names of the model without its wrappers."""
        for part in self.parts:
            yield from unwrap(part).named_parameters()

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """This rank's buffers (state besides parameters), under the same names."""
        for part in self.parts:
            yield from unwrap(part).named_buffers()

    def parameters(self) -> Iterator[nn.Parameter]:
        """The same without names."""
        return (parameter for _, parameter in self.named_parameters())

    def train(self, *, mode: bool = True) -> None:
        """Training or evaluation mode."""
        for part in self.parts:
            part.train(mode)

    def _sharded(self) -> Iterator[FSDPModule]:
        for part in self.parts:
            yield from (module for module in part.modules() if isinstance(module, FSDPModule))

    def _local_batch(self, inputs: Any, targets: Any) -> tuple[Any, Any, torch.Tensor]:
        """This rank's positions of its rows, on its device."""
        if not self.objective.has_positions:
            inputs, targets = map_tensors((inputs, targets), torch.Tensor.contiguous)
            inputs, targets = to_device((inputs, targets), self.device)
            return inputs, targets, torch.empty(0, dtype=torch.int64)
        first = next(tensors_of(inputs))
        here, there = self._positions_of(first.shape[1])
        if self.mesh.degrees.cp > 1:
            inputs, targets = map_tensors((inputs, targets), lambda x: x[:, here])
        # A caller's may be views, of which a loss of one's own could not make a view.
        inputs, targets = map_tensors((inputs, targets), torch.Tensor.contiguous)
        inputs, targets = to_device((inputs, targets), self.device)
        return inputs, targets, there

    def _positions_of(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        found = self._positions.get(length)
        if found is None:
            mesh = self.mesh
            here = torch.arange(length)
            if mesh.degrees.cp > 1:
                here = head_tail(length, mesh.degrees.cp, mesh.cp.get_local_rank())
            found = self._positions[length] = here, to_device(here, self.device)
        return found


class PlainEngine:
    """Without a pipeline: microbatches one after the other, their gradients added up."""

    def __init__(
        self,
        module: nn.Module,
        kind: DataParallelism,
        mesh: Mesh,
        settings: Settings,
        device: torch.device,
        *,
        objective: Objective,
    ) -> None:
        self.sums: list[torch.Tensor] = []
        self._objective = objective
        self._module = module
        self._settings = settings
        self._device = device
        self._ddp = kind is DataParallelism.DDP
        # DDP averages, and so does a communication hook; the sum is wanted.
        self._scale = float(mesh.degrees.dp) if self._ddp else 1.0
        self._tp = mesh.degrees.tp > 1

    def forward_backward(
        self,
        inputs: Any,
        targets: Any,
        positions: torch.Tensor,
        divisor: float | torch.Tensor,
    ) -> torch.Tensor:
        """See `Engine`."""
        count = self._settings.microbatches
        total = torch.zeros((), device=self._device)
        self.sums = self._objective.nothing(self._device)
        for number, (x, y) in enumerate(pieces_of((inputs, targets), count)):
            with self._gradient_sync(last=number == count - 1), loss_parallel_context(tp=self._tp):
                loss = self._loss(x, y, positions) / divisor
                (loss * self._scale).backward()
            total += detach_loss(loss)
        return total

    def forward(self, inputs: Any, targets: Any, positions: torch.Tensor) -> torch.Tensor:
        """See `Engine`."""
        self.sums = self._objective.nothing(self._device)
        with loss_parallel_context(tp=self._tp):
            return detach_loss(self._loss(inputs, targets, positions))

    def _loss(self, inputs: Any, targets: Any, positions: torch.Tensor) -> torch.Tensor:
        with self._autocast():
            outputs = self._objective.call(self._module, inputs, positions)
        found = sums_of(self._objective.metrics, outputs, targets)
        self.sums = [a + b for a, b in zip(self.sums, found, strict=True)]
        return self._objective.loss(outputs, targets)

    def _autocast(self) -> AbstractContextManager[object]:
        """FSDP casts by itself, DDP does not."""
        if self._ddp and self._settings.precision is Precision.BF16:
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return nullcontext()

    @contextmanager
    def _gradient_sync(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients over ranks after the last microbatch; ZeRO-2 and 3 after each one."""
        with ExitStack() as stack:
            if isinstance(self._module, DistributedDataParallel) and not last:
                stack.enter_context(self._module.no_sync())
            if isinstance(self._module, FSDPModule) and self._settings.zero is Zero.OPTIMIZER:
                self._module.set_requires_gradient_sync(last)
            yield


def unwrap(module: nn.Module) -> nn.Module:
    """The model without its wrapper, so that names are the same on every mesh."""
    return module.module if isinstance(module, DistributedDataParallel) else module
