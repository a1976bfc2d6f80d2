# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""First values: none is left to what memory held before.

A model is described on the meta device, so what its constructor computed (rotary frequencies,
masks) is not there any more once it has memory. Rules:

1. everything is set to not-a-number before `materialize` fills it, and what still is afterwards is
   refused by name. Integers get their least value instead. A tensor of a type that has no value to
   spare must have been written to;
2. `restore_buffers` gives buffers the values that the constructor computes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from securetrain.core.errors import RuntimeRefusal

Fill: TypeAlias = Callable[[nn.Module], None]
SHOWN: Final = 5
"""Names in a message."""


@torch.no_grad()
def fill_values(part: nn.Module, fill: Fill) -> None:
    """Have `fill` give every parameter and buffer of `part` its first value.

    Raises:
        RuntimeRefusal: ST-RUNT-011 naming those that were left out.
    """
    before: dict[str, tuple[torch.Tensor, int]] = {}
    for name, tensor in _state(part):
        local = _local(tensor)
        if (mark := _mark(local.dtype)) is not None:
            local.fill_(mark)
        before[name] = (local, local._version)  # noqa: SLF001 - torch has no other name for it
    fill(part)
    left = [(name, _is_left(_local(tensor), before.get(name))) for name, tensor in _state(part)]
    names = [name for name, flag in left if bool(flag)]
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise RuntimeRefusal(
            "ST-RUNT-011",
            f"materialize left {', '.join(names[:SHOWN])}{more} without a value",
            "materialize",
            "set parameters with initialize, and buffers with restore_buffers",
        )


@torch.no_grad()
def restore_buffers(part: nn.Module, build: Callable[[], nn.Module]) -> None:
    """Give the buffers of `part` the values that the model's constructor computes.

    The model is built once more, with parameters on the meta device, one after the other.

    Args:
        part: The model, or a stage of it, under the names of the whole.
        build: Builds the model.
    """
    with _parameters_on_meta():
        computed = dict(build().named_buffers())
    for name, buffer in part.named_buffers():
        buffer.copy_(computed[name])


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Modules keep their buffers and drop their parameters' memory as they are built."""
    plain = nn.Module.register_parameter

    def dropping(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
        plain(module, name, param)

    generator = torch.get_rng_state()
    nn.Module.register_parameter = dropping  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]
        torch.set_rng_state(generator)


def _state(part: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from part.named_parameters()
    yield from part.named_buffers()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor.detach()


def _mark(dtype: torch.dtype) -> float | int | None:
    """A value that no first value is; None where every value may be one."""
    if dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1):
        return float("nan")
    if dtype.is_floating_point or dtype in {torch.bool, torch.uint8}:
        return None
    return torch.iinfo(dtype).min


def _is_left(local: torch.Tensor, before: tuple[torch.Tensor, int] | None) -> Any:
    mark = _mark(local.dtype)
    if mark is None:
        return (
            before is not None
            and local.data_ptr() == before[0].data_ptr()
            and local._version == before[1]  # noqa: SLF001
        )
    if isinstance(mark, float):
        return local.isnan().any()
    return (local == mark).any()
