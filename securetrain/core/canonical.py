# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Canonical JSON (RFC 8785), read strictly.

Rules, in order:

1. input is at most ``limit`` bytes, checked before anything is parsed;
2. UTF-8 without BOM or lone surrogates; nesting is bounded by the interpreter's recursion limit;
3. duplicate object keys, NaN and infinities are refused;
4. ``decode`` checks the schema with unknown fields forbidden (msgspec structs say so themselves);
5. ``decode(..., canonical=True)`` also refuses any other spelling of the same value, so that a
   signed document has exactly one byte string. There, an integer of 2^53 or more is a float, as
   RFC 8785 spells one;
6. what cannot be read back is not written (`dumps`, `encode`): NaN and infinities, integers of 2^53
   or more, half of a surrogate pair, keys that are no strings, and times whose offset from UTC is
   no whole minute, which msgspec would round to another time.

Most of what is signed is plain: ASCII without escaped characters, and integers of fewer than 16
digits. Of such, msgspec's sorted output is the canonical form, and what it reads and writes again
byte for byte has no duplicate keys and no other spelling. A type whose values msgspec reads from
JSON as it converts them (`_is_exact`) is read at once. Everything else takes the slow way, which
alone refuses; a test compares both.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
import rfc8785
from msgspec import inspect

from securetrain.core.errors import UsageError

DEFAULT_LIMIT: Final = 16 << 20
_EXACT: Final = (1 << 53) - 1
_MINUTE: Final = timedelta(minutes=1)
_SLOW: Final = object()
_KINDS: Final = bytes.maketrans(b"0123456789,[", b"0000000000::")
_LONG: Final = b":" + 16 * b"0"
"""Integers that may not be exact as a double, as `_KINDS` shows them without their sign."""
_LONG_VALUE: Final = re.compile(rb'(?:":|[,\[])-?[0-9]{16}')
"""The same where a value stands: a colon follows the end of a key."""
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_PACKER: Final = msgspec.msgpack.Encoder(order="sorted")

T = TypeVar("T")


def _refuse_float(text: str) -> float:
    """Take the slow way: RFC 8785 spells floats as ECMAScript does."""
    raise ValueError(text)


_DECODER: Final = msgspec.json.Decoder(float_hook=_refuse_float)


def dumps(value: Any) -> bytes:
    """The canonical bytes of plain data (dict, list, str, int, float, bool, None).

    Raises:
        UsageError: ST-USAG-008, rule 6.
    """
    return _written(value, lambda one: one)


def _written(value: Any, seen_as: Callable[[Any], Any]) -> bytes:
    """The canonical bytes of plain data, which is what is read from them as `seen_as` shows both.

    Comparing finds what msgspec writes and JSON has not: keys that are no strings, bytes.
    """
    try:
        data = _ENCODER.encode(value)
        if _plain(data) and seen_as(_DECODER.decode(data)) == seen_as(value):
            return data
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
        pass
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise _unwritable(str(error)) from error


def encode(value: Any) -> bytes:
    """The canonical bytes of a msgspec struct or plain data.

    Raises:
        UsageError: ST-USAG-008, rule 6.
    """
    _check_times(value)
    # Where tuples are lists, as MessagePack has them; all else is plain now.
    return _written(msgspec.to_builtins(value), _PACKER.encode)


def encode_each(values: Sequence[Any]) -> list[bytes]:
    """The canonical bytes of each of many msgspec structs; they are looked at together."""
    for value in values:
        _check_times(value)
    try:
        each = [_ENCODER.encode(value) for value in values]
        whole = b"[" + b",".join(each) + b"]"
        plain = _PACKER.encode(msgspec.to_builtins(values))
        if _plain(whole) and _PACKER.encode(_DECODER.decode(whole)) == plain:
            return each
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
        pass
    return [encode(value) for value in values]


def _check_times(value: Any) -> None:
    if isinstance(value, msgspec.Struct):
        for name in _timed(type(value)):
            _check_times(getattr(value, name))
    elif isinstance(value, datetime):
        if (value.utcoffset() or _MINUTE) % _MINUTE:
            raise _unwritable(f"a time whose offset from UTC is {value.utcoffset()}")
    elif isinstance(value, list | tuple):
        for one in value:
            _check_times(one)
    elif isinstance(value, dict):
        for one in value.values():
            _check_times(one)


