# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Plain values in a checkpoint's index, with their exact types.

Rules: types count exactly (a numpy float is a float to Python, and would come back as another
type); floats are kept bit by bit (hexadecimal, infinities and NaN included); integers of any size;
nesting and sizes are bounded both ways, and what a form says of its size is compared with its bytes
before anything is made. Nothing is looked up by name and nothing is called, so decoding cannot run
code.

What belongs to numpy and torch is a `Foreign` here, so that a verifier checks it without either;
`checkpoint.values` makes the values.
"""

import base64
import binascii
import re
from collections import Counter, OrderedDict, defaultdict
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from itertools import pairwise
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final, TypeAlias

import msgspec

from securetrain.artifacts.tree.foreign import (
    MAX_ARRAY,
    MAX_TEXT,
    SAFE_INT,
    Array,
    Describe,
    Dtype,
    Foreign,
    Make,
    Parts,
    Size,
    a_bytes,
    a_list,
    a_string,
    an_int,
    check_content,
    check_shape,
    read_foreign,
    same,
)
from securetrain.core.errors import IntegrityError, UsageError

MAX_DEPTH: Final = 32
MAX_ITEMS: Final = 1_000_000
MAX_INT_DIGITS: Final = 4096
Coded: TypeAlias = Any
"""JSON: null, a boolean, a string, an integer up to 2^53-1, or an object with one key, its type."""

PLAIN: Final = frozenset({"int", "float", "bytes", "list", "tuple", "dict"})
"""The tags of the first version of the index; the others came with the second."""

_FACTORIES: Final[dict[str, Any]] = {
    "": None,
    **{kind.__name__: kind for kind in (bool, complex, dict, float, int, list, set, str, tuple)},
}
_MAPPINGS: Final[dict[str, type]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}
_BELOW_A_SECOND: Final = re.compile(r"([+-])00:00:00\.([0-9]{6})$")
_FIX: Final = (
    "turn it into a tensor, an array of numbers, or plain values; docs/how-to/signed-checkpoints.md"
    " lists the types"
)
_HINTS: Final[dict[str, str]] = {
    "numpy.random._generator.Generator": "save generator.bit_generator.state",
    "numpy.random.mtrand.RandomState": "save its get_state()",
    "random.Random": "save its getstate()",
    "torch._C.Generator": "save its get_state()",
    "torch.device": "save str(device)",
    "zoneinfo.ZoneInfo": "save the time in UTC",
}


def encode(value: object, name: str, describe: Describe | None = None) -> Coded:
    """The JSON form of a value.

    Args:
        value: the value to keep.
        name: its name in the state dict, for the error.
        describe: knows the values of numpy and torch; without it they are refused.

    Raises:
        UsageError: ST-USAG-013 when its type has no place in the format.
    """
    return _Encoder(name, describe).encode(value, 0)


def decode(coded: Coded, name: str, make: Make | None = None) -> Any:
    """The value of a JSON form.

    Args:
        coded: the form.
        name: its name in the state dict, for the error.
        make: makes the values of numpy and torch; without it they stay `Foreign`, checked.

    Raises:
        IntegrityError: ST-CKPT-191 when it is not one that `encode` makes.
    """
    return _Decoder(name, make).decode(coded, 0)


def is_plain(coded: Coded) -> bool:
    """Tell whether a form has only tags of the index's first version."""
    if isinstance(coded, dict):
        return all(tag in PLAIN and is_plain(body) for tag, body in coded.items())
    if isinstance(coded, list | tuple):
        return all(is_plain(item) for item in coded)
    return True


def parts_of(coded: Coded) -> Parts | None:
    """The description of a value whose bytes are in tensors of their own, else None."""
    if isinstance(coded, dict) and "parts" in coded:
        parts = decode(coded, "")
        assert isinstance(parts, Parts)
        return parts
    return None


