# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Compare a device's firmware and driver with the RIMs that NVIDIA signed for them.

Rules, in order:

1. which RIMs a device needs follows from its own report and certificates: a GPU's VBIOS and driver,
   a switch's BIOS. What goes into an id has the form of an id, and is never a path;
2. the document under that id is a RIM that verifies (`rim`), and its kind, version and product are
   the device's. Board and SKU stand in an id alone, which the RIM's signer does not sign: that an
   id belongs to a document is the word of whoever signed the collateral cache, and NVIDIA gives a
   version to one board's firmware only;
3. every active measurement was measured, and is one of its golden values (`reference`).

Ids are those of NVIDIA's RIM service (https://docs.nvidia.com/attestation, "RIM ID Naming
Convention"), put together as attestation-sdk does (`gpu/verify.cpp`, `switch/verify.cpp`). A driver
RIM of the wrong family verifies as well: its product is what tells it apart.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import StatusLookup
from securetrain.evidence.gpu.reference import Comparison, compare_measurements
from securetrain.evidence.gpu.report import Architecture, DeviceState
from securetrain.evidence.gpu.rim import DRIVER_VERSION, FIRMWARE_VERSION, Rim, RimCache, RimKind
from securetrain.evidence.node_evidence import DeviceKind

_OTHER: Final = "ST-ATTS-708"
_ID_PART: Final = re.compile(r"[0-9A-Z]{1,16}")

# The board of an LS10, its SKU and the chip's: the same for all, and not in a report.
_SWITCH_BOARD: Final = ("5612", "0002", "890")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A RIM that a device needs."""

    id: str
    kind: RimKind
    version: str
    product: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Firmware:
    """The firmware that a device was found to run."""

    rims: tuple[Rim, ...]
    """VBIOS first, then the driver's for a GPU."""
    expired: tuple[str, ...]
    """Ids of those whose signer's certificate has ended."""
    comparison: Comparison


def wanted_rims(state: DeviceState) -> tuple[Wanted, ...]:
    """The RIMs that a device needs: VBIOS first, then the driver's for a GPU.

    Raises:
        AttestationError: ST-ATTS-708 when there can be no such RIM.
    """
    where = str(state)
    claims = state.claims
    chip = state.chip.replace("_", "")  # a switch's certificate calls it LS_10, its RIM LS10
    version = _version(state.vbios.upper(), FIRMWARE_VERSION, "firmware", where)
    is_switch = state.kind is DeviceKind.SWITCH
    board = _SWITCH_BOARD if is_switch else (claims.project, claims.project_sku, claims.chip_sku)
    series = "NV_SWITCH_BIOS" if is_switch else "NV_GPU_VBIOS"
    parts = [_part(part, "board", where) for part in board]
    firmware = Wanted(
        id="_".join((series, *parts, version.replace(".", ""))),
        kind=RimKind.SWITCH if is_switch else RimKind.VBIOS,
        version=version,
        product=_part(chip, "chip", where),
    )
    if is_switch:
        return (firmware,)
    driver = _version(state.driver, DRIVER_VERSION, "driver", where)
    product = _part(claims.chip_info or chip, "chip", where)
    # Hopper's driver RIMs were named before there was another architecture.
    hopper = state.architecture is Architecture.HOPPER
    series = "NV_GPU_DRIVER" if hopper else "NV_GPU_CC_DRIVER"
    name = f"{series}_{product}_{driver}"
    return firmware, Wanted(id=name, kind=RimKind.DRIVER, version=driver, product=product)


def find_rim(
    wanted: Wanted,
    get: Callable[[str], bytes],
    cache: RimCache,
    *,
    now: datetime,
    allow_expired: bool = False,
    status: StatusLookup | None = None,
) -> Rim:
    """The verified RIM that a device needs.

    Args:
        wanted: which one.
        get: the document for an id, e.g. from the collateral cache; its refusals pass through.
        cache: of verified RIMs.
        now: the time of the check.
        allow_expired: accept a signer whose certificates have ended.
        status: tells revoked certificates; None leaves that unchecked.

    Raises:
        AttestationError: as `rim.parse_rim`; ST-ATTS-708 when the RIM under this id is another.
    """
    rim = cache.parse(
        get(wanted.id), now=now, allow_expired=allow_expired, status=status, where=wanted.id
    )
    for name, found, expected in (
        ("kind", rim.kind, wanted.kind),
        ("version", rim.version, wanted.version),
        ("product", rim.product, wanted.product),
    ):
        if found != expected:
            raise _other(f"the RIM is for {name} {found}, the device has {expected}", wanted.id)
    return rim


def check_firmware(
    state: DeviceState,
    get: Callable[[str], bytes],
    cache: RimCache,
    *,
    now: datetime,
    allow_expired: bool = False,
    status: StatusLookup | None = None,
) -> Firmware:
    """Find a verified device's RIMs and compare its measurements with them.

    Args: as `find_rim`.

    Raises:
        AttestationError: as `find_rim` and `reference.compare_measurements`.
    """
    wanted = wanted_rims(state)
    rims = tuple(
        find_rim(one, get, cache, now=now, allow_expired=allow_expired, status=status)
        for one in wanted
    )
    vbios, *driver = (rim.golden for rim in rims)
    return Firmware(
        rims=rims,
        expired=tuple(one.id for one, rim in zip(wanted, rims, strict=True) if rim.expired(now)),
        comparison=compare_measurements(state, vbios=vbios, driver=next(iter(driver), None)),
    )


def _part(value: str, what: str, where: str) -> str:
    part = value.upper()
    if not _ID_PART.fullmatch(part):
        raise _other(f"{value!r} is no name of a {what}", where)
    return part


def _version(value: str, form: re.Pattern[str], what: str, where: str) -> str:
    if not form.fullmatch(value):
        raise _other(f"{value!r} is no version of a {what}", where)
    return value


def _other(what: str, where: str) -> AttestationError:
    return AttestationError(_OTHER, what, where)
