# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core import canonical
from securetrain.core.errors import UsageError
from tests import vocabulary
from tests.tables import items


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    x: int
    name: str = ""


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refused(data, **more) -> UsageError:
    error = vocabulary.refused(
        UsageError, "ST-USAG-008", canonical.decode, data, Point, where="doc", **more
    )
    assert error.where == "doc"
    return error


@given(values)
def test_one_value_has_one_spelling(value):
    data = canonical.dumps(value)
    assert canonical.loads(data) == value
    assert canonical.dumps(canonical.loads(data)) == data
    # Any other spelling of it leads back to the same bytes.
    assert canonical.dumps(json.loads(json.dumps(value, indent=1))) == data


def test_rfc_8785_examples():
    # https://www.rfc-editor.org/rfc/rfc8785#section-3.2.2 and 3.2.3
    assert canonical.dumps({"\u20ac": 1, "\r": 2, "1": 3}) == b'{"\\r":2,"1":3,"\xe2\x82\xac":1}'
    assert canonical.dumps([333333333.33333329, 1e30, 4.5, 2e-3, 1e-27]) == (
        b"[333333333.3333333,1e+30,4.5,0.002,1e-27]"
    )


def spelled(make, value):
    """The bytes that are made, or None."""
    try:
        return make(value)
    except (UsageError, rfc8785.CanonicalizationError):
        return None


plain = st.text(st.characters(codec="ascii"), max_size=8) | st.from_regex(
    r"[:,\[]?-?[0-9]{14,18}", fullmatch=True
)
any_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | plain
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(plain | st.integers(0, 3) | st.text(max_size=2), inner, max_size=4)
    ),
    max_leaves=20,
)


def number(text):
    """As RFC 8785 has it, where all numbers are doubles; its library takes large ones as floats."""
    return int(text) if abs(int(text)) < 2**53 else float(text)


@given(any_values)
def test_the_quick_way_writes_what_the_slow_way_does(value):
    assert spelled(canonical.dumps, value) == spelled(rfc8785.dumps, value)


@given(any_values, st.integers(0), st.sampled_from([b" ", b"0", b".0", b'"a":1,', b"\\", b"}"]))
def test_the_quick_way_reads_no_other_spelling(value, at, more):
    """Only what a canonical writer makes is taken as canonical, whatever is put into it."""
    data = spelled(rfc8785.dumps, value)
    if not isinstance(data, bytes):
        return
    at %= len(data) + 1
    data = data[:at] + more + data[at:]
    with suppress(UsageError):
        canonical.decode(data, object, canonical=True)
        assert rfc8785.dumps(json.loads(data, parse_int=number)) == data


def test_every_ascii_character_is_written_as_rfc_8785_says():
    for number in range(128):
        value = {chr(number): [chr(number)]}
        assert canonical.dumps(value) == rfc8785.dumps(value)


def test_structs():
    assert canonical.encode(Point(1, "a")) == b'{"name":"a","x":1}'
    assert canonical.decode(b'{"x":1}', Point) == Point(1)


@items(
    "data",
    b"",
    b"{",
    b'{"x":1}x',
    b'{"x":1,"x":2}',
    b'{"x":1,"y":2}',
    b'{"x":"1"}',
    b'{"x":1.0}',
    b'{"x":NaN}',
    b'{"x":Infinity}',
    b'\xef\xbb\xbf{"x":1}',
    b'{"x":1,"name":"\xff"}',
    b"[" * 100_000,
    b"[1]",
    b"null",
)
def test_what_is_refused(data):
    refused(data)


def test_the_name_of_a_duplicate_is_told():
    assert "'x'" in refused(b'{"x":1,"x":2}').what
    assert len(refused(b'{"%b":1,"%b":2}' % (2 * (b"x" * 9999,))).what) < 200


