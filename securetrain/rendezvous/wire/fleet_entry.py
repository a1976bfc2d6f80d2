# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain-fleet/1``: how a machine is admitted to a fleet, over one connection.

::

    machine                          desk
      ClientHello ...         TLS 1.3; the desk shows a key whose SHA-256 stands in the token, and
                              asks for no certificate
      Knock              -->
                         <--  Question
      Answer             -->
                         <--  Kept
                         <--  Refuse, at any time; the connection ends with it

What is in them is judged by `attest.fleet.doorkeeper`, which has the rules.
"""

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from securetrain.attest.fleet import Bundle
from securetrain.core import canonical
from securetrain.core.errors import AdmissionError, UsageError
from securetrain.evidence import NONCE_SIZE, AttestationKeys, Structure
from securetrain.identity import Digest
from securetrain.rendezvous.wire.protocol import HEADER_SIZE, Message, Refuse

FLEET: Final = "securetrain-fleet/1"
EXPORTER_LABEL: Final = b"EXPORTER-securetrain-fleet-v1"
EXPORTER_SIZE: Final = 32
KNOCK_LIMIT: Final = 128 << 10
"""Of every message but an answer: a TPM's keys with eight certificates, base64."""
ANSWER_LIMIT: Final = 8 << 20

_Line = Annotated[str, Meta(max_length=2000)]


class Knock(Message, frozen=True, tag="knock"):
    """The machine proves its token, and names its keys."""

    protocol: Annotated[str, Meta(max_length=64)]
    token: Digest
    """The id of the token's key."""
    key: Annotated[bytes, Meta(min_length=32, max_length=256)]
    """The node's key: SubjectPublicKeyInfo (DER), ECDSA P-256."""
    keys: AttestationKeys
    """Of its TPM."""
    proof: Annotated[bytes, Meta(min_length=64, max_length=64)]
    """The token's signature over `attest.fleet.token.knock_statement`."""
    possession: Annotated[bytes, Meta(min_length=8, max_length=80)]
    """The node key's signature over it."""


class Question(Message, frozen=True, tag="question"):
    """The random part of a nonce, and a credential that only this TPM opens."""

    fresh: Annotated[bytes, Meta(min_length=NONCE_SIZE, max_length=NONCE_SIZE)]
    credential: tuple[Structure, Structure]
    """TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET."""


class Answer(Message, frozen=True, tag="answer"):
    """The evidence for the question."""

    bundle: Bundle


class Kept(Message, frozen=True, tag="kept"):
    """The proof is kept, and the token spent."""

    digest: Digest
    """SHA-256 of the evidence."""
    worth: _Line
    learned: Annotated[tuple[_Line, ...], Meta(max_length=16)]
    notes: Annotated[tuple[_Line, ...], Meta(max_length=64)]
    signed_by: Annotated[tuple[_Line, ...], Meta(max_length=16)] = ()
    """Keys (SPKI, base64) that sign the fleet's reference values, where the desk knows them."""
    coordinator: Annotated[str, Meta(max_length=300)] = ""
    """Where the fleet's jobs meet, HOST:PORT; empty where the desk was not told."""


AnyFleet: TypeAlias = Knock | Question | Answer | Kept | Refuse


def encode_fleet(message: AnyFleet) -> bytes:
    """A message behind its length."""
    body = canonical.encode(message)
    return len(body).to_bytes(HEADER_SIZE, "big") + body


def decode_fleet(body: bytes, limit: int = KNOCK_LIMIT) -> AnyFleet:
    """Read one frame's body.

    Raises:
        AdmissionError: ST-ADMN-001.
    """
    try:
        return canonical.decode(body, AnyFleet, limit=limit, canonical=True)  # type: ignore[arg-type]
    except UsageError as error:
        raise AdmissionError("ST-ADMN-001", error.what[:500], "fleet connection") from error
