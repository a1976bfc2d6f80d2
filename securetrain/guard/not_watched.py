# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The sentences that say why a script's model, or one of its steps, is not watched."""

from collections.abc import Iterable
from typing import Final

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from securetrain.core.errors import GuardError

PAST: Final = "weights change without a step of an optimizer that torch knows"
FOREIGN: Final = "the script has registered a communication hook of its own"


def not_watched(names: Iterable[str]) -> str:
    """Wrappers that are known, and not watched."""
    return f"{' and '.join(names)} is not watched"


def name_of(model: nn.Module) -> str:
    """The class of a model, or of the one that DDP wraps."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return type(inner).__name__


def no_rollback() -> GuardError:
    """The refusal (ST-GRAD-021) of a response that takes checkpoints of ours."""
    return GuardError(
        "ST-GRAD-021",
        "the script keeps its own checkpoints, and a run can go back only to those of the built-in"
        " trainer",
        "gradients.response",
        "use exclude-rank, which goes on without the rank; or train with securetrain train",
    )
