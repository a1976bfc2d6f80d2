# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reports that lie about their own form; `test_report_is_taken_apart` is the control."""

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.spdm import OPAQUE_LIMIT, REPORT_LIMIT, parse_report
from tests import vocabulary
from tests.evidence.gpu.forge import FWID, NONCE, Device, ReportSpec, block, opaque_data
from tests.tables import forgeries

DEVICE = Device()
DIGEST = bytes(48)


def spec(**changes):
    return DEVICE.report_spec(**changes)


def small(*blocks, **changes):
    return spec(blocks=blocks or (block(0, DIGEST),), **changes)


def refused(raw, what):
    error = vocabulary.refused(AttestationError, "ST-ATTS-601", parse_report, raw, "gpu 3")
    assert what in error.what
    assert error.where.startswith("gpu 3")


def test_report_is_taken_apart():
    raw = spec(slot=0).encode()
    report = parse_report(raw)
    assert report.nonce == NONCE
    assert report.slot == 0
    assert report.measurements == DEVICE.measurements()
    assert report.opaque[20] == FWID
    assert report.signed + report.signature == raw
    assert len(report.signature) == 96
    assert len(report.responder_nonce) == 32


def test_another_slot_is_fine_when_both_say_so():
    assert parse_report(spec(slot=7, response=bytes((0x11, 0x60, 0, 7))).encode()).slot == 7


def test_measurements_may_come_in_any_order():
    report = parse_report(small(block(5, DIGEST), block(2, DIGEST)).encode())
    assert sorted(report.measurements) == [2, 5]


def test_unknown_opaque_types_are_kept():
    report = parse_report(small(opaque=opaque_data([(200, b"new"), (60000, b"")])).encode())
    assert report.opaque == {200: b"new", 60000: b""}


def test_the_mapping_cannot_be_changed():
    report = parse_report(spec().encode())
    assert type(report.measurements).__name__ == type(report.opaque).__name__ == "mappingproxy"


FORGED: dict[str, tuple[ReportSpec, str]] = {
    "spdm-1.0-request": (spec(request=bytes((0x10, 0xE0, 1, 0xFF))), "GET_MEASUREMENTS"),
    "spdm-1.2-request": (spec(request=bytes((0x12, 0xE0, 1, 0xFF))), "GET_MEASUREMENTS"),
    "request-of-another-code": (spec(request=bytes((0x11, 0xE1, 1, 0xFF))), "GET_MEASUREMENTS"),
    "no-signature-asked": (spec(request=bytes((0x11, 0xE0, 0, 0xFF))), "no signature"),
    "raw-bit-streams-asked": (spec(request=bytes((0x11, 0xE0, 3, 0xFF))), "no signature"),
    "one-measurement-asked": (spec(request=bytes((0x11, 0xE0, 1, 5))), "measurement 5"),
    "count-of-measurements-asked": (spec(request=bytes((0x11, 0xE0, 1, 0))), "measurement 0"),
    "slot-8": (spec(slot=8, response=bytes((0x11, 0x60, 0, 8))), "slot 8"),
    "answer-of-another-slot": (spec(response=bytes((0x11, 0x60, 0, 1))), "slot 1 answers"),
    "slot-swapped": (spec(slot=1), "slot 0 answers"),
    "spdm-1.2-response": (spec(response=bytes((0x12, 0x60, 0, 0))), "MEASUREMENTS"),
    "error-response": (spec(response=bytes((0x11, 0x7F, 0, 0))), "MEASUREMENTS"),
    "fewer-blocks-than-said": (spec(count=65), "are left"),
    "more-blocks-than-said": (spec(count=63), "follow"),
    "no-block-said": (spec(count=0), "follow"),
    "record-shorter-than-blocks": (spec(record_size=3519), "are left"),
    "record-of-16-mib": (spec(record_size=0xFFFFFF), "limit"),
    "record-past-the-end": (spec(record_size=8000), "are left"),
    "measurement-twice": (small(block(4, DIGEST), block(4, DIGEST)), "4 comes twice"),
    "measurement-twice-with-other-value": (
        small(block(4, DIGEST), block(4, bytes([1]) * 48)),
        "4 comes twice",
    ),
    "index-0": (small(block(-1, DIGEST)), "index 0"),
    "not-dmtf": (small(block(0, DIGEST, specification=2)), "not DMTF"),
    "no-specification": (small(block(0, DIGEST, specification=0)), "not DMTF"),
    "raw-bit-stream": (small(block(0, DIGEST, kind=0x81)), "raw bit stream"),
    "sha-256-measurement": (small(block(0, bytes(32))), "32 bytes"),
    "sha-512-measurement": (small(block(0, bytes(64))), "64 bytes"),
    "empty-measurement": (small(block(0, b"")), "0 bytes"),
    "block-says-less-than-its-value": (small(block(0, DIGEST, size=50)), "needs 51"),
    "block-says-more-than-its-value": (small(block(0, DIGEST, size=52)), "needs 51"),
    "value-says-more-than-its-block": (small(block(0, DIGEST, value_size=49)), "49 bytes"),
    "opaque-twice": (small(opaque=opaque_data([(20, FWID), (20, FWID)])), "20 comes twice"),
    "opaque-size-lies": (small(opaque=opaque_data([(20, FWID)])[:-1]), "are left"),
    "opaque-header-cut": (small(opaque=opaque_data([(20, FWID)]) + b"\1\0\1"), "are left"),
    "opaque-one-stray-byte": (small(opaque=b"\1"), "are left"),
    "opaque-over-its-limit": (small(opaque=bytes(OPAQUE_LIMIT + 4)), "limit is 1024"),
    "opaque-field-over-its-limit": (small(opaque=b"\1\0\xff\xff"), "limit is 1024"),
    "opaque-length-past-the-end": (small(opaque_size=1000), "are left"),
    "opaque-length-zero": (spec(opaque_size=0), "follow"),
    "trailing-byte": (spec(tail=b"\0"), "1 bytes follow"),
    "trailing-report": (spec(tail=bytes(4000)), "4000 bytes follow"),
    "signature-cut": (spec(signature=bytes(95)), "95 are left"),
    "no-signature": (spec(signature=b""), "0 are left"),
}


@forgeries("id, forged, what", FORGED)
def test_forged_form_is_refused(forged, what):
    refused(forged.encode(), what)


@pytest.mark.forgery
def test_oversized_report_is_refused_before_it_is_read():
    refused(bytes(REPORT_LIMIT + 1), "limit is 8192")


def test_the_largest_report_is_read():
    exact = spec(tail=bytes(REPORT_LIMIT - len(spec().encode()))).encode()
    assert len(exact) == REPORT_LIMIT
    refused(exact, "bytes follow")


@pytest.mark.forgery
def test_truncated_anywhere_is_refused():
    raw = small().encode()
    parse_report(raw)
    for size in range(len(raw)):
        refused(raw[:size], "")
