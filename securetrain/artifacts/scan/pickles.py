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
4. nothing is resolved, imported or called;
5. the arrays that joblib writes between opcodes are stepped over, or read as the pickles that they
   are: a ``NumpyArrayWrapper`` with its state stands in the pickle, and right behind the opcode
   that sets the state lie the array's bytes, which one that knows no joblib takes for opcodes;
6. texts that make a loader call something (`_instantiator`, `_target_`) are noted with what they
   name; a text that is made by a codec, which could be one of them, cannot be followed;
7. a pickle makes as much as its bytes are, but for what a number in it makes: lengths of ``range``,
   ``bytes`` and arrays are added up (`MAX_MADE`), each of torch's storages has the size that it is
   said to have (`Analysis.storages`), and every tensor lies inside its storage.

Sources: Lib/pickletools.py and PEP 3154, PEP 574; joblib/numpy_pickle.py
(NumpyArrayWrapper.read_array); torch/_utils.py.
"""

import _compat_pickle
import math
import pickletools
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Final, NamedTuple, cast

from securetrain.artifacts.scan.findings import MALFORMED, UNJUDGED, Remark
from securetrain.artifacts.scan.formats import Skipped, TooLargeError, Window
from securetrain.artifacts.scan.safe_globals import DTYPE_NAMES, MODELS, STORAGES, STORED
from securetrain.artifacts.tree.foreign import DTYPES

MAX_OPCODES: Final = 50_000_000
MAX_STACK: Final = 1_000_000
MAX_MEMO: Final = 2_000_000
"""Strings that are remembered; other values need no memory."""
MAX_NAMED: Final = 1000
"""Distinct globals that are listed for one pickle."""
MAX_MADE: Final = 1 << 24
"""Values and bytes that numbers in one pickle may make."""

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
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CALLERS: Final = frozenset({"_target_", "_instantiator", "_class_path"})
_ENCODE: Final = "_codecs.encode"
_TEXT: Final = "builtins.str"
_WRAPPERS: Final = frozenset(
    f"{package}.numpy_pickle.NumpyArrayWrapper"
    for package in ("joblib", "sklearn.externals.joblib")
)
_DTYPE: Final = "numpy.dtype"
_DTYPE_CODE: Final = re.compile(r"[<>=|]?([biufcSUVmMO])(\d{1,9})")
_ITEM_REFCOUNT: Final = 0x1
"""The flag of a type with objects in it (numpy/ndarraytypes.h)."""
_MAKERS: Final = {
    "builtins.range": 0, "builtins.bytearray": 0, "builtins.bytes": 0, "numpy.ndarray": 0,
    "numpy._core.multiarray._reconstruct": 1, "numpy.core.multiarray._reconstruct": 1,
    "torch.Tensor": 0, **dict.fromkeys(STORAGES, 0),
}  # fmt: skip
"""What makes as much as a number says, and which argument is the first that does."""
_TENSORS: Final = frozenset(
    f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3", "qtensor")
)
_TRACKED: Final = frozenset({*_WRAPPERS, *_MAKERS, *_TENSORS})
"""The names from which on numbers and tuples are followed, too."""
_FOLLOWED: Final = frozenset({*_TRACKED, *DTYPE_NAMES, _DTYPE, _ENCODE, _TEXT})
_BYTES: Final = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
_STOPS: Final = re.compile(r"unknown|remain|not enough data|exhausted|the stack is|a mark where")
"""Parts of what is said where every unpickler stops."""
_PLAIN_CODECS: Final = frozenset({"latin1", "latin_1", "ascii", "utf8", "utf_8"})
MAX_NESTED: Final = 8
_CODES: Final = frozenset(one.code.encode("latin-1") for one in pickletools.opcodes)
_MARK: Final = pickletools.markobject
_OTHER: Final = object()
_WRAPPER: Final = object()
"""An array that follows."""


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
    callers: list[tuple[str, str, int]] = field(default_factory=list)
    """Texts that make a loader call something, the text behind each, and where."""
    has_pickled_arrays: bool = False
    """Whether joblib's arrays of objects are in it."""
    end: int = 0
    """One past the STOP opcode, from the start of the window."""
    problem: str = ""
    """Why it could not be read to its end."""
    too_large: bool = False
    """Whether the reason is its size."""
    storages: dict[str, int] = field(default_factory=dict)
    """Bytes of each of torch's storages, by key."""
    sizes: list[Remark] = field(default_factory=list)
    """Sizes that cannot be so, cannot be told, or are too large."""

    @property
    def unsafe(self) -> dict[str, int]:
        """The globals that are not on the allow-list."""
        return {name: at for name, at in self.globals.items() if name not in STORED}

    @property
    def alarming(self) -> dict[str, int]:
        """Those that models do not name either."""
        return {name: at for name, at in self.unsafe.items() if name not in MODELS}

    def include(self, inner: "Analysis") -> None:
        """Add the effects of a pickle inside this one."""
        for name, at in inner.globals.items():
            self.globals.setdefault(name, at)
        self.unfollowed += inner.unfollowed
        self.callers += inner.callers
        self.sizes += inner.sizes
        self.opcodes.update(inner.opcodes)

    @property
    def stops(self) -> bool:
        """Tell whether every unpickler stops where this one did, so that nothing comes after."""
        return bool(_STOPS.search(self.problem))

    @property
    def calls(self) -> int:
        """The number of opcodes that call something or set somebody's state."""
        return sum(count for name, count in self.opcodes.items() if name in _CALLS)


