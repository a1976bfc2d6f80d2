# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Parameters that a model has under more than one name, such as an embedding that is its head too.

Cutting replaces parameters, and so does giving them memory: torch gives each name one of its own.
The two then train apart, without a word. Rules:

1. what one process ties stays tied: the names are taken from the description and tied again after
   each step that replaces parameters;
2. what cannot stay tied is refused by name: names that a plan cuts in different ways, that lie on
   different stages of a pipeline, or in different units of FSDP.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from torch import nn
from torch.distributed.tensor import DTensor

from securetrain.core.errors import RuntimeRefusal
from securetrain.parallel.plan import ParallelPlan

Ties: TypeAlias = tuple[tuple[str, ...], ...]
"""Names of each parameter that has several."""
FIELD: Final = "parallel"


def tied_names(model: nn.Module) -> Ties:
    """Find the parameters of `model` that have several names."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def keep_ties(model: nn.Module, ties: Ties) -> None:
    """Tie again, in place, what was tied in the description.

    Raises:
        RuntimeRefusal: ST-RUNT-010 when the plan cuts the names of one parameter in different ways.
    """
    for first, *others in ties:
        kept = model.get_parameter(first)
        for name in others:
            other = model.get_parameter(name)
            if _layout(other) != _layout(kept):
                raise _apart(
                    f"{first} and {name} are one parameter, and the plan cuts them in different"
                    " ways",
                    "cut both in the same way in tensor_styles, or untie them",
                )
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, kept)


def check_stage_ties(whole: Ties, stages: Mapping[int, nn.Module]) -> None:
    """Check that no parameter lies on two stages of a pipeline.

    Args:
        whole: The ties of the model before it was split.
        stages: All of its stages by number.

    Raises:
        RuntimeRefusal: ST-RUNT-010 naming both.
    """
    for group in whole:
        found = {
            name: number
            for number, part in stages.items()
            for name, _ in part.named_parameters(remove_duplicate=False)
            if name in group
        }
        if len(set(found.values())) > 1:
            (first, one), (other, two) = (
                min(found.items(), key=lambda item: item[1]),
                max(found.items(), key=lambda item: item[1]),
            )
            raise _apart(
                f"{first} of pipeline stage {one} and {other} of stage {two} are one parameter,"
                " and each stage would train its own",
                "pp: 1, or untie them",
            )


def check_unit_ties(model: nn.Module, ties: Ties, plan: ParallelPlan) -> None:
    """Check that no parameter lies in two units of FSDP, of which each gathers its own.

    Raises:
        RuntimeRefusal: ST-RUNT-010 naming both.
    """
    blocks = plan.blocks(model)

    def unit(name: str) -> str:
        return next((block for block in blocks if name.startswith(f"{block}.")), "")

    for group in ties:
        units: dict[str, str] = {}
        for name in group:
            units.setdefault(unit(name), name)
        if len(units) > 1:
            first, other, *_ = units.values()
            raise _apart(
                f"{first} and {other} are one parameter in two units that FSDP gathers one by one",
                "dp_replicate instead of dp_shard, tp and cp; or untie them",
            )


def _layout(parameter: nn.Parameter) -> object:
    if isinstance(parameter, DTensor):
        return parameter.device_mesh, parameter.placements
    return None


def _apart(what: str, fix: str) -> RuntimeRefusal:
    return RuntimeRefusal("ST-RUNT-010", what, FIELD, fix)
