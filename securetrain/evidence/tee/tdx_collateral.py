# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Intel's documents about TDX platforms: TCB Info, QE Identity and revocation lists.

Rules:

1. TCB Info (version 3, TDX) and QE Identity (version 2, TD_QE) are signed over the exact bytes of
   their inner JSON object by Intel's TCB signing certificate, whose path ends at the pinned root.
   That certificate is not in the documents: Intel's service sends it in a header
   (TCB-Info-Issuer-Chain, SGX-Enclave-Identity-Issuer-Chain), and without it there is nothing to
   check a signature with, so the collateral is refused;
2. a document is good from its issueDate to its nextUpdate; expired is told apart from invalid;
3. the root's revocation list covers the TCB signing certificate and the CA of the PCK, the CA's
   list covers the PCK (that one is checked with the quote, in `tdx`);
4. fields that Intel may add later are signed too and ignored.

Source: Intel PCS API version 4 (api.portal.trustedservices.intel.com), TDX TCB Info and TD QE
Identity; Intel SGX PCK Certificate and CRL Profile Specification.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from msgspec import Meta

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee import chain
from securetrain.identity import paths

ROOT: Final = "a0af031289f5d5d4132f9186068a7fc13628633ba235777472e29b6b6c67a49e"
"""SHA-256 of the SubjectPublicKeyInfo of the Intel SGX Root CA, as published at
certificates.trustedservices.intel.com/IntelSGXRootCA.der (valid 2018-05-21 to 2049-12-31)."""
INTEL: Final = chain.Maker(
    rules=paths.Rules(
        name="Intel", scheme=paths.Scheme.ECDSA_P256_SHA256, leaf_key=False, leaf_usage=False
    ),
    malformed="ST-ATTS-502",
    untrusted="ST-ATTS-504",
    expired="ST-ATTS-505",
    revoked="ST-ATTS-506",
    bad_list="ST-ATTS-507",
)
DOCUMENT_LIMIT: Final = 1 << 20
_TCB_SIGNING: Final = "Intel SGX TCB Signing"

Svn: TypeAlias = Annotated[int, Meta(ge=0, le=255)]
Svn16: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF)]
Time: TypeAlias = Annotated[datetime, Meta(tz=True)]


class TcbStatus(StrEnum):
    """Intel's verdicts on a TCB level, and the two that follow from a module updated meanwhile."""

    UP_TO_DATE = "UpToDate"
    SW_HARDENING_NEEDED = "SWHardeningNeeded"
    CONFIGURATION_NEEDED = "ConfigurationNeeded"
    CONFIGURATION_AND_SW_HARDENING_NEEDED = "ConfigurationAndSWHardeningNeeded"
    OUT_OF_DATE = "OutOfDate"
    OUT_OF_DATE_CONFIGURATION_NEEDED = "OutOfDateConfigurationNeeded"
    TD_RELAUNCH_ADVISED = "TDRelaunchAdvised"
    TD_RELAUNCH_ADVISED_CONFIGURATION_NEEDED = "TDRelaunchAdvisedConfigurationNeeded"
    REVOKED = "Revoked"


class _Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of one of Intel's documents."""


class Component(_Document, frozen=True, kw_only=True):
    """One security version number."""

    svn: Svn


Components: TypeAlias = Annotated[tuple[Component, ...], Meta(min_length=16, max_length=16)]
Advisories: TypeAlias = Annotated[tuple[str, ...], Meta(max_length=1024)]


class PlatformTcb(_Document, frozen=True, kw_only=True):
    """The numbers of a platform's TCB level."""

    sgxtcbcomponents: Components
    tdxtcbcomponents: Components
    pcesvn: Svn16


class EnclaveTcb(_Document, frozen=True, kw_only=True):
    """The number of an enclave's or TDX module's TCB level."""

    isvsvn: Svn16