class _MalformedError(ValueError):
    """An unpickler would stop here."""


@dataclass(slots=True)
class _Named:
    """A class that counts here."""

    name: str


@dataclass(slots=True)
class _Dtype:
    """A numpy dtype, which the memo may have, too, before its state is set."""

    size: int
    """Bytes of an item."""
    is_object: bool
    """Whether it holds objects."""


class _UnknownArrayError(ValueError):
    """The bytes of an array cannot be told."""


class _Storage(NamedTuple):
    """A storage of torch: its elements, and the bytes of each."""

    length: int
    width: int


def analyse(window: Window, offset: int = 0) -> Analysis:
    """Read the pickle at `offset` of a window. Raises nothing about its content."""
    found = _analyse(window, offset, 0)
    if found.has_pickled_arrays:
        # What knows nothing of joblib reads on with the memo that it has: other names may come out.
        plain = _analyse(window, offset, None)
        if not found.problem and (plain.unfollowed or set(plain.alarming) - set(found.alarming)):
            found.problem, found.too_large = "an array of objects that two loaders read", True
    return found


def _analyse(window: Window, offset: int, depth: int | None) -> Analysis:
    """Read a pickle; without a depth, as one that knows nothing of joblib."""
    machine = _Machine()
    window.seek(offset)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in strings of protocol 0
            for opcode, argument, at in pickletools.genops(cast("IO[bytes]", window)):
                machine.step(opcode, argument, at or 0)
                if machine.array is not None and depth is not None:
                    _step_over(window, machine, depth)
    except (TooLargeError, _UnknownArrayError) as error:
        machine.found.problem, machine.found.too_large = str(error), True
    except (ValueError, TypeError, OverflowError, AttributeError, MemoryError) as error:
        machine.found.problem = f"{error}" or type(error).__name__
    machine.found.end = window.tell()
    return machine.found


def _step_over(window: Window, machine: "_Machine", depth: int) -> None:
    """Rule 5.

    Raises:
        UnknownArrayError: where the array ends is not known.
    """
    state, machine.array = machine.array, None
    at = window.tell()
    end = _array_end(window, at, state)
    if end is None:
        if depth >= MAX_NESTED:
            raise _UnknownArrayError("arrays of objects in arrays of objects")
        inner = _analyse(window, at, depth + 1)
        machine.found.include(inner)
        machine.found.has_pickled_arrays = True
        end = inner.end
        if inner.problem:
            raise _UnknownArrayError(f"an array of objects: {inner.problem}")
    elif window.peek(at, 1) in _CODES:
        # What knows nothing of joblib would go on here.
        raise _UnknownArrayError("an array of joblib that begins like an opcode")
    window.seek(end)


