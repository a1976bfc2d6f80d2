# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parts that the predicates of checkpoints and datasets are built from."""

from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core.hashtree import HashAlgorithm, TreeParams

Hex32: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Time: TypeAlias = Annotated[datetime, Meta(tz=True)]


class Part(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel", gc=False
):
    """A part of a predicate; its fields are in camel case in the file."""


class TreeInfo(Part, frozen=True):
    """The parameters of the hash trees."""

    algorithm: HashAlgorithm
    leaf_size: int

    @property
    def params(self) -> TreeParams:
        """The parameters of the trees."""
        return TreeParams(algorithm=self.algorithm, leaf_size=self.leaf_size)

    @classmethod
    def of(cls, params: TreeParams) -> "TreeInfo":
        """The signed form of tree parameters."""
        return cls(algorithm=params.algorithm, leaf_size=params.leaf_size)
