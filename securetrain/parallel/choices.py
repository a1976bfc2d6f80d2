# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Settings that do not go together on a mesh, whatever the model. Free of torch."""

from securetrain.core.errors import UsageError
from securetrain.parallel.degrees import Degrees
from securetrain.parallel.kind import SHARDED, kind_of
from securetrain.parallel.plan import Recompute, Settings
from securetrain.parallel.schedule import (
    microbatch_multiple,
    min_microbatches,
    splits_backward,
)


def check_schedule(degrees: Degrees, settings: Settings, where: str = "parallel") -> None:
    """Check that what is recomputed can be, under the pipeline's schedule.

    Raises:
        UsageError: ST-USAG-007.
    """
    selective = settings.recompute in {Recompute.SELECTIVE, Recompute.ALTERNATE}
    if degrees.pp > 1 and selective and splits_backward(settings.schedule):
        raise UsageError(
            "ST-USAG-007",
            f"{settings.schedule} goes back twice, for inputs and for weights, and selective"
            " recomputing keeps what it selects for once",
            where,
            "recompute: full or none, or schedule: Interleaved1F1B",
        )


def check_microbatches(degrees: Degrees, settings: Settings, where: str = "microbatches") -> None:
    """Check that a pipeline's schedule takes so many microbatches.

    Raises:
        UsageError: ST-USAG-007 with the nearest number.
    """
    schedule, pieces = settings.schedule, settings.microbatches
    least = min_microbatches(schedule, degrees.pp)
    unit = microbatch_multiple(schedule, degrees.pp)
    if degrees.pp > 1 and (pieces < least or pieces % unit):
        raise UsageError(
            "ST-USAG-007",
            f"{schedule} on pp {degrees.pp} takes a multiple of {unit} microbatches, at least"
            f" {least}; these are {pieces}",
            where,
            f"microbatches: {-(-max(pieces, least) // unit) * unit}",
        )


def check_reduction(degrees: Degrees, settings: Settings, where: str = "parallel") -> None:
    """Check that gradients can be reduced after each microbatch, if they are to be.

    Raises:
        UsageError: ST-USAG-007.
    """
    if not settings.reduce_each_microbatch:
        return
    if degrees.pp == 1 or kind_of(degrees, settings) not in SHARDED:
        raise UsageError(
            "ST-USAG-007",
            "gradients are kept for the last microbatch by pipelines whose ranks share parameters,"
            f" and this mesh is {degrees}; without a pipeline, levels 2 and 3 of zero reduce each",
            where,
            "reduce_each_microbatch: false",
        )
    if splits_backward(settings.schedule):
        raise UsageError(
            "ST-USAG-007",
            f"{settings.schedule} computes gradients of weights later, where no reduction follows",
            where,
            "reduce_each_microbatch: false, or schedule: Interleaved1F1B",
        )
