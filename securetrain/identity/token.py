# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One-time tokens by which a machine becomes a node of a job.

A token is one line of text for a person to carry: where to enroll, which job CA to trust, as which
node, and a secret of 128 bits. From the secret an Ed25519 key is derived (HKDF-SHA-256). The
enrollment endpoint knows only its public key, by whose id the token is known, and the holder proves
the token by a signature over the TLS exporter of its connection: the secret never travels, the
proof is good for that connection only, and a copy of the CA's register proves nothing.

The text is ``st1_``, then base64url of a canonical JSON document and four bytes of its SHA-256, so
that a token that was cut or mistyped is told from one that is not accepted.
"""

import base64
import binascii
import hashlib
from datetime import datetime
from typing import Annotated, Final, TypeAlias

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import IdentityError, UsageError
from securetrain.identity.keys import PrivateKey
from securetrain.identity.register import Invitation
from securetrain.identity.spiffe import Role, SpiffeId

PREFIX: Final = "st1_"
SECRET_SIZE: Final = 16
TEXT_LIMIT: Final = 2048
_SUM_SIZE: Final = 4
_LABEL: Final = b"securetrain-enrolment-token/1"

Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The claims of a token."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    ca: Digest
    """SHA-256 of the job CA's certificate (DER)."""
    trust_domain: Annotated[str, Meta(max_length=255)]
    job: Annotated[str, Meta(max_length=64)]
    node: Annotated[str, Meta(max_length=64)]
    ends: Annotated[datetime, Meta(tz=True)]
    secret: Annotated[bytes, Meta(min_length=SECRET_SIZE, max_length=SECRET_SIZE)]

    def __post_init__(self) -> None:
        """Refuse names that no certificate may carry."""
        _ = self.spiffe

    @property
    def spiffe(self) -> SpiffeId:
        """The identity that its holder will have."""
        return SpiffeId(self.trust_domain, self.job, Role.NODE, self.node)

    @property
    def key(self) -> PrivateKey:
        """The key that its holder proves it with."""
        seed = HKDF(hashes.SHA256(), 32, salt=None, info=_LABEL).derive(self.secret)
        return PrivateKey(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def invitation(self) -> Invitation:
        """The record that the CA's register keeps of it."""
        public = self.key.public
        return Invitation(
            id=public.key_id, key=public, job=self.job, node=self.node, ends=self.ends
        )

    def text(self) -> str:
        """The one line. It is a secret until it has been used."""
        return token_text(PREFIX, canonical.encode(self))

    def __repr__(self) -> str:
        # A token must not reach a log by accident.
        return f"Token({self.spiffe} at {self.host}:{self.port})"


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def parse_token(text: str) -> Token:
    """Read a token.

    Raises:
        IdentityError: ST-IDEN-014; the text is never repeated in it.
    """
    document = token_body(PREFIX, text)
    try:
        return canonical.decode(document, Token, limit=TEXT_LIMIT, canonical=True)
    except (UsageError, IdentityError) as error:
        raise _bad(error.what) from None  # the context would hold the secret


def token_text(prefix: str, body: bytes) -> str:
    """One line for a person to carry: the prefix, then base64url of a body and of its checksum."""
    data = body + hashlib.sha256(body).digest()[:_SUM_SIZE]
    return prefix + base64.urlsafe_b64encode(data).decode().rstrip("=")


def token_body(prefix: str, text: str) -> bytes:
    """The body of a line that `token_text` made.

    Raises:
        IdentityError: ST-IDEN-014; the text is never repeated in it.
    """
    text = text.strip()
    if len(text) > TEXT_LIMIT or not text.startswith(prefix):
        raise _bad(f"it does not begin with {prefix}, or is too long")
    body = text.removeprefix(prefix)
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad("it is not base64url") from error
    document, checksum = data[:-_SUM_SIZE], data[-_SUM_SIZE:]
    if hashlib.sha256(document).digest()[:_SUM_SIZE] != checksum:
        raise _bad("its checksum is wrong: a part is missing or mistyped")
    return document


def _bad(what: str) -> IdentityError:
    return IdentityError("ST-IDEN-014", what, "the token")
