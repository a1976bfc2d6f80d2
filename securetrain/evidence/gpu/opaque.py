# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Read the opaque data of a device's report.

Source: NVIDIA attestation-sdk, `gpu_opaque_data_parser` and `switch_opaque_data_parser`; nvtrust,
`spdm_msrt_resp_msg.py` and `validate_topology.py`. Only fields that a verifier of training nodes
has a use for are read.

Rules:

1. the caller has checked the signature over these bytes;
2. a field that is read has its exact size and alphabet, or the report is refused; the fields that
   every known driver sends must be there;
3. opaque data of a later version than this module knows is refused, as NVIDIA's verifier does;
4. FEATURE_FLAG and PROTECTED_PCIE_STATUS must not contradict each other. Drivers before 580 send
   no FEATURE_FLAG: protected PCIe is then still told, the rest is `Mode.UNSTATED`;
5. a PDI (the identity that is burnt into a device) is written as in certificates. In the list of a
   GPU its bytes are reversed. Eight zero bytes mean a link that is not used.

FEATURE_FLAG 0 is single-GPU passthrough and 1 multi-GPU passthrough, as in nvtrust; the C++ SDK
swaps the two names. A report has no documented field for developer-tools mode: the golden
measurements tell it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from securetrain.core.errors import AttestationError

PDI_SIZE: Final = 8
SWITCH_GPUS: Final = 8
"""A switch reports so many PDIs, then the ports that they are on."""
_LATEST_VERSION: Final = 1
_NO_LINK: Final = "00" * PDI_SIZE
_VBIOS_SIZE: Final = 8
_ENABLED: Final = 0xAA
_DISABLED: Final = 0x55
_LOCKED: Final = 1
_TEXT: Final = re.compile(rb"([0-9A-Za-z._-]{1,32})\0{0,16}")
_SWITCH_VBIOS: Final = re.compile(r"[0-9A-F]{2}(\.[0-9A-F]{2}){4}")


class Field(IntEnum):
    """Types of opaque data; OPAQUE_FIELD_ID_... in the SDK."""

    DRIVER_VERSION = 3
    GPU_INFO = 4
    VBIOS_VERSION = 6
    NVDEC0_STATUS = 11
    CHIP_SKU = 15
    PROJECT = 17
    PROJECT_SKU = 18
    FWID = 20
    PROTECTED_PCIE_STATUS = 21
    PDI = 22
    """Of a GPU: the switches behind its links (SWITCH_PDI). Of a switch: its own (DEVICE_PDI)."""
    SWITCH_LOCK_STATUS = 25
    SWITCH_GPU_PDIS = 26
    OPAQUE_DATA_VERSION = 34
    CHIP_INFO = 35
    FEATURE_FLAG = 36


class Mode(StrEnum):
    """The way in which the driver shares GPUs with a confidential VM."""

    SPT = "spt"
    """Single-GPU passthrough."""
    MPT = "mpt"
    """Multi-GPU passthrough: traffic between GPUs is encrypted, switches are not trusted."""
    PPCIE = "ppcie"
    """Protected PCIe: all GPUs and switches of the board belong to one VM."""
    UNSTATED = "unstated"
    """A driver that tells no more than that it is not protected PCIe."""


