# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values of GPUs and switches: inventory, modes, versions and golden measurements.

Rules of `compare_measurements` (NVIDIA nvtrust, `verifier.py`; attestation-sdk, `gpu/verify.cpp`):

1. a GPU needs the golden values of its driver and of its VBIOS, a switch those of its VBIOS. A RIM
   without active values is a refusal; NVIDIA's verifier only warns;
2. no measurement is claimed by both RIMs;
3. every measurement with golden values was reported and equals one of them. Golden values may be
   zero: a RIM says by that, that something must not have been loaded;
4. measurement 35 is only made when NVDEC0 is on: the GPU says, signed, when it is off, and the
   golden values of 35 are then left out;
5. measurements without golden values are not compared: RIMs leave out what differs lawfully.

The golden measurements are also what refuses a GPU in developer-tools mode and one whose firmware
is a debug build: a report has no documented field for either.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import NVIDIA_DEVICE_ROOTS
from securetrain.evidence.gpu.opaque import Mode
from securetrain.evidence.gpu.report import Architecture, DeviceState
from securetrain.evidence.gpu.spdm import DIGEST_SIZE
from securetrain.evidence.node_evidence import DeviceKind

# \Z: a `$` would let a newline follow.
Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Pdi: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
CertificateSerial: TypeAlias = Annotated[str, Meta(pattern=r"^[1-9a-f][0-9a-f]{0,39}\Z")]
DriverVersion: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6}){1,3}\Z")]
VbiosVersion: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9A-F]{2}(\.[0-9A-F]{2}){4}\Z")]
Golden: TypeAlias = Mapping[int, Collection[bytes]]
"""Accepted digests of every active measurement of a RIM, by index."""

_DRIVER: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){1,3}")
_NVDEC0_MEASUREMENT: Final = 35


class GpuReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Reference values for the GPUs and switches of a fleet's nodes."""

    devices: tuple[Pdi, ...] = ()
    """Inventory: PDIs of the accepted devices, as `securetrain attest show` prints them. Empty
    accepts none. The PDI stays with the device; its UEID changes with the firmware."""
    gpus: Annotated[int, Meta(ge=0, le=32)] = 0
    """Number of GPUs of a node."""
    switches: Annotated[int, Meta(ge=0, le=32)] = 0
    """Number of switches that belong to a node: 4 on an HGX board in protected PCIe mode."""
    modes: tuple[Mode, ...] = (Mode.SPT, Mode.MPT, Mode.PPCIE)
    """Accepted modes. `unstated`, of drivers before 580, must be asked for."""
    minimum_driver: DriverVersion | None = None
    """Oldest accepted driver, ``580.159.03``. None asks for none: golden measurements already
    name the exact versions."""
    minimum_vbios: dict[Architecture, VbiosVersion] = {}
    """Oldest accepted VBIOS by architecture, ``96.00.A5.00.01``; no entry asks for none."""
    revoked_devices: tuple[Pdi, ...] = ()
    """PDIs that are refused although the inventory names them."""
    revoked_certificates: tuple[CertificateSerial, ...] = ()
    """Serial numbers, in hex, of certificates that no chain may contain."""
    roots: tuple[Digest, ...] = ()
    """SHA-256 of the SubjectPublicKeyInfo of accepted roots beside NVIDIA's own."""

    def all_roots(self) -> frozenset[str]:
        """Every accepted root, for `report.verify_device`."""
        return NVIDIA_DEVICE_ROOTS | set(self.roots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The measurements that were found golden."""

    matched: Mapping[int, str]
    """The RIM that names each of them."""
    left_out: tuple[int, ...]
    """Measurements with golden values that this device does not make."""


def check_reference(state: DeviceState, reference: GpuReference) -> None:
    """Ask whether a verified device is one of ours, in a mode and of an age that we accept.

    Raises:
        AttestationError: ST-ATTS-617 and 625 to 628.
    """
    where = str(state)
    banned = sorted(set(state.certificate_serials) & set(reference.revoked_certificates))
    if banned:
        raise AttestationError("ST-ATTS-626", f"certificate {', '.join(banned)} is banned", where)
    if state.pdi in reference.revoked_devices:
        raise AttestationError("ST-ATTS-626", f"device {state.pdi} is banned", where)
    if state.pdi not in reference.devices:
        raise AttestationError(
            "ST-ATTS-625", f"{state.pdi} is none of {len(reference.devices)} devices", where
        )
    if state.mode is not None and state.mode not in reference.modes:
        accepted = ", ".join(reference.modes) or "none"
        raise AttestationError("ST-ATTS-617", f"mode {state.mode}, accepted are {accepted}", where)
    if state.kind is DeviceKind.GPU and reference.minimum_driver is not None:
        _check_driver(state.driver, reference.minimum_driver, where)
    oldest = reference.minimum_vbios.get(state.architecture)
    if oldest is not None and bytes.fromhex(_plain(state.vbios)) < bytes.fromhex(_plain(oldest)):
        raise AttestationError(
            "ST-ATTS-628", f"VBIOS {state.vbios}, the oldest accepted is {oldest}", where
        )


def _check_driver(version: str, oldest: str, where: str) -> None:
    if _DRIVER.fullmatch(version) is None:
        raise AttestationError("ST-ATTS-627", f"driver version {version!r} has no order", where)
    if _numbers(version) < _numbers(oldest):
        raise AttestationError(
            "ST-ATTS-627", f"driver {version}, the oldest accepted is {oldest}", where
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _plain(vbios: str) -> str:
    return vbios.replace(".", "")


def compare_measurements(
    state: DeviceState, *, vbios: Golden, driver: Golden | None = None
) -> Comparison:
    """Compare what a device measured with what its RIMs say.

    Args:
        state: the verified device.
        vbios: active golden values of the RIM `state.vbios_rim`.
        driver: active golden values of the RIM `state.driver_rim`; None for a switch.

    Raises:
        AttestationError: ST-ATTS-620 to 623.
    """
    where = f"{state}: measurements"
    rims: dict[str, Golden | None] = {"VBIOS RIM": vbios}
    if state.kind is DeviceKind.GPU:
        rims["driver RIM"] = driver
    elif driver is not None:
        raise AttestationError("ST-ATTS-620", "a switch has no driver RIM", where)
    golden = _golden(rims, where)
    left_out = () if state.claims.nvdec0_enabled is not False else (_NVDEC0_MEASUREMENT,)
    asked = {index: value for index, value in golden.items() if index not in left_out}
    missing = [index for index in asked if index not in state.measurements]
    if missing:
        raise AttestationError("ST-ATTS-623", f"not reported: {_named(missing, golden)}", where)
    wrong = [
        index for index, (_, values) in asked.items() if state.measurements[index] not in values
    ]
    if wrong:
        raise AttestationError("ST-ATTS-622", f"not golden: {_named(wrong, golden)}", where)
    return Comparison(
        matched={index: asked[index][0] for index in sorted(asked)},
        left_out=tuple(index for index in left_out if index in golden),
    )


def _golden(
    rims: Mapping[str, Golden | None], where: str
) -> dict[int, tuple[str, Collection[bytes]]]:
    """The golden values of all RIMs by index, each with the name of its RIM."""
    golden: dict[int, tuple[str, Collection[bytes]]] = {}
    for name, values in rims.items():
        if not values:
            raise AttestationError("ST-ATTS-620", f"the {name} has no active golden values", where)
        for index, digests in values.items():
            if not digests or any(len(digest) != DIGEST_SIZE for digest in digests):
                raise AttestationError(
                    "ST-ATTS-620", f"the {name} has no SHA-384 digests for {index}", where
                )
            if index in golden:
                raise AttestationError("ST-ATTS-621", f"measurement {index} is in both RIMs", where)
            golden[index] = name, digests
    return golden


def _named(indices: list[int], golden: Mapping[int, tuple[str, Collection[bytes]]]) -> str:
    return ", ".join(f"{index} ({golden[index][0]})" for index in sorted(indices))
