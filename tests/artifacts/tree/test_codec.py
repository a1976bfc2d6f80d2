# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math
import random
from collections import Counter, OrderedDict, defaultdict
from datetime import datetime, timedelta, timezone
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath, PureWindowsPath
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from securetrain.artifacts.tree import codec
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError
from tests.tables import each
from tests.vocabulary import refused

DAY = timedelta(hours=24, microseconds=-1)
offsets = (
    st.timedeltas(-DAY, DAY)
    | st.timedeltas(-timedelta(seconds=2), timedelta(seconds=2))
    | st.integers(-1439, 1439).map(lambda minutes: timedelta(minutes=minutes))
)
zones = st.none() | offsets.map(timezone)
any_text = st.text(st.characters(exclude_categories=()))  # with halves of surrogate pairs
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(
        [n + d for n in (2**53, -(2**53), 10**codec.MAX_INT_DIGITS) for d in (-1, 0, 1)]
    )
    | st.floats()
    | any_text
    | st.binary()
    | st.complex_numbers()
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.timedeltas()
    | st.text("abc/. ", max_size=9).map(Path)
    | st.text("abc/. ", max_size=9).map(PurePosixPath)
)
keys = (
    any_text
    | st.integers()
    | st.floats()
    | st.datetimes(timezones=zones)
    | st.tuples(st.integers(), st.text())
    | st.frozensets(st.integers(), max_size=3)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
        | st.dictionaries(keys, inner, max_size=4).map(lambda d: defaultdict(list, d))
        | st.dictionaries(keys, inner, max_size=4).map(Counter)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
    ),
    max_leaves=20,
)


