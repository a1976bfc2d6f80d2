# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files that a maker has signed for IMA, as ``evmctl`` signs them, and keys in keyrings."""

import hashlib
from datetime import UTC, datetime, timedelta
from struct import pack
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from securetrain.testing.measurement_lists import Measurement, measured_buffer

_HASHES: Final = {
    "sha256": (4, hashes.SHA256()),
    "sha384": (5, hashes.SHA384()),
    "sha512": (6, hashes.SHA512()),
}
_MADE: Final = datetime(2020, 1, 1, tzinfo=UTC)
_LIFE: Final = timedelta(days=36500)


class Maker:
    """Someone who signs files."""

    def __init__(self, key: RSAPrivateKey | ec.EllipticCurvePrivateKey, name: str) -> None:
        """Certify a key by itself, as keys for ``.ima`` often are."""
        self.key = key
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(_MADE)
            .not_valid_after(_MADE + _LIFE)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA256())
        )
        self.key_id = identifier.digest[-4:]

    @property
    def pem(self) -> str:
        """The certificate, as reference values name it."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def sign(self, digest: bytes, algorithm: str = "sha256", *, verity: bool = False) -> bytes:
        """A signature of a digest, with its header."""
        number, native = _HASHES[algorithm]
        kind, version = (6, 3) if verity else (3, 2)
        if verity:
            digest = hashlib.new(algorithm, bytes((kind, number)) + digest).digest()
        if isinstance(self.key, RSAPrivateKey):
            body = self.key.sign(digest, padding.PKCS1v15(), Prehashed(native))
        else:
            body = self.key.sign(digest, ec.ECDSA(Prehashed(native)))
        return pack(">BBB4sH", kind, version, number, self.key_id, len(body)) + body

    def file(
        self, path: str, content: bytes, algorithm: str = "sha256", *, verity: bool = False
    ) -> Measurement:
        """A measured file that bears its signature."""
        digest = hashlib.new(algorithm, content).digest()
        field = algorithm.encode() + b":\0" + digest
        return Measurement(
            name=path.encode(),
            digest=b"verity:" + field if verity else field,
            template=b"ima-sigv2" if verity else b"ima-sig",
            extra=self.sign(digest, algorithm, verity=verity),
        )

    def loaded(self, keyring: str = ".ima") -> Measurement:
        """The measurement of its certificate when the kernel takes it into a keyring."""
        return measured_buffer(keyring, self.certificate.public_bytes(Encoding.DER))
