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
"""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from securetrain.core.errors import UsageError
from securetrain.parallel.degrees import Axis, Degrees

FSDP = "fsdp"
BATCH = "batch"
EFSDP = "efsdp"
COMPARABLE = "comparable"


@dataclass(frozen=True, slots=True)
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

    @property
    def fsdp(self) -> DeviceMesh:
        """The mesh that parameters are sharded over: 1-D, or 2-D (replicate, shard) for HSDP."""
        return self._sharded(self.dense, FSDP)

    @property
    def experts(self) -> DeviceMesh:
        """The same for experts; leaving the replicas out of it would be silently wrong."""
        assert self.sparse is not None
        return self._sharded(self.sparse, EFSDP)

    @property
    def tp(self) -> DeviceMesh:
        """The ranks that share matrices."""
        return self.dense[Axis.TP.value]

    @property
    def ep(self) -> DeviceMesh:
        """The ranks that share experts."""
        assert self.sparse is not None
        return self.sparse[Axis.EP.value]

    @property
    def cp(self) -> DeviceMesh:
        """The ranks that share positions."""
        return self.data[Axis.CP.value]

    @property
    def pp(self) -> DeviceMesh:
        """The stages."""
        return self.dense[Axis.PP.value]

    @property
    def dp_group(self) -> dist.ProcessGroup:
        """All ranks that see different rows, and are equal otherwise."""
        return self.data.get_group(BATCH)

    @property
    def dp_rank(self) -> int:
        """This rank's index among the ranks that see different rows."""
        return self.data.get_local_rank(BATCH)

    @property
    def comparable(self) -> dist.ProcessGroup:
        """The ranks whose gradients can be compared: equal pieces, different tokens."""
        return self.grads.get_group(COMPARABLE)

    @property
    def comparable_experts(self) -> dist.ProcessGroup | None:
        """The same for experts; None where they lie with the rest."""
        return None if self.expert_grads is None else self.expert_grads.get_group(COMPARABLE)

    @property
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

    def view(**axes: int) -> DeviceMesh:
        return init_device_mesh(device_type, tuple(axes.values()), mesh_dim_names=tuple(axes))

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
