# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Intel TDX quotes, versions 4 and 5: the TD's report, and what the quoting enclave put around it.

Rules:

1. every length is checked before it is used and every inner structure fills its length exactly;
2. bytes after the quote are ignored and never parsed: the kernel pads quotes to the size of their
   buffer, and nothing signs the padding;
3. ECDSA P-256, TEE type TDX and Intel's quoting enclave are the only kinds that exist here;
4. the reader judges form only. Nothing of a quote is true before its signatures were checked.

Source: Intel TDX DCAP Quote Generation Library and Quote Verification Library, rev. 0.9, appendix 3
(quote format), and Intel SGX SDK, `sgx_report_body_t`.
"""

from dataclasses import dataclass
from typing import Final

from securetrain.core.errors import AttestationError
from securetrain.evidence.reader import Reader

QUOTE_LIMIT: Final = 64 << 10
MALFORMED: Final = "ST-ATTS-501"
_QE_VENDOR: Final = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
_ECDSA_P256: Final = 2
_TEE_TDX: Final = 0x81
_BODY_SIZES: Final = {2: 584, 3: 648}
"""Sizes of a TD report by the body types of version 5; version 4 has the first without a type."""
_QE_REPORT_CERTIFICATION: Final = 6
_PCK_CHAIN_CERTIFICATION: Final = 5
_QE_REPORT_SIZE: Final = 384
_AUTH_LIMIT: Final = 1 << 10
_CHAIN_LIMIT: Final = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TdReport:
    """The TDX module's report about a TD, in the order of the quote."""

    tee_tcb_svn: bytes
    """Bytes 0 and 1: the TDX module's SVN and major version when the TD was launched."""
    mr_seam: bytes
    mr_signer_seam: bytes
    seam_attributes: bytes
    td_attributes: int
    xfam: int
    mr_td: bytes
    mr_config_id: bytes
    mr_owner: bytes
    mr_owner_config: bytes
    rtmrs: tuple[bytes, bytes, bytes, bytes]
    report_data: bytes
    tee_tcb_svn2: bytes = b""
    """TDX 1.5: the SVNs of the module that runs now; empty in a report of TDX 1.0."""
    mr_service_td: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class QeReport:
    """The SGX report of the quoting enclave: the fields that its identity is judged by."""

    misc_select: int
    attributes: bytes
    mr_signer: bytes
    isv_prod_id: int
    isv_svn: int
    report_data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A quote in its parts."""

    version: int
    report: TdReport
    signed: bytes
    """Header and TD report: what `signature` covers."""
    signature: bytes
    attestation_key: bytes
    """x and y of the quoting enclave's key on P-256."""
    qe_report: QeReport
    qe_report_signed: bytes
    qe_report_signature: bytes
    qe_auth_data: bytes
    pck_chain: bytes
    """PEM: PCK, its CA, Intel's root."""


def parse_quote(data: bytes) -> Quote:
    """Read a quote.

    Raises:
        AttestationError: ST-ATTS-501; ST-ATTS-512 for another vendor's quoting enclave.
    """
    reader = Reader(data, MALFORMED, "TDX quote", "little")
    if len(data) > QUOTE_LIMIT:
        raise reader.bad(f"{len(data)} bytes, the limit is {QUOTE_LIMIT}")
    version = reader.u16()
    if version not in {4, 5}:
        raise reader.bad(f"version {version}, this reader knows 4 and 5")
    key_type = reader.u16()
    if key_type != _ECDSA_P256:
        raise reader.bad(f"attestation key type {key_type}, only ECDSA P-256 is known")
    tee = reader.u32()
    if tee != _TEE_TDX:
        raise reader.bad(f"TEE type {tee:#x} is not TDX")
    reader.take(4)
    vendor = reader.take(16)
    if vendor != _QE_VENDOR:
        raise AttestationError(
            "ST-ATTS-512",
            f"the quoting enclave is of vendor {vendor.hex()}, Intel is {_QE_VENDOR.hex()}",
            "TDX quote, QE Vendor ID",
        )
    reader.take(20)
    body = 2
    if version == 5:
        body, size = reader.u16(), reader.u32()
        if size != _BODY_SIZES.get(body):
            raise reader.bad(f"body type {body} of {size} bytes")
    report = _td_report(Reader(reader.take(_BODY_SIZES[body]), MALFORMED, reader.where, "little"))
    signed = data[: reader.position]
    inner = Reader(reader.sized(4, reader.left), MALFORMED, "TDX quote, signature data", "little")
    signature, attestation_key = inner.take(64), inner.take(64)
    certification = Reader(
        _certification(inner, _QE_REPORT_CERTIFICATION, inner.left),
        MALFORMED,
        "TDX quote, QE report certification data",
        "little",
    )
    inner.end()
    qe_report = certification.take(_QE_REPORT_SIZE)
    qe_report_signature = certification.take(64)
    qe_auth_data = certification.sized(2, _AUTH_LIMIT)
    pck_chain = _certification(certification, _PCK_CHAIN_CERTIFICATION, _CHAIN_LIMIT)
    certification.end()
    return Quote(
        version=version,
        report=report,
        signed=signed,
        signature=signature,
        attestation_key=attestation_key,
        qe_report=_qe_report(qe_report),
        qe_report_signed=qe_report,
        qe_report_signature=qe_report_signature,
        qe_auth_data=qe_auth_data,
        # A C string, in some quotes with its end.
        pck_chain=pck_chain.removesuffix(b"\0"),
    )


def _certification(reader: Reader, expected: int, limit: int) -> bytes:
    kind = reader.u16()
    if kind != expected:
        raise reader.bad(f"certification data of type {kind}, {expected} is expected")
    return reader.sized(4, limit)


def _td_report(reader: Reader) -> TdReport:
    report = TdReport(
        tee_tcb_svn=reader.take(16),
        mr_seam=reader.take(48),
        mr_signer_seam=reader.take(48),
        seam_attributes=reader.take(8),
        td_attributes=reader.u64(),
        xfam=reader.u64(),
        mr_td=reader.take(48),
        mr_config_id=reader.take(48),
        mr_owner=reader.take(48),
        mr_owner_config=reader.take(48),
        rtmrs=(reader.take(48), reader.take(48), reader.take(48), reader.take(48)),
        report_data=reader.take(64),
        tee_tcb_svn2=reader.take(16) if reader.left else b"",
        mr_service_td=reader.take(48) if reader.left else b"",
    )
    reader.end()
    return report


def _qe_report(data: bytes) -> QeReport:
    """The layout is fixed; `data` has its exact size."""
    return QeReport(
        misc_select=int.from_bytes(data[16:20], "little"),
        attributes=data[48:64],
        mr_signer=data[128:160],
        isv_prod_id=int.from_bytes(data[256:258], "little"),
        isv_svn=int.from_bytes(data[258:260], "little"),
        report_data=data[320:384],
    )
