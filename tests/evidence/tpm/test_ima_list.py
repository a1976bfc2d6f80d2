# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The measurement list's two formats: every template both ways, and every length that lies."""

import dataclasses
import hashlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securetrain.evidence.tpm.ima_list import (
    MAX_DATA,
    MAX_NAME,
    Refusal,
    parse_ascii,
    parse_binary,
    split_ascii,
    split_binary,
)
from securetrain.testing.measurement_lists import (
    Measurement,
    aggregate,
    measured_buffer,
    measured_file,
)
from tests.tables import each, forgeries
from tests.vocabulary import refused

TEMPLATES = ["ima-ng", "ima-sig", "ima-ngv2", "ima-sigv2"]
SIGNED = dataclasses.replace(measured_file("/usr/bin/signed"), extra=b"\x03\x02" + bytes(70))
LEGACY = Measurement(
    name=b"/usr/bin/old", digest=b"sha1:\0" + hashlib.sha1(b"x").digest(), template=b"ima"
)
KINDS = {
    **{template: measured_file("/usr/bin/x", template=template) for template in TEMPLATES},
    "ima": LEGACY,
    "ima-buf": measured_buffer(".ima", b"a certificate"),
    "with a signature": SIGNED,
    "a violation": dataclasses.replace(measured_file("/var/log/x"), violation=True),
    "another PCR": dataclasses.replace(measured_file("/x"), pcr=11),
    "the longest name": measured_file("/" + "a" * (MAX_NAME - 1)),
    "the longest legacy name": dataclasses.replace(LEGACY, name=b"/" + b"a" * 254),
    "the shortest name": measured_file("x"),
    "a name that is not text": dataclasses.replace(SIGNED, name=b"/\xff\xfe"),
    "sha512": Measurement(name=b"/x", digest=b"sha512:\0" + bytes(64)),
    "verity": Measurement(name=b"/x", digest=b"verity:sha256:\0" + bytes(32), template=b"ima-ngv2"),
    "as much data as allowed": dataclasses.replace(SIGNED, extra=bytes(MAX_DATA - 68)),
}


@each("id, measurement", KINDS)
@each("id, binary", ("binary", True), ("ascii", False))
def test_every_template(measurement, binary):
    data = measurement.binary() if binary else measurement.ascii()
    split, parse = (split_binary, parse_binary) if binary else (split_ascii, parse_ascii)
    (raw,) = split(data)
    entry = parse(raw)
    assert entry.pcr == measurement.pcr
    assert entry.listed == measurement.listed
    assert entry.template == measurement.template
    assert entry.data == measurement.data
    assert entry.digest == measurement.digest
    assert entry.name == measurement.name
    assert entry.extra == measurement.extra
    assert entry.is_violation is measurement.violation
    assert entry.is_buffer is (measurement.template == b"ima-buf")
    if not measurement.violation:
        entry.check_digests()


@given(st.lists(st.sampled_from(list(KINDS)), max_size=12))
def test_lists_of_mixed_templates_are_cut_where_they_were_joined(kinds):
    measurements = [KINDS[kind] for kind in kinds]
    binary = b"".join(one.binary() for one in measurements)
    assert list(split_binary(binary)) == [one.binary() for one in measurements]
    text = b"".join(one.ascii() for one in measurements)
    assert list(split_ascii(text)) == [one.ascii()[:-1] for one in measurements]


def test_a_last_line_without_its_end():
    text = SIGNED.ascii() + SIGNED.ascii()[:-1]
    assert len(list(split_ascii(text))) == 2


def test_entries_behind_the_last_one_asked_for_are_not_read():
    entries = split_binary(SIGNED.binary() + b"garbage")
    assert next(entries) == SIGNED.binary()
    with pytest.raises(Refusal):
        next(entries)


NG = measured_file("/usr/bin/x", template="ima-ng")
HEADER = pack("<I20sI", 10, NG.listed, 6) + b"ima-ng"


def named(length: int, name: bytes = b"", rest: bytes = b"") -> bytes:
    """An entry's beginning whose template has a name of so many bytes."""
    return pack("<I20sI", 10, bytes(20), length) + name + rest


def with_data(data: bytes, template: bytes = b"ima-ng") -> bytes:
    header = pack("<I20sI", 10, hashlib.sha1(data).digest(), len(template)) + template
    return header + pack("<I", len(data)) + data


def field(data: bytes, length: int | None = None) -> bytes:
    return pack("<I", len(data) if length is None else length) + data


DIGEST = field(NG.digest)
NAME = field(b"/x\0")
LEGACY_HEAD = pack("<I20sI", 10, LEGACY.listed, 3) + b"ima"

