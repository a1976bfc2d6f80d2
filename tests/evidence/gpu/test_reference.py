# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Genuine devices that are not what the fleet's reference values ask for."""

import dataclasses

import msgspec
import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import NVIDIA_DEVICE_ROOTS
from securetrain.evidence.gpu.opaque import Mode
from securetrain.evidence.gpu.reference import GpuReference, check_reference, compare_measurements
from securetrain.evidence.gpu.report import Architecture
from tests import vocabulary
from tests.evidence.gpu.forge import Device
from tests.tables import each, forgeries

GPU, SWITCH = Device("aa" * 8).state(), Device("55" * 8, "LS_10").state()
OURS = GpuReference(devices=(GPU.pdi, SWITCH.pdi), gpus=1, switches=1)


def reference(**changes):
    return msgspec.structs.replace(OURS, **changes)


def refused(code, what, call, *arguments, **keywords):
    keywords = {"says": what, **keywords}
    error = vocabulary.refused(AttestationError, f"ST-ATTS-{code}", call, *arguments, **keywords)
    assert arguments[0].pdi in error.where
    assert error.fix


# Inventory, modes and versions.


@each("id, state", ("gpu", GPU), ("switch", SWITCH))
def test_our_own_devices_are_accepted(state):
    check_reference(state, OURS)
    check_reference(
        state,
        reference(
            minimum_driver="590.12",
            minimum_vbios={
                Architecture.HOPPER: "96.00.A5.00.01",
                Architecture.LS10: "96.10.73.00.01",
                Architecture.BLACKWELL: "FF.FF.FF.FF.FF",
            },
            revoked_devices=("11" * 8,),
            revoked_certificates=("ab",),
        ),
    )


def oldest(vbios, family=Architecture.HOPPER):
    return {"minimum_vbios": {family: vbios}}


FORGED = {
    "genuine-but-not-ours": ({"devices": (SWITCH.pdi,)}, 625, GPU.pdi),
    "banned-device": ({"revoked_devices": (GPU.pdi,)}, 626, "device aa"),
    "banned-leaf": ({"revoked_certificates": (GPU.certificate_serials[0],)}, 626, "certificate"),
    "banned-ica": ({"revoked_certificates": ("1", "ca")}, 626, "certificate ca"),
    "mode-that-is-not-accepted": ({"modes": (Mode.PPCIE, Mode.MPT)}, 617, "mode spt"),
    "no-mode-accepted": ({"modes": ()}, 617, "accepted are none"),
    "driver-too-old": ({"minimum_driver": "590.12.1"}, 627, "590.12, the oldest"),
    "driver-much-too-old": ({"minimum_driver": "1000.0"}, 627, "590.12, the oldest"),
    "vbios-too-old": (oldest("96.00.A5.00.02"), 628, "96.00.A5.00.01"),
    "vbios-much-too-old": (oldest("97.00.00.00.00"), 628, "96.00.A5.00.01"),
}
OF_SWITCHES = {
    # A ban is stronger than the inventory and older versions.
    "banned-switch": ({"revoked_devices": (SWITCH.pdi,)}, 626, "banned"),
    "switch-too-old": (oldest("96.10.73.00.02", Architecture.LS10), 628, "oldest"),
}


@forgeries(
    "id, device, changes, code, what",
    *((name, GPU, *row) for name, row in FORGED.items()),
    *((name, SWITCH, *row) for name, row in OF_SWITCHES.items()),
)
def test_a_device_that_is_not_accepted(device, changes, code, what):
    refused(code, what, check_reference, device, reference(**changes))


@forgeries("id, device", ("gpu", GPU), ("switch", SWITCH))
def test_empty_reference_values_accept_nothing(device):
    refused(625, "none of 0 devices", check_reference, device, GpuReference())


@pytest.mark.forgery
def test_an_unstated_mode_must_be_asked_for():
    old = Device("aa" * 8, fields={36: None}).state()
    assert old.mode is Mode.UNSTATED
    refused(617, "mode unstated", check_reference, old, OURS)
    check_reference(old, reference(modes=(Mode.UNSTATED,)))


@forgeries("driver", "590", "590.12-beta", "r590.12", "590..12", "590.12.1.1.1")
def test_a_driver_whose_version_has_no_order_is_refused(driver):
    state = Device("aa" * 8, fields={3: driver.encode() + b"\0"}).state()
    check_reference(state, OURS)
    refused(627, "no order", check_reference, state, reference(minimum_driver="1.0"))


@each("oldest", "590.11", "589.999.999", "99.0", "590.12")
def test_versions_are_numbers(oldest):
    check_reference(GPU, reference(minimum_driver=oldest))


def test_a_switch_has_no_driver():
    check_reference(SWITCH, reference(minimum_driver="1000.0", modes=()))


def test_roots_are_added_to_nvidias():
    assert OURS.all_roots() == NVIDIA_DEVICE_ROOTS
    assert reference(roots=("ab" * 32,)).all_roots() == NVIDIA_DEVICE_ROOTS | {"ab" * 32}


BAD_FIELDS = {
    "upper-case-pdi": {"devices": ["AA" * 8]},
    "short-pdi": {"devices": ["aa" * 7]},
    "ueid-for-pdi": {"devices": [GPU.ueid]},
    "negative-count": {"gpus": -1},
    "count-over-evidence": {"gpus": 33},
    "unknown-mode": {"modes": ["on"]},
    "driver-without-dots": {"minimum_driver": "590"},
    "driver-with-a-newline": {"minimum_driver": "590.12\n"},
    "vbios-in-lower-case": {"minimum_vbios": {"hopper": "96.00.a5.00.01"}},
    "vbios-of-an-unknown-family": {"minimum_vbios": {"ampere": "96.00.A5.00.01"}},
    "serial-with-leading-zero": {"revoked_certificates": ["0ab"]},
    "root-of-another-size": {"roots": ["ab" * 31]},
    "unknown-field": {"allow_all": True},
}