class Level(_Document, frozen=True, kw_only=True):
    """The verdict on a TCB level."""

    tcb_date: Time
    tcb_status: TcbStatus
    advisory_ids: Advisories = msgspec.field(name="advisoryIDs", default=())


class PlatformLevel(Level, frozen=True, kw_only=True):
    """A level of platforms."""

    tcb: PlatformTcb


class EnclaveLevel(Level, frozen=True, kw_only=True):
    """A level of an enclave or TDX module."""

    tcb: EnclaveTcb


EnclaveLevels: TypeAlias = Annotated[tuple[EnclaveLevel, ...], Meta(max_length=256)]


class Module(_Document, frozen=True, kw_only=True):
    """The values that a TDX module must have."""

    mrsigner: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{96}\Z")]
    attributes: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{16}\Z")]
    attributes_mask: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{16}\Z")]


class ModuleIdentity(Module, frozen=True, kw_only=True):
    """The values that a TDX module of one major version must have."""

    id: Annotated[str, Meta(pattern=r"^TDX_[0-9A-Fa-f]{2}\Z")]
    tcb_levels: EnclaveLevels


class TcbInfo(_Document, frozen=True, kw_only=True):
    """TCB levels of all platforms of one FMSPC."""

    id: Literal["TDX"]
    version: Literal[3]
    issue_date: Time
    next_update: Time
    fmspc: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{12}\Z")]
    pce_id: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{4}\Z")]
    tcb_type: Literal[0]
    tcb_evaluation_data_number: Annotated[int, Meta(ge=0)]
    tdx_module: Module
    tdx_module_identities: Annotated[tuple[ModuleIdentity, ...], Meta(max_length=256)] = ()
    tcb_levels: Annotated[tuple[PlatformLevel, ...], Meta(max_length=256)]


class QeIdentity(_Document, frozen=True, kw_only=True):
    """The values that the quoting enclave must have."""

    id: Literal["TD_QE"]
    version: Literal[2]
    issue_date: Time
    next_update: Time
    tcb_evaluation_data_number: Annotated[int, Meta(ge=0)]
    miscselect: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{8}\Z")]
    miscselect_mask: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{8}\Z")]
    attributes: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{32}\Z")]
    attributes_mask: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{32}\Z")]
    mrsigner: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{64}\Z")]
    isvprodid: Svn16
    tcb_levels: EnclaveLevels


Signature: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{128}\Z")]
D = TypeVar("D", TcbInfo, QeIdentity)


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxCollateral:
    """Intel's documents, as bytes of its service's answers."""

    tcb_info: bytes
    """Body of ``/tdx/certification/v4/tcb``: ``{"tcbInfo": {...}, "signature": "..."}``."""
    tcb_info_chain: bytes
    """PEM of its header TCB-Info-Issuer-Chain (with the URL encoding undone)."""
    qe_identity: bytes
    """Body of ``/tdx/certification/v4/qe/identity``."""
    qe_identity_chain: bytes
    """PEM of its header SGX-Enclave-Identity-Issuer-Chain."""
    root_crl: bytes
    """The list of the Intel SGX Root CA, DER or PEM."""
    pck_crl: bytes
    """The list of the CA of the quote's PCK, DER or PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Collateral whose signatures and dates were checked."""

    tcb_info: TcbInfo
    qe_identity: QeIdentity
    root_crl: x509.CertificateRevocationList
    pck_crl: x509.CertificateRevocationList
    """Not checked yet: its CA comes with the quote."""
    expires: datetime
    """When the first of the documents is no longer good."""


