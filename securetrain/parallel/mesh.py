# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One device mesh with named axes, and the views of it that the other modules ask for.

A view's meshes are made once and kept: torch compares meshes by identity. Axes of one parameter
come from one view. The order of the axes is that of `Axis`: neighbours on the innermost axis are
neighbours in rank, so the axis with the most traffic stays inside a node.
"""

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from securetrain.core.errors import UsageError
from securetrain.parallel.degrees import Axis, Degrees


@dataclass(frozen=True, slots=True)
class Mesh:
    """The ranks of a job, arranged."""

    degrees: Degrees
    dense: DeviceMesh
    """Where parameters live: (dp_replicate, dp_shard)."""
    data: DeviceMesh
    """Where rows live: (dp,)."""

    @property
    def fsdp(self) -> DeviceMesh:
        """The mesh that parameters are sharded over: 1-D, or 2-D (replicate, shard) for HSDP."""
        if self.degrees.dp_replicate == 1:
            return self.dense[Axis.DP_SHARD.value]
        return self.dense[Axis.DP_REPLICATE.value, Axis.DP_SHARD.value]

    @property
    def dp_group(self) -> dist.ProcessGroup:
        """All ranks that see different rows."""
        return self.data.get_group()

    @property
    def dp_rank(self) -> int:
        """Which share of the rows this rank sees."""
        return self.data.get_local_rank()

    @property
    def groups(self) -> tuple[dist.ProcessGroup, ...]:
        """Every process group of the mesh, each once."""
        return tuple(dict.fromkeys([*self.dense.get_all_groups(), self.dp_group]))


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
    dense = init_device_mesh(
        device_type,
        tuple(degrees.degree(axis) for axis in Axis),
        mesh_dim_names=tuple(axis.value for axis in Axis),
    )
    data = init_device_mesh(device_type, (degrees.dp,), mesh_dim_names=("dp",))
    return Mesh(degrees, dense, data)