@each("id, fields", BAD_FIELDS)
def test_misspelt_reference_values_are_refused(fields):
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(fields), type=GpuReference)


def test_reference_values_survive_writing():
    full = reference(
        minimum_vbios={Architecture.HOPPER: "96.00.A5.00.01"},
        minimum_driver="590.12",
        roots=("ab" * 32,),
        revoked_certificates=("ab",),
    )
    assert msgspec.json.decode(msgspec.json.encode(full), type=GpuReference) == full


# Golden measurements.


def golden(state, *indices, **other):
    """Golden values that match; i7=() and the like are other values for some indices."""
    values = {index: (bytes(48), state.measurements[index]) for index in indices}
    return values | {int(name.removeprefix("i")): value for name, value in other.items()}


VBIOS, DRIVER = golden(GPU, *range(10), 35), golden(GPU, *range(20, 30))
WRONG = bytes([9]) * 48


def test_golden_measurements_match():
    on = Device(fields={11: b"\xaa"}).state()
    result = compare_measurements(on, vbios=VBIOS, driver=DRIVER)
    assert result.left_out == ()
    assert list(result.matched) == [*range(10), *range(20, 30), 35]
    assert result.matched[3] == "VBIOS RIM"
    assert result.matched[20] == "driver RIM"


def test_a_switch_has_one_rim():
    result = compare_measurements(SWITCH, vbios=golden(SWITCH, *range(31)))
    assert list(result.matched) == list(range(31))


@pytest.mark.forgery
def test_measurement_35_counts_when_nvdec0_is_on():
    on = Device(fields={11: b"\xaa"}).state()
    forged = golden(GPU, i35=(WRONG,))
    refused(622, "35 (VBIOS RIM)", compare_measurements, on, vbios=VBIOS | forged, driver=DRIVER)
    result = compare_measurements(GPU, vbios=VBIOS | forged, driver=DRIVER)
    assert result.left_out == (35,)
    assert 35 not in result.matched


def test_what_is_left_out_is_only_told_when_it_was_asked():
    result = compare_measurements(GPU, vbios=golden(GPU, 1), driver=DRIVER)
    assert result.left_out == ()


def test_zero_can_be_golden():
    state = dataclasses.replace(GPU, measurements={**GPU.measurements, 5: bytes(48)})
    compare_measurements(state, vbios=VBIOS, driver=DRIVER)


OTHERS = {21: (WRONG,), 20: (WRONG,)}
ALL_WRONG = "not golden: 7 (VBIOS RIM), 20 (driver RIM), 21 (driver RIM)"
SEVEN, EIGHT = GPU.measurements[7], GPU.measurements[8]
LATER = {70: (WRONG,), 64: (WRONG,)}
COMPARISONS = {
    "one-wrong": ({"vbios": VBIOS | {7: (WRONG,)}}, 622, "not golden: 7 (VBIOS RIM)"),
    "several-wrong": ({"vbios": VBIOS | {7: (WRONG,)}, "driver": DRIVER | OTHERS}, 622, ALL_WRONG),
    "zero-where-code-was": ({"vbios": VBIOS | {7: (bytes(48),)}}, 622, "7 (VBIOS RIM)"),
    "swapped-rims-that-fit": ({"vbios": golden(GPU, 1), "driver": {2: (WRONG,)}}, 622, "2 (dri"),
    "value-of-another-index": ({"vbios": VBIOS | {7: (EIGHT,)}}, 622, "7 (VBIOS RIM)"),
    "not-reported": ({"driver": DRIVER | {64: (WRONG,)}}, 623, "not reported: 64 (driver RIM)"),
    "several-not-reported": ({"driver": DRIVER | LATER}, 623, "64 (driver RIM), 70 (driver RIM)"),
    "empty-vbios-rim": ({"vbios": {}}, 620, "VBIOS RIM has no active"),
    "empty-driver-rim": ({"driver": {}}, 620, "driver RIM has no active"),
    "no-driver-rim": ({"driver": None}, 620, "driver RIM has no active"),
    "index-without-values": ({"vbios": VBIOS | {7: ()}}, 620, "no SHA-384 digests for 7"),
    "sha-256-value": ({"vbios": VBIOS | {7: (bytes(32),)}}, 620, "no SHA-384 digests for 7"),
    "empty-value": ({"vbios": VBIOS | {7: (SEVEN, b"")}}, 620, "digests for 7"),
    "both-claim-one-index": ({"driver": DRIVER | {7: (SEVEN,)}}, 621, "measurement 7 is in both"),
}
ONE = golden(SWITCH, 1)
SWITCHES = {
    "35-of-a-switch": ({"vbios": golden(SWITCH, 1, i35=(WRONG,))}, 623, "35 (VBIOS RIM)"),
    "driver-rim-of-a-switch": ({"vbios": ONE, "driver": ONE}, 620, "no driver RIM"),
    "empty-driver-rim-of-a-switch": ({"vbios": ONE, "driver": {}}, 620, "no driver RIM"),
    "empty-rim-of-a-switch": ({"vbios": {}}, 620, "no active"),
}


@forgeries(
    "id, device, rims, code, what",
    *((k, GPU, {"vbios": VBIOS, "driver": DRIVER} | v, *w) for k, (v, *w) in COMPARISONS.items()),
    *((name, SWITCH, *row) for name, row in SWITCHES.items()),
)
def test_measurements_that_are_not_golden(device, rims, code, what):
    refused(code, what, compare_measurements, device, **rims)
