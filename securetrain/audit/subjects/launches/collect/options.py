# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of a call, in the spellings that training commands use.

``--rdzv-backend c10d``, ``--rdzv_backend=c10d``, ``model.revision=main`` (Hydra) and
``pretrained=x,trust_remote_code=True`` (lists of settings) are all a name and a value.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from securetrain.audit.facts import Location, Reading
from securetrain.audit.parser.values import ok, opened
from securetrain.audit.shell.evaluator import Call
from securetrain.audit.shell.syntax import SETTERS
from securetrain.audit.shell.values import Arg

T = TypeVar("T")

_OPTION: Final = re.compile(r"--?([A-Za-z][\w.-]*)(=)?", re.ASCII)
_SETTING: Final = re.compile(r"[+~]{0,2}([A-Za-z][\w./-]*)=", re.ASCII)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name in small letters with dashes, and its value if it has one."""

    name: str
    at: Location
    value: Arg | None
    own: bool
    """Whether the value stands in the option's own word."""

    @property
    def text(self) -> str:
        """The value, empty without one."""
        return self.value.text if self.value else ""

    @property
    def opens(self) -> tuple[str, ...]:
        """The variables that decide the value."""
        return self.value.opens if self.value else ()

    @property
    def place(self) -> Location:
        """The place of the value, else of the option."""
        return self.value.at if self.value else self.at

    def reading(self, made: Callable[[str], T]) -> Reading[T]:
        """The reading of its value; one that is not there reads as an empty one."""
        return reading(self.value, made) if self.value else ok(made(""), self.at)


def reading(value: Arg, made: Callable[[str], T]) -> Reading[T]:
    """The reading of a text that somebody else may decide."""
    at = value.place(0)
    return templated(value.opens, at) if value.opens else ok(made(value.text), at)


def templated(opens: Iterable[str], at: Location) -> Reading[T]:
    """A value that somebody else decides."""
    names = (f"${name}" if name[:1].isalnum() else name for name in opens)
    return opened(", ".join(itertools.islice(names, 3)), at)


def options_of(call: Call) -> list[Option]:
    """All options of a call, in order."""
    found: list[Option] = []
    args = call.args if call.program not in SETTERS else ()
    for i, arg in enumerate(args):
        if match := _OPTION.match(arg.text):
            name = normal(match[1])
            if match[2]:
                found.append(Option(name, arg.at, arg.part(match.end()), own=True))
                found.extend(_list(arg, match.end()))
            elif match.end() == len(arg.text):
                following = args[i + 1] if i + 1 < len(args) else None
                takes = following is not None and not _OPTION.match(following.text)
                found.append(Option(name, arg.at, following if takes else None, own=False))
        elif match := _SETTING.match(arg.text):
            found.extend(_list(arg, 0))
    return found


def normal(name: str) -> str:
    """The name as it is compared: the last part, small letters, dashes."""
    return name.replace("_", "-").lower()


def _list(arg: Arg, start: int) -> Iterator[Option]:
    """The settings of ``a=1,b=2`` and of ``a.b=1``."""
    offset = start
    for part in arg.text[start:].split(","):
        if match := _SETTING.match(part):
            last = re.split(r"[./]", match[1])[-1]
            at = arg.place(offset)
            value = arg.part(offset + match.end(), offset + len(part))
            yield Option(normal(last), at, value, own=True)
        offset += len(part) + 1


def value_of(options: list[Option], *names: str) -> Option | None:
    """The last option of one of these names, which is the one that counts."""
    return next((one for one in reversed(options) if one.name in names), None)


def rest_of(call: Call) -> Iterator[Arg]:
    """Yield words that may be any options, such as ``$ARGS``."""
    before = ""
    for arg in call.args:
        if arg.rest and not _OPTION.fullmatch(before):
            yield arg
        before = arg.text
