# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be trained right on a mesh, refused by name before anything is cut.

Rules:

1. dropout under tp or cp: ranks that share a row draw the same numbers, for pieces that are not the
   same. Masks would repeat from piece to piece, and no mesh would drop what one process drops;
2. a context-parallel block whose attention nobody replaces would attend to its own piece of a row;
3. a model without experts, or whose plan names none, has nothing that ep could cut.
"""

from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # torch has no public name for their base

from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel.degrees import Degrees
from securetrain.parallel.plan import ParallelPlan


def check_fitness(model: nn.Module, degrees: Degrees, plan: ParallelPlan) -> None:
    """Check a stage of a model, not yet cut.

    Raises:
        RuntimeRefusal: ST-RUNT-010 naming the module.
    """
    if degrees.tp > 1 or degrees.cp > 1:
        _check_dropout(model)
    if degrees.cp > 1:
        for name, block in plan.blocks(model).items():
            if not any(True for _ in plan.attentions(block)):
                raise RuntimeRefusal(
                    "ST-RUNT-010",
                    f"attentions() finds none in {name}, and each context-parallel rank would"
                    " attend to its own piece of a row",
                    "parallel.cp",
                    "name the modules whose attribute attend computes attention, or cp: 1",
                )


def check_experts(model: nn.Module, degrees: Degrees, plan: ParallelPlan) -> None:
    """Check a whole model: a stage of it may be dense.

    Raises:
        RuntimeRefusal: ST-RUNT-010.
    """
    blocks = plan.blocks(model).values()
    if degrees.ep > 1 and not any(True for block in blocks for _ in plan.experts(block)):
        raise RuntimeRefusal(
            "ST-RUNT-010",
            f"experts() finds none in {type(model).__name__}, and ep would cut nothing",
            "parallel.ep",
            "name the modules whose parameters count experts first, or ep: 1",
        )


def _check_dropout(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _DropoutNd) and module.p > 0:
            raise RuntimeRefusal(
                "ST-RUNT-010",
                f"{name} drops {module.p:.0%}, and tensor- and context-parallel ranks would drop"
                " the same places of different pieces",
                "parallel",
                "set dropout to 0, or tp: 1 and cp: 1",
            )