BIG_ENDIAN = pack(">I20sI", 10, NG.listed, 6) + b"ima-ng" + pack(">I", len(NG.data)) + NG.data
CUT = {
    "nothing but a PCR": (pack("<I", 10), 301, "inside the entry's header"),
    "a header without its last byte": (HEADER[:27], 301, "inside the entry's header"),
    "no template": (HEADER[:28], 305, "template is b''"),
    "half a template": (HEADER[:31], 301, "inside the entry"),
    "a template and no more": (HEADER, 301, "inside the entry"),
    "a length without its last byte": (NG.binary()[:37], 301, "inside the entry"),
    "data without its last byte": (NG.binary()[:-1], 301, "1 bytes are missing"),
    "a length that leads out": (HEADER + field(bytes(8), 0xFFFFFFFF), 301, "bytes are missing"),
    "an unknown template": (named(7, b"ima-new", field(b"")), 305, "b'ima-new'"),
    "a template without a name": (named(0, rest=field(b"")), 305, "b''"),
    "a template's name that is too long": (named(256, bytes(300)), 301, "name has 256 bytes"),
    "a template's length that lies": (named(2**32 - 1, bytes(300)), 301, "name has 4294967295"),
    "big-endian": (BIG_ENDIAN, 301, "name has"),
    "a legacy entry without its digest": (LEGACY_HEAD + bytes(19), 301, "inside"),
    "a legacy name that leads out": (LEGACY_HEAD + bytes(20) + field(b"/x", 100), 301, "98 bytes"),
}


@forgeries("id, data, code, what", CUT)
@each("id, before", ("first", b""), ("second", NG.binary()))
def test_binary_lists_whose_lengths_lie(before, data, code, what):
    refused(Refusal, f"ST-ATTS-{code}", list, split_binary(before + data), says=what)


FULL = bytes(MAX_DATA - len(DIGEST + NAME) - 3)
MALFORMED = {
    "no fields": (with_data(b""), "fewer than 2"),
    "one field": (with_data(DIGEST), "fewer than 2"),
    "half a length": (with_data(DIGEST + b"\x01\0\0"), "fewer than 2"),
    "three fields": (with_data(DIGEST + NAME + NAME), "its 2 fields have"),
    "a byte too many": (with_data(DIGEST + NAME + b"\0"), "its 2 fields have"),
    "a field that is longer": (with_data(DIGEST + field(b"/x\0", 4)), "its 2 fields have"),
    "a field that is shorter": (with_data(DIGEST + field(b"/x\0", 2)), "its 2 fields have"),
    "a length of 4 GB": (with_data(field(NG.digest, 0xFFFFFFFF) + NAME), "fewer than 2"),
    "two fields for ima-sig": (with_data(DIGEST + NAME, b"ima-sig"), "fewer than 3"),
    "no NUL": (with_data(DIGEST + field(b"/x")), "one NUL"),
    "two NULs": (with_data(DIGEST + field(b"/x\0\0")), "one NUL"),
    "a NUL inside": (with_data(DIGEST + field(b"/x\0y\0")), "one NUL"),
    "a NUL instead of the last byte": (with_data(DIGEST + field(b"/x\0y")), "one NUL"),
    "an empty name": (with_data(DIGEST + field(b"\0")), "one NUL"),
    "no name": (with_data(DIGEST + field(b"")), "one NUL"),
    "a long name": (with_data(DIGEST + field(b"/" * (MAX_NAME + 1) + b"\0")), "4096 bytes"),
    "too much data": (with_data(DIGEST + NAME + field(FULL), b"ima-sig"), "the limit is"),
    "a short digest": (with_data(field(NG.digest[:-1]) + NAME), "31 bytes are no b'sha256'"),
    "a long digest": (with_data(field(NG.digest + b"\0") + NAME), "33 bytes are no"),
    "a digest without its algorithm": (with_data(field(NG.digest[8:]) + NAME), "digest"),
    "an unknown algorithm": (with_data(field(b"md4:\0" + bytes(16)) + NAME), "b'md4'"),
    "a digest without the NUL": (
        with_data(field(NG.digest.replace(b"\0", b"", 1)) + NAME),
        "digest",
    ),
    "a kind in version 1": (with_data(field(b"ima:" + NG.digest) + NAME), "b'ima:sha256'"),
    "no kind in version 2": (with_data(DIGEST + NAME, b"ima-ngv2"), "fs-verity"),
    "an unknown kind": (with_data(field(b"tpm:" + NG.digest) + NAME, b"ima-ngv2"), "fs-verity"),
    "two kinds": (with_data(field(b"ima:ima:" + NG.digest) + NAME, b"ima-ngv2"), "b'ima:sha256'"),
    **{
        f"the legacy name {name!r}": (
            dataclasses.replace(LEGACY, name=name).binary(),
            "wrong length",
        )
        for name in (b"/" * 256, b"", b"/x\0y")
    },
}


