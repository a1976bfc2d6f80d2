# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The self-check of a job: a small copy of its model on its mesh, compared with one process.

`securetrain.parallel.self_check` does it; here is the small copy. It is the job's model with few
narrow layers: as many as the mesh needs to cut everything that it cuts of the large one. A new job
does it before its first step, and `securetrain plan --check` on a mesh of the same axes with at
most two ranks on each, on this machine.
"""

import dataclasses
import math
from typing import Final

import torch

from securetrain.core.errors import SecureTrainError
from securetrain.parallel import (
    Comparison,
    ContextKind,
    Degrees,
    Description,
    Mesh,
    Settings,
    make_mesh,
    microbatch_multiple,
    min_microbatches,
    num_stages,
    self_check,
)
from securetrain.train.config import JobConfig, settings_of, shape_of
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.llama_plan import LlamaPlan
from securetrain.train.models.shape import ModelShape

HEAD: Final = 8
FFN: Final = 32
VOCABULARY: Final = 32
EXPERTS: Final = 4
UNIT: Final = 8
"""Products of groups of rows want widths that it divides."""


def check_job(job: JobConfig, mesh: Mesh, device: torch.device) -> Comparison:
    """Compare a small copy of the job's model on the mesh with one process (collective).

    Raises:
        RuntimeRefusal: ST-RUNT-013 naming what differs.
    """
    settings = small_settings(settings_of(job), mesh.degrees)
    shape = small_shape(shape_of(job), mesh.degrees, settings)
    model = Description(
        build=lambda: Llama(shape),
        materialize=lambda part: init_weights(part, job.seed, shape),
        plan=LlamaPlan(),
    )
    return self_check(model, mesh, settings, device)


def check_rank(job: JobConfig, degrees: Degrees) -> Comparison | tuple[str, str, str, str]:
    """One rank of `securetrain plan --check`: the comparison, or the parts of what is refused."""
    try:
        return check_job(job, make_mesh(degrees, "cpu"), torch.device("cpu"))
    except SecureTrainError as error:
        return error.code, error.what, error.where, error.fix


def small_degrees(degrees: Degrees) -> Degrees:
    """The same axes, with at most two ranks on each."""
    fields = [field.name for field in dataclasses.fields(Degrees)]
    return Degrees(**{name: min(2, getattr(degrees, name)) for name in fields})


def small_settings(settings: Settings, degrees: Degrees) -> Settings:
    """The same settings with as few microbatches as show that there are several."""
    unit = microbatch_multiple(settings.schedule, degrees.pp)
    # Schedules with one stage on a rank take no fewer than there are stages.
    stages = num_stages(settings.schedule, degrees.pp)
    least = max(2, stages, min_microbatches(settings.schedule, degrees.pp))
    few = min(settings.microbatches, -(-least // unit) * unit)
    return dataclasses.replace(settings, microbatches=few)


def small_shape(shape: ModelShape, degrees: Degrees, settings: Settings) -> ModelShape:
    """The smallest shape of the same kind that the mesh can cut."""
    ulysses = settings.context is ContextKind.ULYSSES
    keys = degrees.tp * (degrees.cp if ulysses else 1)
    heads = keys * (2 if shape.keys < shape.heads else 1)
    # FSDP cuts each expert, and evenly only.
    shards = degrees.efsdp if degrees.ep > 1 else degrees.fsdp
    unit = math.lcm(UNIT, shards) if shape.experts else UNIT
    return dataclasses.replace(
        shape,
        dim=_above(max(2 * UNIT, heads * HEAD), unit),
        layers=max(2, num_stages(settings.schedule, degrees.pp)),
        heads=heads,
        kv_heads=keys,
        head_size=HEAD,
        ffn=_above(FFN, math.lcm(unit, degrees.tp)),
        vocab=_above(VOCABULARY, degrees.tp),
        experts=_above(max(EXPERTS, shape.experts_per_token), degrees.ep) if shape.experts else 0,
    )


def _above(value: int, unit: int) -> int:
    return -(-value // unit) * unit
