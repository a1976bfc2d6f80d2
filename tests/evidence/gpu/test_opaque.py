# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What devices say of themselves, well and badly said."""

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.opaque import Mode, read_gpu, read_switch
from tests import vocabulary
from tests.evidence.gpu.forge import (
    GPU_FIELDS,
    GPUS,
    SWITCH_FIELDS,
    SWITCHES,
    links_of_gpu,
    links_of_switch,
)
from tests.tables import each, forgeries

PDI = "00112233445566aa"
OF_SWITCH = SWITCH_FIELDS | {22: bytes.fromhex(PDI), 26: links_of_switch(GPUS)}


def gpu(**fields):
    """A GPU's fields with changes; None leaves one out."""
    return _read(read_gpu, GPU_FIELDS, fields)


def switch(**fields):
    return _read(read_switch, OF_SWITCH, fields)


def _read(read, usual, changes):
    changed = {int(name.removeprefix("f")): value for name, value in changes.items()}
    merged = {**usual, **changed}
    return read({kind: value for kind, value in merged.items() if value is not None}, "device 2")


def test_a_gpu_is_read():
    claims = gpu(f22=links_of_gpu(SWITCHES), f21=b"\xaa", f36=b"\x02\x00")
    assert claims.vbios == "96.00.A5.00.01"
    assert claims.driver == "590.12"
    assert claims.chip_id == 0x180
    assert (claims.project, claims.project_sku, claims.chip_sku) == ("G520", "0200", "885")
    assert claims.fwid == GPU_FIELDS[20]
    assert claims.nvdec0_enabled is False
    assert claims.peers == set(SWITCHES)
    assert claims.chip_info == ""
    assert claims.pdi is None
    assert claims.locked is None


def test_a_switch_is_read():
    claims = switch()
    assert claims.vbios == "96.10.73.00.01"
    assert claims.pdi == PDI
    assert claims.peers == set(GPUS)
    assert claims.locked is True
    assert claims.driver == ""
    assert claims.mode is None
    assert claims.nvdec0_enabled is None


def test_links_that_are_not_used_name_nobody():
    assert gpu(f22=bytes(144)).peers == frozenset()
    assert switch(f26=links_of_switch(GPUS[:3])).peers == set(GPUS[:3])


def test_ports_behind_the_list_are_no_pdis():
    assert switch(f26=links_of_switch(GPUS)[:64]).peers == set(GPUS)


def test_a_gpu_without_switches_says_nothing_of_them():
    assert gpu(f22=None).peers == frozenset()


@each(
    "flag, protected, mode",
    (b"\x00\x00", b"\x55", Mode.SPT),
    (b"\x00\x00", None, Mode.SPT),
    (b"\x01\x00", b"\x55", Mode.MPT),
    (b"\x02\x00", b"\xaa", Mode.PPCIE),
    (b"\x02\x00", None, Mode.PPCIE),
    (None, b"\xaa", Mode.PPCIE),
    (None, b"\x55", Mode.UNSTATED),
    (None, None, Mode.UNSTATED),
)
def test_the_mode_is_told_by_two_fields(flag, protected, mode):
    assert gpu(f36=flag, f21=protected).mode is mode


def test_nvdec0_can_be_on():
    assert gpu(f11=b"\xaa").nvdec0_enabled is True


def test_what_old_drivers_leave_out():
    assert gpu(f20=None, f21=None, f34=None, f36=None).fwid is None


def test_a_chip_can_be_named():
    assert gpu(f35=b"GB102\0\0\0").chip_info == "GB102"


def test_an_unlocked_switch_is_told():
    assert switch(f25=b"\x00\x00").locked is False
    assert switch(f25=b"\x02\x00").locked is False


@each("version", b"\x00\x00", b"\x01\x00", None)
def test_known_versions_are_read(version):
    assert gpu(f34=version).driver == "590.12"
    assert switch(f34=version).pdi == PDI


