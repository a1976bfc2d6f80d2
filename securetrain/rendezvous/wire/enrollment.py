# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""securetrain-enrol/1: how the holder of a one-time token gets a node's certificate.

::

    machine                       enrollment server (a port of its own, in the coordinator)
    TLS 1.3          <->          the server shows a coordinator's certificate and the job CA
    Apply            ->
                     <-           Grant                  (or Refuse)
    Report           ->                                  (only if the machine has a report to file)
                     <-           Filed                  (or Refuse)

Rules:

1. the machine says nothing before it has found, in the chain that the server shows, the one job CA
   whose fingerprint stands in the token, and a coordinator's certificate of this job under it;
2. what the machine signs (`statement`) holds the TLS exporter of the connection, the token's job
   and node and the new public key, so that it cannot be relayed, replayed or used for another key.
   It is signed by the token's key and by the new one, which proves that the machine holds both;
3. who does not hold a token is not told which part was wrong; a wrong proof counts against the
   token, which is worthless after `MAX_TRIES`;
4. a token is used up before its certificate is issued, and the ledger knows before the machine;
5. a report (an attestation bundle, for the inventory) is taken only after a grant, is bounded, and
   is stored as it came: filing is not believing.
"""

from typing import Annotated, Final, TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError, UsageError
from securetrain.identity import Digest, SpiffeId
from securetrain.identity.keys import PublicKey
from securetrain.rendezvous.wire.protocol import (
    DOCUMENT_LIMIT,
    HEADER_SIZE,
    Message,
    Refuse,
)

ENROLLMENT: Final = "securetrain-enrol/1"
EXPORTER_LABEL: Final = b"EXPORTER-securetrain-enrol-v1"
EXPORTER_SIZE: Final = 32
MAX_TRIES: Final = 5
REPORT_LIMIT: Final = 2 << 20


class Apply(Message, frozen=True, tag="apply"):
    """The machine proves its token and names the key that is to be certified."""

    protocol: Annotated[str, Meta(max_length=64)]
    token: Digest
    """The id of the token's key."""
    key: Annotated[bytes, Meta(min_length=32, max_length=256)]
    """The new public key: SubjectPublicKeyInfo (DER), ECDSA P-256."""
    proof: Annotated[bytes, Meta(min_length=64, max_length=64)]
    """The token's signature over `statement`."""
    possession: Annotated[bytes, Meta(min_length=8, max_length=80)]
    """The new key's signature over it."""


class Grant(Message, frozen=True, tag="grant"):
    """The node's certificate."""

    certificate: Annotated[str, Meta(max_length=8192)]
    """PEM."""


class Report(Message, frozen=True, tag="report"):
    """An attestation bundle for the inventory."""

    body: Annotated[bytes, Meta(min_length=2, max_length=REPORT_LIMIT)]


class Filed(Message, frozen=True, tag="filed"):
    """The report is stored."""

    digest: Digest
    """SHA-256 of its bytes."""


AnyEnrollment: TypeAlias = Apply | Grant | Report | Filed | Refuse


def statement(spiffe: SpiffeId, spki: bytes, exporter: bytes) -> bytes:
    """The statement that the token's key and the new key sign."""
    return canonical.encode(
        {
            "label": ENROLLMENT,
            "spiffe": str(spiffe),
            "key": spki.hex(),
            "exporter": exporter.hex(),
        }
    )


def encode_enrollment(message: AnyEnrollment) -> bytes:
    """A message behind its length."""
    body = canonical.encode(message)
    return len(body).to_bytes(HEADER_SIZE, "big") + body


def decode_enrollment(body: bytes) -> AnyEnrollment:
    """Read one frame's body.

    Raises:
        AdmissionError: ST-ADMN-001.
    """
    try:
        return canonical.decode(body, AnyEnrollment, limit=DOCUMENT_LIMIT, canonical=True)  # type: ignore[arg-type]
    except UsageError as error:
        raise AdmissionError("ST-ADMN-001", error.what[:500], "enrollment connection") from error


def new_key(spki: bytes) -> PublicKey:
    """The key that is to be certified.

    Raises:
        AdmissionError: ST-ADMN-001 when it is not P-256.
    """
    key = PublicKey.from_spki(spki)
    if not isinstance(key.native, ec.EllipticCurvePublicKey) or key.spki != spki:
        raise AdmissionError(
            "ST-ADMN-001",
            "not an ECDSA P-256 key in its one DER form",
            "Apply.key",
            "make an ECDSA P-256 key",
        )
    return key
