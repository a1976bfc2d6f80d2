# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Problems of a signed directory, as data and as an error.

A verifier collects problems; a loader raises the first one. Both speak of the same things: the
file, the bytes of it, and the tensors that lie there.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from securetrain.artifacts.tree.layout import Kind
from securetrain.core import CODES
from securetrain.core.errors import IntegrityError

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