class _Machine:
    """The stack of an unpickler in which only strings, and what arrays need, have a value."""

    def __init__(self) -> None:
        self.found = Analysis()
        self._stack: list[object] = []
        self._memo: dict[object, object] = {}
        self._memoized = 0
        self._count = 0
        self._tracking = False
        """Whether numbers and tuples count."""
        self._made = 0
        self.array: object | None = None
        """The state of an array whose bytes are next."""

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
                self._text(argument, at)
                self._stack.append(argument)
            case "MEMOIZE":
                self._put(self._memoized)
            case _ if name in _PUTS:
                self._put(argument)
            case _ if name in _GETS:
                value = self._memo.get(argument, _OTHER)
                self._text(value, at)
                self._stack.append(value)
            case "DUP":
                self._stack.append(self._top())
            case "POP":
                self._pop(1, marks=True)
            case _:
                self._other(opcode, argument, at)

    def _other(self, opcode: pickletools.OpcodeInfo, argument: object, at: int) -> None:
        made = self._call(opcode.name, argument, at)
        if made is _OTHER:
            made = self._make(opcode.name, argument, at)
        self._move(opcode)
        if made is not _OTHER and self._stack and opcode.stack_after:
            self._stack[-1] = made

    def _text(self, value: object, at: int) -> None:
        """Rule 6.

        Raises:
            TooLargeError: it was stepped over.
        """
        if isinstance(value, Skipped):
            raise TooLargeError("a string too long to be read")
        if not isinstance(value, str):
            return
        callers = self.found.callers
        if callers and not callers[-1][1] and value not in _CALLERS:
            callers[-1] = (callers[-1][0], value or "?", callers[-1][2])
        if value in _CALLERS and len(callers) < MAX_NAMED:
            callers.append((value, "", at))

    def _make(self, name: str, argument: object, at: int) -> object:
        """Return the value that an opcode leaves, where an array needs it."""
        top = self._stack[-2:]
        if name in _TUPLES and len(self._stack) >= _TUPLES[name]:
            return tuple(self._stack[len(self._stack) - _TUPLES[name] :])
        if name == "REDUCE" and len(top) == 2 and isinstance(top[0], _Named):
            if _is_recoded(top[0].name, top[1]):
                self.found.unfollowed.append(at)
            made = _dtype_of(top[1]) if top[0].name == _DTYPE else None
            if made is not None or top[0].name == _ENCODE:
                return made or b""
        if name == "BUILD" and len(top) == 2 and isinstance(top[0], _Dtype):
            flags = top[1][-1] if isinstance(top[1], tuple) and top[1] else 0
            top[0].is_object |= isinstance(flags, int) and bool(flags & _ITEM_REFCOUNT)
            return top[0]
        if not self._tracking and name != "TUPLE":
            return _OTHER
        self._size(name, top, at)
        return self._make_tracked(name, argument, top, at)

    def _size(self, name: str, top: list[object], at: int) -> None:
        """Rule 7, for a call."""
        called = top[0].name if len(top) == 2 and isinstance(top[0], _Named) else ""
        if name in ("REDUCE", "NEWOBJ") and called in _TENSORS:
            if what := _outside(top[1]):
                self.found.sizes.append(Remark(MALFORMED, what, at))
        elif name in ("REDUCE", "NEWOBJ") and called in _MAKERS:
            made = _made(top[1], _MAKERS[called])
            self._made += made if made is not None else MAX_MADE + 1
            if self._made > MAX_MADE:
                what = f"{called} of a size that is too large, or not told"
                self.found.sizes.append(Remark(UNJUDGED, what, at))
        elif name in ("OBJ", "INST", "NEWOBJ_EX") and any(
            one in _MAKERS for one in self.found.globals
        ):
            self.found.sizes.append(Remark(UNJUDGED, "a value of a size that cannot be told", at))

    def _storage(self, pid: object, at: int) -> object:
        """A storage, by what torch calls a persistent id."""
        match pid:
            case ("storage", _Named(name=name), str(key), _, int(count), *_) if name in STORAGES:
                made = _Storage(count, STORAGES[name])
                size = made.length * made.width
                if count < 0:
                    what = f"storage {key[:40]!r} of {count} elements"
                    self.found.sizes.append(Remark(MALFORMED, what, at))
                self.found.storages[key] = max(size, self.found.storages.get(key, 0))
                return made
        return _OTHER

    def _make_tracked(self, name: str, argument: object, top: list[object], at: int) -> object:
        if isinstance(argument, int):
            return argument
        if name in _BYTES:
            return b""
        if name == "BINPERSID":
            return self._storage(top[-1] if top else None, at)
        if name == "TUPLE":
            above = self._above_mark()
            return tuple(above) if len(above) <= 64 else _OTHER
        if name == "NEWOBJ" and len(top) == 2 and isinstance(top[0], _Named):
            return _WRAPPER if top[0].name in _WRAPPERS else _OTHER
        if name == "EMPTY_DICT":
            return {}
        if name == "SETITEMS":
            above = self._above_mark()
            below = self._stack[-len(above) - 2] if len(self._stack) > len(above) + 1 else None
            if isinstance(below, dict) and len(above) <= 64:
                pairs = zip(above[::2], above[1::2], strict=False)
                return below | {key: value for key, value in pairs if isinstance(key, str)}
        if name == "BUILD" and len(top) == 2 and top[0] is _WRAPPER:
            self.array = top[1]
        return _OTHER

    def _above_mark(self) -> list[object]:
        """The values above the topmost mark."""
        for depth in range(1, min(len(self._stack), 130) + 1):
            if self._stack[-depth] is _MARK:
                return self._stack[len(self._stack) - depth + 1 :]
        return [_OTHER] * 65

    def _call(self, name: str, argument: object, at: int) -> object:
        """Note what an opcode names; return it when an array needs it."""
        if name == "STACK_GLOBAL":
            self._top()
            module, attribute = self._stack[-2:] if len(self._stack) > 1 else (_OTHER, _OTHER)
            if isinstance(module, str) and isinstance(attribute, str):
                return self._name(module, attribute, at)
            self.found.unfollowed.append(at)
        elif name in ("GLOBAL", "INST"):
            # pickletools joins the two lines by a space; no module has one in its name.
            module_name, _, attribute_name = str(argument).partition(" ")
            return self._name(module_name, attribute_name, at)
        elif name in _EXTENSIONS:
            self.found.unfollowed.append(at)
        elif isinstance(argument, int) and len(self.found.integers) < 8:
            self.found.integers.append(argument)
        return _OTHER

    def _name(self, module: str, attribute: str, at: int) -> object:
        if (module, attribute) in _compat_pickle.NAME_MAPPING:
            module, attribute = _compat_pickle.NAME_MAPPING[module, attribute]
        else:
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        name = f"{module}.{attribute}"
        if name not in self.found.globals and len(self.found.globals) >= MAX_NAMED:
            raise TooLargeError(f"more than {MAX_NAMED} globals")
        self.found.globals.setdefault(name, at)
        self._tracking |= name in _TRACKED
        return _Named(name) if name in _FOLLOWED else _OTHER

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
        kept = (str, bytes, int, tuple) if self._tracking else str
        if isinstance(value, (_Named, _Dtype, kept)):
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


