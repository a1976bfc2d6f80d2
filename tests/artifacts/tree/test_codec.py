# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.artifacts.tree import codec
from securetrain.core import canonical
from securetrain.core.errors import IntegrityError, UsageError

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
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
    if isinstance(a, dict) and isinstance(b, dict):
        return same(list(a.items()), list(b.items()))
    return a == b


@given(values)
def test_values_come_back_with_their_exact_types(value):
    coded = codec.encode(value, "x")
    raw = msgspec.json.encode(coded, order="sorted")
    assert raw == canonical.dumps(coded)
    assert same(codec.decode(msgspec.json.decode(raw), "x"), value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 2**200, -(2**53)])
def test_awkward_numbers(value):
    back = codec.decode(codec.encode(value, "x"), "x")
    assert type(back) is type(value)
    assert str(back) == str(value)


class _Sub(float):
    pass


class _Callable:
    def __reduce__(self):
        raise AssertionError("nothing is ever pickled")


@pytest.mark.parametrize(
    "value",
    [_Sub(1.0), {1, 2}, object(), _Callable(), lambda: 1, range(3), 1j, bytearray(b"x"), "\ud800"],
)
def test_other_types_are_refused_by_name(value):
    with pytest.raises(UsageError) as caught:
        codec.encode({"a": [value]}, "opt.state")
    assert caught.value.code == "ST-USAG-013"
    assert caught.value.where == "opt.state"


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


@pytest.mark.parametrize(
    "coded",
    [
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
        {"set": []},
        {"object": ["os.system"]},
        {"dict": [[1]]},
        {"dict": [[1, 2], [1, 3]]},
        {"dict": [[{"list": []}, 2]]},
    ],
)
def test_false_forms_are_refused(coded):
    with pytest.raises(IntegrityError) as caught:
        codec.decode(coded, "x")
    assert caught.value.code == "ST-CKPT-191"
