# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The effects of one pickle: its opcodes are read, never executed.

The stack and the memo are followed as far as strings go, because STACK_GLOBAL takes its names from
there (`pickletools` gives each opcode's effect on the stack). Rules, in order:

1. every global is named and judged by an allow-list (`safe_globals.STORED`), after the renames that
   Python itself applies to pickles of Python 2;
2. a global whose name cannot be followed, and an extension code (whose meaning lies in the process
   that loads), count as unsafe;
3. a pickle that breaks off is unsafe: an unpickler runs everything up to the break;
4. nothing is resolved, imported or called.

Source of the format: Lib/pickletools.py and PEP 3154, PEP 574.
"""

import _compat_pickle
import pickletools
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Final, cast

from securetrain.artifacts.scan.safe_globals import STORED
from securetrain.artifacts.scan.window import Skipped, TooLargeError, Window

MAX_OPCODES: Final = 50_000_000
MAX_STACK: Final = 1_000_000
MAX_MEMO: Final = 2_000_000
"""Strings that are remembered; other values need no memory."""
MAX_NAMED: Final = 1000
"""Distinct globals that are listed for one pickle."""

_CALLS: Final = frozenset({"REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD"})
_TEXTS: Final = frozenset(
    {
        "STRING", "BINSTRING", "SHORT_BINSTRING",
        "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    }
)  # fmt: skip
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_EXTENSIONS: Final = frozenset({"EXT1", "EXT2", "EXT4"})
_MARK: Final = pickletools.markobject
_OTHER: Final = object()


@dataclass(slots=True, kw_only=True)
class Analysis:
    """The effects of a pickle."""

    globals: dict[str, int] = field(default_factory=dict)
    """Each global that it names, as ``module.name``, with the offset of the first opcode."""
    unfollowed: list[int] = field(default_factory=list)
    """Offsets of opcodes that take a global from where its name cannot be followed."""
    opcodes: Counter[str] = field(default_factory=Counter)
    integers: list[int] = field(default_factory=list)
    """The first integer arguments: torch's magic number is among them."""
    end: int = 0
    """One past the STOP opcode, from the start of the window."""
    problem: str = ""
    """Why it could not be read to its end."""
    too_large: bool = False
    """Whether the reason is its size."""

    @property
    def unsafe(self) -> dict[str, int]:
        """The globals that are not on the allow-list."""
        return {name: at for name, at in self.globals.items() if name not in STORED}

    @property
    def calls(self) -> int:
        """The number of opcodes that call something or set somebody's state."""
        return sum(count for name, count in self.opcodes.items() if name in _CALLS)


class _MalformedError(ValueError):
    """An unpickler would stop here."""


def analyse(window: Window, offset: int = 0) -> Analysis:
    """Read the pickle at `offset` of a window. Raises nothing about its content."""
    machine = _Machine()
    window.seek(offset)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in strings of protocol 0
            for opcode, argument, at in pickletools.genops(cast("IO[bytes]", window)):
                machine.step(opcode, argument, at or 0)
    except TooLargeError as error:
        machine.found.problem, machine.found.too_large = str(error), True
    except (ValueError, TypeError, OverflowError, AttributeError, MemoryError) as error:
        machine.found.problem = f"{error}" or type(error).__name__
    machine.found.end = window.tell()
    return machine.found


class _Machine:
    """The stack of an unpickler in which only strings have a value."""

    def __init__(self) -> None:
        self.found = Analysis()
        self._stack: list[object] = []
        self._memo: dict[object, object] = {}
        self._memoized = 0
        self._count = 0

    def step(self, opcode: pickletools.OpcodeInfo, argument: object, at: int) -> None:
        """Follow one opcode.

        Raises:
            TooLargeError: there are too many, or one is too long to be read.
            _MalformedError: an unpickler would stop here.
        """
        name = opcode.name
        self._count += 1
        if self._count > MAX_OPCODES or len(self._stack) > MAX_STACK:
            raise TooLargeError(f"more than {MAX_OPCODES} opcodes, or {MAX_STACK} values at once")
        self.found.opcodes[name] += 1
        match name:
            case _ if name in _TEXTS:
                if isinstance(argument, Skipped):
                    raise TooLargeError("a string too long to be read")
                self._stack.append(argument)
            case "MEMOIZE":
                self._put(self._memoized)
            case _ if name in _PUTS:
                self._put(argument)
            case _ if name in _GETS:
                self._stack.append(self._memo.get(argument, _OTHER))
            case "DUP":
                self._stack.append(self._top())
            case "POP":
                self._pop(1, marks=True)
            case _:
                self._call(name, argument, at)
                self._move(opcode)

    def _call(self, name: str, argument: object, at: int) -> None:
        """Note what an opcode names."""
        if name == "STACK_GLOBAL":
            module, attribute = self._stack[-2:] if len(self._stack) > 1 else (_OTHER, _OTHER)
            if isinstance(module, str) and isinstance(attribute, str):
                self._name(module, attribute, at)
            else:
                self.found.unfollowed.append(at)
        elif name in ("GLOBAL", "INST"):
            # pickletools joins the two lines by a space; no module has one in its name.
            module_name, _, attribute_name = str(argument).partition(" ")
            self._name(module_name, attribute_name, at)
        elif name in _EXTENSIONS:
            self.found.unfollowed.append(at)
        elif isinstance(argument, int) and len(self.found.integers) < 8:
            self.found.integers.append(argument)

    def _name(self, module: str, attribute: str, at: int) -> None:
        if (module, attribute) in _compat_pickle.NAME_MAPPING:
            module, attribute = _compat_pickle.NAME_MAPPING[module, attribute]
        else:
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        name = f"{module}.{attribute}"
        if name not in self.found.globals and len(self.found.globals) >= MAX_NAMED:
            raise TooLargeError(f"more than {MAX_NAMED} globals")
        self.found.globals.setdefault(name, at)

    def _move(self, opcode: pickletools.OpcodeInfo) -> None:
        """Apply an opcode's effect on the stack."""
        before = opcode.stack_before
        if _MARK in before:
            while self._top() is not _MARK:
                self._stack.pop()
            self._stack.pop()
            self._pop(before.index(_MARK))
        else:
            self._pop(len(before))
        self._stack.extend(_MARK if kind is _MARK else _OTHER for kind in opcode.stack_after)

    def _put(self, key: object) -> None:
        """Remember the top of the stack under `key`."""
        value = self._top()
        self._memoized += 1
        if isinstance(value, str):
            self._memo[key] = value
        elif key in self._memo:
            del self._memo[key]
        if len(self._memo) > MAX_MEMO:
            raise TooLargeError(f"more than {MAX_MEMO} strings to remember")

    def _top(self) -> object:
        if not self._stack:
            raise _MalformedError("the stack is empty")
        return self._stack[-1]

    def _pop(self, count: int, *, marks: bool = False) -> None:
        for _ in range(count):
            if self._top() is _MARK and not marks:
                raise _MalformedError("a mark where a value must be")
            self._stack.pop()
