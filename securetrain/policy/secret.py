# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Named secrets: which node of a job gets which, and how its workers are given it.

The policy names secrets and never holds one: the coordinator is told where each lies.
"""

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core.vocabulary import NodeTier

SecretName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,62}\Z")]
MAX_SECRETS: Final = 32
_RESERVED: Final = ("LD_", "PYTHON", "SECURETRAIN_", "GLIBC_", "NCCL_", "TORCH", "MASTER_")
"""Variables that change what a process loads, or that are the launcher's own, begin like this."""


class HandOver(StrEnum):
    """The way in which a worker gets a secret."""

    DESCRIPTOR = "descriptor"
    ENVIRONMENT = "environment"


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rule for one secret: which nodes get it, and how their workers do."""

    min_tier: NodeTier = NodeTier.TPM
    """The lowest tier of a node that gets it."""
    groups: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta()] = ()
    """Image groups of which a node must be one; none: of any, or of none."""
    hand_over: HandOver = HandOver.DESCRIPTOR
    """`descriptor`: a file in memory, which only the worker and its forked children have open.
    `environment`: a variable too, which every program that the script starts inherits."""
    variable: Annotated[str, Meta(pattern=r"^([A-Z][A-Z0-9_]{0,127})?\Z")] = ""
    """The variable of `environment`, as in `HF_TOKEN`."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ValueError: msgspec names the field.
        """
        if (self.hand_over is HandOver.ENVIRONMENT) != bool(self.variable):
            raise ValueError("variable belongs to hand_over: environment, and that to a variable")
        if self.variable.startswith(_RESERVED) or self.variable in {"PATH", "HOME", "IFS"}:
            raise ValueError(f"the variable {self.variable} is not for secrets")
