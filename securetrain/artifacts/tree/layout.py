# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The two kinds of signed directories, and the names that their files have.

::

    checkpoint/                       dataset/
      statement.json   signed           statement.json          signed
      index.json       which tensor     train.bin               data, under its own name
      rank-00000.bin   raw bytes        _securetrain/
      rank-00000.bin.leaves               train.bin.tree        its page and leaf hashes

A checkpoint's leaf table is the concatenated leaf hashes. A dataset's tree file is the page hashes
and then the leaf hashes, so that opening a large dataset reads the page hashes only.
"""

import re
from enum import StrEnum
from typing import Final

from securetrain.core.files import unsafe_name
from securetrain.core.hashtree import DIGEST_SIZE, PAGE_LEAVES, TreeParams
from securetrain.identity.trust import TrustRole

STATEMENT: Final = "statement.json"
INDEX: Final = "index.json"
QUARANTINE: Final = "quarantine.json"
"""In a checkpoint that was set aside: why, signed (`quarantine`)."""
LEAVES_SUFFIX: Final = ".leaves"
TREES: Final = "_securetrain"
TREE_SUFFIX: Final = ".tree"
LEGACY_METADATA: Final = ".metadata"
"""torch's own index: a pickle that runs when torch reads it."""

MAX_NAME: Final = 1024
_ORDINARY: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,60}\.(?:bin|safetensors)")
"""Names against which no rule says anything, as savers give them: those of many ranks are many."""
PAGE_BYTES: Final = PAGE_LEAVES * DIGEST_SIZE


class Kind(StrEnum):
    """The kind of a signed directory."""

    CHECKPOINT = "checkpoint"
    DATASET = "dataset"

    @property
    def role(self) -> TrustRole:
        """The role whose signature it needs."""
        match self:
            case Kind.CHECKPOINT:
                return TrustRole.CHECKPOINT
            case Kind.DATASET:
                return TrustRole.DATASET
            case _:
                raise ValueError(f"unknown kind {self!r}")

    def code(self, number: int) -> str:
        """The refusal code with this number in the kind's family."""
        match self:
            case Kind.CHECKPOINT:
                return f"ST-CKPT-{number}"
            case Kind.DATASET:
                return f"ST-DATA-{number}"
            case _:
                raise ValueError(f"unknown kind {self!r}")

    def table_of(self, name: str) -> str:
        """The name of the hash table that belongs to a data file."""
        match self:
            case Kind.CHECKPOINT:
                return name + LEAVES_SUFFIX
            case Kind.DATASET:
                return f"{TREES}/{name}{TREE_SUFFIX}"
            case _:
                raise ValueError(f"unknown kind {self!r}")

    def table_size(self, params: TreeParams, size: int) -> int:
        """The number of bytes that the hash table of a data file of `size` bytes has."""
        leaves = params.num_leaves(size)
        pages = num_pages(params, size) if self is Kind.DATASET else 0
        return (leaves + pages) * DIGEST_SIZE


def num_pages(params: TreeParams, size: int) -> int:
    """The number of pages that the leaf table of data of `size` bytes has."""
    return -(-params.num_leaves(size) // PAGE_LEAVES)


def rank_file(rank: int) -> str:
    """The data file that one rank writes."""
    return f"rank-{rank:05d}.bin"


def bad_name(kind: Kind, name: str) -> str:
    """The reason why a data file may not be called `name`; empty when it may."""
    if _ORDINARY.fullmatch(name):
        return ""
    if len(name) > MAX_NAME:
        return f"longer than {MAX_NAME} characters"
    parts = name.split("/")
    for part in parts:
        if reason := unsafe_name(part):
            return reason
    reserved = {STATEMENT, INDEX} if kind is Kind.CHECKPOINT else {STATEMENT}
    if name.casefold() in reserved or parts[0].casefold() == TREES:
        return "a name that securetrain keeps for itself"
    if kind is Kind.CHECKPOINT and (len(parts) != 1 or name.endswith(LEAVES_SUFFIX)):
        return "not a plain file name"
    if kind is Kind.CHECKPOINT and name.casefold() == QUARANTINE:
        return "the name of the record that sets a checkpoint aside"
    return ""
