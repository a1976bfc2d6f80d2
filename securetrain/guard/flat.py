# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""FSDP1 (`FullyShardedDataParallel`): a place for the guard's hook, and the hook.

Each wrapped module flattens its parameters into one and reduces their gradient at once. Torch has a
communication hook for it, which is called with the unreduced gradient and an empty shard. As in
slots.py a slot is put there when a module is wrapped; it reduces as torch does, bit for bit, until
a guard moves in, and a hook of the script takes its place.

Not watched: ``NO_SHARD`` and the hybrid strategies, for which torch has another hook or none.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from securetrain.core.errors import GuardError
from securetrain.guard.blocks import group_of_module
from securetrain.guard.collect import Collector, Piece, Segment
from securetrain.guard.kept import WIDE, Keeper, Kept, Weights
from securetrain.guard.moments import Moments
from securetrain.guard.open_mode import OpenMode

FSDP1: Final = "FullyShardedDataParallel (FSDP1)"
_SHARDED: Final = (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP)
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""The name since torch 2.13, or the one before."""


@dataclass(frozen=True, slots=True)
class Flat:
    """One wrapped module that has parameters."""

    chunk: str
    """Its name, unique on this rank and the same on all."""
    module: FullyShardedDataParallel

    @property
    def parameter(self) -> Any:
        """All its parameters in one."""
        return self.module._handle.flat_param  # type: ignore[union-attr]  # noqa: SLF001

    @property
    def group(self) -> ProcessGroup:
        """The ranks over which it is sharded."""
        group: ProcessGroup = self.module.process_group  # type: ignore[assignment]
        return group

    def slots(self, numel: int) -> list[tuple[Tensor, int]]:
        """An optimizer's parameters in the order of this rank's shard, and the sizes there."""
        flat = self.parameter
        if not self.module._handle._use_orig_params:  # type: ignore[union-attr]  # noqa: SLF001
            return [(flat, numel)]
        found, stop, gap = list[tuple[Tensor, int]](), 0, torch.empty(0)
        for parameter, info in zip(flat._params, flat._shard_param_infos, strict=True):  # noqa: SLF001
            if info.in_shard:
                found += [(gap, info.offset_in_shard - stop), (parameter, info.numel_in_shard)]
                stop = info.offset_in_shard + info.numel_in_shard
        return [*found, (gap, numel - stop)]


class FlatSlot:
    """The communication hook of one wrapped module, before anybody knows who will watch.

    Args:
        on_first: Called with the module before its first reduction; may move a guard in.
    """

    def __init__(self, on_first: Callable[[Any], None]) -> None:
        self._on_first: Callable[[Any], None] | None = on_first
        self.hook: FlatHook | None = None

    def __call__(self, state: Any, unsharded: Tensor, sharded: Tensor) -> None:
        """Reduce; the state is a weak reference to the module."""
        module = state()
        first, self._on_first = self._on_first, None
        if first is not None and self.hook is None:
            first(module)
        if self.hook is not None:
            self.hook(module, unsharded, sharded)
        else:
            before, after = _divisors(module)
            if before > 1:
                unsharded.div_(before)
            _reduce_scatter(sharded, unsharded, group=_group(module))
            if after > 1:
                sharded.div_(after)


class FlatHook:
    """The reduction of a module while a guard watches it.

    Args:
        chunk: the module's name.
        collector: takes the pieces.
        weights: of all ranks, in order.
        keeper: takes what may have to be reduced again.
        moments: of the optimizer.
        open_mode: reduces instead of torch while it is active.
    """

    def __init__(
        self,
        chunk: str,
        collector: Collector,
        *,
        weights: Weights,
        keeper: Keeper,
        moments: Moments,
        open_mode: OpenMode,
    ) -> None:
        self._open = open_mode
        self._chunk = chunk
        self._collector = collector
        self._weights = weights
        self._keeper = keeper
        self._moments = moments

    def __call__(self, module: Any, unsharded: Tensor, sharded: Tensor) -> None:
        """Reduce as torch does, but not in place, and hand the piece over."""
        weights, group = self._weights, module.process_group
        before, after = _divisors(module)
        scale = before * after / group.size()
        flat = Flat(self._chunk, module)
        if self._open.active:
            kept = Kept(
                chunk=self._chunk,
                local=unsharded,
                parts=group.size(),
                replace=None,
                moment=lambda: self._moments.slices(flat.slots(sharded.numel()), sharded.numel()),
            )
            name = group_of_module(self._chunk)
            self._open.fill(sharded, kept, name, scale=scale, part=None)
            return
        if weights.values[group.rank()]:
            sent = unsharded / before if before > 1 else unsharded
        else:
            sent = torch.zeros_like(unsharded)
        _reduce_scatter(sharded, sent, group=group)
        if after > 1:
            sharded.div_(after)
        if not weights.even:
            sharded.mul_(group.size() / weights.live)
        result = sharded.clone()
        self._keeper.add(_again(flat, unsharded, sharded), extra=True)
        self._collector.add(
            Piece(
                chunk=self._chunk,
                local=unsharded,
                weights=() if weights.even else weights.values,
                parts=group.size(),
                part=group.rank(),
                result=result,
                result_scale=scale,
                local_scale=1.0,
                wait=_waiter(result.device),
                segments=(Segment(group_of_module(self._chunk), 0, unsharded.numel()),),
                moment=lambda: self._moments.slices(flat.slots(result.numel()), result.numel()),
            )
        )


def reserve_flat(module: FullyShardedDataParallel, on_first: Callable[[Any], None]) -> str:
    """Put a slot into a module that was just wrapped.

    Returns:
        Why it cannot be watched, or nothing.
    """
    _WRAPPED[:] = [one for one in _WRAPPED if one() is not None]
    _WRAPPED.append(weakref.ref(module))
    if module._handle is None:  # noqa: SLF001
        return ""
    if _group(module).size() == 1:
        return "its group has one rank: there is nothing to compare with"
    if module.sharding_strategy not in _SHARDED:
        return f"{FSDP1} with {module.sharding_strategy.name} is not watched"
    _reserve(module, FlatSlot(on_first))
    return ""


def _reserve(module: FullyShardedDataParallel, slot: FlatSlot) -> FlatSlot:
    module._comm_hook = slot  # noqa: SLF001
    # A module that has itself as an attribute would be a part of itself.
    module._comm_hook_state = weakref.ref(module)  # noqa: SLF001
    return slot


def release_flat(model: nn.Module) -> None:
    """Let all modules of a model be reduced by torch again."""
    for module in _wrapped(model):
        if isinstance(module._comm_hook, FlatSlot):  # noqa: SLF001
            module._comm_hook.hook = None  # noqa: SLF001
            module._comm_hook = module._comm_hook_state = None  # noqa: SLF001


def has_flat(model: nn.Module) -> bool:
    """True when FSDP1 shards a part of the model."""
    return any(True for _ in _wrapped(model))


def flat_count(model: nn.Module) -> int:
    """The number of parameters that an optimizer of the model knows."""
    return sum(len(one.parameter._params or (None,)) for one in flat_modules(model))  # noqa: SLF001


def flat_root(module: nn.Module) -> nn.Module:
    """The outermost wrapped module of the model of one that is being reduced."""
    for reference in _WRAPPED:
        root = reference()
        if root is not None and root._is_root and any(one is module for one in root.modules()):  # noqa: SLF001
            return root
    return module


def flat_modules(model: nn.Module) -> list[Flat]:
    """Every wrapped module with parameters, in order.

    Raises:
        GuardError: ST-GRAD-006, a gradient would not be seen.
    """
    found, managed = list[Flat](), set[int]()
    for index, (name, module) in enumerate(model.named_modules()):
        if not isinstance(module, FullyShardedDataParallel) or module._handle is None:  # noqa: SLF001
            continue
        if module.sharding_strategy not in _SHARDED:
            raise _refuse(f"{FSDP1} with {module.sharding_strategy.name} is not watched")
        plain = name.replace("_fsdp_wrapped_module.", "").removesuffix("_fsdp_wrapped_module")
        one = Flat(f"0-{index}-{plain}", module)
        managed |= ids_of(one)
        found.append(one)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in managed:
            raise _refuse(f"parameter {name} is not sharded, so its gradient is not reduced")
    if len({tuple(dist.get_process_group_ranks(one.group)) for one in found}) > 1:
        raise _refuse("its modules are sharded over different groups of ranks")
    return found


def flat_shards(model: nn.Module) -> Iterator[Tensor]:
    """This rank's shards of the weights, also while they are gathered."""
    for module in _wrapped(model):
        if module._handle is not None:  # noqa: SLF001
            yield module._handle.flat_param._local_shard.detach()  # noqa: SLF001