_FEATURES: Final = {0: Mode.SPT, 1: Mode.MPT, 2: Mode.PPCIE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of one device about itself, beside its measurements."""

    vbios: str
    """Five bytes in hex, upper case: ``96.00.A5.00.01``."""
    driver: str = ""
    """Empty for a switch."""
    mode: Mode | None = None
    """None for a switch."""
    chip_id: int | None = None
    """NV_PMC_BOOT_42 of a GPU, without the revision: 0x180 for GH100."""
    chip_info: str = ""
    """Name of the chip in driver RIMs, when the driver tells it."""
    project: str = ""
    project_sku: str = ""
    chip_sku: str = ""
    fwid: bytes | None = None
    """Digest of the firmware that holds the report's key, when the driver tells it."""
    nvdec0_enabled: bool | None = None
    """None for a switch. Measurement 35 of a GPU is only made when it is."""
    pdi: str | None = None
    """Of a switch; a GPU does not tell its own."""
    peers: frozenset[str] = frozenset()
    """PDIs of the devices behind the links: switches of a GPU, GPUs of a switch."""
    locked: bool | None = None
    """Whether a switch's configuration is locked; None for a GPU."""


def read_gpu(fields: Mapping[int, bytes], where: str) -> Claims:
    """Read the claims of a GPU.

    Raises:
        AttestationError: ST-ATTS-602 when a field is missing, malformed or contradicts another.
    """
    reader = _Fields(fields, where)
    reader.check_version()
    return Claims(
        vbios=reader.gpu_vbios(),
        driver=reader.text(Field.DRIVER_VERSION),
        mode=reader.mode(),
        chip_id=reader.number(Field.GPU_INFO, 8),
        chip_info=reader.text(Field.CHIP_INFO) if Field.CHIP_INFO in fields else "",
        project=reader.text(Field.PROJECT),
        project_sku=reader.text(Field.PROJECT_SKU),
        chip_sku=reader.text(Field.CHIP_SKU),
        fwid=fields.get(Field.FWID),
        nvdec0_enabled=reader.switched(Field.NVDEC0_STATUS),
        peers=reader.switches(),
    )


def read_switch(fields: Mapping[int, bytes], where: str) -> Claims:
    """Read the claims of a switch.

    Raises:
        AttestationError: ST-ATTS-602 when a field is missing, malformed or contradicts another.
    """
    reader = _Fields(fields, where)
    reader.check_version()
    return Claims(
        vbios=reader.switch_vbios(),
        fwid=fields.get(Field.FWID),
        pdi=reader.exactly(Field.PDI, PDI_SIZE).hex(),
        peers=reader.gpus(),
        locked=reader.number(Field.SWITCH_LOCK_STATUS, 2) == _LOCKED,
    )


class _Fields:
    """The opaque data of one report."""

    def __init__(self, fields: Mapping[int, bytes], where: str) -> None:
        self._fields = fields
        self._where = where

    def check_version(self) -> None:
        """Refuse what a later driver may mean differently."""
        if Field.OPAQUE_DATA_VERSION in self._fields:
            version = self.number(Field.OPAQUE_DATA_VERSION, 2)
            if version > _LATEST_VERSION:
                raise self._bad(
                    Field.OPAQUE_DATA_VERSION, f"{version}, this verifier reads {_LATEST_VERSION}"
                )

    def exactly(self, field: Field, size: int) -> bytes:
        """The value of a field that must be there."""
        value = self._value(field)
        if len(value) != size:
            raise self._bad(field, f"{len(value)} bytes, not {size}")
        return value

    def number(self, field: Field, size: int) -> int:
        """A little-endian number."""
        return int.from_bytes(self.exactly(field, size), "little")

    def text(self, field: Field) -> str:
        """A C string; what may follow its end is more of the same zeros."""
        value = self._value(field)
        match = _TEXT.fullmatch(value)
        if match is None:
            raise self._bad(field, f"{value[:48]!r} is not a name or version")
        return match[1].decode("ascii")

    def switched(self, field: Field) -> bool:
        """A status byte that is 0xAA for on and 0x55 for off."""
        value = self.number(field, 1)
        if value not in {_ENABLED, _DISABLED}:
            raise self._bad(field, f"{value:#04x} is neither on nor off")
        return value == _ENABLED

    def mode(self) -> Mode:
        """The mode of a GPU, see rule 4."""
        protected = None
        if Field.PROTECTED_PCIE_STATUS in self._fields:
            protected = self.switched(Field.PROTECTED_PCIE_STATUS)
        if Field.FEATURE_FLAG not in self._fields:
            return Mode.PPCIE if protected else Mode.UNSTATED
        flag = self.number(Field.FEATURE_FLAG, 2)
        mode = _FEATURES.get(flag)
        if mode is None:
            raise self._bad(Field.FEATURE_FLAG, f"{flag} is not a known mode")
        if protected is not None and protected != (mode is Mode.PPCIE):
            raise self._bad(Field.FEATURE_FLAG, f"{mode}, but PROTECTED_PCIE_STATUS is {protected}")
        return mode

    def gpu_vbios(self) -> str:
        """Four bytes, least significant first, then a fifth; the rest is not part of the name."""
        value = self.exactly(Field.VBIOS_VERSION, _VBIOS_SIZE)
        return bytes((*reversed(value[:4]), value[4])).hex(".").upper()

    def switch_vbios(self) -> str:
        """A switch writes its version out."""
        version = self.text(Field.VBIOS_VERSION).upper()
        if _SWITCH_VBIOS.fullmatch(version) is None:
            raise self._bad(Field.VBIOS_VERSION, f"{version!r} is not a version")
        return version

    def switches(self) -> frozenset[str]:
        """PDIs that a GPU names; empty outside protected PCIe."""
        value = self._fields.get(Field.PDI, b"")
        if len(value) % PDI_SIZE:
            raise self._bad(Field.PDI, f"{len(value)} bytes are no list of PDIs")
        return _pdis(value[::-1])

    def gpus(self) -> frozenset[str]:
        """PDIs that a switch names."""
        value = self._value(Field.SWITCH_GPU_PDIS)
        if len(value) < SWITCH_GPUS * PDI_SIZE:
            raise self._bad(Field.SWITCH_GPU_PDIS, f"{len(value)} bytes, too few for the PDIs")
        return _pdis(value[: SWITCH_GPUS * PDI_SIZE])

    def _value(self, field: Field) -> bytes:
        if field not in self._fields:
            raise self._bad(field, "missing")
        return self._fields[field]

    def _bad(self, field: Field, what: str) -> AttestationError:
        return AttestationError(
            "ST-ATTS-602", f"{field.name}: {what}", f"{self._where}: opaque data"
        )


def _pdis(data: bytes) -> frozenset[str]:
    found = {data[at : at + PDI_SIZE].hex() for at in range(0, len(data), PDI_SIZE)}
    return frozenset(found - {_NO_LINK})
