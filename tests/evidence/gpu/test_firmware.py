# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Which RIM a device needs and what it measured; `test_a_device` is the control."""

import dataclasses

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.firmware import check_firmware, find_rim, wanted_rims
from securetrain.evidence.gpu.opaque import Claims, Mode
from securetrain.evidence.gpu.report import Architecture, DeviceState, verify_device
from securetrain.evidence.gpu.rim import NVIDIA_RIM_ROOTS, RimCache, RimKind
from securetrain.evidence.node_evidence import DeviceEvidence, DeviceKind
from tests import vocabulary
from tests.evidence.gpu.authority import DAY, NOW, YEAR, make_authority
from tests.evidence.gpu.rimforge import digest_of, manifest, sign
from tests.evidence.vectors import needs_vectors, vector
from tests.tables import forgeries

AUTHORITY = make_authority(not_before=NOW - YEAR, not_after=NOW + DAY)

GPU = DeviceState(
    kind=DeviceKind.GPU,
    architecture=Architecture.HOPPER,
    chip="GH100",
    pdi="ab" * 8,
    serial="cd" * 8,
    ueid="7",
    certificate_serials=(),
    status_checked=True,
    expires=NOW + YEAR,
    nonce=bytes(32),
    fwid=bytes(48),
    measurements={number: digest_of(number) for number in range(64)},
    claims=Claims(
        vbios="96.00.5E.00.01",
        driver="550.144.03",
        mode=Mode.SPT,
        project="1010",
        project_sku="0200",
        chip_sku="882",
        nvdec0_enabled=True,
    ),
)
SWITCH = dataclasses.replace(
    GPU,
    kind=DeviceKind.SWITCH,
    architecture=Architecture.LS10,
    chip="LS_10",
    claims=Claims(vbios="96.10.55.00.01", pdi="ab" * 8),
)


def rim(*arguments, **changes):
    return sign(manifest(*arguments, **changes), AUTHORITY)


VBIOS = rim(measurements={1: [digest_of(1)], 2: [digest_of(99), digest_of(2)]})
DRIVER = rim("550.144.03", measurements={3: [digest_of(3)]})
BIOS = rim("96.10.55.00.01", product="LS10", edition="SWITCH", measurements={4: [digest_of(4)]})
STORE = {
    "NV_GPU_VBIOS_1010_0200_882_96005E0001": VBIOS,
    "NV_GPU_DRIVER_GH100_550.144.03": DRIVER,
    "NV_SWITCH_BIOS_5612_0002_890_9610550001": BIOS,
}


def get_from(store):
    def get(name):
        if name not in store:
            raise AttestationError("ST-ATTS-735", "no such RIM", name, "add it")
        return store[name]

    return get


def check(state=GPU, *, store=None, roots=None, **changes):
    cache = RimCache(roots or AUTHORITY.roots)
    get = get_from(STORE if store is None else store)
    return check_firmware(state, get, cache, **{"now": NOW, **changes})


def refused(code, state=GPU, **changes):
    return vocabulary.refused(AttestationError, code, check, state, **changes)


def claim(state, **changes):
    return dataclasses.replace(state, claims=dataclasses.replace(state.claims, **changes))


def test_a_device():
    found = check()
    assert [one.kind for one in found.rims] == [RimKind.VBIOS, RimKind.DRIVER]
    assert found.comparison.matched == {1: "VBIOS RIM", 2: "VBIOS RIM", 3: "driver RIM"}
    assert found.expired == ()
    found = check(SWITCH)
    assert [one.kind for one in found.rims] == [RimKind.SWITCH]
    assert found.comparison.matched == {4: "VBIOS RIM"}


def ids(state):
    return [one.id for one in wanted_rims(state)]


def test_ids():
    assert ids(GPU) == ["NV_GPU_VBIOS_1010_0200_882_96005E0001", "NV_GPU_DRIVER_GH100_550.144.03"]
    assert ids(SWITCH) == ["NV_SWITCH_BIOS_5612_0002_890_9610550001"]
    assert wanted_rims(SWITCH)[0].product == "LS10"
    lower = claim(GPU, project="g520", vbios="96.00.74.00.0d")
    assert ids(lower)[0] == "NV_GPU_VBIOS_G520_0200_882_960074000D"
    blackwell = dataclasses.replace(
        claim(GPU, driver="595.91.07"), architecture=Architecture.BLACKWELL, chip="GB100"
    )
    assert ids(blackwell)[1] == "NV_GPU_CC_DRIVER_GB100_595.91.07"
    told = claim(blackwell, chip_info="GB10X")
    assert ids(told)[1] == "NV_GPU_CC_DRIVER_GB10X_595.91.07"
    assert [one.product for one in wanted_rims(told)] == ["GB100", "GB10X"]


@forgeries(
    "id, state, what",
    ("project-with-a-path", claim(GPU, project="../.."), "board"),
    ("no-sku", claim(GPU, project_sku=""), "board"),
    ("chip-sku", claim(GPU, chip_sku="8_2"), "board"),
    ("vbios", claim(GPU, vbios="96.00.5E.00"), "firmware"),
    ("vbios-and-more", claim(GPU, vbios="96.00.5E.00.01\n"), "firmware"),
    ("driver-with-a-path", claim(GPU, driver="550.144.03/.."), "driver"),
    ("no-driver", claim(GPU, driver=""), "driver"),
    ("chip-with-a-path", claim(GPU, chip_info="GB/100"), "chip"),
    ("chip", dataclasses.replace(GPU, chip="x" * 17), "chip"),
    ("switch", claim(SWITCH, vbios="96"), "firmware"),
)
def test_devices_for_which_there_is_no_rim(state, what):
    refused("ST-ATTS-708", state, says=what, names=str(state))


