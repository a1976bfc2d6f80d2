# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism, with sequence parallelism between the matrix products.

Sources: Megatron-LM (arXiv:1909.08053), sequence parallelism (arXiv:2205.05198), asynchronous
tensor parallelism (Wang et al., ASPLOS 2023: overlap by decomposing the collectives).
"""

import torch
from torch import nn
from torch.distributed.tensor.parallel import parallelize_module

from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import ParallelPlan


def apply_tensor(model: nn.Module, mesh: Mesh, plan: ParallelPlan) -> None:
    """Cut the modules that the plan names, in place."""
    parallelize_module(model, mesh.tp, dict(plan.tensor_styles(model)))


def overlap_messages(mesh: Mesh) -> None:
    """Let the compiler cut each matrix product into pieces that compute while others travel.

    For the whole process: Inductor knows no finer setting. CUDA only (`available.check_device`).
    """
    import torch._inductor.config as inductor  # noqa: PLC0415 - Triton and more, only when asked
    from torch.distributed._symmetric_memory import (  # noqa: PLC0415
        enable_symm_mem_for_group,
    )

    inductor._micro_pipeline_tp = True  # noqa: SLF001 - torch has no public name for it yet
    enable_symm_mem_for_group(mesh.tp.get_group().group_name)
    torch._dynamo.reset()  # noqa: SLF001 - what was compiled before does not overlap
