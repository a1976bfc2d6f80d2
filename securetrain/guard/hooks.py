# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where the guard sees a local gradient before it is reduced: FSDP2 and DDP, public hooks only.

==========  =========================================================  ==========================
wrapper     hook                                                       what arrives
==========  =========================================================  ==========================
FSDP2       ``FSDPModule.set_custom_reduce_scatter`` on **every**       bit for bit the unreduced
            FSDPModule (it is not recursive)                           gradient, [rank][shard]
DDP         ``register_comm_hook``; the argument must be named          the bucket, not divided
            ``bucket``
one rank    ``Parameter.grad``, read by judge                          the gradient itself
==========  =========================================================  ==========================

Both hooks run the collective that torch would run and change no bit of its result (the tests
compare whole trainings): FSDP2 the reduce-scatter it is asked for, DDP a multiplication by 1/n
and a sum. What the collective does is one function, ``Reduction``, so that another (robust) one
can take its place.

Rules:

1. a local gradient is sketched only after its collective ended (beacon.py). DDP
   reduces in place, so the hook reduces into a buffer of its own: extra memory of one model
   gradient; FSDP2's input buffer is merely kept alive, up to collect.py's budget, and its output,
   1/n, copied;
2. hooks never raise: an exception inside a backward pass would leave the other ranks waiting.
   What they object to is kept, and judge raises it;
3. a wrapper whose gradient this room would not see is refused by `attach`: HSDP (a second
   reduction happens behind the hook), several parameter groups in a module, a DDP that has a hook
   already, trainable parameters outside of the wrapper. A reduction other than AVG and SUM is
   refused too.

On an accelerator the wait in rule 1 is a host synchronisation per batch.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError
from securetrain.guard.collect import Collector, Piece

_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""The name since torch 2.13, or the one before."""


class Reduction(Protocol):
    """Makes this rank's shard of the reduced gradient out of everybody's local gradient."""

    def __call__(self, output: Tensor, local: Tensor, group: ProcessGroup, op: Any) -> None:
        """Fill `output` (shard) from `local` ([rank][shard]); `local` must not change."""


def mean_reduction(output: Tensor, local: Tensor, group: ProcessGroup, op: Any) -> None:
    """Torch's own reduce-scatter."""
    _reduce_scatter(output, local, op=op, group=group)


