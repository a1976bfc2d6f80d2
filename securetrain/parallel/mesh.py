# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One device mesh with named axes, and the views of it that the other modules ask for.

=======  ==========================================  ==========================================
view     axes, outermost first                       what lives there
=======  ==========================================  ==========================================
dense    pp, dp_replicate, fsdp, tp                  parameters; fsdp is dp_shard x cp, because
                                                     context-parallel ranks hold the same weights
data     pp, batch, cp, tp                           rows and positions
sparse   pp, dp_replicate, efsdp, ep                 experts; efsdp x ep is fsdp x tp
grads    pp, comparable, tp (experts: ep for tp)     ranks whose gradients can be compared
=======  ==========================================  ==========================================

A view's meshes are made once and kept: torch compares meshes by identity. Axes of one parameter
come from one view. Neighbours on the innermost axis are neighbours in rank, so the axis with the
most traffic stays inside a node.

Axes of several views that hold the same ranks share one process group, all ranks that of the job:
on a GPU each group is a communicator with buffers of its own. They are used in one order on all
ranks, which is all that sharing asks for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from securetrain.core.errors import UsageError
from securetrain.parallel.degrees import Axis, Degrees

FSDP = "fsdp"
BATCH = "batch"
EFSDP = "efsdp"
COMPARABLE = "comparable"


@dataclass(frozen=True)
class Mesh:
    """The ranks of a job, arranged."""

    degrees: Degrees
    dense: DeviceMesh
    data: DeviceMesh
    sparse: DeviceMesh | None
    """None without expert parallelism."""
    grads: DeviceMesh
    """(pp, comparable, tp): comparable ranks hold equal pieces and see different tokens."""
    expert_grads: DeviceMesh | None
    """(pp, comparable, ep): the same for experts; None without expert parallelism."""

    @cached_property
    def fsdp(self) -> DeviceMesh:
        """The mesh that parameters are sharded over: 1-D, or 2-D (replicate, shard) for HSDP."""
        return self._sharded(self.dense, FSDP)

    @cached_property
    def experts(self) -> DeviceMesh:
        """The same for experts; leaving the replicas out of it would be silently wrong."""
        assert self.sparse is not None
        return self._sharded(self.sparse, EFSDP)

    @cached_property
    def tp(self) -> DeviceMesh:
        """The ranks that share matrices."""
        return self.dense[Axis.TP.value]

    @cached_property
    def ep(self) -> DeviceMesh:
        """The ranks that share experts."""
        assert self.sparse is not None
        return self.sparse[Axis.EP.value]

    @cached_property
    def cp(self) -> DeviceMesh:
        """The ranks that share positions."""
        return self.data[Axis.CP.value]

    @cached_property
    def pp(self) -> DeviceMesh:
        """The stages."""
        return self.dense[Axis.PP.value]

    @cached_property
    def dp_group(self) -> dist.ProcessGroup:
        """All ranks that see different rows, and are equal otherwise."""
        return self.data.get_group(BATCH)

    @cached_property
    def dp_rank(self) -> int:
        """This rank's index among the ranks that see different rows."""
        return self.data.get_local_rank(BATCH)

    @cached_property
    def comparable(self) -> dist.ProcessGroup:
        """The ranks whose gradients can be compared: equal pieces, different tokens."""
        return self.grads.get_group(COMPARABLE)

    @cached_property
    def comparable_experts(self) -> dist.ProcessGroup | None:
        """The same for experts; None where they lie with the rest, or over the same ranks."""
        if self.expert_grads is None:
            return None
        group = self.expert_grads.get_group(COMPARABLE)
        return None if group is self.comparable else group

    @cached_property
    def pp_rank(self) -> int:
        """This rank's index among the stages."""
        return self.dense.get_local_rank(Axis.PP.value)

    @cached_property
    def groups(self) -> tuple[dist.ProcessGroup, ...]:
        """Every process group of the mesh, each once."""
        views = [self.dense, self.data, self.grads]
        views += [view for view in (self.sparse, self.expert_grads) if view is not None]
        return tuple(dict.fromkeys(group for view in views for group in view.get_all_groups()))

    def _sharded(self, view: DeviceMesh, axis: str) -> DeviceMesh:
        if self.degrees.dp_replicate == 1:
            return view[axis]
        return view[Axis.DP_REPLICATE.value, axis]


def make_mesh(degrees: Degrees, device_type: str) -> Mesh:
    """Arrange the ranks of the default process group (a collective call).

    Raises:
        UsageError: ST-USAG-007 when the degrees do not multiply to the world's size.
    """
    world = dist.get_world_size()
    if degrees.world != world:
        raise UsageError(
            "ST-USAG-007",
            f"{degrees} is {degrees.world} ranks, but there are {world} processes",
            "parallel",
            f"start {degrees.world} processes, or let dp_shard: auto choose",
        )
    d = degrees

    groups = _Groups(world)

    def view(**axes: int) -> DeviceMesh:
        return groups.mesh(device_type, axes)

    return Mesh(
        degrees=d,
        dense=view(pp=d.pp, dp_replicate=d.dp_replicate, fsdp=d.fsdp, tp=d.tp),
        data=view(pp=d.pp, batch=d.dp, cp=d.cp, tp=d.tp),
        sparse=view(pp=d.pp, dp_replicate=d.dp_replicate, efsdp=d.efsdp, ep=d.ep)
        if d.ep > 1
        else None,
        grads=view(pp=d.pp, comparable=d.dp_replicate * d.fsdp, tp=d.tp),
        expert_grads=view(pp=d.pp, comparable=d.dp_replicate * d.efsdp, ep=d.ep)
        if d.ep > 1
        else None,
    )


@dataclass(frozen=True, slots=True)
class _Groups:
    """The process groups of this rank, each made once."""

    world: int
    made: dict[tuple[int, int], dist.ProcessGroup] = field(default_factory=dict)
    """By the number of ranks and the distance between two."""

    def mesh(self, device_type: str, axes: Mapping[str, int]) -> DeviceMesh:
        """All ranks along some axes, outermost first (collective)."""
        ranks, stride, groups = torch.arange(self.world, device="cpu"), self.world, []
        for size in axes.values():
            stride //= size
            groups.append(self._group(size, stride))
        return DeviceMesh.from_group(
            groups,
            device_type,
            mesh=ranks.view(*axes.values()),
            mesh_dim_names=tuple(axes),
        )

    def _group(self, size: int, stride: int) -> dist.ProcessGroup:
        key = (size, stride if size > 1 else 0)
        if key not in self.made:
            self.made[key] = self._make(*key)
        return self.made[key]

    def _make(self, size: int, stride: int) -> dist.ProcessGroup:
        default = dist.group.WORLD
        assert default is not None
        if size == self.world:
            return default
        ranks = torch.arange(self.world, device="cpu")
        if size > 1:
            ranks = ranks.view(-1, size, stride).movedim(1, 2)
        parts = ranks.reshape(-1, size).tolist()
        if getattr(default, "bound_device_id", None) is not None:
            made = dist.split_group(split_ranks=parts, group_desc=f"mesh {size} by {stride}")
        else:
            mine = next(part for part in parts if dist.get_rank() in part)
            # All ranks make their groups in one order, so only those of a group need to meet.
            made = dist.new_group(mine, use_local_synchronization=True)
        assert isinstance(made, dist.ProcessGroup)
        return made
