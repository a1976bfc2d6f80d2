# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Places for the guard's hooks in models that a script wraps, before anybody knows who will watch.

DDP takes one communication hook for its whole life, and an FSDPModule one reduce-scatter. A slot is
put there when the model is wrapped: it reduces as torch does, bit for bit, until a guard moves in
(`attach`, or unmodified.py at the first reduction). So:

1. a script that registers a communication hook of its own is not broken by ours. A hook that only
   narrows the numbers on their way (torch's fp16 and bf16 compression) is done by the guard's hook,
   which sketches before; any other takes the place, and the model counts as not watched;
2. a model that is wrapped and never trained costs nothing;
3. whoever attaches a guard by hand before the first backward pass has the model for himself.
"""

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

GradientFuture: TypeAlias = torch.futures.Future[torch.Tensor]
CommHook: TypeAlias = Callable[[object, Any], GradientFuture]
OnFirst: TypeAlias = Callable[[Any], None]
P = ParamSpec("P")
R = TypeVar("R")

_NARROWING: Final[dict[Any, torch.dtype]] = {
    default_hooks.fp16_compress_hook: torch.float16,
    default_hooks.bf16_compress_hook: torch.bfloat16,
}
"""Hooks whose result is the mean of the ranks' numbers in another type."""


class BucketSlot:
    """The communication hook of one DDP model.

    Args:
        model: It has no hook yet.
        on_first: Called once with the model before its first bucket is reduced; may move a guard
            in. It does not raise.
    """

    def __init__(self, model: DistributedDataParallel, on_first: OnFirst) -> None:
        self._model = weakref.ref(model)
        self._on_first: OnFirst | None = on_first
        self.parameters = frozenset(
            id(parameter)
            for parameter in model._module_parameters  # noqa: SLF001 - what its buckets are made of
            if parameter.requires_grad
        )
        """Those that are reduced, by id: what is thawed later is not."""
        self.guard: Callable[[Any], GradientFuture] | None = None
        self.wire: torch.dtype | None = None
        """The type in which the script wants numbers to travel; None for their own."""
        self.foreign: tuple[object, CommHook] | None = None
        """The script's own hook, with its state."""
        self.sparse = False
        """Whether a sparse gradient passed, which the guard does not see."""

    def __call__(self, bucket: Any) -> GradientFuture:
        """Reduce a bucket."""
        first, self._on_first = self._on_first, None
        model = self._model()
        if first is not None and self.guard is None and model is not None:
            first(model)
        if self.foreign is not None:
            return self.foreign[1](self.foreign[0], bucket)
        if bucket.buffer().is_sparse:
            self.sparse = True
        elif self.guard is not None:
            return self.guard(bucket)
        return self._reduce(bucket)

    def take(self, state: object, hook: CommHook) -> None:
        """Accept a hook that the script registers."""
        model = self._model()
        ours = state is None or (model is not None and state is model.process_group)
        self.wire = _NARROWING.get(hook) if ours else None
        if self.wire is None and not (ours and hook is default_hooks.allreduce_hook):
            self.foreign = (state, hook)

    def _reduce(self, bucket: Any) -> GradientFuture:
        """As torch does without a hook."""
        local = bucket.buffer()
        model = self._model()
        assert model is not None
        group = model.process_group
        if self.wire is not None and not local.is_sparse:
            narrow = {dtype: hook for hook, dtype in _NARROWING.items()}[self.wire]
            reduced: GradientFuture = narrow(group, bucket)
            return reduced
        local.mul_(1.0 / group.size())
        work = dist.all_reduce(local, group=group, async_op=True)
        assert work is not None
        future: GradientFuture = work.get_future()
        return future.then(lambda done: done.value()[0])


class ShardSlot:
    """The reduce-scatter of one FSDPModule: torch asks it for buffers, then calls it.

    Args:
        module: As `fully_shard` made it.
        on_first: Called with the module before its first buffer; may move a guard in.
    """

    def __init__(self, module: FSDPModule, on_first: OnFirst) -> None:
        self._module = weakref.ref(module)
        self._on_first: OnFirst | None = on_first
        self.plain = reduce_scatter_of(module)
        """What torch had there."""

    def allocate(
        self, size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A buffer."""
        first, self._on_first = self._on_first, None
        module = self._module()
        if first is not None and module is not None:
            first(module)
        buffer: Tensor = self._now.allocate(size, dtype=dtype, device=device)
        return buffer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce; torch took hold of the slot before a guard moved in."""
        return self._now(*args, **kwargs)

    def all_reduced(self, reduced: Tensor) -> None:
        """Replicas were summed; torch took hold of this, too, before a guard moved in."""
        if (guard := getattr(self._now, "all_reduced", None)) is not None:
            guard(reduced)

    @property
    def _now(self) -> Any:
        module = self._module()
        installed = self.plain if module is None else reduce_scatter_of(module)
        return self.plain if installed is self else installed


_BUCKETS: Final[weakref.WeakKeyDictionary[Any, BucketSlot]] = weakref.WeakKeyDictionary()
_SHARDS: Final[weakref.WeakKeyDictionary[Any, ShardSlot]] = weakref.WeakKeyDictionary()


def reserve_replicated(model: DistributedDataParallel, on_first: OnFirst) -> bool:
    """Put a slot into a DDP model; False when it has a hook already."""
    if model._comm_hooks:  # noqa: SLF001 - there is no public question
        return False
    slot = BucketSlot(model, on_first)

    def guard_slot(
        _state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> GradientFuture:
        return slot(bucket)

    DistributedDataParallel.register_comm_hook(model, None, guard_slot)
    _BUCKETS[model] = slot
    return True


def bucket_slot(model: DistributedDataParallel) -> BucketSlot | None:
    """The slot of a model, if it has one."""
    return _BUCKETS.get(model)


def reserve_sharded(module: FSDPModule, on_first: OnFirst) -> bool:
    """Put a slot into an FSDPModule; False when it has nothing to reduce, or more than one group
    of parameters.
    """
    groups = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
    if len(groups) != 1:
        return False
    slot = _SHARDS[module] = ShardSlot(module, on_first)
    module.set_custom_reduce_scatter(slot)  # type: ignore[arg-type]
    if groups[0].mesh_info.mesh.ndim > 1:
        module.set_all_reduce_hook(slot.all_reduced)
    return True


def release(model: nn.Module) -> None:
    """Let the model be reduced as if nobody had ever been there."""
    if isinstance(model, DistributedDataParallel) and (bucket := bucket_slot(model)) is not None:
        bucket.guard = None
    for module in model.modules():
        if isinstance(module, FSDPModule) and (slot := _SHARDS.pop(module, None)) is not None:
            module.set_custom_reduce_scatter(slot.plain)


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """Keep torch.compile out of what a function does; without importing it."""
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        dynamo = sys.modules.get("torch._dynamo")
        if not disabled and hasattr(dynamo, "disable"):
            disabled.append(dynamo.disable(function))  # type: ignore[union-attr]
        return (disabled[0] if disabled else function)(*args, **kwargs)

    vars(run)["_torchdynamo_disable"] = True  # what a compiled caller looks for
    return run


def installed_reductions(model: nn.Module) -> list[tuple[Any, Any]]:
    """The groups of parameters of a sharded model, with the reduce-scatter of each."""
    return [
        (group, group._reduce_scatter_comm)  # noqa: SLF001
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
    ]


def are_installed(reductions: list[tuple[Any, Any]]) -> bool:
    """True when nobody has put another one in their place."""
    return all(group._reduce_scatter_comm is one for group, one in reductions)  # noqa: SLF001


def reduce_scatter_of(module: FSDPModule) -> Any:
    """The reduce-scatter that is installed."""
    groups = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
    return groups[0]._reduce_scatter_comm if groups else None  # noqa: SLF001