def _made(arguments: object, first: int) -> int | None:
    """The values and bytes that the numbers of a call make; None when they cannot be told."""
    if not isinstance(arguments, tuple) or len(arguments) <= first:
        return 0 if arguments == () else None
    wanted = arguments[first:] if first == 0 else arguments[first : first + 1]
    made = 0
    for one in wanted:
        if isinstance(one, tuple) and all(type(length) is int for length in one):
            made += abs(math.prod(one)) if len(one) < 64 else MAX_MADE + 1
        elif type(one) is int:
            made += abs(one)
        elif not isinstance(one, (str, bytes)):
            return None
    return made


def _outside(arguments: object) -> str:
    """Explain why a tensor does not lie inside its storage; empty when it does."""
    match arguments:
        case (_Storage() as storage, int(offset), tuple(shape), tuple(strides), *more):
            if len(shape) != len(strides) or not all(
                type(one) is int and one >= 0 for one in (offset, *shape, *strides)
            ):
                return f"a tensor of shape {shape!r:.80} with strides {strides!r:.80}"
            last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
            width = _width(more) or storage.width
            end = (offset + last + 1) * width if all(shape) else 0
            room = storage.length * storage.width
            return f"a tensor that ends at byte {end} of {room}" if end > room else ""
    return "a tensor whose storage, shape or strides cannot be followed"


def _width(more: list[object]) -> int:
    """Bytes of an element, when the call names a dtype of its own; else 0."""
    names = (one.name.removeprefix("torch.") for one in more if isinstance(one, _Named))
    return next((DTYPES[name] for name in names if name in DTYPES), 0)


def _is_recoded(name: str, arguments: object) -> bool:
    """Tell whether a call makes a text of bytes or by a codec that hides what it spells."""
    count = len(arguments) if isinstance(arguments, tuple) else 3
    if name == _TEXT:
        return count > 1
    codec = arguments[1] if isinstance(arguments, tuple) and count > 1 else "latin1"
    plain = isinstance(codec, str) and codec.lower().replace("-", "_") in _PLAIN_CODECS
    return name == _ENCODE and not plain


def _dtype_of(arguments: object) -> _Dtype | None:
    """The dtype that ``numpy.dtype(*arguments)`` is."""
    code = arguments[0] if isinstance(arguments, tuple) and arguments else None
    found = _DTYPE_CODE.fullmatch(code) if isinstance(code, str) else None
    if found is None:
        return None
    size = int(found[2]) * (4 if found[1] == "U" else 1)
    return _Dtype(size, is_object=found[1] == "O")


def _array_end(window: Window, at: int, state: object) -> int | None:
    """One past the array's bytes, which begin at `at`; None when it is a pickle.

    Raises:
        _UnknownArrayError: the state does not say it, or they do not lie inside the window.
    """
    if not isinstance(state, dict):
        raise _UnknownArrayError("an array of joblib whose state cannot be followed")
    dtype, shape = state.get("dtype"), state.get("shape")
    if not isinstance(dtype, _Dtype) or not isinstance(shape, tuple):
        raise _UnknownArrayError("an array of joblib whose type or shape cannot be followed")
    if dtype.is_object:
        return None
    if not all(type(length) is int and length >= 0 for length in shape):
        raise _UnknownArrayError("an array of joblib whose shape cannot be followed")
    if "numpy_array_alignment_bytes" in state:
        at += 1 + int.from_bytes(window.peek(at, 1), "little")
    end = at + math.prod(shape) * dtype.size
    if end > window.size:
        raise _UnknownArrayError(f"an array of joblib that ends at {end} of {window.size}")
    return end
