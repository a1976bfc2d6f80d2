# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An Intel of our own: platforms, quoting enclaves, quotes of both versions, and collateral."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.tdx import TdxReference, verify_tdx
from securetrain.evidence.tee.tdx_collateral import TdxCollateral
from securetrain.identity import paths
from tests import vocabulary
from tests.evidence.tee import forge
from tests.evidence.tee.forge import NOW, certificate, der_int, p256_key, tlv
from tests.identity.worlds import custom

REPORT_DATA = bytes(range(64, 128))
MR_TD = b"\x71" * 48
RTMRS = tuple(bytes([0xA0 + index]) * 48 for index in range(4))
PPID = bytes(range(16))
FMSPC = "50806f000000"
VENDOR = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
QE_SIGNER = "dc9e2a7c6f948f17474e34a7fc43ed030f7c1563f1babddf6340c82e0e54a8c5"
SGX = "1.2.840.113741.1.13.1"
ROOT_NAME = "Intel SGX Root CA"
PLATFORM_CA = "Intel SGX PCK Platform CA"
PCK_NAME = "Intel SGX PCK Certificate"
SIGNING_NAME = "Intel SGX TCB Signing"
SVNS = (7, 7, 2, 2, 3, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0)
PCE_SVN = 13
TD_SVNS = bytes([5, 1, 7, *bytes(13)])
SEPT_VE_DISABLE = 1 << 28
LATER = "2026-06-20T00:00:00Z"


def oid(dotted: str) -> bytes:
    """An object identifier in DER."""
    first, second, *rest = map(int, dotted.split("."))
    body = b""
    for number in (first * 40 + second, *rest):
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(number & 0x7F | 0x80)
        body += bytes(reversed(digits))
    return tlv(6, body)


def pair(suffix: str, value: bytes) -> bytes:
    return tlv(0x30, oid(f"{SGX}.{suffix}"), value)


def sgx_extension(
    *,
    ppid=PPID,
    svns=SVNS,
    pce_svn=PCE_SVN,
    pce_id=bytes(2),
    fmspc=FMSPC,
    ppid_oid="1",
    server=True,
    more_svns=b"",
) -> bytes:
    """The extension of a PCK certificate."""
    numbers = b"".join(pair(f"2.{i}", der_int(svn)) for i, svn in enumerate(svns, 1))
    numbers += pair("2.17", der_int(pce_svn)) + pair("2.18", tlv(4, bytes(16))) + more_svns
    parts = [
        pair(ppid_oid, tlv(4, ppid)),
        pair("2", tlv(0x30, numbers)),
        pair("3", tlv(4, pce_id)),
        pair("4", tlv(4, bytes.fromhex(fmspc))),
        pair("5", tlv(0x0A, b"\x01")),
    ]
    if server:
        flags = b"".join(pair(f"7.{i}", tlv(1, b"\xff")) for i in (1, 2, 3))
        parts += [pair("6", tlv(4, bytes(16))), pair("7", tlv(0x30, flags))]
    return tlv(0x30, *parts)


@dataclass(frozen=True, kw_only=True)
class Td:
    """The fields of a TD report, in its order; `raw` overrides bytes of it."""

    svns: bytes = TD_SVNS
    seam_signer: bytes = bytes(48)
    seam_attributes: bytes = bytes(8)
    attributes: int = SEPT_VE_DISABLE
    xfam: int = 0x602E7
    mr_td: bytes = MR_TD
    config_id: bytes = bytes(48)
    owner: bytes = bytes(48)
    owner_config: bytes = bytes(48)
    rtmrs: tuple[bytes, ...] = RTMRS
    report_data: bytes = REPORT_DATA
    svns2: bytes = TD_SVNS
    service_td: bytes = bytes(48)
    raw: dict[int, bytes] = field(default_factory=dict)

    def encode(self, size: int) -> bytes:
        body = bytearray(
            b"".join(
                (
                    self.svns,
                    b"\x99" * 48,
                    self.seam_signer,
                    self.seam_attributes,
                    self.attributes.to_bytes(8, "little"),
                    self.xfam.to_bytes(8, "little"),
                    self.mr_td,
                    self.config_id,
                    self.owner,
                    self.owner_config,
                    *self.rtmrs,
                    self.report_data,
                    self.svns2,
                    self.service_td,
                )
            )[:size]
        )
        for offset, value in self.raw.items():
            body[offset : offset + len(value)] = value
        return bytes(body)


