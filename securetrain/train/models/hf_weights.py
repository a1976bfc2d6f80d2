# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read the weights of a signed model in the format of Hugging Face into a model on any mesh."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from securetrain.artifacts import load
from securetrain.artifacts.model import SignedModel
from securetrain.artifacts.statement.statements import digest_of
from securetrain.core.errors import IntegrityError
from securetrain.train.models.hf import hf_name


def load_weights(parameters: Iterable[tuple[str, nn.Parameter]], model: SignedModel) -> None:
    """Fill this rank's parameters, or its parts of them, under our names; collective.

    Args:
        parameters: Those of all of the rank's stages, sharded or whole.
        model: The opened model, whose tensors were checked.

    Raises:
        IntegrityError: ST-CKPT-100 to 200; also ST-CKPT-130 when it is not any more what was
            opened.
    """
    state: dict[str, Any] = {hf_name(name): one.detach() for name, one in parameters}
    predicate = load(
        state,
        model.storage,
        trust=model.trust,
        policy=model.policy,
        now=model.opened_at,
    )
    if digest_of(predicate) != model.digest:
        with torch.no_grad():
            for tensor in state.values():
                tensor.zero_()
        raise IntegrityError(
            "ST-CKPT-130",
            "the model was exchanged for another signed one while it was opened",
            model.storage.name,
            "find out who replaced it",
        )