class Counted(str):
    """A key that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_a_duplicate_behind_many_keys_is_found_at_once():
    """A key was compared with every other one: 0.9 MB took a minute, 16 MB would take hours."""
    number = 3000
    pairs: list[tuple[str, Any]] = [(Counted(f"k{one}"), 1) for one in range(number)]
    pairs.append((Counted(f"k{number - 1}"), 2))
    Counted.compared = 0
    with pytest.raises(ValueError, match="duplicate key 'k2999'"):
        canonical._no_duplicates(pairs)
    assert Counted.compared < 10 * number


def test_the_limit_is_checked_before_parsing():
    assert "limit" in refused(b'{"x":1}', limit=6).what
    assert canonical.decode(b'{"x":1}', Point, limit=7) == Point(1)


@items(
    "data",
    b'{ "x":1}',
    b'{"x":1,"name":"a"}',
    b'{"x":1}\n',
    b'{"name":"\\u0061","x":1}',
    b'{"x":9007199254740993}',
)
def test_other_spellings_are_refused_where_bytes_are_signed(data):
    assert "canonical" in refused(data, canonical=True).what or b"9007" in data
    canonical.decode(data, Point)  # control: it is only the spelling


@given(st.binary(max_size=100))
def test_no_bytes_escape_the_error_tree(data):
    with suppress(UsageError):
        canonical.decode(data, Point)


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What documents have: nested, optional, closed choices, anything at all."""

    name: str
    at: datetime | None = None
    kind: Literal["a", "b"] = "a"
    points: tuple[Point, ...] = ()
    of: dict[str, Point] = {}
    settings: dict[str, Any] = {}


class Measured(msgspec.Struct):
    value: float = 0.0


class Numbered(msgspec.Struct):
    by: dict[int, str] = {}


def read(type_, data):
    try:
        return canonical.decode(data, type_, canonical=True)
    except UsageError:
        return UsageError


points = st.builds(Point, st.integers(-(2**60), 2**60), st.text(max_size=3))
documents = st.builds(
    Kept,
    st.text(max_size=4),
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    points=st.lists(points, max_size=2).map(tuple),
    of=st.dictionaries(st.text(max_size=2), points, max_size=2),
    settings=st.dictionaries(st.text(max_size=2), values | st.floats(), max_size=2),
)


@given(documents, st.integers(0, 200), st.sampled_from(["", " ", "0", "9" * 16, ".0", '"', "{"]))
def test_typed_bytes_are_read_at_once_as_the_slow_way_reads_them(value, at, more):
    """Whatever is put into the bytes, both ways have the same value, or both refuse."""
    try:
        data = canonical.encode(value)
    except UsageError:
        return
    data = data[:at] + more.encode() + data[at:]
    quick = read(Kept, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "decode_plain", lambda *_: None)
        assert read(Kept, data) == quick


