# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Canonical JSON (RFC 8785), read strictly.

Rules, in order:

1. input is at most ``limit`` bytes, checked before anything is parsed;
2. UTF-8 without BOM or lone surrogates; nesting is bounded by the interpreter's recursion limit;
3. duplicate object keys, NaN and infinities are refused;
4. ``decode`` checks the schema with unknown fields forbidden (msgspec structs say so themselves);
5. ``decode(..., canonical=True)`` also refuses any other spelling of the same value, so that a
   signed document has exactly one byte string.
"""

import json
from typing import Any, Final, TypeVar

import msgspec
import rfc8785

from securetrain.core.errors import UsageError

DEFAULT_LIMIT: Final = 16 << 20

T = TypeVar("T")


def dumps(value: Any) -> bytes:
    """The canonical bytes of plain data (dict, list, str, int, float, bool, None)."""
    return rfc8785.dumps(value)


def encode(value: Any) -> bytes:
    """The canonical bytes of a msgspec struct or plain data."""
    return dumps(msgspec.to_builtins(value))


def loads(data: bytes, *, limit: int = DEFAULT_LIMIT, where: str = "") -> Any:
    """Parse JSON strictly.

    Raises:
        UsageError: ST-USAG-008, naming `where`.
    """
    if len(data) > limit:
        raise _bad(f"{len(data)} bytes, the limit is {limit}", where)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
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
    value = loads(data, limit=limit, where=where)
    try:
        if canonical and dumps(value) != data:
            raise _bad("not in canonical form (RFC 8785)", where)
        return msgspec.convert(value, type, strict=True)
    except (msgspec.ValidationError, rfc8785.CanonicalizationError, RecursionError) as error:
        raise _bad(str(error), where) from error


def _bad(what: str, where: str) -> UsageError:
    return UsageError("ST-USAG-008", f"not valid: {what}", where)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return result


def _no_constants(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
