# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Run a parallel model forward and backward, whatever its mesh.

The loss is the sum over tokens divided by the tokens of all ranks: gradients of all ranks and
microbatches add up to the gradient of the mean.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from securetrain.parallel.context import head_tail
from securetrain.parallel.kind import DataParallelism
from securetrain.parallel.loss import cross_entropy_sum, detach_loss, loss_parallel_context
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import Precision, Settings, Zero


class Engine(Protocol):
    """The computation of one step."""

    def forward_backward(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        positions: torch.Tensor,
        divisor: float,
    ) -> torch.Tensor:
        """Leave gradients in the parameters; return this rank's part of the loss, detached."""
        ...

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
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

    def forward_backward(
        self, inputs: torch.Tensor, targets: torch.Tensor, divisor: float
    ) -> torch.Tensor:
        """Compute the gradients of a step (collective).

        Args:
            inputs: (B, S) int64: this data-parallel rank's rows, whole.
            targets: (B, S) int64.
            divisor: Tokens of the step over all ranks.

        Returns:
            This rank's part of the mean loss, detached: the parts of all ranks, divided by the
            tensor-parallel degree, add up to it.
        """
        inputs, targets, positions = self._local_batch(inputs, targets)
        return self.engine.forward_backward(inputs, targets, positions, divisor)

    @torch.no_grad()
    def loss_sum(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
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

    def _local_batch(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """This rank's positions of its rows."""
        mesh, length = self.mesh, inputs.shape[1]
        if mesh.degrees.cp == 1:
            positions = torch.arange(length)
        else:
            positions = head_tail(length, mesh.degrees.cp, mesh.cp.get_local_rank())
            inputs, targets = inputs[:, positions], targets[:, positions]
        return inputs.to(self.device), targets.to(self.device), positions.to(self.device)


class PlainEngine:
    """Without a pipeline: microbatches one after the other, their gradients added up."""

    def __init__(
        self,
        module: nn.Module,
        kind: DataParallelism,
        mesh: Mesh,
        settings: Settings,
        device: torch.device,
    ) -> None:
        self._module = module
        self._settings = settings
        self._device = device
        self._ddp = kind is DataParallelism.DDP
        # DDP averages, and so does a communication hook; the sum is wanted.
        self._scale = float(mesh.degrees.dp) if self._ddp else 1.0
        self._tp = mesh.degrees.tp > 1

    def forward_backward(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        positions: torch.Tensor,
        divisor: float,
    ) -> torch.Tensor:
        """See `Engine`."""
        count = self._settings.microbatches
        total = torch.zeros((), device=self._device)
        pieces = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        for number, (x, y) in enumerate(pieces):
            with self._gradient_sync(last=number == count - 1), loss_parallel_context(tp=self._tp):
                loss = self._loss(x, y, positions) / divisor
                (loss * self._scale).backward()
            total += detach_loss(loss)
        return total

    def forward(
        self, inputs: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """See `Engine`."""
        with loss_parallel_context(tp=self._tp):
            return detach_loss(self._loss(inputs, targets, positions))

    def _loss(
        self, inputs: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        with self._autocast():
            logits = self._module(inputs, positions)
        return cross_entropy_sum(logits, targets)

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