def open_collateral(
    collateral: TdxCollateral,
    *,
    now: datetime,
    root: str = ROOT,
    memory: chain.Memory | None = None,
) -> Opened:
    """Check signatures, revocation and dates of everything but the PCK's list.

    Args:
        collateral: Intel's documents.
        now: the time of the check, with a time zone.
        root: SHA-256 of the SubjectPublicKeyInfo of the root.
        memory: what an appraiser keeps of checks that came out well.

    Raises:
        AttestationError: ST-ATTS-502, 504 to 507 for certificates and lists; 508, 509, 510 for the
            documents.
    """
    root_crl = chain.load_crl(collateral.root_crl, INTEL, "root CRL")
    pck_crl = chain.load_crl(collateral.pck_crl, INTEL, "PCK CRL")
    documents = _Documents(root_crl=root_crl, root=root, now=now, memory=memory or chain.Memory())
    tcb_info = documents.open("tcbInfo", TcbInfo, collateral.tcb_info, collateral.tcb_info_chain)
    qe_identity = documents.open(
        "enclaveIdentity", QeIdentity, collateral.qe_identity, collateral.qe_identity_chain
    )
    ends = (tcb_info.next_update, qe_identity.next_update, root_crl.next_update_utc)
    return Opened(
        tcb_info=tcb_info,
        qe_identity=qe_identity,
        root_crl=root_crl,
        pck_crl=pck_crl,
        expires=min(end for end in ends if end is not None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Documents:
    """The root, list and clock that every document is checked against."""

    root_crl: x509.CertificateRevocationList
    root: str
    now: datetime
    memory: chain.Memory

    def open(self, name: str, kind: type[D], body: bytes, certificates: bytes) -> D:
        """The inner object of a document whose signature and dates are good."""
        if len(body) > DOCUMENT_LIMIT:
            raise _malformed(f"{len(body)} bytes, the limit is {DOCUMENT_LIMIT}", name)
        try:
            # The inner object stays bytes: the signature is over them and not over a value.
            outer = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            if outer.keys() != {name, "signature"}:
                raise _malformed(f"has the fields {sorted(outer)[:4]}", name)
            signature = bytes.fromhex(msgspec.json.decode(outer["signature"], type=Signature))
            signed = bytes(outer[name])
            document = msgspec.json.decode(signed, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _malformed(str(error), name) from error
        signer = self._signer(certificates, name)
        if not chain.is_signed(
            signer, INTEL.scheme, ecdsa_signature(signature), signed, self.memory
        ):
            raise INTEL.refusal(
                "ST-ATTS-509", "is not signed by Intel's TCB signing certificate", name
            )
        if not document.issue_date <= self.now <= document.next_update:
            raise INTEL.refusal(
                "ST-ATTS-510",
                f"is good from {document.issue_date} to {document.next_update}, now {self.now}",
                name,
            )
        return document

    def _signer(self, certificates: bytes, name: str) -> x509.Certificate:
        if not certificates:
            raise INTEL.refusal("ST-ATTS-509", "comes without the certificate that signed it", name)
        loaded = chain.load_file(certificates, INTEL, f"issuer chain of {name}", self.memory)
        if len(loaded) != 2:
            raise INTEL.refusal(
                INTEL.malformed,
                f"{len(loaded)} certificates, TCB signing certificate and root are expected",
                f"issuer chain of {name}",
            )
        signer, root = loaded
        path = (("TCB signing certificate", signer), ("SGX Root CA", root))
        chain.verify_path(path, self.root, self.now, INTEL, self.memory)
        # The root signs CAs too, and lets them sign other things.
        if chain.common_name(signer.subject) != _TCB_SIGNING:
            raise INTEL.refusal(
                INTEL.untrusted, f"is no {_TCB_SIGNING!r}", "TCB signing certificate"
            )
        chain.verify_crl(self.root_crl, root, self.now, INTEL, "root CRL", memory=self.memory)
        chain.refuse_revoked(self.root_crl, signer, INTEL, "TCB signing certificate")
        return signer


def ecdsa_signature(raw: bytes) -> bytes:
    """The DER form of r and s, 32 bytes each, big-endian."""
    return encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))


def _malformed(what: str, name: str) -> AttestationError:
    return INTEL.refusal("ST-ATTS-508", what, name)
