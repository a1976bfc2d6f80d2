# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism, with sequence parallelism between the matrix products.

Sources: Megatron-LM (arXiv:1909.08053), sequence parallelism (arXiv:2205.05198).
"""

from torch import nn
from torch.distributed.tensor.parallel import parallelize_module

from securetrain.parallel.mesh import Mesh
from securetrain.parallel.plan import ParallelPlan


def apply_tensor(model: nn.Module, mesh: Mesh, plan: ParallelPlan) -> None:
    """Cut the modules that the plan names, in place."""
    parallelize_module(model, mesh.tp, dict(plan.tensor_styles(model)))
