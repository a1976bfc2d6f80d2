# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Shard parameters, gradients and optimizer state: FSDP2, and HSDP on a two-dimensional mesh.

Rules:

1. one group for each block and one for the rest, so that communication overlaps with computing;
2. the loss is a sum over this rank's tokens divided by the tokens of all ranks, so gradients are
   *summed*, never averaged: a divide factor of one;
3. Gloo has no PREMUL_SUM, which a factor of its own would pick, so plain SUM is forced;
4. experts that ranks share are groups of their own, on the mesh of the experts, replicas included;
5. a parameter of experts is cut along its second dimension: there are seldom as many experts as
   ranks, and the first one may be cut already;
6. the root is gathered once a step: it holds the head, which the backward pass begins with.

Rule 2 cannot be seen in a loss curve (AdamW and clipping do not notice a constant factor); the
parity tests therefore compare gradient norms as well.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import ParallelPlan, Precision, Settings, Zero


def apply_fsdp(model: nn.Module, mesh: Mesh, plan: ParallelPlan, settings: Settings) -> None:
    """Shard `model` in place: experts, every block, then what is left."""
    precision = _mixed_precision(settings.precision)
    offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    # A pipeline runs a stage many times a step: gathering each time would cost more than it frees.
    reshard = settings.zero is Zero.PARAMETERS and mesh.degrees.pp == 1

    inside = {
        parameter
        for block in plan.blocks(model).values()
        for experts in plan.experts(block)
        for parameter in experts.parameters()
    }

    def shard(module: nn.Module, *, experts: bool = False) -> None:
        fully_shard(
            module,
            mesh=mesh.experts if experts else mesh.fsdp,
            mp_policy=precision,
            # The root's are the first that the backward pass needs again.
            reshard_after_forward=reshard and module is not model,
            shard_placement_fn=lambda parameter: Shard(1) if parameter in inside else None,
            offload_policy=offload if settings.cpu_offload else OffloadPolicy(),
        )

    for block in plan.blocks(model).values():
        if mesh.degrees.ep > 1:
            for experts in plan.experts(block):
                shard(experts, experts=True)
        shard(block)
    shard(model)
    if mesh.degrees.ep > 1:
        _prefetch(list(plan.blocks(model).values()), plan)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(enable=True)


def _prefetch(blocks: Sequence[nn.Module], plan: ParallelPlan) -> None:
    """Say which block comes next. FSDP guesses it from the order in which the host issues work, and
    routing to experts makes the host wait for the device in every block.
    """

    def units(block: nn.Module) -> list[FSDPModule]:
        return [m for m in (block, *plan.experts(block)) if isinstance(m, FSDPModule)]

    for block, following in pairwise(blocks):
        assert isinstance(block, FSDPModule)
        assert isinstance(following, FSDPModule)
        block.set_modules_to_forward_prefetch(units(following))
        following.set_modules_to_backward_prefetch(units(block))


def _mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    match precision:
        case Precision.FP32:
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        case Precision.BF16:
            return MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        case _:
            raise ValueError(f"unknown precision {precision!r}")