NAMES = dict(zip(("vbios", "driver", "bios"), STORE, strict=True))


@forgeries(
    "id, which, data, what",
    ("another-vbios", "vbios", rim("96.00.5E.00.02"), "version 96.00.5E.00.02"),
    ("another-chip", "vbios", rim(product="GB100"), "product GB100"),
    ("a-switchs", "vbios", rim(edition="SWITCH"), "kind switch"),
    ("a-drivers", "vbios", DRIVER, "kind driver"),
    ("a-vbios-for-the-driver", "driver", VBIOS, "kind vbios"),
    ("another-driver", "driver", rim("550.144.04"), "version 550.144.04"),
    ("driver-of-blackwell", "driver", rim("550.144.03", product="GB100"), "product GB100"),
)
def test_a_rim_of_something_else(which, data, what):
    error = refused("ST-ATTS-708", store={**STORE, NAMES[which]: data})
    assert f"for {what}" in error.what
    assert error.where == NAMES[which]


@pytest.mark.forgery
def test_a_hopper_rim_for_a_blackwell_driver():
    blackwell = dataclasses.replace(GPU, architecture=Architecture.BLACKWELL, chip="GB100")
    vbios, driver = ids(blackwell)
    store = {vbios: rim(product="GB100"), driver: DRIVER}
    assert "product GH100" in refused("ST-ATTS-708", blackwell, store=store).what


@forgeries("which", "vbios", "driver")
def test_a_rim_that_is_not_there(which):
    store = {name: data for name, data in STORE.items() if name != NAMES[which]}
    assert refused("ST-ATTS-735", store=store).where == NAMES[which]


@forgeries("which", "vbios", "driver")
def test_a_rim_that_does_not_verify(which):
    data = STORE[NAMES[which]].replace(b'active="True"', b'active="False"')
    assert refused("ST-ATTS-703", store={**STORE, NAMES[which]: data}).where == NAMES[which]


@pytest.mark.forgery
def test_a_rim_by_somebody_else():
    assert refused("ST-ATTS-705", roots=make_authority().roots).where == NAMES["vbios"]


@forgeries("index", 1, 2, 3)
def test_a_measurement_that_is_not_golden(index):
    other = {**GPU.measurements, index: digest_of(999)}
    refused("ST-ATTS-622", dataclasses.replace(GPU, measurements=other), says=f"{index} (")


@pytest.mark.forgery
def test_a_measurement_that_both_rims_claim():
    both = rim("550.144.03", measurements={1: [digest_of(1)]})
    refused("ST-ATTS-621", store={**STORE, NAMES["driver"]: both})


@pytest.mark.forgery
def test_time_and_revocation():
    later = NOW + 2 * DAY
    refused("ST-ATTS-706", now=later)
    assert check(now=later, allow_expired=True).expired == (NAMES["vbios"], NAMES["driver"])
    refused("ST-ATTS-719", status=lambda *_: CertificateStatus.REVOKED)


# NVIDIA's own: a switch whose report and RIM were published together, and GPUs whose RIMs are for
# other builds of the same version.

SDK = "NVIDIA__attestation-sdk/nv-attestation-sdk-cpp/unit-tests/testdata/"


def device(kind, report, chain):
    data = bytes.fromhex(vector(SDK + report).decode().strip())
    certificates = x509.load_pem_x509_certificates(vector(SDK + chain))
    evidence = DeviceEvidence(
        kind=kind,
        report=data,
        certificates=tuple(certificate.public_bytes(Encoding.DER) for certificate in certificates),
    )
    return verify_device(evidence, nonce=data[4:36], now=NOW)


@needs_vectors
def test_a_genuine_switch_and_its_rim():
    state = device(DeviceKind.SWITCH, "switchAttestationReport.txt", "switchCertChain.txt")
    name = "NV_SWITCH_BIOS_5612_0002_890_9610550001"
    store = {name: vector(f"{SDK}switchVBIOSRim_{name}.xml")}
    found = check(state, store=store, roots=NVIDIA_RIM_ROOTS)
    assert len(found.comparison.matched) == len(state.measurements) == 31
    for index in range(31):
        changed = {**state.measurements, index: bytes(47) + b"\x01"}
        bad = dataclasses.replace(state, measurements=changed)
        refused("ST-ATTS-622", bad, store=store, roots=NVIDIA_RIM_ROOTS)


@needs_vectors
@pytest.mark.forgery
def test_a_genuine_gpu_and_the_rim_of_another_build():
    state = device(
        DeviceKind.GPU,
        "sample_attestation_data/gpu/hopperAttestationReport.txt",
        "sample_attestation_data/gpu/hopperCertChain.txt",
    )
    wanted = wanted_rims(state)[0]
    get = get_from(
        {
            wanted.id: vector(
                f"{SDK}sample_rims/NV_GPU_VBIOS_1010_0200_882_96005E0001_measurement_mismatch.xml"
            )
        }
    )
    found = find_rim(wanted, get, RimCache(NVIDIA_RIM_ROOTS), now=NOW, allow_expired=True)
    wrong = [i for i, digests in found.golden.items() if state.measurements[i] not in digests]
    assert wrong, "NVIDIA's own sample of a mismatch"
    assert len(wrong) < len(found.golden)