OF_GPU = {
    "no-driver": ({"f3": None}, "DRIVER_VERSION: missing"),
    "no-vbios": ({"f6": None}, "VBIOS_VERSION: missing"),
    "no-chip-id": ({"f4": None}, "GPU_INFO: missing"),
    "no-project": ({"f17": None}, "PROJECT: missing"),
    "no-project-sku": ({"f18": None}, "PROJECT_SKU: missing"),
    "no-chip-sku": ({"f15": None}, "CHIP_SKU: missing"),
    "no-nvdec0-status": ({"f11": None}, "NVDEC0_STATUS: missing"),
    "later-version": ({"f34": b"\x02\x00"}, "OPAQUE_DATA_VERSION: 2"),
    "version-of-one-byte": ({"f34": b"\x01"}, "OPAQUE_DATA_VERSION: 1 bytes"),
    "unknown-mode": ({"f36": b"\x03\x00"}, "FEATURE_FLAG: 3"),
    "mode-of-one-byte": ({"f36": b"\x00"}, "FEATURE_FLAG: 1 bytes"),
    "spt-but-protected": ({"f36": b"\x00\x00", "f21": b"\xaa"}, "FEATURE_FLAG: spt"),
    "mpt-but-protected": ({"f36": b"\x01\x00", "f21": b"\xaa"}, "FEATURE_FLAG: mpt"),
    "protected-but-not": ({"f36": b"\x02\x00", "f21": b"\x55"}, "FEATURE_FLAG: ppcie"),
    "protected-half": ({"f21": b"\x5a"}, "PROTECTED_PCIE_STATUS: 0x5a"),
    "nvdec0-half": ({"f11": b"\x00"}, "NVDEC0_STATUS: 0x00"),
    "nvdec0-of-two-bytes": ({"f11": b"\x55\x55"}, "NVDEC0_STATUS: 2 bytes"),
    "vbios-of-five-bytes": ({"f6": bytes(5)}, "VBIOS_VERSION: 5 bytes"),
    "empty-driver": ({"f3": b""}, "DRIVER_VERSION: b''"),
    "driver-of-zeros": ({"f3": b"\0\0"}, "DRIVER_VERSION"),
    "driver-with-a-second-end": ({"f3": b"590.12\0evil"}, "DRIVER_VERSION"),
    "driver-with-a-slash": ({"f3": b"../590.12\0"}, "DRIVER_VERSION"),
    "driver-with-a-newline": ({"f3": b"590.12\n"}, "DRIVER_VERSION"),
    "driver-of-100-bytes": ({"f3": b"1" * 100}, "DRIVER_VERSION"),
    "driver-in-utf-8": ({"f3": "590.1\u00b2".encode()}, "DRIVER_VERSION"),
    "project-with-a-slash": ({"f17": b"../\0"}, "PROJECT"),
    "chip-named-badly": ({"f35": b"GB100 x\0"}, "CHIP_INFO"),
    "pdis-with-a-stray-byte": ({"f22": bytes(145)}, "PDI: 145 bytes"),
}
OF_SWITCH_FORGED = {
    "no-pdi": ({"f22": None}, "PDI: missing"),
    "pdi-of-nine-bytes": ({"f22": bytes(9)}, "PDI: 9 bytes"),
    "no-gpus": ({"f26": None}, "SWITCH_GPU_PDIS: missing"),
    "seven-gpus": ({"f26": bytes(63)}, "SWITCH_GPU_PDIS: 63 bytes"),
    "no-lock": ({"f25": None}, "SWITCH_LOCK_STATUS: missing"),
    "lock-of-one-byte": ({"f25": b"\x01"}, "SWITCH_LOCK_STATUS: 1 bytes"),
    "binary-vbios": ({"f6": bytes.fromhex("00a5009601000000")}, "VBIOS_VERSION"),
    "short-vbios": ({"f6": b"96.10.73.00"}, "VBIOS_VERSION: '96.10.73.00'"),
    "later-version": ({"f34": b"\x02\x00"}, "OPAQUE_DATA_VERSION: 2"),
}


@forgeries("id, fields, what", OF_GPU)
def test_a_gpu_that_says_nonsense_is_refused(fields, what):
    refused(lambda: gpu(**fields), what)


@forgeries("id, fields, what", OF_SWITCH_FORGED)
def test_a_switch_that_says_nonsense_is_refused(fields, what):
    refused(lambda: switch(**fields), what)


def refused(read, what):
    error = vocabulary.refused(AttestationError, "ST-ATTS-602", read)
    assert what in error.what
    assert error.where == "device 2: opaque data"
