# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Evidence of one device that must not pass; `test_a_device_is_known` is the control."""

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.opaque import Mode
from securetrain.evidence.gpu.report import Architecture, verify_device
from securetrain.evidence.node_evidence import DeviceKind, device_nonce
from securetrain.identity import paths
from tests import vocabulary
from tests.evidence.gpu.forge import (
    COMPOSITE,
    END,
    FWID,
    GPUS,
    NONCE,
    TCB_INFO,
    Device,
    block,
    composite,
    device_info,
    dice,
    fwid_der,
    gpu_pdi,
    hgx_gpu,
    hgx_switch,
    key,
    sign,
    spki,
    tcb_info,
    verify,
)
from tests.tables import each, forgeries

ORDER = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973",
    16,
)
HOPPER, BLACKWELL, SWITCH = Device(), Device(chip="GB100"), Device("55" * 8, "LS_10")


def refused(code, what, evidence, **changes):
    changes = {"says": what, **changes}
    error = vocabulary.refused(AttestationError, f"ST-ATTS-{code}", verify, evidence, **changes)
    assert error.where.startswith(changes.get("where", str(evidence.kind)))


def dressed(chip, *extension, **more):
    """A device whose leaf has this extension in place of its own."""
    extensions = (device_info(f"NVIDIA:{chip}:48B02DF44660DA06"), dice(*extension))
    return Device(chip=chip, certificates={"leaf": {"extensions": extensions}}, **more)


def blocks(count, first=0):
    return {"blocks": tuple(block(index, bytes(48)) for index in range(first, first + count))}


@each(
    "device, architecture, mode",
    (HOPPER, Architecture.HOPPER, Mode.SPT),
    (BLACKWELL, Architecture.BLACKWELL, Mode.SPT),
    (SWITCH, Architecture.LS10, None),
)
def test_a_device_is_known(device, architecture, mode):
    state = verify(device.evidence())
    assert state.kind is device.kind
    assert state.architecture is architecture
    assert state.chip == device.chip
    assert state.pdi == device.pdi
    assert state.serial == "48b02df44660da06"
    assert state.ueid == str(int(device.pdi, 16) + 1)
    assert state.mode is mode
    assert state.nonce == NONCE
    assert state.fwid == FWID
    assert state.measurements == device.measurements()
    assert state.expires.year == END.year
    assert state.certificate_serials[2:] == ("ca", "fa", "7")
    assert not state.status_checked
    assert str(state) == f"{device.kind} {device.chip} {device.pdi}"


@each(
    "evidence, field, value",
    (HOPPER.evidence(), "driver", "590.12"),
    (HOPPER.evidence(), "vbios", "96.00.A5.00.01"),
    (SWITCH.evidence(), "driver", ""),
    (hgx_switch(0, GPUS).evidence(), "peers", set(GPUS)),
    (hgx_gpu(0, ["ab" * 8]).evidence(), "peers", {"ab" * 8}),
    # Old drivers report none: it is the certificate's.
    (Device(fields={20: None}).evidence(), "fwid", FWID),
    # The label of the driver is not read.
    (msgspec.structs.replace(HOPPER.evidence(), driver="1.0 evil"), "driver", "590.12"),
)
def test_what_a_state_says_is_the_reports(evidence, field, value):
    assert getattr(verify(evidence), field) == value


def test_a_status_that_was_asked_for_is_told():
    assert verify(HOPPER.evidence(), status=lambda *_: CertificateStatus.GOOD).status_checked


def test_nvidias_root_is_the_default():
    vocabulary.refused(
        AttestationError, "ST-ATTS-609", verify_device, HOPPER.evidence(), nonce=NONCE, now=END
    )


# Freshness.


@forgeries(
    "id, nonce",
    ("zero", bytes(32)),
    ("short", NONCE[:31]),
    ("long", NONCE + b"\0"),
    ("empty", b""),
    ("another", device_nonce(NONCE)),
)
def test_a_report_of_another_nonce_is_refused(nonce):
    refused(604, "was asked", HOPPER.evidence(), nonce=nonce)


