# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Params: the numbers and lists that a check compares with, and how far a policy may set them.

Rules:

1. a policy sets a param by check and name (``audit.params``), and only one with ``bounds``;
2. a value outside of the bounds is a mistake of the policy, never cut to fit;
3. of a list, the bounds are those of each element, and ``most`` is the number of them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from packaging.version import InvalidVersion, Version

MOST: int = 256


class ParamType(StrEnum):
    """The type of a param's value."""

    INT = "int"
    STR = "str"
    INTS = "ints"
    STRS = "strs"
    MODE = "mode"
    VERSION = "version"


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The values that a policy may give a param; without any of them, all of its type."""

    min: int | str | None = None
    """The least number, or the least version."""
    max: int | str | None = None
    """The largest number, or the mode whose bits are the only ones."""
    only: Annotated[tuple[int | str, ...], Meta(max_length=MOST)] = ()
    most: Annotated[int, Meta(ge=1, le=MOST)] = MOST


class Param(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number or list that a check compares with."""

    type: ParamType
    default: int | str | list[int | str]
    bounds: Bounds | None = None


_TYPES: Mapping[ParamType, Any] = {
    ParamType.INT: int,
    ParamType.STR: str,
    ParamType.INTS: list[int],
    ParamType.STRS: list[str],
    ParamType.MODE: Annotated[str, Meta(pattern=r"^[0-7]{4}\Z")],
    ParamType.VERSION: str,
}


def value_of(param: Param, raw: Any) -> Any:
    """A value of the param's type.

    Raises:
        ValueError: saying what does not fit.
    """
    try:
        value = msgspec.convert(raw, _TYPES[param.type], strict=True)
        if param.type is ParamType.VERSION:
            Version(value)
    except (msgspec.ValidationError, InvalidVersion) as error:
        raise ValueError(f"{error} (a value of the type {param.type})") from error
    return value


def set_by_policy(param: Param, raw: Any) -> Any:
    """A value that a policy gives the param.

    Raises:
        ValueError: saying what does not fit.
    """
    bounds = param.bounds
    if bounds is None:
        raise ValueError("the check lets no policy set this param")
    value = value_of(param, raw)
    each = value if isinstance(value, list) else [value]
    if len(each) > bounds.most:
        raise ValueError(f"{len(each)} values, at most {bounds.most}")
    for one in each:
        if why := _outside(param.type, bounds, one):
            raise ValueError(why)
    return value


def _outside(kind: ParamType, bounds: Bounds, value: Any) -> str:
    if bounds.only and value not in bounds.only:
        return f"{value} is not one of {', '.join(map(str, bounds.only))}"
    for limit, sign in ((bounds.min, -1), (bounds.max, 1)):
        if limit is not None and _beyond(kind, value, limit, sign):
            return f"{value} is {'more' if sign > 0 else 'less'} than {limit}"
    return ""


def _beyond(kind: ParamType, value: Any, limit: Any, sign: int) -> bool:
    match kind:
        case ParamType.INT | ParamType.INTS:
            return bool((value - limit) * sign > 0)
        case ParamType.MODE:
            return sign > 0 and int(value, 8) & ~int(limit, 8) != 0
        case ParamType.VERSION:
            return Version(value) > Version(limit) if sign > 0 else Version(value) < Version(limit)
        case _:
            return False  # text has no order: its bounds are `only`


def check_bounds(param: Param) -> None:
    """Check that the bounds are of the param's type and hold its default.

    Raises:
        ValueError: saying what does not fit.
    """
    if (bounds := param.bounds) is None:
        return
    single = {ParamType.INTS: ParamType.INT, ParamType.STRS: ParamType.STR}
    kind = single.get(param.type, param.type)
    limits = [one for one in (bounds.min, bounds.max) if one is not None]
    if limits and kind is ParamType.STR:
        raise ValueError("text has no min and max; list the values under only")
    if kind is ParamType.MODE and bounds.min is not None:
        raise ValueError("a mode has a max only")
    for one in (*limits, *bounds.only):
        value_of(Param(type=kind, default=0), one)
    set_by_policy(param, param.default)
