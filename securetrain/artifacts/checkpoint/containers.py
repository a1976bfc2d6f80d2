# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The inside of a rank's file, and the names of the files."""

import re
from collections.abc import Sequence
from typing import Final, Protocol

from torch.distributed.checkpoint.planner import WriteItem

from securetrain.artifacts.checkpoint.tensors import dtype_name
from securetrain.artifacts.tree.index import ALIGNMENT, Index
from securetrain.artifacts.tree.layout import rank_file
from securetrain.artifacts.tree.safetensors_header import (
    INDEX_JSON,
    METADATA,
    SUFFIX,
    dtype_code,
    encode_header,
    weight_map,
)
from securetrain.core.errors import UsageError


class Container(Protocol):
    """A kind of data file."""

    alignment: int
    """Tensors start at multiples of this."""

    def names(self, has_file: Sequence[bool]) -> list[str]:
        """The name of every rank's file, by rank; empty for a rank that writes none."""

    def is_name(self, name: str) -> bool:
        """Tell whether a rank may write a file of this name."""

    def header(self, items: Sequence[WriteItem]) -> bytes:
        """The bytes before the tensors."""

    def documents(self, index: Index) -> dict[str, bytes]:
        """Further small files of the checkpoint, by name."""


class Native:
    """Raw bytes; the index says what they are."""

    alignment: int = ALIGNMENT

    def names(self, has_file: Sequence[bool]) -> list[str]:
        """See `Container`."""
        return [rank_file(rank) if there else "" for rank, there in enumerate(has_file)]

    def is_name(self, name: str) -> bool:
        """See `Container`."""
        return _NATIVE.fullmatch(name) is not None

    def header(self, items: Sequence[WriteItem]) -> bytes:
        """See `Container`."""
        del items
        return b""

    def documents(self, index: Index) -> dict[str, bytes]:
        """See `Container`."""
        del index
        return {}


_NATIVE: Final = re.compile(r"rank-\d{5,8}\.bin")
_SAFETENSORS: Final = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


class Safetensors:
    """Files that everybody's safetensors readers take; each tensor is whole in one of them."""

    alignment: int = 1

    def names(self, has_file: Sequence[bool]) -> list[str]:
        """See `Container`."""
        total = sum(has_file)
        names = []
        for rank, there in enumerate(has_file):
            number = sum(has_file[: rank + 1])
            name = "model" if total == 1 else f"model-{number:05d}-of-{total:05d}"
            names.append(f"{name}{SUFFIX}" if there else "")
        return names

    def is_name(self, name: str) -> bool:
        """See `Container`."""
        return _SAFETENSORS.fullmatch(name) is not None

    def header(self, items: Sequence[WriteItem]) -> bytes:
        """See `Container`."""
        tensors = {}
        for item in items:
            data, name = item.tensor_data, item.index.fqn
            assert data is not None
            if data.chunk.sizes != data.size:
                raise UsageError("ST-USAG-013", "only a part of a tensor", name, "gather it first")
            dtype = dtype_name(data.properties.dtype, name)
            if dtype_code(dtype) is None or name == METADATA:
                raise UsageError(
                    "ST-USAG-013", f"safetensors has no place for it ({dtype})", name, "use `save`"
                )
            tensors[name] = dtype, tuple(data.size)
        return encode_header(tensors)

    def documents(self, index: Index) -> dict[str, bytes]:
        """See `Container`."""
        files = {chunk.file for tensor in index.tensors for chunk in tensor.chunks}
        return {INDEX_JSON: weight_map(index)} if len(files) > 1 else {}