@pytest.mark.forgery
def test_a_nonce_that_was_pasted_in_is_refused():
    old, new = HOPPER.evidence(nonce=bytes(32)).report, bytes(4) + NONCE
    pasted = old[:4] + new[4:] + old[36:]
    refused(603, "did not sign", msgspec.structs.replace(HOPPER.evidence(), report=pasted))


# Signature.

MESSAGE = HOPPER.report_spec().unsigned()
GENUINE = sign(HOPPER.private("leaf"), MESSAGE)
SIGNATURES = {
    "by-another-leaf": sign(Device("ff" * 8).private("leaf"), MESSAGE),
    "by-the-brom": sign(HOPPER.private("brom"), MESSAGE),
    "by-a-software-key": sign(key("software"), MESSAGE),
    "of-the-response-only": sign(HOPPER.private("leaf"), MESSAGE[37:]),
    "of-another-message": sign(HOPPER.private("leaf"), MESSAGE + b"\0"),
    "zeros": bytes(96),
    "r-is-zero": bytes(48) + GENUINE[48:],
    "s-is-zero": GENUINE[:48] + bytes(48),
    "r-and-s-swapped": GENUINE[48:] + GENUINE[:48],
    "ones": b"\xff" * 96,
    "r-and-s-are-the-order": ORDER.to_bytes(48, "big") * 2,
    "little-endian": GENUINE[:48][::-1] + GENUINE[48:][::-1],
}


@forgeries("id, signature", SIGNATURES)
def test_forged_signature_is_refused(signature):
    verify(HOPPER.evidence(signature=GENUINE))
    refused(603, "did not sign", HOPPER.evidence(signature=signature))


@pytest.mark.forgery
def test_a_report_with_another_devices_certificates_is_refused():
    evidence = msgspec.structs.replace(HOPPER.evidence(), certificates=Device("ff" * 8).chain())
    refused(603, "did not sign", evidence)


@pytest.mark.forgery
def test_every_altered_byte_of_a_report_is_refused():
    cache = paths.Links()
    evidence = HOPPER.evidence()
    verify(evidence, cache=cache)
    for offset in [*range(45), *range(45, len(evidence.report), 13), len(evidence.report) - 1]:
        altered = bytearray(evidence.report)
        altered[offset] ^= 1 << offset % 8
        with pytest.raises(AttestationError) as caught:
            verify(msgspec.structs.replace(evidence, report=bytes(altered)), cache=cache)
        assert caught.value.code in {"ST-ATTS-601", "ST-ATTS-603", "ST-ATTS-604"}, offset


@forgeries("number", *range(5))
def test_every_altered_byte_of_a_certificate_is_refused(number):
    cache = paths.Links()
    evidence = HOPPER.evidence()
    verify(evidence, cache=cache)
    codes = set()
    for offset in range(0, len(evidence.certificates[number]), 5):
        altered = bytearray(evidence.certificates[number])
        altered[offset] ^= 1 << offset % 8
        certificates = list(evidence.certificates)
        certificates[number] = bytes(altered)
        with pytest.raises(AttestationError) as caught:
            verify(msgspec.structs.replace(evidence, certificates=tuple(certificates)), cache=cache)
        codes.add(caught.value.code)
    assert codes <= {f"ST-ATTS-{code}" for code in (605, 606, 609)}


# Kind and architecture.


@forgeries(
    "id, device, claimed",
    ("switch-as-gpu", SWITCH, DeviceKind.GPU),
    ("hopper-as-switch", HOPPER, DeviceKind.SWITCH),
    ("blackwell-as-switch", BLACKWELL, DeviceKind.SWITCH),
)
def test_a_device_dressed_as_another_kind_is_refused(device, claimed):
    evidence = msgspec.structs.replace(device.evidence(), kind=claimed)
    refused(615, f"sent as evidence of a {claimed}", evidence)


@forgeries("chip", "GA100", "TU102", "LS_11", "XGH1")
def test_an_unknown_chip_is_refused(chip):
    refused(616, "no known family", Device(chip=chip).evidence())


