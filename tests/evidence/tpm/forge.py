# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A perfect forger: a TPM in software that makes any key, signs any structure, and any CA.

What a forger cannot do is in none of this: sign with somebody else's key. A test that is refused
for anything but the asserted reason has found a check that is missing or comes too late.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from cryptography import x509
from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import crypto

from securetrain.evidence.reader import Reader
from securetrain.evidence.tpm import credential
from securetrain.evidence.tpm.constants import GENERATED, Algorithm, Hash, Tag
from securetrain.evidence.tpm.keys import AK_TEMPLATE, EK_TEMPLATES, qualified_name
from securetrain.evidence.tpm.quote import composite
from securetrain.evidence.tpm.structures import (
    EccKey,
    PcrSelection,
    PublicArea,
    RsaKey,
    Scheme,
    encode_selections,
    number,
    tpm2b,
)
from tests.identity import worlds
from tests.identity.worlds import limits, usage
from tests.rsa_keys import rsa_key as kept_rsa_key

PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
END = datetime(2040, 1, 1, tzinfo=UTC)
PCRS = tuple(range(16))
EXTRA = bytes(range(32))
FIRMWARE = 0x20240101_00000001


# Making RSA keys is slow, and which one it is makes no difference to any test.
def rsa_key(bits: int = 2048, number: int = 0) -> rsa.RSAPrivateKey:
    """The test run's RSA key of that size and number."""
    return kept_rsa_key(bits, number)


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of the forger's TPM."""

    public: PublicArea
    private: PrivateKey

    def sign(self, message: bytes, scheme: Scheme | None = None) -> bytes:
        """TPMT_SIGNATURE by the key's own scheme, or another one."""
        scheme = scheme or self.public.scheme
        assert scheme is not None
        return number(scheme.algorithm, 2) + number(scheme.hash or 0, 2) + self.raw(message, scheme)

    def raw(self, message: bytes, scheme: Scheme) -> bytes:
        """What follows the algorithms in a TPMT_SIGNATURE."""
        assert scheme.hash is not None
        digest = scheme.hash.primitive()
        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            size = (self.private.key_size + 7) // 8
            pair = decode_dss_signature(self.private.sign(message, ec.ECDSA(digest)))
            return b"".join(tpm2b(number(one, size)) for one in pair)
        scheme_padding: Any = padding.PKCS1v15()
        if scheme.algorithm is Algorithm.RSAPSS:
            scheme_padding = padding.PSS(padding.MGF1(digest), digest.digest_size)
        return tpm2b(self.private.sign(message, scheme_padding, digest))


