# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The hooks through which the guard sees gradients before they are reduced: FSDP2, HSDP and DDP.

==========  =========================================================  ==========================
wrapper     hook                                                       what arrives
==========  =========================================================  ==========================
FSDP2       ``FSDPModule.set_custom_reduce_scatter`` on **every**       bit for bit the unreduced
            FSDPModule (it is not recursive)                           gradient, [rank][shard]
HSDP        the same, and ``set_all_reduce_hook`` for the result of    the same; the result is over
            the second reduction, over the replicas                    shards and replicas
DDP         ``register_comm_hook``; the argument must be named          the bucket, not divided
            ``bucket``
one rank    ``Parameter.grad``, read by judge                          the gradient itself
==========  =========================================================  ==========================

The hooks run the collectives that torch would run and change no bit of their result (the tests
compare whole trainings): FSDP2 the reduce-scatter it is asked for, DDP a multiplication by 1/n
and a sum. The collective itself is one function, ``Reduction``, so that another (robust) one
can take its place. Only while a rank is excluded (exclusion.py) the reduction is another: that rank
sends zeros, never its gradient times zero, and the sum is scaled to be the mean of the others.

Rules:

1. a local gradient is sketched only after its last collective ended (beacon.py). DDP
   reduces in place, so the hook reduces into a buffer of its own: extra memory of one model
   gradient; FSDP2's input buffer is merely kept alive, up to collect.py's budget, and its output,
   1/n, copied;
2. hooks never raise: an exception inside a backward pass would leave the other ranks waiting.
   What they object to is kept, and judge raises it;
3. gradients of tensor-parallel parameters arrive with their placements settled: FSDP2 finishes
   pending sums (Partial, such as those of norms under sequence parallelism) before it reduces, so
   that what is sketched is the gradient of one data-parallel rank, never a part of a sum;
4. a gradient may arrive several times a step (a reduction for each microbatch): all of them are
   sketched, and sketches add up;
5. a wrapper whose gradient this room would not see is refused by `attach`: several parameter
   groups in a module, a DDP that has a hook already, trainable parameters outside of the wrapper.
   A reduction other than AVG and SUM is refused too, and replicas that are not reduced each time.

On an accelerator the wait in rule 1 is a host synchronisation per batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError
from securetrain.guard.blocks import Buckets, group_of_module
from securetrain.guard.collect import Collector, Piece, Segment
from securetrain.guard.kept import WIDE, Keeper, Kept, Weights, bucket_again, shard_again
from securetrain.guard.moments import Moments
from securetrain.guard.open_mode import OpenMode
from securetrain.guard.slots import bucket_slot

_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""The name since torch 2.13, or the one before."""

Grid: TypeAlias = tuple[tuple[int, ...], ...]
"""Ranks of the default group: a row for each replica, in it one rank for each shard."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """One FSDPModule."""

    chunk: str
    """Its name, unique on this rank and the same on all that hold this piece."""
    module: FSDPModule
    group: Any
    """Torch's group of its parameters; says how it divides."""
    grid: Grid

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that hold a shard of it."""
        return tuple(sorted(rank for row in self.grid for rank in row))


class Reduction(Protocol):
    """Makes this rank's shard of the reduced gradient out of everybody's local gradient."""

    def __call__(self, output: Tensor, local: Tensor, group: ProcessGroup, op: Any) -> None:
        """Fill `output` (shard) from `local` ([rank][shard]); `local` must not change."""


def mean_reduction(output: Tensor, local: Tensor, group: ProcessGroup, op: Any) -> None:
    """Torch's own reduce-scatter."""
    _reduce_scatter(output, local, op=op, group=group)