class Every(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of each kind that schemas have."""

    text: str
    number: float
    count: int
    at: datetime
    maybe: datetime | None
    at_each: dict[str, datetime]
    times: tuple[datetime, ...]
    points: list[Point]
    blob: bytes
    rest: Any


half = st.characters(exclude_categories=())  # with halves of surrogate pairs
numbers = st.floats() | st.sampled_from([2.0**53, -(2.0**53), 1e16, 1e20, 1e21, -0.0, 5e-324])
offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)) | st.integers(-1439, 1439).map(
    lambda minutes: timedelta(minutes=minutes)
)
times = st.datetimes(timezones=st.none() | offsets.map(timezone))
every = st.builds(
    Every,
    text=st.text(half, max_size=3),
    number=numbers,
    count=st.integers(-(2**54), 2**54) | st.sampled_from([2**53, 2**53 - 1, -(2**53)]),
    at=times,
    maybe=st.none() | times,
    at_each=st.dictionaries(st.text(half, max_size=2), times, max_size=2),
    times=st.lists(times, max_size=2).map(tuple),
    points=st.lists(points, max_size=2),
    blob=st.binary(max_size=3),
    rest=any_values.filter(lambda value: not isinstance(value, bytes)),
)


def as_json(value):
    """A value as JSON has it: bytes are text, 1.0 is 1, and beyond 2^53 there are floats alone."""
    return json.loads(json.dumps(msgspec.to_builtins(value)), parse_int=number)


@given(every)
def test_what_is_written_is_read_back_equal_or_refused_at_writing(value):
    refusal = None
    try:
        data = canonical.encode(value)
    except UsageError as error:
        refusal = f"{error.code} {error.what}"
    else:
        back = canonical.decode(data, Every, canonical=True)
        assert msgspec.structs.replace(back, rest=None) == msgspec.structs.replace(value, rest=None)
        assert as_json(back.rest) == as_json(value.rest)
        assert canonical.encode(back) == data
        assert canonical.encode_each([value]) == [data]
    assert refusal is None or refusal.startswith("ST-USAG-008 cannot be written: ")


AT = datetime(2026, 1, 1, tzinfo=UTC)
WRITABLE = Every("", 0.0, 0, AT, None, {}, (), [], b"", None)


@pytest.mark.parametrize("seconds", [0.000001, 1, 30, 59.999999, 3601])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_that_would_be_written_as_another_one_is_refused(seconds, sign):
    """msgspec rounds offsets to minutes: the time that was signed was up to half a minute off."""
    at = AT.replace(tzinfo=timezone(sign * timedelta(seconds=seconds)))
    assert msgspec.json.decode(msgspec.json.encode(at), type=datetime) != at  # control
    for changed in ({"at": at}, {"maybe": at}, {"at_each": {"x": at}}, {"times": (at,)}):
        value = msgspec.structs.replace(WRITABLE, **changed)
        for write in (canonical.encode, lambda one: canonical.encode_each([one])):
            error = vocabulary.refused(UsageError, "ST-USAG-008", write, value)
            assert "offset from UTC" in error.what
        vocabulary.refused(UsageError, "ST-USAG-008", canonical.encode, {"in": [value]})
    assert canonical.encode(WRITABLE)  # control


@pytest.mark.parametrize("value", [2.0**53, 1e16, -1e20, 1e21, 1.7976931348623157e308])
def test_a_large_float_is_read_where_bytes_are_signed(value):
    """RFC 8785 spells it as an integer, which was refused for being none that a double holds."""
    data = canonical.encode(Measured(value))
    assert canonical.decode(data, Measured, canonical=True) == Measured(value)
    refused(data.replace(b"value", b"x"), canonical=True)  # and for an int it is none


def test_what_json_has_not_is_refused_by_name():
    for value in (float("nan"), float("inf"), 2**53, "\ud800", {1: 2}, {"\udfff": 0}, b""):
        vocabulary.refused(UsageError, "ST-USAG-008", canonical.dumps, {"x": value})


class Named(msgspec.Struct, omit_defaults=True):
    name: str
    size: int = 0
    share: float | None = None


@items(
    "many",
    [],
    [Named("a"), Named("b", 3)],
    [Named("a"), Named('"\\'), Named("\u00e9\u2028")],
    [Named("a", 2**53 - 1), Named("b")],
    [Named("a", share=1e21), Named("b", share=0.1)],
    [Named("]["), Named(',{"name":"x"}')],
)
def test_many_structs_are_written_as_each_of_them_is(many):
    assert canonical.encode_each(many) == [canonical.encode(one) for one in many]


def test_types_that_have_two_readings_are_read_the_slow_way():
    for kind, data in ((Measured, b'{"value":1.50}'), (Numbered, b'{"by":{"1":"x"}}')):
        assert canonical.decode_plain(data, kind) is None
        assert read(kind, data) is UsageError
    assert canonical.decode_plain(b'{"name":"n","x":1}', Point) == Point(1, "n")
    assert canonical.decode_plain(b'{"x":1,"name":"n"}', Point) is None


def test_lines_are_read_at_once_only_where_each_is_a_value():
    """What is hashed line by line must be what is read: msgspec itself counts values alone."""
    one, two = b'{"name":"n","x":1}', b'{"name":"m","x":2}'
    good = one + b"\n" + two + b"\n"
    assert canonical.decode_lines(good, Point) == [Point(1, "n"), Point(2, "m")]
    torn = b'{"name":"n",\n"x":1}\n' + two + one + b"\n"
    plain = msgspec.json.Decoder(Point)
    assert len(plain.decode_lines(torn)) == torn.count(b"\n") == 3
    for bad in (
        torn,
        good[:-1],
        b"\n" + good,
        good + b"\n",
        one + two + b"\n",
        one + b" \n",
        one.replace(b'"x":1', b'"x":1,"x":1') + b"\n",
        b'{"x":1,"name":"n"}\n',
    ):
        assert plain.decode_lines(bad)
        assert canonical.decode_lines(bad, Point) is None
    for kind, data in ((Measured, b'{"value":1.50}\n'), (Point, b"")):
        assert canonical.decode_lines(data, kind) is None