def same(a: object, b: object) -> bool:
    """Equal with equal types all the way down, and -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return a.hex() == b.hex()
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, complex) and isinstance(b, complex):
        return same([a.real, a.imag], [b.real, b.imag])
    if isinstance(a, datetime) and isinstance(b, datetime):
        ours, theirs = ((one.isoformat(), one.utcoffset(), one.fold) for one in (a, b))
        return ours == theirs
    if isinstance(a, defaultdict) and isinstance(b, defaultdict):
        return a.default_factory is b.default_factory and same([*a.items()], [*b.items()])
    if isinstance(a, dict) and isinstance(b, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, set | frozenset) and isinstance(b, set | frozenset):
        return len(a) == len(b) and codec.encode(a, "") == codec.encode(b, "")  # NaN is not NaN
    return a == b


def coded_or_refused(value):
    try:
        return codec.encode(value, "x")
    except UsageError as error:
        return error


@given(values)
def test_what_is_written_comes_back_with_its_exact_types_or_is_refused_at_writing(value):
    coded = coded_or_refused(value)
    if isinstance(coded, UsageError):
        assert (coded.code, coded.where) == ("ST-USAG-013", "x")
        return
    raw = msgspec.json.encode(coded, order="sorted")
    assert raw == canonical.dumps(coded)
    assert same(codec.decode(msgspec.json.decode(raw), "x"), value)


@each("value", math.nan, math.inf, -math.inf, -0.0, 5e-324, 2**200, -(2**53))
def test_awkward_numbers(value):
    back = codec.decode(codec.encode(value, "x"), "x")
    assert type(back) is type(value)
    assert str(back) == str(value)


@pytest.mark.parametrize("seconds", [0, 1, 59, 60, 3661, 86399])
@pytest.mark.parametrize("microseconds", [0, 1, 999_999])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_with_any_offset_comes_back(seconds, microseconds, sign):
    """Python 3.11 writes an offset of less than a second, and reads it as none."""
    offset = sign * timedelta(seconds=seconds, microseconds=microseconds)
    time = datetime(987, 6, 5, 4, 3, 2, 1, tzinfo=timezone(offset))
    assert same(codec.decode(codec.encode(time, "x"), "x"), time)


class _Sub(float):
    pass


class _Callable:
    def __reduce__(self):
        raise AssertionError("nothing is ever pickled")


@each(
    "value",
    _Sub(1.0),
    object(),
    _Callable(),
    lambda: 1,
    range(3),
    bytearray(b"x"),
    "\ud800",
    Path("\ud800"),
    PureWindowsPath("x"),
    defaultdict(lambda: 1),
    datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(0), "named")),
    {_Sub(1.0)},
    {math.nan, -math.nan},
    {(1, math.nan): 1, (1, -math.nan): 2},
    (_Callable,),
    torch.float32,
    torch.zeros(1),
    np.float64(1.0),
    np.zeros(1),
)
def test_other_types_are_refused_by_name(value):
    refused(UsageError, "ST-USAG-013", codec.encode, {"a": [value]}, "opt.state", names="opt.state")


class _Colour(Enum):
    RED = "red"


class _Number(IntEnum):
    ONE = 1


@each(
    "value, advice",
    (_Colour.RED, "save its value, 'red'"),
    (_Number.ONE, "save its value, 1"),
    (np.random.default_rng(1), "bit_generator.state"),
    (np.random.RandomState(1), "get_state()"),
    (random.Random(1), "getstate()"),
    (torch.Generator(), "get_state()"),
    (torch.device("cpu"), "str(device)"),
)
def test_the_refusal_says_what_to_save_instead(value, advice):
    error = refused(UsageError, "ST-USAG-013", codec.encode, [value], "x")
    assert advice in error.fix


def test_a_set_has_one_form():
    """Equal sets iterate in any order; what is signed must not depend on it."""
    first, second = {"a", "b", 3, (4, 5)}, {(4, 5), 3, "b", "a"}
    assert codec.encode(first, "x") == codec.encode(second, "x")


def test_depth_and_size_are_bounded():
    deep: list[object] = []
    for _ in range(codec.MAX_DEPTH + 2):
        deep = [deep]
    with pytest.raises(UsageError):
        codec.encode(deep, "x")
    with pytest.raises(UsageError):
        codec.encode(1 << 20000, "x")
    coded: object = 1
    for _ in range(codec.MAX_DEPTH + 2):
        coded = {"list": [coded]}
    with pytest.raises(IntegrityError):
        codec.decode(coded, "x")


def test_false_forms_are_refused():
    false_forms: tuple[object, ...] = (
        1.5,
        [],
        {},
        {"int": 5},
        {"int": "0x10"},
        {"int": "1" * 5000},
        {"int": " 7"},
        {"float": "1.5"},
        {"float": "0x" + "1" * 100},
        {"bytes": "@@"},
        {"bytes": "QQ=="[:3]},
        {"list": 3},
        {"tuple": [1], "list": []},
        {"set": [2, 1]},
        {"set": [1, 1]},
        {"set": [1, True]},
        {"frozenset": [{"list": []}]},
        {"complex": ["0x1p+0", "0x1p+0"]},
        {"complex": ["0x1.0000000000000p+0"]},
        {"datetime": ["2026-01-01", 0]},
        {"datetime": ["2026-01-01T00:00:00", 2]},
        {"datetime": ["2026-01-01T00:00:00Z", 0]},
        {"datetime": "2026-01-01T00:00:00"},
        {"date": "20260101"},
        {"timedelta": [0, 86400, 0]},
        {"timedelta": [10**12, 0, 0]},
        {"timedelta": [1, 2]},
        {"path": "a//b"},
        {"path": 3},
        {"path": "x" * 5000},
        {"defaultdict": ["os.system", []]},
        {"defaultdict": ["list"]},
        {"defaultdict": [[], []]},
        {"Counter": {}},
        {"numpy": ["<f8"]},
        {"numpy": ["<f8", "AAAA"]},
        {"numpy": ["|O", "AAAAAAAAAAA="]},
        {"ndarray": ["<f8", [1], "AAAA"]},
        {"ndarray": ["<f8", [-1], ""]},
        {"ndarray": ["<f8", [2**40], "AAAAAAAAAAA="]},
        {"ndarray": ["<f8", [2**53 - 1] * 32, ""]},
        {"ndarray": ["<f8", [0] * 33, ""]},
        {"ndarray": ["|O8", [0], ""]},
        {"ndarray": ["<U3", [0], ""]},
        {"ndarray": ["<f8\n", [0], ""]},
        {"ndarray": ["<M8[fortnight]", [0], ""]},
        {"ndarray": ["|b1", [1], "Ag=="]},
        {"ndarray": [["<f8"], [0], ""]},
        {"ndarray": "<f8"},
        {"tensor": ["float31", [0], ""]},
        {"tensor": ["bool", [1], "Ag=="]},
        {"tensor": ["float32", [1], ""]},
        {"dtype": "float31"},
        {"dtype": ["float32"]},
        {"size": [-1]},
        {"size": 3},
        {"parts": ["sparse_bsr", [1], "", False]},
        {"parts": ["ndarray", [1], "", False]},
        {"parts": ["ndarray", [1], "|O", False]},
        {"parts": ["ndarray", [1], "<f8", True]},
        {"parts": ["sparse_coo", [1], "<f8", False]},
        {"parts": ["sparse_coo", [1], "", 1]},
        {"parts": ["sparse_csr", [1], "", True]},
        {"list": [{"parts": ["sparse_coo", [1], "", False]}]},
        {"object": ["os.system"]},
        {"dict": [[1]]},
        {"dict": [[1, 2], [1, 3]]},
        {"dict": [[{"list": []}, 2]]},
    )
    for false in false_forms:
        refused(IntegrityError, "ST-CKPT-191", codec.decode, false, "x")