class ShardedHook:
    """A custom reduce-scatter for one FSDPModule (torch asks for `allocate` and a call).

    Args:
        chunk: name of the module.
        collector: takes the pieces.
        group: the group that attach was told about.
        reduction: what is done.
        object_to: takes an error for judge to raise.
    """

    def __init__(
        self,
        chunk: str,
        collector: Collector,
        group: ProcessGroup,
        object_to: Callable[[GuardError], None],
        reduction: Reduction = mean_reduction,
    ) -> None:
        self._chunk = chunk
        self._collector = collector
        self._ranks = dist.get_process_group_ranks(group)
        self._object_to = object_to
        self._reduction = reduction

    def allocate(
        self, size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A buffer of its own each time: the guard keeps inputs until they are sketched."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> None:
        """Reduce, then hand the piece over."""
        del async_op  # torch's caller never asks for it and ignores the result
        self._reduction(output_tensor, input_tensor, group, op)
        n = group.size()
        if dist.get_process_group_ranks(group) != self._ranks:
            self._object_to(_refuse(f"{self._chunk} is sharded over another group of ranks"))
            return
        if op == dist.ReduceOp.AVG:
            scale = 1.0
        elif op == dist.ReduceOp.SUM:
            scale = 1.0 / n
        else:
            self._object_to(
                _refuse(
                    f"{self._chunk} is reduced by {op}, which cannot be checked",
                    "set_gradient_divide_factor(1.0) and set_force_sum_reduction_for_comms(True)",
                )
            )
            return
        self._collector.add(
            Piece(
                chunk=self._chunk,
                local=input_tensor,
                parts=n,
                result=output_tensor.clone(),
                result_scale=scale,
                local_scale=1.0,
                wait=_waiter(output_tensor.device),
            )
        )


class BucketHook:
    """A DDP communication hook: all-reduce as torch does it, but not in place.

    Args:
        collector: takes the pieces.
        group: the replicas.
        names: index of each parameter by id; buckets are rebuilt after the first step.
    """

    def __init__(self, collector: Collector, group: ProcessGroup, names: dict[int, int]) -> None:
        self._collector = collector
        self._group = group
        self._names = names
        self._outputs: dict[int, Tensor] = {}

    def __call__(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Start the all-reduce; the last bucket of a backward pass settles all of them."""
        local = bucket.buffer()
        reduced = self._output(bucket.index(), local)
        # The bits of torch's own division, which multiplies too.
        torch.mul(local, 1.0 / self._group.size(), out=reduced)
        work = dist.all_reduce(reduced, group=self._group, async_op=True)
        assert work is not None
        indices = [self._names[id(parameter)] for parameter in bucket.parameters()]

        def wait() -> None:
            work.wait()
            _waiter(reduced.device)()

        self._collector.add(
            Piece(
                chunk=f"bucket-{min(indices)}-{max(indices)}-{len(indices)}",
                local=local,
                parts=1,
                result=reduced,
                result_scale=1.0,
                local_scale=1.0,
                wait=wait,
            )
        )
        if bucket.is_last():
            self._collector.flush()  # after the backward pass DDP writes into the buckets again
        future: torch.futures.Future[torch.Tensor] = work.get_future()
        return future.then(lambda done: done.value()[0])

    def _output(self, index: int, local: Tensor) -> Tensor:
        """Where a bucket is reduced into, kept from step to step; the bucket itself stays local."""
        output = self._outputs.get(index)
        if output is None or output.shape != local.shape or output.dtype != local.dtype:
            output = self._outputs[index] = torch.empty_like(local)
        return output


def attach_sharded(
    model: nn.Module,
    collector: Collector,
    group: ProcessGroup,
    object_to: Callable[[GuardError], None],
    reduction: Reduction = mean_reduction,
) -> int:
    """Hook every FSDPModule below `model`; returns how many.

    Raises:
        GuardError: ST-GRAD-006, a gradient would not be seen.
    """
    modules = [(name, m) for name, m in model.named_modules() if isinstance(m, FSDPModule)]
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if not isinstance(parameter, DTensor):
            raise _refuse(
                f"parameter {name} is not sharded, so its gradient is not reduced",
                "give fully_shard the root module, without ignored_params",
            )
    for index, (name, module) in enumerate(modules):
        if any(g._is_hsdp for g in module._get_fsdp_state()._fsdp_param_groups):  # noqa: SLF001
            raise _refuse(
                f"module {name or 'root'} is hybrid sharded: a second reduction follows the hook",
                "shard over a 1-D mesh, or set the policy's gradients.mode to off",
            )
        try:
            module.set_custom_reduce_scatter(
                ShardedHook(f"{index}-{name}", collector, group, object_to, reduction)  # type: ignore[arg-type]
            )
        except ValueError as error:  # more than one parameter group
            raise _refuse(f"module {name or 'root'}: {error}") from error
    return len(modules)


def attach_replicated(
    model: DistributedDataParallel, collector: Collector, group: ProcessGroup
) -> None:
    """Register the communication hook.

    Raises:
        GuardError: ST-GRAD-006, the model has a hook already or another group.
    """
    if dist.get_process_group_ranks(model.process_group) != dist.get_process_group_ranks(group):
        raise _refuse("the model is replicated over another group of ranks")
    names = {id(parameter): i for i, parameter in enumerate(model.module.parameters())}
    try:
        model.register_comm_hook(None, _named(BucketHook(collector, group, names)))
    except (RuntimeError, TypeError) as error:
        raise _refuse(f"DDP does not take the guard's hook: {error}") from error


def _named(hook: BucketHook) -> Callable[..., Any]:
    """DDP inspects the signature of a plain function."""

    def guard_hook(
        _state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        return hook(bucket)

    return guard_hook


def _waiter(device: torch.device) -> Callable[[], None]:
    """Wait for what the current stream of `device` was given so far."""
    if device.type == "cpu":
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize


def _refuse(what: str, fix: str = "") -> GuardError:
    return GuardError(
        "ST-GRAD-006",
        what,
        "the model given to the guard",
        fix or "wrap the model with fully_shard on a 1-D mesh or with DistributedDataParallel",
    )
