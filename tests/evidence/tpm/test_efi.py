# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""UEFI structures in event data, and what people get to see of them."""

import struct

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.efi import (
    GLOBAL_VARIABLE,
    SHIM_LOCK,
    Variable,
    describe,
    parse_variable,
    printable,
)
from securetrain.evidence.tpm.eventlog import Event
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.bootlogs import APPLICATION, AUTHORITY, DRIVER, IPL, VARIABLE_BOOT
from tests.tables import each, forgeries


def entry(kind, data):
    return Event(1, 4, kind, bytes(32), data)


def test_a_variable():
    data = bootlogs.variable(bootlogs.GLOBAL, "SecureBoot", b"\1")
    assert parse_variable(data, "ST-ATTS-207", "x") == Variable(
        GLOBAL_VARIABLE, "SecureBoot", b"\1", 0
    )


def test_a_variable_with_slack():
    data = bootlogs.variable(bootlogs.SHIM, "Shim", b"", b"six by")
    assert parse_variable(data, "ST-ATTS-207", "x") == Variable(SHIM_LOCK, "Shim", b"", 6)


@forgeries(
    "id, data",
    ("empty", b""),
    ("no-sizes", bytes(16)),
    ("value-cut", bootlogs.variable(bootlogs.GLOBAL, "PK", b"key")[:-1]),
    ("name-cut", bytes(16) + struct.pack("<QQ", 2, 0) + b"a\0"),
    ("name-of-exabytes", bytes(16) + struct.pack("<QQ", 1 << 63, 0)),
    ("value-of-exabytes", bytes(16) + struct.pack("<QQ", 0, 1 << 63)),
    ("long-name", bytes(16) + struct.pack("<QQ", 1025, 0) + bytes(2050)),
    ("long-value", bytes(16) + struct.pack("<QQ", 0, (1 << 20) + 1) + bytes((1 << 20) + 1)),
    ("half-a-surrogate", bytes(16) + struct.pack("<QQ", 1, 0) + b"\0\xd8"),
)
def test_malformed_variables(data):
    with pytest.raises(AttestationError) as caught:
        parse_variable(data, "ST-ATTS-207", "PCR 7, entry 3")
    assert caught.value.code == "ST-ATTS-207"
    assert caught.value.where == "PCR 7, entry 3"
    assert describe(entry(AUTHORITY, data)) == ""


@each(
    "kind, data, text",
    (AUTHORITY, bootlogs.variable(bootlogs.SECURITY, "db", b"abc"), "db, 3 bytes"),
    (VARIABLE_BOOT, bootlogs.variable(bootlogs.GLOBAL, "Boot0\n\x1b[1m", b""), None),
    (APPLICATION, bootlogs.image(b"", "\\EFI\\A.EFI").data, "\\EFI\\A.EFI"),
    (DRIVER, bootlogs.image(b"", "\\EFI\\\u202e.EFI").data, "\\EFI\\..EFI"),
    (APPLICATION, bytes(32), ""),
    (APPLICATION, bytes(24) + struct.pack("<QBBH", 4, 4, 4, 3), ""),
    (APPLICATION, bytes(24) + struct.pack("<QBBH", 4, 4, 4, 9), ""),
    (APPLICATION, bytes(24) + struct.pack("<Q", 1 << 60), ""),
    (IPL, b"grub_cmd: menuentry {\n\tlinux\n}\0", "grub_cmd: menuentry {..linux.}"),
    (IPL, "wide letters\0".encode("utf-16-le"), "wide letters"),
    (IPL, b"\x1b]0;title\x07", ""),
    (IPL, b"\xff\xfe\0\1", ""),
    (IPL, "caf\u00e9".encode(), ""),
    (IPL, b"", ""),
    (IPL, b"a" * 200, "a" * 160 + "..."),
)
def test_what_people_see(kind, data, text):
    shown = describe(entry(kind, data))
    assert shown.isascii()
    assert shown == "" or shown.isprintable()
    assert text is None or shown == text


def test_text_is_cut_to_a_line():
    assert printable("x" * 160) == "x" * 160
    assert printable("x" * 161) == "x" * 160 + "..."
    assert printable("a\r\nb\u0007\u00e9") == "a..b.."
