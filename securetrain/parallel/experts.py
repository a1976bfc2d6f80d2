# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism: ranks share the experts of a layer, and send each other rows.

Sources: Lepikhin et al. 2020 (GShard), arXiv:2006.16668; borrowing ranks of the other axes: Singh
et al. 2023, arXiv:2303.06318. Rules:

1. experts have no ranks of their own: rank r of the `ep` axis holds the r-th part of every expert
   parameter's first dimension, and the ranks of dp_shard, cp and tp that are left shard it further;
2. with tensor parallelism positions are cut where experts are called, so each rank routes its own
   tokens. Experts that nobody shares lie on every tensor-parallel rank, whose gradients add up;
3. before rows travel, ranks tell each other how many. These numbers decide how much memory is
   taken, and come from peers: every one is checked before anything is allocated. All ranks of a
   group have equally many rows, so none can send more than this one has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel.collectives import all_to_all
from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import ParallelPlan

Compute: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows (T, D) sorted by expert, and how many rows each expert has, to results (T, D)."""
Dispatch: TypeAlias = Callable[[Compute, torch.Tensor, torch.Tensor], torch.Tensor]
"""The same for the experts of all ranks, with what computes those that are here."""
DISPATCH: Final = "dispatch"
"""The attribute of a module that takes rows to their experts."""


def dispatch_local(compute: Compute, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Compute all experts on this rank."""
    return compute(rows, counts)


def apply_experts(model: nn.Module, mesh: Mesh, plan: ParallelPlan) -> None:
    """Cut experts over `ep` in place; without it, replicate them over `tp`."""
    degrees = mesh.degrees
    for block in plan.blocks(model).values():
        for experts in plan.experts(block):
            if degrees.ep > 1:
                if not hasattr(experts, DISPATCH):
                    raise TypeError(f"{type(experts).__name__} calls experts without {DISPATCH}")
                _distribute(experts, mesh, Shard(0))
                setattr(experts, DISPATCH, ExpertExchange(mesh.ep.get_group()))
            elif degrees.tp > 1:
                _distribute(experts, mesh, Replicate())


def local_weight(weight: torch.Tensor) -> torch.Tensor:
    """This rank's part of an expert parameter; its gradient is this rank's part of the sum."""
    if not isinstance(weight, DTensor):
        return weight
    # Ranks with equal experts saw different tokens: their gradients are a sum that is pending.
    pending = [Partial() if isinstance(p, Replicate) else p for p in weight.placements]
    return weight.to_local(grad_placements=pending)


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """Send rows to the ranks that hold their experts, and bring the results back."""

    group: dist.ProcessGroup

    def __call__(self, compute: Compute, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """See `Dispatch`.

        Raises:
            RuntimeRefusal: ST-RUNT-009 when a rank announces more rows than it can have.
        """
        ranks = self.group.size()
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        # The one place in a layer where the host waits: messages have the size that these say.
        going, coming = torch.stack((counts, arriving)).view(2, ranks, -1).tolist()
        sent = [sum(experts) for experts in going]
        received = check_row_counts(coming, limit=len(rows))
        mine = all_to_all(rows, self.group, received=received, sent=sent)
        # They come by rank, and by expert within a rank; experts take theirs together.
        by_rank = arriving.view(ranks, -1)
        expert = torch.arange(by_rank.shape[1], device=rows.device).repeat(ranks)
        order = expert.repeat_interleave(arriving, output_size=len(mine)).argsort(stable=True)
        out = compute(mine[order], by_rank.sum(0))[order.argsort()]
        return all_to_all(out, self.group, received=sent, sent=received)


def check_row_counts(announced: Sequence[Sequence[int]], *, limit: int) -> list[int]:
    """Check and count the rows that come from each rank of a group.

    Args:
        announced: For each rank, how many rows it sends to each expert that is here.
        limit: How many rows a rank has.

    Raises:
        RuntimeRefusal: ST-RUNT-009 naming the rank.
    """
    for rank, counts in enumerate(announced):
        # Each by itself first: a sum of huge ones could come out small on another machine.
        if any(not 0 <= count <= limit for count in counts) or sum(counts) > limit:
            raise RuntimeRefusal(
                "ST-RUNT-009",
                f"rank {rank} of the expert-parallel group announces {_shown(counts)} rows;"
                f" a rank has {limit}",
                "experts",
            )
    return [sum(counts) for counts in announced]


def _shown(counts: Sequence[int]) -> str:
    most = max(counts, key=abs)
    return f"{sum(counts)} (of them {most} for one expert)"


def _distribute(experts: nn.Module, mesh: Mesh, placement: Shard | Replicate) -> None:
    ranks = mesh.ep if isinstance(placement, Shard) else mesh.tp
    for name, parameter in list(experts.named_parameters(recurse=False)):
        # The parameters are on the meta device: no bytes travel.
        distributed = distribute_tensor(parameter.detach(), ranks, [placement], src_data_rank=None)
        setattr(experts, name, nn.Parameter(distributed))