def ids_of(one: Flat) -> frozenset[int]:
    """The parameters of a module, by id, as an optimizer may know them."""
    flat = one.parameter
    return frozenset(map(id, (flat, *(flat._params or ()))))  # noqa: SLF001


def attach_flat(
    modules: Sequence[Flat],
    collector: Collector,
    *,
    weights: Weights,
    keeper: Keeper,
    moments: Moments,
    open_mode: OpenMode,
) -> None:
    """Hook modules.

    Raises:
        GuardError: ST-GRAD-006, the script has a hook there.
    """
    for one in modules:
        slot = one.module._comm_hook  # noqa: SLF001
        if slot is None:
            slot = _reserve(one.module, FlatSlot(lambda _module: None))
        elif not isinstance(slot, FlatSlot):
            raise _refuse("the script has registered a communication hook of its own")
        slot.hook = FlatHook(
            one.chunk,
            collector,
            weights=weights,
            keeper=keeper,
            moments=moments,
            open_mode=open_mode,
        )


def flat_names(modules: Sequence[Flat]) -> list[tuple[str, Tensor]]:
    """Names for the fingerprint of a piece, the same in and out of a backward pass."""
    return [
        (f"{one.chunk}|{tuple(one.parameter._unpadded_unsharded_size)}", torch.empty(0))  # noqa: SLF001
        for one in modules
    ]


