# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a signed directory, as data and as an error.

A verifier collects problems; a loader raises the first one. Both speak of the same things: the
file, the bytes of it, and the tensors that lie there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from securetrain.artifacts.tree.layout import Kind
from securetrain.core.codes import CODES
from securetrain.core.errors import IntegrityError

MAX_TENSORS_NAMED: Final = 8

_FIXES: Final = {
    "100": "sign it, or get the directory again from where it was signed",
    "101": "get the directory again from where it was signed",
    "110": "get the directory again from where it was signed; do not use it",
    "111": "do not use it; find out which rank's file was exchanged",
    "120": "check that this is the trust root of the run that made it",
    "121": "use an artifact that was made under this policy, or verify with another policy",
    "122": "save it with a signer on every rank (`securetrain run` gives them one)",
    "123": "have it signed by enough operators of the trust root, for exactly this checkpoint",
    "124": "give the decryption key of one of its recipients",
    "130": "get this file again from where it was signed; do not use it",
    "131": "get this file again from where it was signed; do not use it",
    "132": "get this file again from where it was signed; do not use it",
    "133": "do not use it: whoever signed it wrote it wrong",
    "140": "get this file again from where it was signed",
    "141": "remove the file after finding out who put it there",
    "142": "remove it after finding out who put it there",
    "150": "use a newer one, or verify with a policy that allows this age",
    "151": "use the newest one; to go back, have operators sign a waiver that names this one",
    "152": "get the newest head from where the run is saved, or find out why it stopped",
    "153": "use a newer one",
    "160": "use an older one; only an operator who knows better may excuse it",
    "161": "have it signed by a key that is trusted now, or show that it was logged in time",
    "170": "save it with its run, dataset and policy named",
    "171": "stop: somebody saves in the name of this run; find out which one is yours",
    "ST-DATA-171": "restore what was signed; to replace data, sign a dataset of another name",
    "172": "name the directories in which its parents and datasets are (--walk-in)",
    "180": "get the proof from whoever keeps the log (securetrain log prove)",
    "190": "convert it with 'securetrain convert' where it can be trusted, or save it again",
    "191": "do not use it: a trusted key signed a false index",
    "200": "check the disk and the permissions",
    "201": "choose another name",
}

# From the most to the least telling: who made it, then what it is, then what is missing, then what
# a policy says of it. A directory that nobody signed needs no further explanation.
_RANKING: Final = (
    "100 101 110 120 161 180 111 122 190 142 191 130 131 132 133 140 141 200 "
    "160 171 151 152 153 150 170 172 123 124 121 201"
)
_ORDER: Final = _RANKING.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is not as it was signed."""

    code: str
    what: str
    file: str = ""
    """Name below the directory, with forward slashes; empty for the whole directory."""
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
        return IntegrityError(self.code, self.what, where, self.fix)

    @property
    def fix(self) -> str:
        """What to do about it."""
        return _FIXES.get(self.code) or _FIXES.get(self.code[-3:], "")

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
    """The problem whose exit code a command ends with (see the order above)."""
    return min(problems, key=lambda p: _ORDER.index(p.code[-3:]))


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
        code=kind.code(130),
        what="the content is not what was signed",
        file=file,
        tensor=name_tensors(tensors),
        offset=offset,
        length=length,
    )


def table_problem(kind: Kind, file: str) -> Problem:
    """A hash table that does not lead to the signed root."""
    return Problem(
        code=kind.code(132), what="the hash table does not lead to the signed root", file=file
    )
