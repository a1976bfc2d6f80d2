# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One process's steps, for the self-check to compare a mesh with.

The model is built as a script without `parallelize` would build it: not on the meta device, cut by
nothing, given memory once. Buffers are therefore what the constructor computed, and ties what it
tied. Rows are computed share by share, each with the random numbers of the rank that has them.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # torch has no public name for their base

from securetrain.parallel.objective import Objective, pieces_of, tensors_of, to_device
from securetrain.parallel.plan import ParallelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of a step, whole."""

    inputs: Any
    targets: Any

    def pieces(self, count: int) -> "list[Batch]":
        """The rows in equal pieces."""
        found = pieces_of((self.inputs, self.targets), count)
        return [Batch(inputs=inputs, targets=targets) for inputs, targets in found]

    @property
    def divisor(self) -> float:
        """The number that the loss is divided by."""
        return float(next(tensors_of(self.targets)).numel())


@dataclass(slots=True, kw_only=True)
class Step:
    """The figures of one process for a step."""

    loss: float
    norm: float
    grads: dict[str, torch.Tensor]
    outputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    """Of every block, for each share and microbatch in order; the input of the first under ""."""


class Reference:
    """A model in one process.

    Args:
        build: Builds the model, whole.
        materialize: Gives parameters their first values.
        plan: Names the blocks.
        objective: Calls the model, and its loss.
        device: Where it computes.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        materialize: Callable[[nn.Module], None],
        plan: ParallelPlan,
        objective: Objective,
        device: torch.device,
    ) -> None:
        torch.manual_seed(1)
        again = dict(build().named_buffers())
        torch.manual_seed(0)
        self.model = build().to(device)
        computed = {
            name: buffer.clone()
            for name, buffer in self.model.named_buffers()
            # Not those that are drawn, or left empty.
            if torch.equal(buffer.cpu(), again[name].cpu())
        }
        materialize(self.model)
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(computed.get(name, buffer))
        self._objective = objective
        self.draws = True
        """Whether a forward pass draws random numbers, as far as is known."""
        self._mixes_rows = any(isinstance(one, _BatchNorm) for one in self.model.modules())
        self._blocks = plan.blocks(self.model)
        self._device = device

    def start(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers before the first step, by name."""
        state = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def step(self, number: int, batch: Batch, ranks: int, microbatches: int) -> Step:
        """Compute a step for `ranks` data-parallel ranks, one after the other."""
        outputs: dict[str, list[torch.Tensor]] = {}
        hooks = record_blocks(self._blocks, outputs, next(iter(self._blocks), ""))
        loss = 0.0
        self.model.zero_grad(set_to_none=True)
        # Rows that have nothing to do with each other are computed at once: there may be many
        # ranks.
        by_share = self.draws or self._mixes_rows
        shares, pieces = (ranks, microbatches) if by_share else (1, 1)
        for rank, mine in enumerate(batch.pieces(shares)):
            seed_rank(number, rank)
            for piece in mine.pieces(pieces):
                found, targets = self._call(piece)
                part = self._objective.loss(found, targets) / batch.divisor
                part.backward()
                loss += part.item()
        for hook in hooks:
            hook.remove()
        if not by_share:
            count = ranks * microbatches
            outputs = {name: list(found.chunk(count)) for name, (found,) in outputs.items()}
        grads = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.model.named_parameters()
        }
        squares = torch.stack([grad.double().square().sum() for grad in grads.values()])
        return Step(loss=loss, norm=squares.sum().sqrt().item(), grads=grads, outputs=outputs)

    def look(self, batch: Batch) -> None:
        """Find out whether a forward pass in training draws random numbers."""
        before = _generator(self._device)
        with torch.no_grad():
            self._call(batch)
        self.draws = not torch.equal(before, _generator(self._device))

    def _call(self, batch: Batch) -> tuple[Any, Any]:
        """The model's outputs, and the targets."""
        inputs, targets = to_device((batch.inputs, batch.targets), self._device)
        positions = torch.empty(0, dtype=torch.int64, device=self._device)
        if self._objective.has_positions:
            length = next(tensors_of(inputs)).shape[1]
            positions = torch.arange(length, device=self._device)
        return self._objective.call(self.model, inputs, positions), targets


def record_blocks(
    blocks: Mapping[str, nn.Module], outputs: dict[str, list[torch.Tensor]], first: str
) -> list[torch.utils.hooks.RemovableHandle]:
    """Keep what blocks return, under their names, and what enters the model's first under ""."""
    hooks = []
    for name, block in blocks.items():

        def keep(_block: nn.Module, _inputs: object, output: object, name: str = name) -> None:
            outputs.setdefault(name, []).append(first_tensor(output).detach())

        hooks.append(block.register_forward_hook(keep))
    for block in [block for name, block in blocks.items() if name == first]:

        def enter(_block: nn.Module, inputs: tuple[object, ...]) -> None:
            if inputs:
                outputs.setdefault("", []).append(first_tensor(inputs).detach())

        hooks.append(block.register_forward_pre_hook(enter))
    return hooks


def first_tensor(value: object) -> torch.Tensor:
    """A tensor, or the first of several."""
    while isinstance(value, tuple | list):
        value = value[0]
    assert isinstance(value, torch.Tensor)
    return value


def seed_rank(step: int, rank: int) -> None:
    """Seed torch for the rows of one data-parallel rank."""
    digest = hashlib.blake2b(f"securetrain/check/1:{step}:{rank}".encode(), digest_size=7)
    torch.manual_seed(int.from_bytes(digest.digest(), "big"))


def _generator(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
