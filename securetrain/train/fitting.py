# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Load a checkpoint of the model that a job describes, the whole of it and no other.

A smaller model may find all that it asks for in a larger one's checkpoint: fewer layers, or a head
that is tied. Loading a part of another model would train something else without a word, so what
the checkpoint has besides is refused as well as what it lacks.
"""

from pathlib import Path
from typing import Any

import torch

from securetrain.artifacts import load
from securetrain.artifacts.statement.statements import CheckpointPredicate
from securetrain.core.errors import UsageError
from securetrain.train.models.llama import Llama
from securetrain.train.models.shape import ModelShape
from securetrain.train.optim import STATES

DOES_NOT_FIT = "ST-USAG-012"


def names_of(shape: ModelShape) -> frozenset[str]:
    """The names of all tensors that a checkpoint of such a model has."""
    with torch.device("meta"):
        model = Llama(shape)
    parameters = [name for name, _ in model.named_parameters()]
    return frozenset(
        (
            *(f"model.{name}" for name in parameters),
            *(f"model.{name}" for name, _ in model.named_buffers()),
            *(f"optim.{name}.{state}" for name in parameters for state in ("step", *STATES)),
        )
    )


def load_into(
    state: dict[str, Any], path: Path, *, shape: ModelShape, **asked: Any
) -> CheckpointPredicate:
    """`securetrain.artifacts.checkpoint.load` for a job's model (collective).

    Raises:
        UsageError: ST-USAG-012, the checkpoint is that of another model.
    """
    try:
        return load(state, path, whole=names_of(shape), **asked)
    except UsageError as error:
        if error.code != DOES_NOT_FIT:
            raise
        raise UsageError(
            error.code,
            f"the checkpoint is that of another model: {error.what}",
            str(path),
            "give the job the model: that the checkpoint was trained with, or begin another run"
            " with another run directory",
        ) from error
