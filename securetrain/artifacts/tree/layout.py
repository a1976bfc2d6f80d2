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

Predicates are built from a `Part`, and what is not as it was signed is a `Problem`: a verifier
collects problems, a loader raises the first one. Both speak of the same things: the file, the bytes
of it, and the tensors that lie there.
"""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core import CODES
from securetrain.core.errors import IntegrityError
from securetrain.core.files import unsafe_name
from securetrain.core.hashtree import DIGEST_SIZE, PAGE_LEAVES, HashAlgorithm, TreeParams
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


MAX_TENSORS_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it was signed."""

    code: str
    what: str
    file: str = ""
    """Name below the directory, with forward slashes; empty for the whole directory."""
    _: KW_ONLY
    tensor: str = ""
    """The tensors that have bytes there, separated by commas."""
    offset: int | None = None
    """First byte of the damaged stretch (a leaf) in the file."""
    length: int | None = None

    @property
    def place(self) -> str:
        """File, bytes and tensors in words."""
        text = self.file
        if self.offset is not None and self.length is not None:
            text += f" bytes {self.offset}..{self.offset + self.length}"
        if self.tensor:
            text += f" (tensor {self.tensor})"
        return text

    def error(self, root: str = "") -> IntegrityError:
        """The problem as the error that a loader raises."""
        where = f"{root}/{self.place}" if root and self.place else self.place or root
        return IntegrityError(self.code, self.what, where)

    @property
    def fix(self) -> str:
        """The remedy."""
        return CODES[self.code].fix

    def to_dict(self) -> dict[str, str | int | None]:
        """The problem as plain data."""
        return {
            "code": self.code,
            "title": CODES[self.code].title,
            "what": self.what,
            "file": self.file,
            "tensor": self.tensor,
            "offset": self.offset,
            "length": self.length,
            "fix": self.fix,
        }


def most_telling(problems: Sequence[Problem]) -> Problem:
    """The problem whose exit code a command ends with."""
    return min(problems, key=lambda problem: CODES[problem.code].rank)


def name_tensors(names: Sequence[str]) -> str:
    """Some tensors in words, at most `MAX_TENSORS_NAMED` of them."""
    shown = ", ".join(names[:MAX_TENSORS_NAMED])
    rest = len(names) - MAX_TENSORS_NAMED
    return f"{shown} and {rest} more" if rest > 0 else shown


def content_problem(
    kind: Kind, file: str, offset: int, length: int, tensors: Sequence[str] = ()
) -> Problem:
    """A leaf whose bytes are not the signed ones."""
    return Problem(
        kind.code(130),
        "the content is not what was signed",
        file,
        tensor=name_tensors(tensors),
        offset=offset,
        length=length,
    )


def table_problem(kind: Kind, file: str) -> Problem:
    """A hash table that does not lead to the signed root."""
    return Problem(kind.code(132), "the hash table does not lead to the signed root", file)
