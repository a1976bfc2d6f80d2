# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Plain values in a checkpoint's index, with their exact types.

Rules: only int, float, str, bool, None, bytes, list, tuple and dict, by exact type (a numpy float
is a float to Python, and would come back as another type); floats are kept bit by bit (hexadecimal,
infinities and NaN included); integers of any size; nesting and sizes are bounded both ways. Nothing
is looked up by name and nothing is called, so decoding cannot run code.
"""

import base64
import binascii
from typing import Any, Final, TypeAlias

from securetrain.core.errors import IntegrityError, UsageError

MAX_DEPTH: Final = 32
MAX_ITEMS: Final = 1_000_000
MAX_INT_DIGITS: Final = 4096
SAFE_INT: Final = (1 << 53) - 1

Coded: TypeAlias = Any
"""JSON: null, a boolean, a string, an integer up to 2^53-1, or an object with one key, its type."""

_FIX: Final = (
    "turn it into a tensor or into int, float, str, bool, None, bytes, list, tuple or dict"
)


def encode(value: object, name: str) -> Coded:
    """The JSON form of a value.

    Args:
        value: the value to keep.
        name: its name in the state dict, for the error.

    Raises:
        UsageError: ST-USAG-013 when its type has no place in the format.
    """
    return _Encoder(name).encode(value, 0)


def decode(coded: Coded, name: str) -> Any:
    """The value of a JSON form.

    Raises:
        IntegrityError: ST-CKPT-191 when it is not one that `encode` makes.
    """
    return _Decoder(name).decode(coded, 0)


class _Encoder:
    def __init__(self, name: str) -> None:
        self.name = name
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
        if kind is list:
            return {"list": [self.encode(item, depth + 1) for item in value]}
        if kind is tuple:
            return {"tuple": [self.encode(item, depth + 1) for item in value]}
        if kind is dict:
            return {
                "dict": [
                    [self.encode(key, depth + 1), self.encode(item, depth + 1)]
                    for key, item in value.items()
                ]
            }
        raise self._refused(f"a value of type {kind.__module__}.{kind.__qualname__}")

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

    def _refused(self, what: str) -> UsageError:
        return UsageError("ST-USAG-013", what, self.name, _FIX)


class _Decoder:
    def __init__(self, name: str) -> None:
        self.name = name
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
        if tag in {"int", "float", "bytes"}:
            return self._scalar(tag, body)
        if not isinstance(body, list):
            raise self._refused(f"{tag!r} without a list")
        return self._container(tag, body, depth)

    def _scalar(self, tag: str, body: object) -> int | float | bytes:
        if not isinstance(body, str):
            raise self._refused(f"{tag!r} without a string")
        try:
            match tag:
                case "int" if len(body) <= MAX_INT_DIGITS:
                    value: int | float | bytes = int(body)
                    spelled = str(value)
                case "float" if len(body) <= 64:
                    value = float.fromhex(body)
                    spelled = value.hex()
                case "bytes":
                    value = base64.b64decode(body, validate=True)
                    spelled = base64.b64encode(value).decode()
                case _:
                    raise self._refused(f"{tag!r} is too long")
        except (ValueError, OverflowError, binascii.Error) as error:
            raise self._refused(f"{tag!r}: {error}") from error
        if spelled != body:
            raise self._refused(f"{tag!r} in another spelling than it is written in")
        return value

    def _container(self, tag: str, body: list[Any], depth: int) -> Any:
        match tag:
            case "list":
                return [self.decode(item, depth + 1) for item in body]
            case "tuple":
                return tuple(self.decode(item, depth + 1) for item in body)
            case "dict":
                return self._dictionary(body, depth)
            case _:
                raise self._refused(f"an unknown type {tag!r}")

    def _dictionary(self, body: list[Any], depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
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