class ShardedHook:
    """A custom reduce-scatter for one FSDPModule (torch asks for `allocate` and a call).

    With replicas the reduction ends in torch's all-reduce, and `all_reduced` is told. With a single
    shard torch only copies and does not call the reduce-scatter; the buffers that it asked for say
    what was sent all the same.

    Args:
        sharded: the module.
        collector: takes the pieces.
        report_error: takes an error for judge to raise.
        reduction: what is done.
        moments: of the optimizer.
        weights: of all ranks that hold it, in order.
        keeper: takes what may have to be reduced again.
        open_mode: reduces instead of torch while it is active.
    """

    def __init__(
        self,
        sharded: Sharded,
        collector: Collector,
        report_error: Callable[[GuardError], None],
        reduction: Reduction = mean_reduction,
        moments: Moments | None = None,
        *,
        weights: Weights,
        keeper: Keeper,
        open_mode: OpenMode,
    ) -> None:
        self._open = open_mode
        self._chunk = sharded.chunk
        self._moments = moments or Moments()
        self._collector = collector
        self._shards = len(sharded.grid[0])
        self._replicas = len(sharded.grid)
        row = next(row for row in sharded.grid if dist.get_rank() in row)
        self._ranks = list(row)
        self._part = row.index(dist.get_rank())
        self._group = sharded.group
        self._report_error = report_error
        self._weights = weights
        self._place = sharded.ranks.index(dist.get_rank())
        self._keeper = keeper
        self._reduction = reduction
        self._buffers: list[Tensor] = []
        self._scale = 0.0
        self._divisor = 1.0

    def allocate(
        self, size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """A buffer of its own each time: the guard keeps inputs until they are sketched."""
        buffer = torch.empty(*size, dtype=dtype, device=device)
        if self._replicas > 1:
            self._buffers.append(buffer)
        return buffer

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> None:
        """Reduce; without replicas hand the piece over."""
        del async_op  # torch's caller never asks for it and ignores the result
        if self._open.active and self._replicas == 1 and (scale := self._scale_of(op)):
            self._settle(input_tensor, output_tensor, scale)
            return
        weights = self._weights
        counts = weights.values[self._place] != 0.0
        sent = input_tensor if counts else torch.zeros_like(input_tensor)
        self._reduction(output_tensor, sent, group, op)
        if not weights.even:
            output_tensor.mul_(len(weights.values) / weights.live)
        self._scale = self._scale_of(op)
        self._divisor = self._divisor_after(op)
        if dist.get_process_group_ranks(group) != self._ranks:
            self._report_error(_refuse(f"{self._chunk} is sharded over another group of ranks"))
        elif self._replicas == 1:
            self._deliver(input_tensor, output_tensor, self._scale)

    def all_reduced(self, reduced: Tensor) -> None:
        """The sum over the replicas is there: hand the piece over."""
        buffers, self._buffers = self._buffers, []
        if len(buffers) != 2 or buffers[1].data_ptr() != reduced.data_ptr():
            what, fix = "was reduced without its replicas", "leave set_requires_all_reduce alone"
            self._report_error(_refuse(f"{self._chunk} {what}", fix))
            return
        scale = self._lone_shard_scale(reduced.dtype) if self._shards == 1 else self._scale
        if self._open.active and scale:
            self._settle(buffers[0], reduced, scale)
        else:
            if self._shards == 1:
                self._sum_live(buffers[0], reduced, scale)
            self._deliver(buffers[0], reduced, scale)

    def _sum_live(self, local: Tensor, reduced: Tensor, scale: float) -> None:
        """Torch copies a lone shard and sums it unasked: while a rank is excluded, sum again."""
        weights = self._weights
        if weights.even:
            return
        if weights.values[self._place]:
            torch.mul(local, 1.0 / (weights.live * scale), out=reduced)
        else:
            reduced.zero_()
        dist.all_reduce(reduced, group=self._group.mesh_info.replicate_process_group)

    def _settle(self, local: Tensor, result: Tensor, scale: float) -> None:
        """Reduce in the open."""
        kept = Kept(
            chunk=self._chunk,
            local=local,
            parts=self._shards,
            replace=None,
            moment=lambda: self._moments.slices(self._slots(), result.numel()),
        )
        part = self._part if self._replicas > 1 else None
        self._open.fill(result, kept, group_of_module(self._chunk), scale=scale, part=part)

    def _deliver(self, local: Tensor, result: Tensor, scale: float) -> None:
        if not scale:  # objected to already
            return
        params, part = self._group.fsdp_params, self._part if self._replicas > 1 else None
        if self._shards == 1 and scale != 1.0:
            self._keeper.give_up()
        again = shard_again(self._chunk, local, result, params, scale * self._divisor, part=part)
        self._keeper.add(again, extra=True)
        self._collector.add(
            Piece(
                chunk=self._chunk,
                local=local,
                weights=() if self._weights.even else self._weights.values,
                parts=self._shards,
                part=self._part,
                result=result.clone(),
                result_scale=scale,
                local_scale=1.0,
                wait=_waiter(result.device),
                segments=(Segment(group_of_module(self._chunk), 0, local.numel()),),
                moment=lambda: self._moments.slices(self._slots(), result.numel()),
            )
        )

    def _slots(self) -> list[tuple[Tensor, int]]:
        """This rank's shards in the order of the buffer, padded as they are there."""
        return [
            (p.sharded_param, p.padded_sharded_param_size.numel())
            for p in self._group.fsdp_params
            if p.sharded_param.requires_grad
        ]

    def _scale_of(self, op: Any) -> float:
        """The factor by which the result of `op` (and the all-reduce after it) is a mean, or 0."""
        if op == dist.ReduceOp.SUM:
            return 1.0 / (self._shards * self._replicas)
        if op == dist.ReduceOp.AVG:  # replicas are averaged as well, unless a factor is set
            return 1.0 if self._group.gradient_divide_factor is None else 1.0 / self._replicas
        self._report_error(
            _refuse(
                f"{self._chunk} is reduced by {op}, which cannot be checked",
                "set_gradient_divide_factor(1.0) and set_force_sum_reduction_for_comms(True)",
            )
        )
        return 0.0

    def _divisor_after(self, op: Any) -> float:
        """The factor by which torch divides a sum before it is a gradient."""
        if op != dist.ReduceOp.SUM:
            return 1.0
        return float(self._group.gradient_divide_factor or self._shards * self._replicas)

    def _lone_shard_scale(self, dtype: torch.dtype) -> float:
        """The same where torch copies: it divides by a factor and sums, or averages."""
        factor = self._group.gradient_divide_factor
        narrow = dtype not in WIDE
        if factor is None and not narrow and not self._group.force_sum_reduction_for_comms:
            return 1.0
        return float(factor or 1.0) / self._replicas


class BucketHook:
    """A DDP communication hook: all-reduce as torch does it, but not in place.

    Args:
        collector: takes the pieces.
        group: the replicas.
        names: index and name of each parameter by id; buckets are rebuilt after the first step.
        moments: of the optimizer.
        weights: of all ranks, in order.
        keeper: takes what may have to be reduced again.
        wire: gives the type in which numbers travel, when the script wants another than theirs.
    """

    def __init__(
        self,
        collector: Collector,
        group: ProcessGroup,
        names: dict[int, tuple[int, str]],
        moments: Moments | None = None,
        *,
        weights: Weights,
        keeper: Keeper,
        wire: Callable[[], torch.dtype | None] = lambda: None,
    ) -> None:
        self._wire = wire
        self._collector = collector
        self._group = group
        self._buckets = Buckets(names)
        self._weights = weights
        self._keeper = keeper
        self._moments = moments or Moments()
        self._outputs: dict[int, Tensor] = {}

    def __call__(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Start the all-reduce; the last bucket of a backward pass settles all of them."""
        local = bucket.buffer()
        reduced = self._output(bucket.index(), local)
        wire, live = self._wire(), self._weights.live
        if wire is None:
            travelling = reduced
            # The bits of torch's own division, which multiplies too.
            torch.mul(local, 1.0 / live, out=reduced)
        else:  # the bits of torch's compression hooks; what is sketched is not compressed
            travelling = local.to(wire).div_(live)
        if not self._weights.values[self._group.rank()]:
            travelling.zero_()
        work = dist.all_reduce(travelling, group=self._group, async_op=True)
        assert work is not None
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(
            (lambda done: done.value()[0])
            if wire is None
            else (lambda done: reduced.copy_(done.value()[0]))
        )
        parameters = bucket.parameters()
        chunk, segments = self._buckets.of(parameters)

        def wait() -> None:
            future.wait()
            _waiter(reduced.device)()

        self._keeper.add(bucket_again(chunk, bucket), extra=False)
        self._collector.add(
            Piece(
                chunk=chunk,
                local=local,
                weights=() if self._weights.even else self._weights.values,
                parts=1,
                part=0,
                result=reduced,
                result_scale=1.0,
                local_scale=1.0,
                wait=wait,
                segments=segments,
                moment=lambda: self._moments.slices(
                    [(p, p.numel()) for p in parameters], reduced.numel()
                ),
                wire=wire,
            )
        )
        if bucket.is_last():
            self._collector.flush()  # after the backward pass DDP writes into the buckets again
        return future

    def _output(self, index: int, local: Tensor) -> Tensor:
        """The buffer that a bucket is reduced into, kept between steps; the bucket stays local."""
        output = self._outputs.get(index)
        if output is None or output.shape != local.shape or output.dtype != local.dtype:
            output = self._outputs[index] = torch.empty_like(local)
        return output


def sharded_modules(parts: Sequence[nn.Module]) -> list[Sharded]:
    """Every FSDPModule with parameters below `parts`, in order, and the ranks that hold it.

    Raises:
        GuardError: ST-GRAD-006, a gradient would not be seen.
    """
    found, managed = [], set()
    for number, part in enumerate(parts):
        for index, (name, module) in enumerate(part.named_modules()):
            if not isinstance(module, FSDPModule):
                continue
            groups = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
            if len(groups) > 1:
                raise _refuse(f"module {name or 'root'} has more than one parameter group")
            for group in groups:
                # In a backward pass a module holds its gathered parameters.
                managed |= {
                    id(one)
                    for p in group.fsdp_params
                    for one in (p.sharded_param, getattr(p, "_unsharded_param", None))
                }
                found.append(Sharded(f"{number}-{index}-{name}", module, group, grid_of(group)))
        for name, parameter in part.named_parameters():
            if parameter.requires_grad and id(parameter) not in managed:
                raise _refuse(
                    f"parameter {name} is not sharded, so its gradient is not reduced",
                    "give fully_shard the root module, without ignored_params",
                )
    return found


def grid_of(group: Any) -> Grid:
    """The ranks over which a group of parameters is spread: a row for each replica."""
    ranks = group.mesh_info.mesh.mesh
    return tuple(tuple(row) for row in ranks.reshape(-1, ranks.shape[-1]).tolist())


def attach_sharded(
    modules: Sequence[Sharded],
    collector: Collector,
    report_error: Callable[[GuardError], None],
    reduction: Reduction = mean_reduction,
    moments: Moments | None = None,
    *,
    weights: Weights,
    keeper: Keeper,
    open_mode: OpenMode,
) -> None:
    """Hook modules."""
    for one in modules:
        hook = ShardedHook(
            one, collector, report_error, reduction, moments,
            weights=weights, keeper=keeper, open_mode=open_mode,
        )  # fmt: skip
        one.module.set_custom_reduce_scatter(hook)  # type: ignore[arg-type]
        if len(one.grid) > 1:
            one.module.set_all_reduce_hook(hook.all_reduced)


def attach_replicated(
    model: DistributedDataParallel,
    collector: Collector,
    group: ProcessGroup,
    moments: Moments | None = None,
    *,
    weights: Weights,
    keeper: Keeper,
) -> None:
    """Register the communication hook.

    Raises:
        GuardError: ST-GRAD-006, the model has a hook already or another group.
    """
    if dist.get_process_group_ranks(model.process_group) != dist.get_process_group_ranks(group):
        raise _refuse("the model is replicated over another group of ranks")
    names = {
        id(parameter): (index, name)
        for index, (name, parameter) in enumerate(model.module.named_parameters())
    }
    slot = bucket_slot(model)
    hook = BucketHook(
        collector,
        model.process_group,
        names,
        moments,
        weights=weights,
        keeper=keeper,
        wire=(lambda: None) if slot is None else (lambda: slot.wire),
    )
    if slot is not None:
        if slot.foreign is not None:
            raise _refuse("the script has registered a communication hook of its own")
        slot.guard = hook
        return
    try:
        model.register_comm_hook(None, _named(hook))
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
        fix or "wrap the model with fully_shard or with DistributedDataParallel",
    )