@cache
def _timed(type_: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a struct that may hold times, or anything."""
    fields: Sequence[Any] = getattr(inspect.type_info(type_), "fields", ())
    return tuple(field.name for field in fields if _may_be_timed(field.type))


def _may_be_timed(type_: inspect.Type) -> bool:
    asked: list[Any] = [type_]
    seen = set()
    while asked:
        match asked.pop():
            case inspect.DateTimeType() | inspect.AnyType():
                return True
            case inspect.StructType(cls=cls, fields=fields) if cls not in seen:
                seen.add(cls)
                asked += [field.type for field in fields]
            case inspect.DictType(value_type=inner) | inspect.Metadata(type=inner):
                asked.append(inner)
            case inspect.CollectionType(item_type=inner):
                asked.append(inner)
            case inspect.TupleType(item_types=inner) | inspect.UnionType(types=inner):
                asked += inner
            case _:
                pass
    return False


def spells(value: Any, data: bytes) -> bool:
    """Tell whether canonical bytes say all of what was read from them, defaults included.

    Args:
        value: A struct that `decode` made of the bytes.
        data: The bytes, which `decode` has found to be canonical.
    """
    # Canonical bytes that msgspec writes, too, need not be written by anybody else.
    return bool(_ENCODER.encode(value) == data) or encode(value) == data


def loads(data: bytes, *, limit: int = DEFAULT_LIMIT, where: str = "") -> Any:
    """Parse JSON strictly.

    Raises:
        UsageError: ST-USAG-008, naming `where`.
    """
    if len(data) > limit:
        raise _bad(f"{len(data)} bytes, the limit is {limit}", where)
    value = _load_plain(data)
    return _load_any(data, where) if value is _SLOW else value


def _plain(data: bytes) -> bool:
    """Tell whether plain data can only be spelled like this, if msgspec writes it so: what is
    taken for a long integer inside of a string only takes the slow way. A digest with its algorithm
    is not: of many, one begins with digits alone.
    """
    if not data.isascii() or data[:1] not in {b"{", b"["} or b"\\u" in data:
        return False
    return _LONG not in data.translate(_KINDS, b"-") or not _LONG_VALUE.search(data)


def _load_plain(data: bytes) -> Any:
    """The value of plain data in canonical form; `_SLOW` for any other bytes."""
    if not _plain(data):
        return _SLOW
    try:
        value = _DECODER.decode(data)
        return value if _ENCODER.encode(value) == data else _SLOW
    except (msgspec.MsgspecError, RecursionError):
        return _SLOW


def _load_any(data: bytes, where: str, whole: Callable[[str], float] = int) -> Any:
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_int=whole,
            parse_constant=_no_constants,
        )
        if b"\\u" in data:
            # Escapes can spell half of a surrogate pair, which no later step could encode.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise _bad(str(error), where) from error
    return value


def decode(
    data: bytes,
    type: type[T],  # noqa: A002 - the name msgspec uses
    *,
    limit: int = DEFAULT_LIMIT,
    where: str = "",
    canonical: bool = False,
) -> T:
    """Parse JSON strictly into `type`.

    Raises:
        UsageError: ST-USAG-008, naming `where` and the field.
    """
    if len(data) > limit:
        raise _bad(f"{len(data)} bytes, the limit is {limit}", where)
    if (read := decode_plain(data, type)) is not None:
        return read
    value = _load_plain(data)
    is_plain = value is not _SLOW
    if not is_plain:
        value = _load_any(data, where, _whole if canonical else int)
    try:
        if canonical and not is_plain and rfc8785.dumps(value) != data:
            raise _bad("not in canonical form (RFC 8785)", where)
        return msgspec.convert(value, type, strict=True)
    except (msgspec.ValidationError, rfc8785.CanonicalizationError, RecursionError) as error:
        raise _bad(str(error), where) from error


def decode_plain(data: bytes, type: type[T]) -> T | None:  # noqa: A002 - as above
    """Plain data in canonical form as a value of `type`, and None for everything else, which
    `decode` reads or refuses. The caller has seen to its size.
    """
    decoder = _decoder_of(type)  # type: ignore[arg-type]
    if decoder is None or not _plain(data):
        return None
    try:
        value: T = decoder.decode(data)
        return value if _ENCODER.encode(value) == data else None
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def decode_lines(data: bytes, type: type[T]) -> list[T] | None:  # noqa: A002 - as above
    """Lines, each plain data in canonical form and ended by a newline, as values of `type`: what
    `decode_plain` makes of each of them. None for everything else; the caller has seen to the
    sizes.
    """
    decoder = _decoder_of(type)  # type: ignore[arg-type]
    if decoder is None or not _plain(data):
        return None
    try:
        values: list[T] = decoder.decode_lines(data)
        # No newline is in what is written for a value: so the lines are the values, one by one.
        return values if _ENCODER.encode_lines(values) == data else None
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


@cache
def _decoder_of(type: Any) -> msgspec.json.Decoder[Any] | None:  # noqa: A002 - as above
    """A decoder of values of a type; None where the slow way might read another one, or none."""
    found = inspect.type_info(type)
    if not _is_exact(found, set()):
        return None
    return msgspec.json.Decoder(type, float_hook=_refuse_float)


def _is_exact(found: inspect.Type, seen: set[Any]) -> bool:
    """Tell whether JSON of a type has one reading: no floats, no keys that are not strings."""
    match found:
        case inspect.Metadata(type=inner):
            return _is_exact(inner, seen)
        case (
            inspect.AnyType()
            | inspect.NoneType()
            | inspect.BoolType()
            | inspect.IntType()
            | inspect.StrType()
            | inspect.DateTimeType()
            | inspect.EnumType()
            | inspect.LiteralType()
        ):
            return True
        case inspect.DictType(key_type=inspect.StrType(), value_type=inner):
            return _is_exact(inner, seen)
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return _is_exact(inner, seen)
        case inspect.TupleType(item_types=inner) | inspect.UnionType(types=inner):
            return all(_is_exact(one, seen) for one in inner)
        case inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return True
            return all(_is_exact(one.type, seen | {cls}) for one in fields)
        case _:
            return False


def _unwritable(what: str) -> UsageError:
    return UsageError("ST-USAG-008", f"cannot be written: {what}", fix="give another value")


def _bad(what: str, where: str) -> UsageError:
    return UsageError("ST-USAG-008", f"not valid: {what}", where)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"duplicate key {name[:80]!r}")
            seen.add(name)
    return result


def _whole(text: str) -> float:
    """An integer of canonical JSON: beyond what is exact as a double it was a float (rule 5)."""
    return int(text) if len(text) < len(str(_EXACT)) or abs(int(text)) <= _EXACT else float(text)


def _no_constants(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