@dataclass(frozen=True, kw_only=True)
class Enclave:
    """The quoting enclave's report."""

    misc_select: int = 0
    attributes: bytes = bytes.fromhex("1500000000000000e700000000000000")
    signer: str = QE_SIGNER
    product: int = 2
    svn: int = 6

    def encode(self, report_data: bytes) -> bytes:
        body = bytearray(384)
        body[16:20] = self.misc_select.to_bytes(4, "little")
        body[48:64] = self.attributes
        body[64:96] = b"\x65" * 32
        body[128:160] = bytes.fromhex(self.signer)
        body[256:258] = self.product.to_bytes(2, "little")
        body[258:260] = self.svn.to_bytes(2, "little")
        body[320:384] = report_data
        return bytes(body)


def raw_signature(key, message: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def point(key):
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:]


def sized(width: int, data: bytes, lie: int = 0) -> bytes:
    return (len(data) + lie).to_bytes(width, "little") + data


# Certificates.


def by_root(subject, **options) -> x509.Certificate:
    signer, own = (options.pop(name, p256_key("intel-root")) for name in ("signer", "key"))
    return certificate(subject, ROOT_NAME, own, signer, **options)


def root(**options) -> x509.Certificate:
    return by_root(ROOT_NAME, **({"ca": True} | options))


def pck_ca(subject=PLATFORM_CA, **options) -> x509.Certificate:
    return by_root(subject, **({"key": p256_key("pck-ca"), "ca": True, "serial": 20} | options))


def pck(extension=None, *, subject=PCK_NAME, issuer=PLATFORM_CA, **options) -> x509.Certificate:
    value = sgx_extension() if extension is None else extension
    extensions = [(custom(SGX, value), False)] if value else []
    return certificate(
        subject,
        issuer,
        options.pop("key", p256_key("pck")),
        options.pop("signer", p256_key("pck-ca")),
        extensions=extensions,
        **({"serial": 21} | options),
    )


def tcb_signing(subject=SIGNING_NAME, **options) -> x509.Certificate:
    return by_root(subject, **({"key": p256_key("tcb-signing"), "serial": 22} | options))


@cache
def pck_chain() -> bytes:
    return forge.pem(pck(), pck_ca(), root())


@cache
def signing_chain() -> bytes:
    return forge.pem(tcb_signing(), root())


@cache
def pin() -> str:
    return paths.spki_sha256(root())


# Quotes.


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A quote's parts before it is put together; lies and junk go in here."""

    version: int = 4
    key_type: int = 2
    tee: int = 0x81
    vendor: bytes = VENDOR
    body_type: int = 3
    body_size: int | None = None
    td: Td = field(default_factory=Td)
    enclave: Enclave = field(default_factory=Enclave)
    auth: bytes = bytes(range(32))
    chain: bytes | None = None
    outer_type: int = 6
    inner_type: int = 5
    attestation_key: Any = None
    """The key that signs the quote."""
    vouched: bytes | None = None
    """Report data of the quoting enclave."""
    pck_key: Any = None
    point: bytes | None = None
    lies: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Added to the sizes: signature data, certification data, authentication data, chain."""
    inner_junk: bytes = b""
    outer_junk: bytes = b""
    after: bytes = b""


def quote(parts: Parts | None = None, **changes) -> bytes:
    """A signed quote. `td` and `enclave` take dictionaries of changes, too."""
    made = parts or Parts()
    for name in ("td", "enclave"):
        if isinstance(changes.get(name), dict):
            changes[name] = replace(getattr(made, name), **changes[name])
    made = replace(made, **changes)
    key = made.attestation_key or p256_key("attestation")
    size = 648 if made.version == 5 and made.body_type == 3 else 584
    signed = (
        made.version.to_bytes(2, "little")
        + made.key_type.to_bytes(2, "little")
        + made.tee.to_bytes(4, "little")
        + bytes(4)
        + made.vendor
        + b"\x51" * 20
    )
    if made.version == 5:
        stated = size if made.body_size is None else made.body_size
        signed += made.body_type.to_bytes(2, "little") + stated.to_bytes(4, "little")
    signed += made.td.encode(size)
    xy = made.point or point(key)
    vouched = hashlib.sha256(xy + made.auth).digest() + bytes(32)
    report = made.enclave.encode(vouched if made.vouched is None else made.vouched)
    outer, inner, auth, chain_ = made.lies
    certification = (
        report
        + raw_signature(made.pck_key or p256_key("pck"), report)
        + sized(2, made.auth, auth)
        + made.inner_type.to_bytes(2, "little")
        + sized(4, pck_chain() if made.chain is None else made.chain, chain_)
        + made.inner_junk
    )
    data = (
        raw_signature(key, signed)
        + xy
        + made.outer_type.to_bytes(2, "little")
        + sized(4, certification, inner)
        + made.outer_junk
    )
    return signed + sized(4, data, outer) + made.after


# Collateral.


def level(status="UpToDate", svns=SVNS, pce=PCE_SVN, td=(0, 0, 7), advisories=()) -> dict[str, Any]:
    """A platform's TCB level."""
    numbers = {
        "sgxtcbcomponents": [{"svn": svn, "category": "BIOS"} for svn in svns],
        "pcesvn": pce,
        "tdxtcbcomponents": [{"svn": svn} for svn in (*td, *bytes(max(0, 16 - len(td))))],
    }
    return rated(numbers, status, advisories)


