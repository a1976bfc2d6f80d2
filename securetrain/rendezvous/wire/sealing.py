# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Secrets sealed to one node's connection: HPKE (RFC 9180), base mode, one message each.

Rules:

1. the node draws an X25519 key for each connection and says it in Hello. The binding of its
   evidence covers it (`evidence.binding`): a TPM or TEE has signed for it, and no relay can put its
   own in its place;
2. what is sealed names, in HPKE's info, the job, the node, the epoch, the secret, its edition, and
   the TLS exporter of the connection for the asker's nonce. So it opens for this question on this
   connection, and for nothing else: not for another node, an earlier question or another name;
3. HPKE is that of `cryptography`: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.
"""

import base64
import binascii
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError
from securetrain.rendezvous.wire.meaning import check_key
from securetrain.rendezvous.wire.protocol import SealedSecret

LABEL: Final = "securetrain-secret-v1"
_SIZE: Final = 32
_SUITE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def sealing_text(key: X25519PrivateKey) -> str:
    """The public half, for Hello."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def check_sealing(text: str) -> None:
    """Refuse what is no key, or a key that anybody can open with.

    Raises:
        AdmissionError: ST-ADMN-001, ST-ADMN-032.
    """
    if text:
        check_key(_raw(text), "sealing")


def seal(public: str, secret: bytes, info: bytes) -> bytes:
    """Seal a secret to a node's key.

    Raises:
        AdmissionError: ST-ADMN-001 when it is no key.
    """
    return _SUITE.encrypt(secret, X25519PublicKey.from_public_bytes(_raw(public)), info)


def open_sealed(key: X25519PrivateKey, given: SealedSecret, info: bytes) -> bytes:
    """Open what was sealed to this node.

    Raises:
        AdmissionError: ST-ADMN-045.
    """
    try:
        return _SUITE.decrypt(given.sealed, key, info)
    except (InvalidTag, ValueError) as error:
        raise AdmissionError(
            "ST-ADMN-045", f"{given.name} does not open on this connection", "Secrets.given"
        ) from error


def info_of(*, job: str, node: str, epoch: int, name: str, edition: int, exporter: bytes) -> bytes:
    """Rule 2: what a sealed secret is bound to."""
    return canonical.encode([LABEL, job, node, epoch, name, edition, exporter.hex()])


def _raw(text: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _SIZE or base64.b64encode(raw).decode() != text:
        raise AdmissionError("ST-ADMN-001", "not an X25519 key in base64", "Hello.sealing")
    return raw
