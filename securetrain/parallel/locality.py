# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Locality of the mesh: do tensor-parallel groups stay inside one machine?

The mesh puts tp innermost, so that its ranks are neighbours; whether neighbours are on one machine
depends on how many ranks each node has. The machine that counts is the one a rank really runs on,
by the kernel's boot id, not what a launcher says about nodes.
"""

import hashlib
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from securetrain.parallel.mesh import Mesh

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_DIGITS: Final = 15


def machine_id(boot_id: Path = BOOT_ID) -> int:
    """A number that ranks of one machine share, and no two machines."""
    return int(hashlib.sha256(boot_id.read_bytes()).hexdigest()[:_DIGITS], 16)


def tp_machine_span(mesh: Mesh, machine: int, device: torch.device) -> int:
    """Count the machines that the most spread tensor-parallel group covers (collective).

    Args:
        mesh: The ranks.
        machine: Of this rank; `machine_id()`.
        device: Where messages of the groups come from.
    """
    if mesh.degrees.tp == 1:
        return 1
    mine = torch.tensor([machine], dtype=torch.int64, device=device)
    found = [torch.empty_like(mine) for _ in range(mesh.degrees.tp)]
    dist.all_gather(found, mine, group=mesh.tp.get_group())
    most = torch.tensor([len({int(one) for one in found})], device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)