def _again(flat: Flat, local: Tensor, sharded: Tensor) -> Kept:
    """A reduction, to be done again: torch keeps `sharded` as the gradient."""
    handle: Any = flat.module._handle  # noqa: SLF001
    fresh = not hasattr(flat.parameter, "_saved_grad_shard")
    # Otherwise it is added to an older gradient, copied elsewhere, or was divided before.
    can = fresh and not handle._offload_params and sharded.dtype in WIDE  # noqa: SLF001

    def replace(mean: Tensor) -> None:
        sharded.copy_(mean)

    return Kept(
        chunk=flat.chunk,
        local=local,
        parts=local.numel() // sharded.numel(),
        replace=replace if can else None,
    )


def _divisors(module: Any) -> tuple[float, float]:
    return module._gradient_predivide_factor, module._gradient_postdivide_factor  # noqa: SLF001


def _group(module: Any) -> ProcessGroup:
    handle = module._handle  # noqa: SLF001
    fake = getattr(handle, "_use_fake_reduce", False)
    group: ProcessGroup = handle._fake_process_group if fake else module.process_group  # noqa: SLF001
    return group


def _wrapped(model: nn.Module) -> Iterator[Any]:
    return (one for one in model.modules() if isinstance(one, FullyShardedDataParallel))


def _waiter(device: torch.device) -> Callable[[], None]:
    if device.type == "cpu":
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


def _refuse(what: str) -> GuardError:
    return GuardError("ST-GRAD-006", what, "the model given to the guard", "use fully_shard")


_WRAPPED: Final[list[weakref.ref[FullyShardedDataParallel]]] = []
