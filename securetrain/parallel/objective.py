# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The objective of a training: how a model is given a batch, and which sum is to become small.

A batch is a pair of inputs and targets: each one tensor, or a tuple or a mapping of them. The first
dimension of every tensor counts rows. By default inputs and targets are tokens (B, S), and a model
is called with tokens and their positions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch

from securetrain.parallel.loss import cross_entropy_sum, detach_loss

Tensors: TypeAlias = "torch.Tensor | tuple[Tensors, ...] | Mapping[str, Tensors]"
Sum: TypeAlias = Callable[[Any, Any], torch.Tensor]
"""A model's outputs and the targets to a sum over the rows: a scalar, differentiable for a loss."""
Call: TypeAlias = Callable[[Callable[..., Any], Any, torch.Tensor], Any]
"""A model, inputs and positions to the model's outputs."""
_T = TypeVar("_T")


def call_at_positions(model: Callable[..., Any], inputs: Any, positions: torch.Tensor) -> Any:
    """For models of tokens: positions, (S,) int64, are the last argument."""
    return model(inputs, positions)


def call_plainly(model: Callable[..., Any], inputs: Any, positions: torch.Tensor) -> Any:
    """For any model: a tuple of inputs is its arguments, a mapping its arguments by name."""
    del positions
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A model's objective; by default that of a model of tokens."""

    loss: Sum = cross_entropy_sum
    call: Call = call_at_positions
    metrics: Mapping[str, Sum] = field(default_factory=dict)
    """Other sums, by name; not differentiated."""

    @property
    def has_positions(self) -> bool:
        """True when the second dimension counts positions, which ranks may share."""
        return self.call is not call_plainly

    def nothing(self, device: torch.device) -> list[torch.Tensor]:
        """Every metric of no rows."""
        nothing = torch.zeros((), dtype=torch.float64, device=device)
        return [nothing for _ in self.metrics]


def tensors_of(batch: Tensors) -> Iterator[torch.Tensor]:
    """Every tensor, in order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    else:
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(value)


def map_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure of other tensors."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(value, change) for name, value in batch.items()}
    return tuple(map_tensors(value, change) for value in batch)


def pieces_of(batch: Any, count: int) -> list[Any]:
    """The rows of a batch in `count` equal pieces."""
    if count == 1:
        return [batch]
    rows = {len(tensor) for tensor in tensors_of(batch)}
    if len(rows) != 1 or rows.pop() % count:
        raise ValueError(f"the rows of a batch do not divide into {count} microbatches")
    chunks = {id(tensor): tensor.chunk(count) for tensor in tensors_of(batch)}

    def piece(number: int) -> Any:
        return map_tensors(batch, lambda tensor: chunks[id(tensor)][number])

    return [piece(number) for number in range(count)]


def to_device(batch: _T, device: torch.device) -> _T:
    """A batch in the device's memory, contiguous. For a GPU it goes by way of pinned memory, and
    the host does not wait: the copies are ordered with what is computed.
    """
    if device.type != "cuda":
        return map_tensors(batch, lambda x: x.to(device).contiguous())  # type: ignore[no-any-return]

    def send(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda:
            return tensor.contiguous()
        host = tensor.contiguous()
        pinned = host if host.is_pinned() else host.pin_memory()
        return pinned.to(device, non_blocking=True)

    return map_tensors(batch, send)  # type: ignore[no-any-return]


def sums_of(metrics: Mapping[str, Sum], outputs: Any, targets: Any) -> list[torch.Tensor]:
    """Every metric of some rows, detached."""
    with torch.no_grad():
        return [detach_loss(metric(outputs, targets)).double() for metric in metrics.values()]