class _Encoder:
    def __init__(self, name: str, describe: Describe | None) -> None:
        self.name = name
        self.describe = describe
        self.items = 0

    def encode(self, value: object, depth: int) -> Coded:
        self.items += 1
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            raise self._refused(f"nested deeper than {MAX_DEPTH} or more than {MAX_ITEMS} items")
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._text(value)
        if kind is int:
            return self._integer(value)
        if kind is float:
            return {"float": value.hex()}  # type: ignore[attr-defined]
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}  # type: ignore[arg-type]
        return self._container(value, kind, depth)

    def _container(self, value: Any, kind: type, depth: int) -> Coded:
        if kind is list or kind is tuple:
            return {kind.__name__: [self.encode(item, depth + 1) for item in value]}
        if kind in _MAPPINGS.values():
            return {kind.__name__: self._pairs(value, depth)}
        if kind is defaultdict:
            factory = value.default_factory
            found = [name for name, known in _FACTORIES.items() if known is factory]
            if not found:
                raise self._refused(
                    f"a defaultdict that calls {factory!r}", "save dict(value) in its place"
                )
            return {"defaultdict": [found[0], self._pairs(value, depth)]}
        if kind is set or kind is frozenset:
            found = sorted((self.encode(item, depth + 1) for item in value), key=_order)
            self._all_differ(found)
            return {kind.__name__: found}
        return self._scalar(value, kind)

    def _pairs(self, value: Any, depth: int) -> list[list[Coded]]:
        pairs = [
            [self.encode(key, depth + 1), self.encode(item, depth + 1)]
            for key, item in value.items()
        ]
        if not all(type(key) is str for key in value):
            self._all_differ([key for key, _ in pairs])
        return pairs

    def _all_differ(self, found: list[Coded]) -> None:
        """Refuse what Python tells apart by identity alone (NaN, tensors), and a reader cannot."""
        if len({_order(one) for one in found}) != len(found):
            raise self._refused("two members or keys of one value that are written alike")

    def _scalar(self, value: Any, kind: type) -> Coded:
        if kind is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if kind is datetime:
            return {"datetime": [self._time(value), value.fold]}
        if kind is date:
            return {"date": value.isoformat()}
        if kind is timedelta:
            return {"timedelta": [value.days, value.seconds, value.microseconds]}
        if kind is type(Path()) or kind is PurePosixPath:
            text = self._text(str(value))
            if len(text) > MAX_TEXT:
                raise self._refused(f"a path of {len(text)} characters")
            return {"purepath" if kind is PurePosixPath else "path": text}
        if self.describe is not None and (found := self.describe(value, self.name)) is not None:
            return self._foreign(found)
        what = f"a value of type {kind.__module__}.{kind.__qualname__}"
        if isinstance(value, Enum):
            raise self._refused(
                f"{what}, an enum", f"save its value, {value.value!r:.80}, and look it up again"
            )
        raise self._refused(what, _HINTS.get(f"{kind.__module__}.{kind.__qualname__}", ""))

    def _time(self, value: datetime) -> str:
        zone = value.tzinfo
        if zone is not None:
            offset = value.utcoffset()
            plain = type(zone) is timezone and offset is not None
            if not plain or str(zone) != str(UTC if not offset else timezone(offset)):
                raise self._refused(
                    f"a time in {zone!r}, whose rules are not in the value", "save it in UTC"
                )
        return value.isoformat()

    def _foreign(self, value: Foreign) -> Coded:
        try:
            return self._form(value)
        except ValueError as error:
            raise self._refused(str(error)) from error

    def _form(self, value: Foreign) -> Coded:
        match value:
            case Array():
                if len(value.data) > MAX_ARRAY:
                    raise self._refused(
                        f"an array of {len(value.data)} bytes inside of a value",
                        "give it a name of its own in a dict, so that it is stored as data",
                    )
                check_content(value.tag, value.dtype, value.shape, value.data)
                data = base64.b64encode(value.data).decode()
                shape = [] if value.tag == "numpy" else [list(value.shape)]
                return {value.tag: [value.dtype, *shape, data]}
            case Dtype():
                return {"dtype": value.name}
            case Size():
                check_shape(value.sizes)
                return {"size": list(value.sizes)}
            case Parts():
                check_shape(value.shape)
                return {"parts": [value.form, list(value.shape), value.dtype, value.coalesced]}
            case _:
                raise ValueError(f"unknown form {value!r}")

    def _text(self, value: Any) -> Coded:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self._refused(f"a string that is not Unicode text: {error.reason}") from error
        return value

    def _integer(self, value: Any) -> Coded:
        if abs(value) <= SAFE_INT:
            return value
        if value.bit_length() > 3 * MAX_INT_DIGITS:
            raise self._refused(f"an integer of {value.bit_length()} bits")
        return {"int": str(value)}

    def _refused(self, what: str, fix: str = "") -> UsageError:
        return UsageError("ST-USAG-013", what, self.name, fix or _FIX)


