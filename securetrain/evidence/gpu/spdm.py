# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SPDM measurement reports of NVIDIA GPUs and NVSwitches, taken apart.

A report is the GET_MEASUREMENTS request (37 bytes) followed by the MEASUREMENTS response, both of
SPDM 1.1. Numbers are little-endian. Source: DMTF DSP0274 1.1.0, GET_MEASUREMENTS and MEASUREMENTS;
NVIDIA attestation-sdk (`spdm/`) for the list that fills the opaque data.

Rules:

1. a report is at most `REPORT_LIMIT` bytes, the buffer that NVML fills; every length in it is
   compared with its own limit and with what is there;
2. the request is for all measurements and for a signature; the response is for the same slot;
3. every measurement is a SHA-384 digest of the DMTF form; none has index 0 and none comes twice;
4. opaque data is a list of (type, size, value); no type comes twice. Unknown types are kept: they
   are signed, and newer drivers add some;
5. nothing follows the signature.

Nothing here is trusted yet: `report` checks the signature before `opaque` reads a meaning into
fields.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from securetrain.evidence.reader import Reader

MALFORMED: Final = "ST-ATTS-601"
REPORT_LIMIT: Final = 8192
"""NVML_CC_GPU_ATTESTATION_REPORT_SIZE."""
NONCE_SIZE: Final = 32
DIGEST_SIZE: Final = 48
COORDINATE_SIZE: Final = 48
SIGNATURE_SIZE: Final = 2 * COORDINATE_SIZE
"""r and s of ECDSA over P-384, big-endian."""
OPAQUE_LIMIT: Final = 1024
"""DSP0274 1.1.0, MEASUREMENTS: OpaqueLength."""

_VERSION: Final = 0x11
_GET_MEASUREMENTS: Final = 0xE0
_MEASUREMENTS: Final = 0x60
_SIGNATURE_REQUESTED: Final = 0x01
_ALL_MEASUREMENTS: Final = 0xFF
_DMTF: Final = 1
_RAW_BIT_STREAM: Final = 0x80
_MAX_SLOT: Final = 7
_BLOCK: Final = struct.Struct("<BBHBH")
"""Index, MeasurementSpecification, MeasurementSize, then DMTFSpecMeasurementValueType and -Size."""
_DMTF_HEADER: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One parsed report."""

    nonce: bytes
    """Of the request: what the verifier asked with."""
    slot: int
    measurements: Mapping[int, bytes]
    """Digests by index. SPDM counts from 1, NVIDIA's RIMs and this mapping from 0."""
    responder_nonce: bytes
    opaque: Mapping[int, bytes]
    signed: bytes
    """Request and response without the signature."""
    signature: bytes


def parse_report(raw: bytes, where: str = "SPDM report") -> Report:
    """Take a report apart.

    Args:
        raw: request and response.
        where: names the report in errors.

    Raises:
        AttestationError: ST-ATTS-601 when it is not exactly one well-formed report.
    """
    reader = Reader(raw, MALFORMED, where, "little")
    if len(raw) > REPORT_LIMIT:
        raise reader.bad(f"{len(raw)} bytes, the limit is {REPORT_LIMIT}")
    nonce, slot = _request(reader)
    measurements = _response(reader, slot)
    responder_nonce = reader.take(NONCE_SIZE)
    opaque = _opaque(reader.sized(2, OPAQUE_LIMIT), f"{where}: opaque data")
    signed = raw[: reader.position]
    signature = reader.take(SIGNATURE_SIZE)
    reader.end()
    return Report(
        nonce=nonce,
        slot=slot,
        measurements=measurements,
        responder_nonce=responder_nonce,
        opaque=opaque,
        signed=signed,
        signature=signature,
    )


def _request(reader: Reader) -> tuple[bytes, int]:
    _message(reader, _GET_MEASUREMENTS, "GET_MEASUREMENTS")
    attributes, operation = reader.u8(), reader.u8()
    if attributes != _SIGNATURE_REQUESTED:
        raise reader.bad(f"the request's attributes are {attributes:#04x}: no signature was asked")
    if operation != _ALL_MEASUREMENTS:
        raise reader.bad(f"the request is for measurement {operation}, not for all of them")
    nonce = reader.take(NONCE_SIZE)
    slot = reader.u8()
    if slot > _MAX_SLOT:
        raise reader.bad(f"certificate slot {slot} does not exist")
    return nonce, slot


def _response(reader: Reader, slot: int) -> Mapping[int, bytes]:
    """Header and measurement record."""
    _message(reader, _MEASUREMENTS, "MEASUREMENTS")
    reader.u8()  # Param1 is reserved when all measurements were asked for
    answered = reader.u8()
    if answered != slot:
        raise reader.bad(f"slot {slot} was asked, slot {answered} answers")
    count = reader.u8()
    record = Reader(reader.sized(3, REPORT_LIMIT), MALFORMED, f"{reader.where}: record", "little")
    measurements: dict[int, bytes] = {}
    for _ in range(count):
        index, value = _measurement(record)
        if index - 1 in measurements:
            raise record.bad(f"measurement {index - 1} comes twice")
        measurements[index - 1] = value
    record.end()
    return MappingProxyType(measurements)


def _measurement(record: Reader) -> tuple[int, bytes]:
    index, specification, size, kind, value_size = _BLOCK.unpack(record.take(_BLOCK.size))
    if index == 0:
        raise record.bad("a measurement has index 0")
    where = f"measurement {index - 1}"
    if specification != _DMTF:
        raise record.bad(f"{where} has specification {specification:#04x}, not DMTF")
    if kind & _RAW_BIT_STREAM:
        raise record.bad(f"{where} is a raw bit stream, not a digest")
    if value_size != DIGEST_SIZE:
        raise record.bad(f"{where} has {value_size} bytes, not the {DIGEST_SIZE} of SHA-384")
    if size != _DMTF_HEADER + value_size:
        raise record.bad(f"{where} says {size} bytes, its value needs {_DMTF_HEADER + value_size}")
    return index, record.take(value_size)


def _opaque(data: bytes, where: str) -> Mapping[int, bytes]:
    reader = Reader(data, MALFORMED, where, "little")
    fields: dict[int, bytes] = {}
    while reader.left:
        kind = reader.u16()
        if kind in fields:
            raise reader.bad(f"type {kind} comes twice")
        fields[kind] = reader.sized(2, OPAQUE_LIMIT)
    return MappingProxyType(fields)


def _message(reader: Reader, code: int, name: str) -> None:
    found = reader.u8(), reader.u8()
    if found != (_VERSION, code):
        version, message = found
        raise reader.bad(
            f"version {version:#04x}, code {message:#04x} where {name} of SPDM 1.1 belongs"
        )
