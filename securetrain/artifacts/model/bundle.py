# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The bundle file: a DSSE envelope and what is needed to verify it (Sigstore bundle v0.3).

Only what Model Signing uses is read: exactly one signature, and exactly one of a key's hint, a
chain of certificates, or (keyless) one certificate with log entries. The keyless kind is verified
by the sigstore library (`identity.sigstore`), never here.
"""

import base64
import binascii
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from securetrain.artifacts.model.manifest import malformed
from securetrain.core import canonical
from securetrain.core.errors import UsageError, reason
from securetrain.identity.dsse import IN_TOTO

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
LIMIT: Final = 128 << 20
MAX_CHAIN: Final = 10


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sig: Annotated[str, Meta(min_length=1, max_length=4096)]
    keyid: str | None = None
    """Not used: the material names the key. Older releases wrote ``null``."""


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    payload: str
    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815
    signatures: Annotated[list[_Signature], Meta(min_length=1, max_length=1)]


class _Hint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hint: Annotated[str, Meta(max_length=256)] = ""
    rawBytes: Annotated[str, Meta(max_length=8192)] = ""  # noqa: N815
    """The key itself, as releases before 1.1 wrote it."""
    keyDetails: str | int | None = None  # noqa: N815


class _RawCertificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rawBytes: Annotated[str, Meta(max_length=64 << 10)]  # noqa: N815


class _Chain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    certificates: Annotated[list[_RawCertificate], Meta(min_length=1, max_length=MAX_CHAIN)]


class _Material(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    publicKey: _Hint | None = None  # noqa: N815
    x509CertificateChain: _Chain | None = None  # noqa: N815
    certificate: _RawCertificate | None = None
    tlogEntries: list[dict[str, Any]] = []  # noqa: N815
    timestampVerificationData: dict[str, Any] | None = None  # noqa: N815


class _Bundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mediaType: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]  # noqa: N815
    verificationMaterial: _Material  # noqa: N815
    dsseEnvelope: _Envelope  # noqa: N815


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle whose shape is right; nothing in it has been verified."""

    raw: bytes
    """The file, for the library that verifies the keyless kind."""
    payload: bytes
    signature: bytes
    hint: str | None = None
    raw_key: bytes = b""
    """The key, in bundles of releases before 1.1; it must be the trusted one and counts for nothing
    else."""
    chain: tuple[bytes, ...] = ()
    """Certificates in DER, the signer's first."""
    is_keyless: bool = False


def parse(data: bytes, where: str) -> Bundle:
    """Read a bundle's shape.

    Raises:
        IntegrityError: ST-OMSB-101.
    """
    try:
        value = canonical.loads(data, limit=LIMIT, where=where)
        raw = msgspec.convert(value, _Bundle, strict=True)
        material, envelope = raw.verificationMaterial, raw.dsseEnvelope
        kinds = (material.publicKey, material.x509CertificateChain, material.certificate)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("not exactly one kind of verification material")
        if material.certificate is not None and not material.tlogEntries:
            raise ValueError("a keyless signature without a log's entry")
        chain, named = material.x509CertificateChain, material.publicKey
        return Bundle(
            raw=data,
            payload=_unbase64(envelope.payload),
            signature=_unbase64(envelope.signatures[0].sig),
            hint=None if named is None else named.hint,
            raw_key=b"" if named is None else _unbase64(named.rawBytes),
            chain=() if chain is None else tuple(_unbase64(c.rawBytes) for c in chain.certificates),
            is_keyless=material.certificate is not None,
        )
    except (UsageError, msgspec.ValidationError, ValueError) as error:
        raise malformed(reason(error), where) from error


def write(
    payload: bytes, signature: bytes, *, hint: str | None = None, chain: tuple[bytes, ...] = ()
) -> bytes:
    """A bundle's bytes, with a key's hint or a chain of certificates (DER, the signer's first)."""
    material: dict[str, Any] = {"tlogEntries": []}
    if hint is not None:
        material["publicKey"] = {"hint": hint}
    else:
        certificates = [{"rawBytes": _base64(certificate)} for certificate in chain]
        material["x509CertificateChain"] = {"certificates": certificates}
    bundle = {
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": material,
        "dsseEnvelope": {
            "payload": _base64(payload),
            "payloadType": IN_TOTO,
            "signatures": [{"sig": _base64(signature), "keyid": ""}],
        },
    }
    return canonical.dumps(bundle)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unbase64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    if _base64(data) != text:
        raise ValueError("not canonical base64")
    return data