DEBUG = tcb_info(fwid_der(FWID), flags=b"\x90\x00\x00\x01")
OF_BLACKWELL = tcb_info(fwid_der(FWID))
OF_HOPPER = composite(spki(BLACKWELL.private("brom")), FWID)
"""It has none of the flags that would tell a debug build."""
OTHER_PDI = {22: bytes.fromhex("66" * 8)}


@forgeries(
    "id, code, what, device",
    ("as blackwell", 616, "hopper has 2.23.133.5.4.1", dressed("GH100", TCB_INFO, OF_BLACKWELL)),
    ("as hopper", 616, "blackwell has 2.23.133.5.4.1.1", dressed("GB100", COMPOSITE, OF_HOPPER)),
    ("a debug build", 618, "debug", dressed("GB100", TCB_INFO, DEBUG)),
    ("firmware", 613, "in the certificate", Device(chip="LS_10", fields={20: bytes(48)})),
    ("pdi", 619, "6666666666666666 in the report", Device("55" * 8, "LS_10", fields=OTHER_PDI)),
    ("no driver", 602, "DRIVER_VERSION", Device(fields={3: None})),
    ("no lock", 602, "SWITCH_LOCK_STATUS", Device(chip="LS_10", fields={25: None})),
)
def test_a_device_that_contradicts_its_certificate_is_refused(code, what, device):
    refused(code, what, device.evidence())


@forgeries("chip, chip_id", ("GH100", 0x1A0), ("GB100", 0x180), ("GH100", 0x170), ("GH100", 0x18))
def test_a_chip_id_of_another_family_is_refused(chip, chip_id):
    fields = {4: chip_id.to_bytes(8, "little")}
    refused(616, f"chip id {chip_id:#x}", Device(chip=chip, fields=fields).evidence())


@each("chip, chip_id", ("GB100", 0x1A2), ("GB202", 0x1B2))
def test_chips_of_one_family_are_known(chip, chip_id):
    device = Device(chip=chip, fields={4: chip_id.to_bytes(8, "little")})
    assert verify(device.evidence()).architecture is Architecture.BLACKWELL


# Report against certificates.


@forgeries(
    "id, fwid", ("zero", bytes(48)), ("short", FWID[:47]), ("long", FWID + b"\0"), ("empty", b"")
)
@each("chip", "GH100", "GB100")
def test_firmware_that_the_certificate_does_not_name_is_refused(chip, fwid):
    refused(613, "in the certificate", Device(chip=chip, fields={20: fwid}).evidence())


# Measurements.


GAP = tuple(block(index, bytes(48)) for index in [*range(10), *range(11, 65)])


@forgeries(
    "id, device, changes",
    ("last-missing", HOPPER, blocks(63)),
    ("one-more", HOPPER, blocks(65)),
    ("first-missing", HOPPER, blocks(64, first=1)),
    ("as-many-as-a-switch", HOPPER, blocks(31)),
    ("none", HOPPER, blocks(0)),
    ("blackwell-last-missing", BLACKWELL, blocks(63)),
    ("switch-with-64", SWITCH, blocks(64)),
    ("switch-with-30", SWITCH, blocks(30)),
    ("without a gap", HOPPER, {"blocks": GAP}),
)
def test_another_number_of_measurements_is_refused(device, changes):
    what = "without a gap" if changes["blocks"] is GAP else "measurements"
    refused(624, what, device.evidence(**changes))


# Passing through.


@pytest.mark.forgery
def test_the_status_is_asked_and_errors_name_the_device():
    refused(610, "revoked", HOPPER.evidence(), status=lambda *_: CertificateStatus.REVOKED)
    refused(603, "did not sign", HOPPER.evidence(signature=bytes(96)), where="devices[3]")


@pytest.mark.forgery
def test_opaque_data_is_not_read_before_the_signature():
    refused(603, "", Device(fields={3: None}).evidence(signature=bytes(96)))


def test_pdis_of_the_forge_are_distinct():
    assert len({gpu_pdi(number) for number in range(8)}) == 8
