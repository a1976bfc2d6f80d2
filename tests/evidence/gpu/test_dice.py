# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The firmware's identity in a leaf certificate, and leaves that tell it wrongly."""

import pytest
from cryptography import x509

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import verify_chain
from tests import vocabulary
from tests.evidence.gpu.forge import (
    COMPOSITE,
    DEVICE_INFO,
    FWID,
    NOW,
    SHA256_OID,
    SHA384_OID,
    TCB_INFO,
    Device,
    composite,
    der,
    device_info,
    dice,
    fwid_der,
    key,
    roots,
    spki,
    tcb_info,
)
from tests.tables import each, forgeries

HOPPER, BLACKWELL = Device(), Device(chip="GB100")
BROM = spki(HOPPER.private("brom"))
NAME = device_info("NVIDIA:GH100:48B02DF44660DA06")
ZERO = fwid_der(bytes(48))


def identity(device, *extensions, name=None):
    """What a leaf with these extensions tells."""
    name = name or device.specs()["leaf"].extensions[0]
    changed = Device(chip=device.chip, certificates={"leaf": {"extensions": (name, *extensions)}})
    return verify_chain(changed.chain(), roots=roots(), now=NOW, where="gpu 3")


def hopper(value):
    return identity(HOPPER, dice(COMPOSITE, value))


def blackwell(value):
    return identity(BLACKWELL, dice(TCB_INFO, value))


def test_both_forms_are_read():
    assert hopper(composite(BROM, FWID)).fwid == FWID
    assert hopper(composite(BROM, FWID)).dice_oid == COMPOSITE.dotted_string
    assert blackwell(tcb_info(fwid_der(FWID), ZERO)).fwid == FWID
    assert blackwell(tcb_info(fwid_der(FWID), ZERO)).dice_oid == TCB_INFO.dotted_string


def test_the_first_fwid_counts_wherever_it_stands_in_the_bytes():
    """Taking the last 48 bytes would read the zeros, or vendor data, of a genuine Blackwell."""
    assert blackwell(tcb_info(fwid_der(FWID))).fwid == FWID
    assert blackwell(tcb_info(fwid_der(FWID), ZERO, ZERO)).fwid == FWID


@each("flags", None, b"\x80\x00\x00\x01", b"\x00", b"\x8f\xff\xff\xff", b"")
def test_flags_that_tell_no_danger_are_fine(flags):
    assert blackwell(tcb_info(fwid_der(FWID), flags=flags)).fwid == FWID


@forgeries("bit, name", (0x40, "not secure"), (0x20, "recovery"), (0x10, "debug"))
def test_firmware_that_calls_itself_insecure_is_refused(bit, name):
    for flags in (bytes([bit]), bytes([0x80 | bit, 0, 0, 1])):
        refused(618, name, blackwell, tcb_info(fwid_der(FWID), flags=flags))


COMPOSITES = {
    "other-version": (composite(BROM, FWID, version=2), "version 2"),
    "key-of-another-device": (composite(spki(key("other")), FWID), "another key"),
    "sha-256": (composite(BROM, FWID, oid=SHA256_OID), "not SHA-384"),
    "short-digest": (composite(BROM, FWID[:32]), "32 bytes"),
    "long-digest": (composite(BROM, FWID + b"\0"), "49 bytes"),
    "empty": (b"", ""),
    "not-a-sequence": (der(0x04, FWID), ""),
    "trailing-byte": (composite(BROM, FWID) + b"\0", ""),
    "cut": (composite(BROM, FWID)[:-1], ""),
    "without-a-key": (der(0x30, der(0x02, b"\1"), fwid_der(FWID)), ""),
    "with-a-fourth-part": (der(0x30, der(0x02, b"\1"), BROM, fwid_der(FWID), fwid_der(FWID)), ""),
    "fwid-with-a-third-part": (
        der(0x30, der(0x02, b"\1"), BROM, der(0x30, SHA384_OID, der(4, FWID), der(4, FWID))),
        "",
    ),
    "tcb-info-under-its-oid": (tcb_info(fwid_der(FWID)), ""),
}
TCB_INFOS = {
    "no-fwids": (tcb_info(), "no FWID"),
    "empty-list-of-fwids": (tcb_info(b""), "no FWID"),
    "first-fwid-sha-256": (tcb_info(fwid_der(FWID[:32], SHA256_OID), fwid_der(FWID)), "SHA-384"),
    "first-fwid-short": (tcb_info(fwid_der(FWID[:47])), "47 bytes"),
    "empty": (b"", ""),
    "trailing-byte": (tcb_info(fwid_der(FWID)) + b"\0", ""),
    "cut": (tcb_info(fwid_der(FWID))[:-1], ""),
    "list-length-lies": (tcb_info(fwid_der(FWID)[:-4]), ""),
    "composite-under-its-oid": (composite(BROM, FWID), ""),
    "just-the-digest": (FWID, ""),
}


@forgeries("id, value, what", COMPOSITES)
def test_forged_composite_is_refused(value, what):
    refused(614, what, hopper, value)


@forgeries("id, value, what", TCB_INFOS)
def test_forged_tcb_info_is_refused(value, what):
    refused(614, what, blackwell, value)


@pytest.mark.forgery
def test_a_leaf_without_a_fwid_is_refused():
    refused(614, "must have one", lambda _: identity(HOPPER), None)


@pytest.mark.forgery
def test_a_leaf_with_both_forms_is_refused():
    both = dice(COMPOSITE, composite(BROM, FWID)), dice(TCB_INFO, tcb_info(fwid_der(FWID)))
    refused(614, "must have one", lambda _: identity(HOPPER, *both), None)


@forgeries(
    "id, names, what",
    ("no-other-name", [x509.DNSName("NVIDIA")], "0 DMTF"),
    (
        "name-of-another-form",
        [x509.OtherName(COMPOSITE, der(0x0C, b"NVIDIA:GH100:48B02DF44660DA06"))],
        "0 DMTF",
    ),
    (
        "two-names",
        [x509.OtherName(DEVICE_INFO, der(0x0C, b"NVIDIA:GH100:48B02DF44660DA06"))] * 2,
        "2 DMTF",
    ),
    (
        "not-a-string",
        [x509.OtherName(DEVICE_INFO, der(0x04, b"NVIDIA:GH100:48B02DF44660DA06"))],
        "",
    ),
    ("not-utf-8", [x509.OtherName(DEVICE_INFO, der(0x0C, b"\xff"))], ""),
)
def test_forged_device_name_is_refused(names, what):
    name = x509.SubjectAlternativeName(names), False
    genuine = dice(COMPOSITE, composite(BROM, FWID))
    refused(614, what, lambda _: identity(HOPPER, genuine, name=name), None)


def refused(code, what, call, value):
    vocabulary.refused(AttestationError, f"ST-ATTS-{code}", call, value, says=what, names="gpu 3")