def make_key(template: PublicArea, key: int = 0, **changes: Any) -> Key:
    """A new key of a template; `changes` are fields of its public area."""
    unique = changes.pop("unique", template.unique)
    private: PrivateKey
    if isinstance(unique, RsaKey):
        private = rsa_key(unique.bits, key)
        modulus = private.public_key().public_numbers().n.to_bytes(unique.bits // 8, "big")
        unique = dataclasses.replace(unique, modulus=modulus)
    else:
        private = ec.generate_private_key(unique.curve.primitive())
        point = private.public_key().public_numbers()
        x, y = (number(one, unique.curve.size) for one in (point.x, point.y))
        unique = dataclasses.replace(unique, x=x, y=y)
    return Key(dataclasses.replace(template, unique=unique, **changes), private)


def rsa_attestation_template(algorithm: Algorithm, digest: Hash = Hash.SHA256) -> PublicArea:
    """An attestation key that signs by RSA."""
    return dataclasses.replace(
        AK_TEMPLATE, scheme=Scheme(algorithm, digest), unique=RsaKey(bits=2048)
    )


class Tpm:
    """An endorsement key, an attestation key below it, and registers."""

    def __init__(self, template: str = "H-2", ak: PublicArea = AK_TEMPLATE, key: int = 0) -> None:
        self.ek = make_key(EK_TEMPLATES[template], key)
        self.ak = make_key(ak, key + 1)
        self.pcrs = {index: Hash.SHA256.digest(bytes([index])) for index in range(24)}

    def attest(self, **changes: Any) -> bytes:
        """A TPMS_ATTEST over `PCRS`, honest but for `changes`.

        Args:
            changes: `magic`, `tag`, `signer`, `extra`, `clock`, `reset`, `restart`, `safe`,
                `firmware`, `selections` (or `selection`, their bytes), `digest`, `banks`, `body`
                (in place of selection and digest), `tail`.
        """
        ek, ak = changes.get("ek", self.ek.public), changes.get("ak", self.ak.public)
        selections = changes.get("selections", (PcrSelection(Hash.SHA256, PCRS),))
        body = changes.get("body")
        if body is None:
            digest = changes.get("digest")
            if digest is None:
                banks = changes.get("banks", {Hash.SHA256: self.pcrs})
                digest = composite(selections, banks, ak.scheme.hash)
            body = changes.get("selection", encode_selections(selections)) + tpm2b(digest)
        return b"".join(
            (
                number(changes.get("magic", GENERATED), 4),
                number(changes.get("tag", Tag.ATTEST_QUOTE), 2),
                tpm2b(changes.get("signer", qualified_name((ek, ak)))),
                tpm2b(changes.get("extra", EXTRA)),
                number(changes.get("clock", 1_000_000), 8),
                number(changes.get("reset", 5), 4),
                number(changes.get("restart", 2), 4),
                number(changes.get("safe", 1), 1),
                number(changes.get("firmware", FIRMWARE), 8),
                body,
                changes.get("tail", b""),
            )
        )

    def quote(self, **changes: Any) -> tuple[bytes, bytes]:
        """TPMS_ATTEST and its TPMT_SIGNATURE."""
        attest = self.attest(**changes)
        return attest, self.ak.sign(attest)

    def certify(self, public: PublicArea, **changes: Any) -> tuple[bytes, bytes]:
        """A certification of a key below the endorsement key, and its signature."""
        name = changes.pop("name", public.name)
        qualified = changes.pop("qualified", qualified_name((self.ek.public, public)))
        body = tpm2b(name) + tpm2b(qualified)
        return self.quote(**{"tag": Tag.ATTEST_CERTIFY, "body": body, **changes})

    def values(self, pcrs: Sequence[int] = PCRS) -> Mapping[int, bytes]:
        """Values of registers."""
        return {index: self.pcrs[index] for index in pcrs}

    def activate(self, made: credential.Credential, name: bytes | None = None) -> bytes:
        """TPM2_ActivateCredential for the attestation key, or an object of that Name.

        Raises:
            InvalidSignature: when the credential is for another Name, or was altered.
            ValueError: when it is for another endorsement key.
        """
        ek, name = self.ek.public, name or self.ak.public.name
        algorithm = ek.name_alg
        seed = self._seed(made.encrypted_secret)
        reader = Reader(made.id_object, "ST-ATTS-101", "TPM2B_ID_OBJECT")
        body = Reader(reader.sized(2, 1024), "ST-ATTS-101", "TPMS_ID_OBJECT")
        reader.end()
        integrity, identity = body.sized(2, 64), body.rest()
        mac = hmac.HMAC(
            credential.kdfa(algorithm, seed, b"INTEGRITY", b"", algorithm.size),
            algorithm.primitive(),
        )
        mac.update(identity + name)
        mac.verify(integrity)
        assert ek.symmetric is not None
        key = credential.kdfa(algorithm, seed, b"STORAGE", name, ek.symmetric.bits // 8)
        decryptor = Cipher(algorithms.AES(key), CFB(bytes(16))).decryptor()
        plain = Reader(decryptor.update(identity) + decryptor.finalize(), "ST-ATTS-101", "secret")
        secret = plain.sized(2, algorithm.size)
        plain.end()
        return secret

    def _seed(self, encrypted: bytes) -> bytes:
        algorithm = self.ek.public.name_alg
        reader = Reader(encrypted, "ST-ATTS-101", "TPM2B_ENCRYPTED_SECRET")
        shared = reader.sized(2, 1024)
        reader.end()
        private = self.ek.private
        if isinstance(private, rsa.RSAPrivateKey):
            digest = algorithm.primitive()
            oaep = padding.OAEP(padding.MGF1(digest), digest, b"IDENTITY\0")
            return private.decrypt(shared, oaep)
        point = Reader(shared, "ST-ATTS-101", "TPMS_ECC_POINT")
        x, y = point.sized(2, 66), point.sized(2, 66)
        numbers = ec.EllipticCurvePublicNumbers(
            int.from_bytes(x, "big"), int.from_bytes(y, "big"), private.curve
        )
        secret = private.exchange(ec.ECDH(), numbers.public_key())
        assert isinstance(self.ek.public.unique, EccKey)
        return credential.kdfe(algorithm, secret, b"IDENTITY", x, self.ek.public.unique.x)


# Certificates.

EK_OID = "2.23.133.8.1"
MAKER = {"2.23.133.2.1": "id:494E5443", "2.23.133.2.2": "TPM-X", "2.23.133.2.3": "id:00010002"}
SWTPM = {**MAKER, "2.23.133.2.1": "id:00001014", "2.23.133.2.2": "swtpm"}


def alternative_name(
    attributes: Mapping[str, str], *, together: bool = False
) -> x509.ExtensionType:
    """The alternative name with a TPM's attributes, one set each or all in one."""
    pairs = [
        x509.NameAttribute(x509.ObjectIdentifier(oid), text) for oid, text in attributes.items()
    ]
    sets = [pairs] if together else [[pair] for pair in pairs]
    name = x509.Name([x509.RelativeDistinguishedName(one) for one in sets])
    return x509.SubjectAlternativeName([x509.DirectoryName(name)])


def end_entity(public: Any, attributes: Mapping[str, str] = MAKER) -> dict[str, Any]:
    """Extensions of an honest endorsement key certificate: name -> (extension, critical)."""
    is_rsa = isinstance(public, rsa.RSAPublicKey)
    return {
        "constraints": limits(ca=False),
        "usage": (usage("key_encipherment" if is_rsa else "key_agreement"), True),
        "purpose": (x509.ExtendedKeyUsage([x509.ObjectIdentifier(EK_OID)]), False),
        "name": (alternative_name(attributes), True),
    }


def authority() -> dict[str, Any]:
    """Extensions of an honest CA."""
    return {
        "constraints": limits(ca=True),
        "usage": (usage("key_cert_sign", "crl_sign"), True),
    }


class Authority:
    """A CA: a root, or one that `parent` has signed."""

    def __init__(
        self,
        name: str = "maker root",
        parent: "Authority | None" = None,
        *,
        key: PrivateKey | None = None,
        begin: datetime = BEGIN,
        end: datetime = END,
        digest: Any = None,
        **extensions: Any,
    ) -> None:
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self.name = name
        self.certificate = (parent or self).issue(
            self.key.public_key(),
            subject=name,
            begin=begin,
            end=end,
            digest=digest,
            extensions={**authority(), **extensions},
        )

    @property
    def pem(self) -> str:
        """The certificate as it is pinned."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def der(self) -> bytes:
        """The certificate as it travels."""
        return self.certificate.public_bytes(Encoding.DER)

    def issue(
        self,
        public: Any,
        *,
        subject: str = "",
        begin: datetime = BEGIN,
        end: datetime = END,
        digest: Any = None,
        extensions: Mapping[str, Any] | None = None,
        pss: bool = False,
    ) -> x509.Certificate:
        """A certificate; extensions that are None are left out."""
        entries = (extensions or {}).values()
        how: dict[str, Any] = {"digest": digest or hashes.SHA256()}
        if pss:
            how["rsa_padding"] = padding.PSS(padding.MGF1(how["digest"]), how["digest"].digest_size)
        return worlds.certificate(
            subject, self.name, public, self.key, (begin, end), *entries, **how
        )

    def endorse(
        self,
        public: PublicArea,
        *,
        attributes: Mapping[str, str] = MAKER,
        begin: datetime = BEGIN,
        end: datetime = END,
        digest: Any = None,
        pss: bool = False,
        **changes: Any,
    ) -> bytes:
        """An endorsement key certificate, DER; `changes` are its extensions."""
        extensions = {**end_entity(public.key(), attributes), **changes}
        certificate = self.issue(
            public.key(), begin=begin, end=end, digest=digest, extensions=extensions, pss=pss
        )
        return certificate.public_bytes(Encoding.DER)


def raw(oid: str, value: bytes, *, critical: bool = False) -> tuple[x509.ExtensionType, bool]:
    """An extension of any content."""
    return worlds.custom(oid, value), critical


def resign(der: bytes, key: PrivateKey, digest: str = "sha256") -> bytes:
    """An edited certificate with a signature that fits again."""
    certificate = crypto.load_certificate(crypto.FILETYPE_ASN1, der)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        certificate.sign(crypto.PKey.from_cryptography_key(key), digest)
    return crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)


def flip(data: bytes, at: int) -> bytes:
    """The data with one bit of one byte turned."""
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
