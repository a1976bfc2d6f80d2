# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The revocation status of NVIDIA's certificates, from OCSP responses and CRLs in the signed cache.

Rules:

1. a certificate's OCSP response is used where the cache has one, under the SHA-256 of the
   certificate; else its issuer's CRL, under the SHA-256 of the issuer's SubjectPublicKeyInfo;
2. where the cache has neither, or what it has does not verify or has ended, that is a refusal: not
   to know is never "good". A response that ended is not replaced by an older list;
3. answers are remembered for one moment and one cache, so that the devices of a node, which share
   most of their certificates, ask once.
"""

from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.evidence.collateral import Collateral, CollateralKind
from securetrain.evidence.gpu.certificates import CertificateStatus
from securetrain.evidence.gpu.crl import verify_crl
from securetrain.evidence.gpu.ocsp import Answer, verify_response
from securetrain.identity import paths


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """A status lookup (`certificates.StatusLookup`) for one moment."""

    collateral: Collateral
    now: datetime
    _answers: dict[bytes, Answer] = field(default_factory=dict)

    def __call__(
        self, certificate: x509.Certificate, issuer: x509.Certificate
    ) -> CertificateStatus:
        """Ask the issuer about a certificate that it issued.

        Raises:
            AttestationError: ST-ATTS-711 to 718 the answer does not verify or has ended, 735 to 738
                the cache has none.
        """
        return self.answer(certificate, issuer).status

    def answer(self, certificate: x509.Certificate, issuer: x509.Certificate) -> Answer:
        """As a call, with the reason and the times."""
        pair = b"".join(_digest(one) for one in (certificate, issuer))
        if pair not in self._answers:
            self._answers[pair] = self._ask(certificate, issuer)
        return self._answers[pair]

    def _ask(self, certificate: x509.Certificate, issuer: x509.Certificate) -> Answer:
        name = certificate.subject.rfc4514_string()
        response = ocsp_id(certificate)
        has, get = self.collateral.has, self.collateral.get
        if has(CollateralKind.OCSP, response) or not has(CollateralKind.CRL, crl_id(issuer)):
            data = get(CollateralKind.OCSP, response, self.now)
            return verify_response(
                data, certificate, issuer, now=self.now, where=f"OCSP response for {name!r}"
            )
        data = get(CollateralKind.CRL, crl_id(issuer), self.now)
        return verify_crl(data, certificate, issuer, now=self.now, where=f"CRL for {name!r}")


def ocsp_id(certificate: x509.Certificate) -> str:
    """The key under which a certificate's OCSP response is cached."""
    return _digest(certificate).hex()


def crl_id(issuer: x509.Certificate) -> str:
    """The key under which an issuer's CRL is cached."""
    return paths.spki_sha256(issuer)


def _digest(certificate: x509.Certificate) -> bytes:
    return sha256(certificate.public_bytes(Encoding.DER)).digest()