@forgeries("id, entry, what", MALFORMED)
def test_binary_entries_that_are_malformed(entry, what):
    assert list(split_binary(entry)) == [entry]
    refused(Refusal, "ST-ATTS-301", parse_binary, entry, says=what)


LINE, OLD = NG.ascii()[:-1], LEGACY.ascii()[:-1]
DIGITS = NG.digest[8:].hex().encode()
HEX = NG.listed.hex().encode()

LINES = {
    "empty": (b"", "the line is not"),
    "a word": (b"10", "the line is not"),
    "a field too few": (LINE.rpartition(b" ")[0], "the line is not"),
    "a field too many": (LINE + b" 00", "fields"),
    "a field too few for ima-sig": (LINE.replace(b"ima-ng", b"ima-sig"), "the template ima-sig"),
    "a PCR that is no number": (b"x" + LINE[2:], "not a PCR"),
    "a negative PCR": (b"-1" + LINE[2:], "not a PCR"),
    "a PCR with many digits": (b"010" + LINE[2:], "not a PCR"),
    "a short template digest": (LINE.replace(HEX, HEX[2:]), "19 bytes"),
    "a template digest that is not hex": (LINE.replace(HEX, b"zz" + HEX[2:]), "not in hex"),
    "half a byte": (LINE.replace(HEX, HEX[1:]), "not in hex"),
    "outside ASCII": (LINE.replace(HEX, b"\xff\xff" + HEX[2:]), "not in hex"),
    "a file digest that is not hex": (LINE.replace(DIGITS, b"zz" + DIGITS[2:]), "not in hex"),
    "a short file digest": (LINE.replace(DIGITS, DIGITS[2:]), "31 bytes"),
    "a digest without its algorithm": (LINE.replace(b"sha256:", b""), "bytes are no b''"),
    "an empty name": (LINE.rpartition(b" ")[0] + b" ", "one NUL"),
    "a NUL in the name": (LINE + b"\0y", "one NUL"),
    "a signature that is not hex": (SIGNED.ascii()[:-1] + b"z", "not in hex"),
    "a legacy digest with an algorithm": (OLD.replace(b"ima ", b"ima sha1:"), "not in hex"),
    "a short legacy digest": (OLD.replace(b"ima 11", b"ima "), "wrong length"),
}


@forgeries("id, line, what", LINES)
def test_lines_that_are_malformed(line, what):
    refused(Refusal, "ST-ATTS-301", parse_ascii, line, says=what)


@pytest.mark.forgery
def test_a_line_of_an_unknown_template():
    line = LINE.replace(b"ima-ng", b"ima-new")
    refused(Refusal, "ST-ATTS-305", parse_ascii, line, says="b'ima-new'")


def edited(measurement: Measurement, old: bytes, new: bytes) -> bytes:
    raw = measurement.binary()
    assert raw.count(old) == 1
    return raw.replace(old, new)


BUFFER = measured_buffer(".ima", b"a certificate")
OTHER_BUFFER = dataclasses.replace(BUFFER, extra=b"another certificate")
UNTRUE = {
    "another name": edited(NG, b"/usr/bin/x", b"/usr/bin/y"),
    "another digest": edited(NG, NG.digest[8:], bytes(32)),
    "another digest in the list": edited(NG, NG.listed, bytes(19) + b"\x01"),
    "another signature": edited(SIGNED, b"\x03\x02", b"\x03\x01"),
    "another buffer behind its digest": OTHER_BUFFER.binary(),
    "a buffer measured with an unknown digest": Measurement(
        name=b".ima", digest=b"sm3:\0" + bytes(32), template=b"ima-buf"
    ).binary(),
}


@forgeries("id, entry", UNTRUE)
def test_digests_that_are_not_of_the_data(entry):
    refused(Refusal, "ST-ATTS-303", parse_binary(entry).check_digests)


def test_the_synthetic_lists_are_right():
    """Written out by hand, so that the builder and the parser cannot agree on a mistake."""
    entry = aggregate(bytes(32), "ima-ng")
    data = b"\x28\0\0\0sha256:\0" + bytes(32) + b"\x0f\0\0\0boot_aggregate\0"
    assert entry.data == data


@given(st.binary(max_size=200))
def test_any_bytes_are_cut_and_read_or_refused(data):
    for split, parse in ((split_binary, parse_binary), (split_ascii, parse_ascii)):
        try:
            for raw in split(NG.binary() + data):
                parse(raw)
        except Refusal:
            pass
