# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The value that ties evidence to one connection of one job.

Rules:

1. the value is SHA-256 over a label and length-prefixed fields, so that no two different sets of
   fields have one encoding;
2. it covers the verifier's nonce (fresh), the session and the TLS exporter (this connection), the
   job, both public keys (these two parties), the WireGuard key (the data plane that the admission
   opens), the attestation key's name and the manifest that the evidence speaks of; and the key to
   which secrets are sealed, where the node has one: a further field, so that no other set of fields
   has the same encoding;
3. both sides compute it from what they see themselves: it is compared, never taken over.

The evidence is asked for after the handshake. Binding evidence inside a TLS handshake has been
found open to relaying (draft-usama-seat-intra-vs-post, IETF SEAT working group).
"""

import hashlib
from dataclasses import dataclass
from struct import Struct
from typing import Final

LABEL: Final = b"securetrain-attestation-binding-v1"
EXPORTER_LABEL: Final = b"EXPORTER-securetrain-att-v1"
NONCE_SIZE: Final = 32
SESSION_SIZE: Final = 16
EXPORTER_SIZE: Final = 32
_length: Final = Struct(">I").pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One side's view of a connection on which evidence is asked for."""

    nonce: bytes
    """The verifier's nonce, 32 bytes."""
    session: bytes
    """The coordinator's id of this exchange, 16 bytes; also the exporter's context."""
    job: str
    client_spki: bytes
    """SubjectPublicKeyInfo (DER) of the node's TLS key."""
    server_spki: bytes
    """SubjectPublicKeyInfo (DER) of the coordinator's TLS key."""
    exporter: bytes
    """TLS exporter (RFC 8446, 7.5) for `EXPORTER_LABEL` and the session, 32 bytes."""
    ak_name: bytes = b""
    """Name of the attestation key; empty without one."""
    wireguard: bytes = b""
    """Public key of the node's WireGuard device; empty without one."""
    sealing: bytes = b""
    """Public key to which secrets for the node are sealed; empty without one."""

    def value(self, manifest: bytes) -> bytes:
        """The 32 bytes that evidence about `manifest` must carry on this connection."""
        return binding_value(
            nonce=self.nonce,
            session=self.session,
            job=self.job,
            client_spki=self.client_spki,
            server_spki=self.server_spki,
            exporter=self.exporter,
            ak_name=self.ak_name,
            wireguard=self.wireguard,
            manifest=manifest,
            sealing=self.sealing,
        )


def binding_value(
    *,
    nonce: bytes,
    session: bytes,
    job: str,
    client_spki: bytes,
    server_spki: bytes,
    exporter: bytes,
    ak_name: bytes,
    wireguard: bytes,
    manifest: bytes,
    sealing: bytes = b"",
) -> bytes:
    """The binding value; see the module for what each field does.

    Raises:
        ValueError: when a field of fixed size has another size.
    """
    for name, field, size in (
        ("nonce", nonce, NONCE_SIZE),
        ("session", session, SESSION_SIZE),
        ("exporter", exporter, EXPORTER_SIZE),
    ):
        if len(field) != size:
            raise ValueError(f"{name} has {len(field)} bytes, not {size}")
    fields = (
        nonce,
        session,
        job.encode(),
        hashlib.sha256(client_spki).digest(),
        hashlib.sha256(server_spki).digest(),
        exporter,
        ak_name,
        wireguard,
        hashlib.sha256(manifest).digest(),
        *((sealing,) if sealing else ()),
    )
    # Every renewal computes one: the parts of `prefixed`, without a call for each.
    parts = [part for field in fields for part in (_length(len(field)), field)]
    return hashlib.sha256(LABEL + b"".join(parts)).digest()


def prefixed(field: bytes) -> bytes:
    """The field behind its length in four big-endian bytes."""
    return _length(len(field)) + field
