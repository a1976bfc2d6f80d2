# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Matrix products of the blocks in float8, by torchao: parameters stay what they are, products of
one forward and backward pass are computed in float8 with a scale for each row.

Layers that decide stay exact: the head, and routers of experts. Sources: Micikevicius et al. 2022
(arXiv:2209.05433); torchao.float8, recipe "rowwise".
"""

from typing import Final

from torch import nn

from securetrain.parallel.plan import ParallelPlan

RECIPE: Final = "rowwise"
MULTIPLE: Final = 16
"""Both sizes of a matrix must be multiples of this."""
EXACT: Final = ("router",)


def apply_float8(model: nn.Module, plan: ParallelPlan, *, emulate: bool = False) -> None:
    """Exchange the linear layers of the blocks, in place; names of parameters do not change.

    Args:
        model: As it was described; cut and sharded afterwards.
        plan: Names the blocks.
        emulate: Compute in float32 what a GPU would round to float8, for machines without one.
    """
    from torchao.float8 import (  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415
        Float8LinearConfig,
        convert_to_float8_training,
    )

    inside = tuple(f"{name}." for name in plan.blocks(model))

    def fits(module: nn.Module, name: str) -> bool:
        return (
            isinstance(module, nn.Linear)
            and name.startswith(inside)
            and not name.endswith(EXACT)
            and module.in_features % MULTIPLE == module.out_features % MULTIPLE == 0
        )

    config = Float8LinearConfig(emulate=True)
    if not emulate:
        config = Float8LinearConfig.from_recipe_name(RECIPE)
    convert_to_float8_training(model, config=config, module_filter_fn=fits)
