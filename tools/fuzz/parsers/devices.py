# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of what GPUs and switches send, with valid inputs to start from."""

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from cryptography import x509

from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.evidence.gpu.certificates import verify_chain
from securetrain.evidence.gpu.opaque import read_gpu, read_switch
from securetrain.evidence.gpu.reference import GpuReference
from securetrain.evidence.gpu.spdm import parse_report
from tests.evidence.gpu import forge
from tools.fuzz.engine import Parser

_HOPPER: Final = forge.Device(chip="GH100")
_BLACKWELL: Final = forge.Device(chip="GB100")
_SWITCH: Final = forge.Device(chip="LS_10")


def devices() -> list[Parser]:
    """All of them."""
    return [
        Parser("gpu-report", _reports, parse_report),
        Parser("gpu-claims", _reports, _read_claims),
        Parser("gpu-certificate", lambda: [_HOPPER.chain()[0]], _verify_leaf, share=0.5),
        Parser("gpu-composite", _composites, _extension(forge.COMPOSITE, _HOPPER), share=0.2),
        Parser("gpu-tcb-info", _tcb_infos, _extension(forge.TCB_INFO, _BLACKWELL), share=0.2),
        Parser("gpu-reference", _references, _decode_reference),
    ]


def _reports() -> list[bytes]:
    return [device.evidence().report for device in (_HOPPER, _BLACKWELL, _SWITCH)]


def _read_claims(data: bytes) -> None:
    """Before the signature is checked, so that mutations reach the opaque data."""
    report = parse_report(data)
    for read in (read_gpu, read_switch):
        with suppress(AttestationError):
            read(report.opaque, "device")


def _verify_leaf(der: bytes) -> object:
    return _verify((der, *_HOPPER.chain()[1:]))


def _verify(chain: tuple[bytes, ...]) -> object:
    return verify_chain(chain, roots=forge.roots(), now=forge.NOW)


def _extension(oid: x509.ObjectIdentifier, device: forge.Device) -> Callable[[bytes], object]:
    """Reads a DICE extension out of a leaf that is signed around it."""
    specs, above = device.specs(), device.chain()[1:]

    def parse(data: bytes) -> object:
        extensions = (specs["leaf"].extensions[0], forge.dice(oid, data))
        leaf = dataclasses.replace(specs["leaf"], extensions=extensions)
        return _verify((leaf.issued_by(specs["brom"]), *above))

    return parse


def _composites() -> list[bytes]:
    return [forge.composite(forge.spki(_HOPPER.private("brom")), forge.FWID)]


def _tcb_infos() -> list[bytes]:
    fwid = forge.fwid_der(forge.FWID)
    return [forge.tcb_info(fwid), forge.tcb_info(fwid, fwid, flags=None)]


def _references() -> list[bytes]:
    values = GpuReference(devices=(_HOPPER.pdi,), gpus=8, switches=4, minimum_driver="590.12")
    return [canonical.encode(msgspec.structs.replace(values, roots=tuple(forge.roots())))]


def _decode_reference(data: bytes) -> object:
    return canonical.decode(data, GpuReference, canonical=True)
