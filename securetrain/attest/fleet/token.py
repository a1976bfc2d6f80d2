# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One-time tokens by which a machine is admitted to a fleet.

A token is one line for a person to carry: where to prove oneself, the pin of the key that answers
there, as which node of which image group, and a secret of 128 bits. From the secret an Ed25519 key
is derived (HKDF-SHA-256). The desk keeps only its public key, and the machine signs the TLS
exporter of its connection with the private one: the secret never travels, and a copy of the desk's
record opens nothing. The line is spelled as the tokens of a job are (`identity.token`).
"""

import hashlib
from datetime import datetime
from typing import Annotated, Final

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError
from securetrain.evidence import GROUP_PATTERN, AttestationKeys
from securetrain.identity import SECRET_SIZE, SEGMENT, TEXT_LIMIT, Digest, token_body, token_text
from securetrain.identity.keys import PrivateKey

PREFIX: Final = "sf1_"
_LABEL: Final = b"securetrain-fleet-token/1"
_STATEMENT: Final = "securetrain-fleet-knock/1"
_NONCE_LABEL: Final = b"securetrain-fleet-nonce-v1\0"


class FleetToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The claims of a token."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    pin: Digest
    """SHA-256 of the listener's key (SubjectPublicKeyInfo, DER)."""
    node: Annotated[str, Meta(pattern=rf"\A{SEGMENT.pattern}\Z")]
    group: Annotated[str, Meta(pattern=GROUP_PATTERN)]
    """Its image group; empty for the one without a name."""
    ends: Annotated[datetime, Meta(tz=True)]
    secret: Annotated[bytes, Meta(min_length=SECRET_SIZE, max_length=SECRET_SIZE)]

    @property
    def key(self) -> PrivateKey:
        """The key that its holder proves it with."""
        seed = HKDF(hashes.SHA256(), 32, salt=None, info=_LABEL).derive(self.secret)
        return PrivateKey(Ed25519PrivateKey.from_private_bytes(seed))

    def text(self) -> str:
        """The one line. It is a secret until it has been used."""
        return token_text(PREFIX, canonical.encode(self))

    def __repr__(self) -> str:
        # A token must not reach a log by accident.
        return f"FleetToken({self.node} at {self.host}:{self.port})"


def parse_fleet_token(text: str) -> FleetToken:
    """Read a token.

    Raises:
        IdentityError: ST-IDEN-014; the text is never repeated in it.
    """
    document = token_body(PREFIX, text)
    try:
        return canonical.decode(document, FleetToken, limit=TEXT_LIMIT, canonical=True)
    except UsageError as error:
        what = error.what
    # Not raised from the other error: its context would hold the secret.
    raise IdentityError(
        "ST-IDEN-014", what, "the token", "copy the whole line that 'securetrain fleet admit' wrote"
    )


def knock_statement(token: str, spki: bytes, keys: AttestationKeys, exporter: bytes) -> bytes:
    """The statement that the token's key and the node's key sign on one connection.

    Args:
        token: id of the token's key.
        spki: the node's key (SubjectPublicKeyInfo, DER).
        keys: of its TPM.
        exporter: of the TLS connection (RFC 8446, 7.5), 32 bytes.
    """
    return canonical.encode(
        {
            "label": _STATEMENT,
            "token": token,
            "key": spki.hex(),
            "tpm": hashlib.sha256(canonical.encode(keys)).hexdigest(),
            "exporter": exporter.hex(),
        }
    )


def channel_nonce(fresh: bytes, exporter: bytes, pin: str, token: str, spki: bytes) -> bytes:
    """The nonce that a machine's TPM signs: fresh, and of one connection with one listener.

    Both ends compute it from what they see themselves. Somebody in between has two connections,
    with two exporters, so that an answer given on the one is worth nothing on the other.

    Args:
        fresh: the listener's random bytes.
        exporter: of the TLS connection, 32 bytes.
        pin: of the listener's key, hex.
        token: id of the token's key, hex.
        spki: the node's key (SubjectPublicKeyInfo, DER).
    """
    fields = (fresh, exporter, bytes.fromhex(pin), bytes.fromhex(token), spki)
    framed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hashlib.sha256(_NONCE_LABEL + framed).digest()
