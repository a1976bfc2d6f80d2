# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The time of a step, estimated. Free of torch.

A model to order meshes by, and no more exact than `ERROR` says:

1. matrices and attention take their FLOPs over a share of the vendor's peak, with what is
   recomputed; what lies between them, and the optimizer, takes its bytes over the memory's speed;
2. a pass over a block is no shorter than reading its weights, or launching its kernels;
3. messages of FSDP and DDP hide behind the computing of the same step, but for a share; those of
   TP, CP, EP and PP do not (of TP, a part with `async_tp`);
4. a group that reaches over nodes sends as fast as its ranks' networks of one node together;
5. pipeline ranks wait as long as the schedule says; the slowest of the ranks counts.

The shares are fitted to torchtitan's tables of December 2024; those of June 2025 and llm-foundry's
were held out (``tests/train/planning/published_speed.py``). Experts, DDP, HSDP, float32 and other
schedules than 1F1B and its interleaved form follow the same rules, and were compared with nothing.
Data that is late, checkpoints, the guard and slow ranks are not counted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from securetrain.parallel import (
    Axis,
    Precision,
    Recompute,
    Schedule,
    Zero,
    bubble,
    stages_per_rank,
)
from securetrain.train.models.shape import block_parameters
from securetrain.train.planning import traffic
from securetrain.train.planning.axis_groups import Groups, group_of, groups_of
from securetrain.train.planning.devices import Device, Speed
from securetrain.train.planning.workload import LocalParameters, Workload, held

ERROR: Final = 0.25
"""How far an estimate may be from what a device takes, either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The parts of what a vendor states that a step gets; fitted."""

    float8: float = 1.5
    """How much faster blocks' matrix products are in float8, with all casts."""
    attention: float = 0.35
    """Of the peak, in a causal attention kernel."""
    pieces: float = 0.2
    """What attention costs more for each doubling of the ranks that share positions."""
    memory: float = 0.8
    """Of the memory's speed."""
    eager: float = 3.0
    """How often a block that is not compiled moves what a compiled one moves once."""
    messages: float = 0.75
    """Of links and network."""
    exposed: float = 0.1
    """Of FSDP's and DDP's messages, what nothing hides."""
    asynchronous: float = 0.5
    """Of TP's messages, what `async_tp` does not hide."""


SHARES: Final = Shares()
HOP: Final = 5e-6
"""Seconds of a message from one rank to the next, whatever its size. Assumed."""
LAUNCH: Final = 5e-6
"""Seconds of the host for one kernel. Assumed."""
KERNELS: Final = 40
"""Kernels of a block's forward pass; a third of them when it is compiled. Assumed."""
COMPARED: Final = frozenset({"h100", "h200", "a100-80"})
"""Devices that published throughput was compared for."""
WIDEST: Final = 64
"""Nodes that a group of FSDP reached over in what was compared."""
OPTIMIZER: Final = 40
"""Bytes that norm, clipping and AdamW move for each parameter: 10 of float32."""
LOGIT: Final = 40
"""Bytes that the loss moves for each logit, forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step, by what they are spent on."""

    matrices: float
    attention: float
    elementwise: float
    """What lies between matrix products: norms, rotations, gates, the loss."""
    optimizer: float
    data: float
    """Messages of dp_replicate and dp_shard that computing does not hide."""
    context: float
    tensor: float
    experts: float
    pipeline: float
    """Messages between stages."""
    waiting: float
    """The pipeline's bubble."""

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.parts.values())


def step_time(
    work: Workload, device: Device, per_node: int, shares: Shares = SHARES
) -> StepTime | None:
    """Estimate a step of the slowest pipeline rank; None where nothing is known of the device's
    speed, or where copies to the host decide (`cpu_offload`).

    Args:
        work: The workload of a rank.
        device: The device of each rank.
        per_node: Ranks of one node.
        shares: What a step gets of the device's peaks.
    """
    if device.speed is None or work.settings.cpu_offload:
        return None
    # Stages in the middle have no more layers than the first, and neither embedding nor head.
    ranks = {0, work.degrees.pp - 1}
    groups = {group.axis: group for group in groups_of(work.degrees, per_node)}
    found = [
        _Rank(work, held(work, n), device.speed, per_node, groups, shares).time() for n in ranks
    ]
    return max(found, key=lambda time: time.total)