def rated(numbers, status, advisories) -> dict[str, Any]:
    made = {"tcb": numbers, "tcbDate": "2026-01-01T00:00:00Z", "tcbStatus": status}
    return made | ({"advisoryIDs": list(advisories)} if advisories else {})


def svn_level(svn, status="UpToDate", advisories=()) -> dict[str, Any]:
    """A TCB level of an enclave or module."""
    return rated({"isvsvn": svn}, status, advisories)


MODULE = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8}


def module(major=1, levels=None, **changes) -> dict[str, Any]:
    return {"id": f"TDX_{major:02X}", **MODULE, "tcbLevels": levels or [svn_level(5)], **changes}


def tcb_info(**changes) -> dict[str, Any]:
    return {
        "id": "TDX",
        "version": 3,
        "issueDate": "2026-05-25T00:00:00Z",
        "nextUpdate": LATER,
        "fmspc": FMSPC.upper(),
        "pceId": "0000",
        "tcbType": 0,
        "tcbEvaluationDataNumber": 18,
        "tdxModule": MODULE,
        "tdxModuleIdentities": [module(3, [svn_level(3)]), module()],
        "tcbLevels": [
            level(),
            level("OutOfDate", svns=(5, 5, *SVNS[2:]), pce=5, advisories=("INTEL-SA-00001",)),
        ],
        **changes,
    }


def qe_identity(**changes) -> dict[str, Any]:
    return {
        "id": "TD_QE",
        "version": 2,
        "issueDate": "2026-05-25T00:00:00Z",
        "nextUpdate": LATER,
        "tcbEvaluationDataNumber": 18,
        "miscselect": "00000000",
        "miscselectMask": "FFFFFFFF",
        "attributes": "11000000000000000000000000000000",
        "attributesMask": "FBFFFFFFFFFFFFFF0000000000000000",
        "mrsigner": QE_SIGNER.upper(),
        "isvprodid": 2,
        "tcbLevels": [svn_level(6), svn_level(4, "OutOfDate", ("INTEL-SA-00002",))],
        **changes,
    }


def response(name: str, document: dict[str, Any], key=None) -> bytes:
    """A document as Intel's service answers it."""
    inner = json.dumps(document, separators=(",", ":")).encode()
    signature = raw_signature(key or p256_key("tcb-signing"), inner).hex()
    return b'{"%s":%s,"signature":"%s"}' % (name.encode(), inner, signature.encode())


def tcb_response(key=None, **changes) -> bytes:
    return response("tcbInfo", tcb_info(**changes), key)


def qe_response(key=None, **changes) -> bytes:
    return response("enclaveIdentity", qe_identity(**changes), key)


def root_crl(serials=(), **options) -> bytes:
    signer = options.pop("signer", p256_key("intel-root"))
    return forge.revocation_list(options.pop("issuer", ROOT_NAME), signer, serials, **options)


def pck_crl(serials=(), **options) -> bytes:
    signer = options.pop("signer", p256_key("pck-ca"))
    return forge.revocation_list(options.pop("issuer", PLATFORM_CA), signer, serials, **options)


@cache
def good_collateral() -> TdxCollateral:
    return TdxCollateral(
        tcb_info=tcb_response(),
        tcb_info_chain=signing_chain(),
        qe_identity=qe_response(),
        qe_identity_chain=signing_chain(),
        root_crl=root_crl(),
        pck_crl=pck_crl(),
    )


def collateral(**changes) -> TdxCollateral:
    return replace(good_collateral(), **changes)


def reference(**changes) -> TdxReference:
    return msgspec.structs.replace(
        TdxReference(mr_tds=(MR_TD.hex(),), ppids=(PPID.hex(),)), **changes
    )


@cache
def good_quote() -> bytes:
    return quote()


def verify(data=None, **changes) -> Any:
    """`verify_tdx`; everything that is not named is good."""
    arguments: dict[str, Any] = {
        "reference": reference(**changes.pop("rules", {})),
        "collateral": good_collateral(),
        "accepted_statuses": ("UpToDate",),
        "report_data": REPORT_DATA,
        "now": NOW,
        "root": pin(),
    }
    return verify_tdx(good_quote() if data is None else data, **(arguments | changes))


def refused(code, where="", text="", data=None, **changes):
    """What is named makes `verify` refuse with this code."""
    error = vocabulary.refused(AttestationError, code, verify, data, **changes)
    assert where in error.where, error
    assert text in error.what, error
    return error
