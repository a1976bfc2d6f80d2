# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fetches collateral from its makers' services, verified, ready for the signed cache.

Rules:

1. this runs where an operator has a network, never in a verifier: what comes out are `cache.Item`,
   which `cache.build_cache` signs;
2. a document becomes an item only after it verified as a verifier would: RIMs to NVIDIA's pinned
   root (an expired signer is no hindrance here: what to make of it is the policy's), OCSP responses
   with the nonce that was sent, lists under their issuer, Intel's and AMD's documents to theirs;
3. an id is checked against what the document says of itself, so that a service cannot hand out
   one genuine document in the place of another;
4. an item may be used until the document itself ends.

Services: NVIDIA RIM and OCSP (https://docs.nvidia.com/attestation), AMD KDS (publication 57230),
Intel PCS API v4 (https://api.portal.trustedservices.intel.com).
"""

import base64
import binascii
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import msgspec
from cryptography import x509

from securetrain.attest.fleet.download import Downloader
from securetrain.attest.session.cache import Item
from securetrain.core.errors import AttestationError
from securetrain.evidence import LIMITS, CollateralKind
from securetrain.evidence.gpu import (
    NVIDIA_RIM_ROOTS,
    Rim,
    RimKind,
    build_request,
    crl_id,
    ocsp_id,
    parse_rim,
    verify_crl,
    verify_response,
)
from securetrain.evidence.tee import (
    AMD,
    INTEL,
    ROOT,
    ROOTS,
    Product,
    SigningKey,
    TdxCollateral,
    chain,
    open_collateral,
)
from securetrain.identity import paths

NONCE_SIZE: Final = 32
_CODE: Final = "ST-ATTS-741"
_SERIES: Final = {
    RimKind.VBIOS: ("NV_GPU_VBIOS_",),
    RimKind.SWITCH: ("NV_SWITCH_BIOS_",),
    RimKind.DRIVER: ("NV_GPU_DRIVER_", "NV_GPU_CC_DRIVER_"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services' origins, without a path."""

    rim: str = "https://rim.attestation.nvidia.com"
    ocsp: str = "https://ocsp.ndis.nvidia.com"
    crl: str = "https://crl.ndis.nvidia.com"
    amd: str = "https://kdsintf.amd.com"
    intel: str = "https://api.trustedservices.intel.com"
    intel_root: str = "https://certificates.trustedservices.intel.com"

    def origins(self) -> frozenset[str]:
        """All of them."""
        return frozenset((self.rim, self.ocsp, self.crl, self.amd, self.intel, self.intel_root))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Roots of everything that is fetched: SHA-256 of the SubjectPublicKeyInfo, hex."""

    rim: frozenset[str] = NVIDIA_RIM_ROOTS
    amd: dict[Product, str] = field(default_factory=lambda: dict(ROOTS))
    intel: str = ROOT


class _RimAnswer(msgspec.Struct, frozen=True):
    """The part of the RIM service's answer that is read."""

    id: str
    rim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """Fetches at one moment."""

    now: datetime
    services: Services = Services()
    pins: Pins = Pins()
    nvidia_token: str = field(default="", repr=False)
    """API key for NVIDIA's RIM service, which answers without one too; sent to nobody else."""
    download: Downloader
    random: Callable[[int], bytes] = secrets.token_bytes

    def rim(self, name: str) -> Item:
        """A RIM by its id.

        Raises:
            AttestationError: ST-ATTS-741 it cannot be had; ST-ATTS-701 to 707 it does not verify.
        """
        url = f"{self.services.rim}/v1/rim/{quote(name, safe='')}"
        token = {"Authorization": f"Bearer {self.nvidia_token}"} if self.nvidia_token else {}
        body = self.download.get(url, 2 * LIMITS[CollateralKind.RIM], token).body
        try:
            answer = msgspec.json.decode(body, type=_RimAnswer)
            data = base64.b64decode(answer.rim, validate=True)
        except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError) as error:
            raise _other(f"not an answer of the RIM service: {error}", url) from error
        rim = parse_rim(data, roots=self.pins.rim, now=self.now, allow_expired=True, where=name)
        if answer.id != name or not is_named(rim, name):
            raise _other(f"asked for {name}, got the {rim.kind} RIM {rim.version}", url)
        return self._item(CollateralKind.RIM, name, data)

    def ocsp(self, certificate: x509.Certificate, issuer: x509.Certificate) -> Item:
        """The OCSP response for an NVIDIA certificate, whatever it says.

        Raises:
            AttestationError: ST-ATTS-741 it cannot be had; ST-ATTS-711 to 718 it does not verify.
        """
        nonce = self.random(NONCE_SIZE)
        request = build_request(certificate, issuer, nonce)
        url = f"{self.services.ocsp}/"
        limit = LIMITS[CollateralKind.OCSP]
        data = self.download.post(url, request, "application/ocsp-request", limit).body
        answer = verify_response(data, certificate, issuer, now=self.now, nonce=nonce, where=url)
        return self._item(CollateralKind.OCSP, ocsp_id(certificate), data, answer.until)

    def nvidia_crl(self, certificate: x509.Certificate, issuer: x509.Certificate) -> Item:
        """The list of an NVIDIA CA, from where one of its certificates says that it is.

        Raises:
            AttestationError: ST-ATTS-741 it cannot be had; ST-ATTS-711 to 717 it does not verify.
        """
        url = self.services.crl + _list_path(certificate)
        data = self.download.get(url, LIMITS[CollateralKind.CRL]).body
        answer = verify_crl(data, certificate, issuer, now=self.now, where=url)
        return self._item(CollateralKind.CRL, crl_id(issuer), data, answer.until)

    def amd(self, product: Product, key: SigningKey) -> list[Item]:
        """AMD's intermediate and root for a product and kind of key, and the root's list.

        Raises:
            AttestationError: ST-ATTS-741 they cannot be had; ST-ATTS-402 to 407 do not verify.
        """
        url = f"{self.services.amd}/{key.name.lower()}/v1/{product}"
        data = self.download.get(f"{url}/cert_chain", LIMITS[CollateralKind.AMD_CHAIN]).body
        root = _issuer(
            chain.load_certificates(data, AMD, "cert_chain"), AMD, self.pins.amd[product]
        )
        listed = self.download.get(f"{url}/crl", LIMITS[CollateralKind.CRL]).body
        crl = chain.load_crl(listed, AMD, "crl")
        chain.verify_crl(crl, root[1], self.now, AMD, "crl")
        name = f"{product}-{key.name}"
        return [
            self._item(CollateralKind.AMD_CHAIN, name, data),
            self._item(CollateralKind.CRL, f"amd-{name}", listed, crl.next_update_utc),
        ]

    def tdx(self, fmspc: str, ca: str) -> list[Item]:
        """Intel's documents for a platform.

        Args:
            fmspc: of the platform, 12 hex digits.
            ca: which CA certified its PCK: ``platform`` or ``processor``.

        Raises:
            AttestationError: ST-ATTS-741 they cannot be had; ST-ATTS-502 to 510 do not verify.
        """
        tdx, sgx = (f"{self.services.intel}/{kind}/certification/v4" for kind in ("tdx", "sgx"))
        tcb, tcb_chain = self._intel(
            f"{tdx}/tcb?fmspc={quote(fmspc)}", "tcb-info-issuer-chain", CollateralKind.TCB_INFO
        )
        qe, qe_chain = self._intel(
            f"{tdx}/qe/identity", "sgx-enclave-identity-issuer-chain", CollateralKind.QE_IDENTITY
        )
        pck_crl, pck_chain = self._intel(
            f"{sgx}/pckcrl?ca={quote(ca)}&encoding=der",
            "sgx-pck-crl-issuer-chain",
            CollateralKind.CRL,
        )
        url = f"{self.services.intel_root}/IntelSGXRootCA.der"
        root_crl = self.download.get(url, LIMITS[CollateralKind.CRL]).body
        opened = open_collateral(
            TdxCollateral(
                tcb_info=tcb,
                tcb_info_chain=tcb_chain,
                qe_identity=qe,
                qe_identity_chain=qe_chain,
                root_crl=root_crl,
                pck_crl=pck_crl,
            ),
            now=self.now,
            root=self.pins.intel,
        )
        if opened.tcb_info.fmspc.lower() != fmspc.lower():
            raise _other(f"asked for FMSPC {fmspc}, got {opened.tcb_info.fmspc}", tdx)
        issuer = _issuer(
            chain.load_certificates(pck_chain, INTEL, "PCK CA"), INTEL, self.pins.intel
        )
        chain.verify_crl(opened.pck_crl, issuer[0], self.now, INTEL, "PCK CRL")
        end = opened.root_crl.next_update_utc
        return [
            self._item(CollateralKind.TCB_INFO, fmspc.lower(), tcb, opened.tcb_info.next_update),
            self._item(CollateralKind.ISSUER_CHAIN, "tcb-info", tcb_chain),
            self._item(CollateralKind.QE_IDENTITY, "tdx", qe, opened.qe_identity.next_update),
            self._item(CollateralKind.ISSUER_CHAIN, "qe-identity", qe_chain),
            self._item(CollateralKind.CRL, "intel-root", root_crl, end),
            self._item(CollateralKind.CRL, f"intel-{ca}", pck_crl, opened.pck_crl.next_update_utc),
        ]

    def _intel(self, url: str, header: str, kind: CollateralKind) -> tuple[bytes, bytes]:
        """A document and the chain of its signer."""
        answer = self.download.get(url, LIMITS[kind])
        return answer.body, unquote(answer.headers.get(header, "")).encode()

    def _item(
        self, kind: CollateralKind, name: str, data: bytes, expires: datetime | None = None
    ) -> Item:
        return Item(kind=kind, id=name, data=data, fetched=self.now, expires=expires)


def is_named(rim: Rim, name: str) -> bool:
    """Tell whether an id is one of this kind, version and, for drivers, product."""
    if not name.startswith(_SERIES[rim.kind]):
        return False
    if rim.kind is RimKind.DRIVER:
        return name.endswith(f"_{rim.product}_{rim.version}")
    return name.endswith("_" + rim.version.replace(".", ""))


def _list_path(certificate: x509.Certificate) -> str:
    """The path of the issuer's list that a certificate names; the host is ours."""
    name = certificate.subject.rfc4514_string()
    try:
        points = certificate.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    except x509.ExtensionNotFound as error:
        raise _other("it does not say where its issuer's list is", name) from error
    for point in points:
        for location in point.full_name or ():
            if isinstance(location, x509.UniformResourceIdentifier):
                return urlsplit(location.value).path
    raise _other("it does not say where its issuer's list is", name)


def _issuer(
    found: Sequence[x509.Certificate], maker: chain.Maker, pin: str
) -> tuple[x509.Certificate, x509.Certificate]:
    """An intermediate and its pinned root; a verifier checks the rest of them when it uses them."""
    if len(found) != 2:
        raise maker.refusal(maker.malformed, f"{len(found)} certificates, expected 2", "chain")
    intermediate, root = found
    if paths.spki_sha256(root) != pin:
        raise maker.refusal(maker.untrusted, "its root is not the pinned one", "chain")
    signed, signature = intermediate.tbs_certificate_bytes, intermediate.signature
    if not chain.is_signed(root, maker.scheme, signature, signed):
        raise maker.refusal(maker.untrusted, "its root has not signed it", "chain")
    return intermediate, root


def _other(what: str, where: str) -> AttestationError:
    return AttestationError(_CODE, what, where)