def beyond(work: Workload, device: Device, per_node: int) -> tuple[str, ...]:
    """The reasons why an estimate goes beyond everything that it was compared with."""
    degrees, found = work.degrees, []
    if device.name not in COMPARED:
        found.append(f"no {device.name} was compared")
    sharded = group_of(Axis.DP_SHARD, degrees.fsdp, degrees.tp, degrees.world, per_node)
    if sharded.nodes > WIDEST:
        found.append(f"fsdp over {sharded.nodes} nodes, compared up to {WIDEST}")
    if degrees.ep > 1 or work.shape.experts:
        found.append("no model with experts was compared")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank of a pipeline rank on a device."""

    work: Workload
    found: LocalParameters
    speed: Speed
    per_node: int
    groups: Mapping[Axis, Groups]
    shares: Shares

    def time(self) -> StepTime:
        work, found = self.work, self.found
        pieces = work.settings.microbatches
        matrices, attention = self._matrices() * pieces, self._attention() * pieces
        moved = self._elementwise() * pieces
        moved += max(0.0, self._shortest() * pieces - matrices - attention - moved)
        tensor = self._sent(Axis.TP, traffic.tensor(work, found), 4 * self._passes)
        if work.settings.async_tp:
            tensor *= self.shares.asynchronous
        context = self._sent(Axis.CP, traffic.context(work, found), self._passes)
        experts = self._sent(Axis.EP, traffic.experts(work, found), 2 * self._passes)
        between = self._sent(Axis.PP, traffic.pipeline(work), 2 * stages_per_rank(self._schedule))
        busy = matrices + attention + moved + tensor + context + experts + between
        waits = bubble(self._schedule, work.degrees.pp, pieces)
        return StepTime(
            matrices=matrices,
            attention=attention,
            elementwise=moved,
            optimizer=found.local * OPTIMIZER / self._memory,
            data=self._data(busy),
            context=context,
            tensor=tensor,
            experts=experts,
            pipeline=between,
            waiting=busy * waits / (1 - waits),
        )

    @property
    def _schedule(self) -> Schedule:
        return self.work.settings.schedule

    @property
    def _passes(self) -> int:
        """Forward and backward, and forward again where everything is recomputed."""
        return 3 if self.work.settings.recompute is Recompute.FULL else 2

    @property
    def _peak(self) -> float:
        half = self.work.settings.precision is Precision.BF16
        return self.speed.bf16 if half else self.speed.fp32

    @property
    def _memory(self) -> float:
        return self.shares.memory * self.speed.memory

    @property
    def _head(self) -> int:
        """Elements of the head's matrix."""
        shape = self.work.shape
        return shape.vocab * shape.dim // self.work.degrees.tp if self.found.last else 0

    def _matrices(self) -> float:
        """Seconds of a microbatch: two FLOPs for each parameter and pass, four of them back."""
        work, shares = self.work, self.shares
        again = {Recompute.FULL: 1.0, Recompute.ALTERNATE: 0.5}.get(work.settings.recompute, 0.0)
        shape = work.shape
        unused = 3 * shape.dim * shape.ffn * max(0, shape.experts - shape.experts_per_token)
        block = (block_parameters(shape) - unused * bool(shape.experts)) / work.degrees.tp
        blocks = (6 + 2 * again) * block * self.found.blocks * work.tokens
        faster = shares.float8 if work.settings.float8 and self.speed.float8 else 1.0
        head = 6 * self._head * work.tokens
        return (blocks / faster + head) / (self.speed.kept * self._peak)

    def _attention(self) -> float:
        """Seconds of a microbatch: half of the matrix of positions; back 2.5 times, once more what
        is recomputed.
        """
        work, shape = self.work, self.work.shape
        passes = 3.5 + (work.settings.recompute is Recompute.FULL)
        flops = 2 * work.length * shape.heads * shape.head / work.degrees.tp * work.tokens
        seconds = passes * flops * self.found.blocks / (self.shares.attention * self._peak)
        return seconds * (1 + self.shares.pieces * math.log2(work.degrees.cp))

    def _elementwise(self) -> float:
        """Seconds of a microbatch: norms and sums, rotations, gates, and the loss."""
        work, shape, settings = self.work, self.work.shape, self.work.settings
        copies = shape.experts_per_token if shape.experts else 1
        heads = 2 * (shape.heads + shape.keys) * shape.head
        forward = (8 * shape.dim + heads + 3 * shape.ffn * copies) / work.degrees.tp
        passes = 3.0 + (settings.recompute is not Recompute.NONE)
        passes *= 1.0 if settings.compile else self.shares.eager
        blocks = forward * work.element * work.tokens * passes * self.found.blocks
        loss = LOGIT * work.tokens * self._head / shape.dim
        return (blocks + loss) / self._memory

    def _shortest(self) -> float:
        """Seconds that a microbatch takes at least: weights are read, and kernels launched."""
        work, found = self.work, self.found
        launched = KERNELS * LAUNCH / (3 if work.settings.compile else 1)
        read = found.block * work.element / self._memory
        return found.blocks * (self._passes + 1) * max(launched, read)

    def _data(self, busy: float) -> float:
        """Seconds of FSDP's and DDP's messages that nothing hides."""
        work, found, settings = self.work, self.found, self.work.settings
        collectives = 3 * (found.blocks + 1)
        if settings.zero is Zero.PARAMETERS and work.degrees.pp == 1:
            collectives *= settings.microbatches
        sent = self._sent(Axis.DP_REPLICATE, traffic.replicas(work, found), 1)
        if work.degrees.fsdp > 1:
            share = traffic.shards(work, found) / self._bandwidth(self._sharded)
            sent += share + collectives * self._hops(self._sharded) * HOP
        kept = self.shares.exposed * sent
        return kept + max(0.0, sent - kept - busy)

    @property
    def _sharded(self) -> Groups:
        """The ranks over which FSDP cuts: those of dp_shard and cp, which are neighbours."""
        degrees = self.work.degrees
        return group_of(Axis.DP_SHARD, degrees.fsdp, degrees.tp, degrees.world, self.per_node)

    def _sent(self, axis: Axis, count: float, each: int) -> float:
        """Seconds of an axis's messages.

        Args:
            axis: The axis.
            count: Bytes that a rank sends in a step.
            each: Messages of a block and a microbatch.
        """
        groups = self.groups
        if axis not in groups:
            return 0.0
        blocks = 1 if axis is Axis.PP else self.found.blocks
        hops = 1 if axis is Axis.PP else self._hops(groups[axis])
        waits = each * blocks * self.work.settings.microbatches * hops * HOP
        return count / self._bandwidth(groups[axis]) + waits

    def _hops(self, group: Groups) -> int:
        """Steps of a ring that passes every node once, and inside them every rank."""
        return max(1, group.degree // group.nodes - 1 + group.nodes - 1)

    def _bandwidth(self, group: Groups) -> float:
        """Bytes a second of a ring: networks of one node's ranks carry it together."""
        speed = self.speed.link
        if group.nodes > 1:
            speed = min(speed, self.speed.network * max(1, group.degree // group.nodes))
        return self.shares.messages * speed