class _Decoder:
    def __init__(self, name: str, make: Make | None) -> None:
        self.name = name
        self.make = make
        self.items = 0

    def decode(self, coded: Coded, depth: int) -> Any:
        self.items += 1
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            raise self._refused("nested too deeply or too long")
        kind = type(coded)
        if coded is None or kind is bool or kind is str or kind is int:
            return coded
        if kind is not dict or len(coded) != 1:
            raise self._refused(f"{kind.__name__} where a typed value belongs")
        ((tag, body),) = coded.items()
        try:
            return self._tagged(tag, body, depth)
        except (ValueError, OverflowError, binascii.Error) as error:
            raise self._refused(f"{tag!r}: {error}") from error

    def _tagged(self, tag: str, body: Any, depth: int) -> Any:
        match tag:
            case "list" | "tuple":
                items = [self.decode(item, depth + 1) for item in a_list(body)]
                return items if tag == "list" else tuple(items)
            case "dict" | "OrderedDict" | "Counter":
                return self._dictionary(a_list(body), _MAPPINGS[tag](), depth)
            case "defaultdict":
                factory, pairs = a_list(body, 2)
                if not isinstance(factory, str) or factory not in _FACTORIES:
                    raise ValueError(f"it calls {factory!r:.80}")
                found: dict[Any, Any] = defaultdict(_FACTORIES[factory])
                return self._dictionary(a_list(pairs), found, depth)
            case "set" | "frozenset":
                return self._set(tag, a_list(body), depth)
            case "int" | "float" | "bytes" | "date" | "path" | "purepath":
                return _scalar(tag, body)
            case "complex" | "datetime" | "timedelta":
                return _compound(tag, a_list(body))
            case _:
                return self._foreign(read_foreign(tag, body), depth)

    def _foreign(self, value: Foreign, depth: int) -> Any:
        if isinstance(value, Parts):
            # Whoever asked for the value puts it together: its bytes are not here.
            if depth:
                raise ValueError("inside of another value")
            return value
        return value if self.make is None else self.make(value)

    def _set(self, tag: str, body: list[Any], depth: int) -> Any:
        orders = [_order(item) for item in body]
        if any(low >= high for low, high in pairwise(orders)):
            raise ValueError("not sorted, or one member twice")
        items = [self.decode(item, depth + 1) for item in body]
        try:
            found = (set if tag == "set" else frozenset)(items)
        except TypeError as error:
            raise self._refused(f"a set's member that is not hashable: {error}") from error
        if len(found) != len(items):
            raise ValueError("one member twice")
        return found

    def _dictionary(self, body: list[Any], result: Any, depth: int) -> Any:
        for pair in body:
            if not isinstance(pair, list) or len(pair) != 2:
                raise self._refused("a dict entry that is not a pair")
            key = self.decode(pair[0], depth + 1)
            try:
                if key in result:
                    raise self._refused("a dict with a key twice")
                result[key] = self.decode(pair[1], depth + 1)
            except TypeError as error:
                raise self._refused(f"a dict key that is not hashable: {error}") from error
        return result

    def _refused(self, what: str) -> IntegrityError:
        return IntegrityError("ST-CKPT-191", f"not a value of the native format: {what}", self.name)


def _order(coded: Coded) -> bytes:
    """The order of a set's members: that of their bytes in the index."""
    return msgspec.json.encode(coded, order="sorted")


def _float(body: Any) -> float:
    value = float.fromhex(a_string(body, 64))
    same(value.hex(), body)
    return value


def _scalar(tag: str, body: Any) -> Any:
    match tag:
        case "int":
            number = int(a_string(body, MAX_INT_DIGITS))
            same(str(number), body)
            return number
        case "float":
            return _float(body)
        case "bytes":
            return a_bytes(body)
        case "date":
            day = date.fromisoformat(a_string(body))
            same(day.isoformat(), body)
            return day
        case "path" | "purepath":
            path: PurePath = (Path if tag == "path" else PurePosixPath)(a_string(body))
            same(str(path), body)
            return path
        case _:
            raise ValueError("an unknown type")


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is UTC and (below := _BELOW_A_SECOND.search(text)):
        # `fromisoformat` takes an offset of less than a second for none.
        return time.replace(tzinfo=timezone(timedelta(microseconds=int(below[1] + below[2]))))
    return time


def _compound(tag: str, body: list[Any]) -> Any:
    match tag, body:
        case "complex", [real, imaginary]:
            return complex(_float(real), _float(imaginary))
        case "datetime", [text, fold]:
            time = _time(a_string(text)).replace(fold=an_int(fold, 1))
            same(time.isoformat(), text)
            return time
        case "timedelta", [days, seconds, microseconds] if all(type(x) is int for x in body):
            span = timedelta(days, seconds, microseconds)
            same([span.days, span.seconds, span.microseconds], body)
            return span
        case _:
            raise ValueError("not the list that belongs here")
