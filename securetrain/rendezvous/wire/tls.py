# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""TLS for the control plane.

Rules:

1. TLS 1.3 and nothing else; the ALPN protocol is ``securetrain-rdzv/4``;
2. both sides present a certificate that the job CA issued directly; beside OpenSSL's own checks,
   each is judged by `identity.job_ca.check_leaf` for the role that the peer must have: a node's
   certificate is never a coordinator's, nor the other way round. The job CA is the trust anchor,
   whether it is self-signed or certified by a cluster CA: nothing above it is ever looked at;
3. the SPIFFE id names this job of this trust domain;
4. no session is ever resumed and there is no early data: every connection proves its keys anew.
   (OpenSSL sends a ticket all the same; without a session cache it leads nowhere.)
5. keys are agreed on with X25519MLKEM768 (`HYBRID`) where both OpenSSLs have it, which is from 3.5
   on: who records the traffic and has a quantum computer one day reads nothing, the pre-shared keys
   of the job network among it. A policy may refuse every other group. Certificates are ECDSA.

pyOpenSSL, because the standard library's ``ssl`` has no exporter (RFC 8446, 7.5).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from OpenSSL import SSL, crypto

from securetrain.core.errors import AdmissionError, IdentityError
from securetrain.evidence import EXPORTER_LABEL, EXPORTER_SIZE
from securetrain.identity import Role, SpiffeId, check_leaf
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.wire.protocol import PROTOCOL

_ALPN: Final = PROTOCOL.encode()
_VERSION: Final = "TLSv1.3"
HYBRID: Final = "X25519MLKEM768"
_OTHER: Final = {Role.NODE: Role.COORDINATOR, Role.COORDINATOR: Role.NODE}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsIdentity:
    """A key, its certificate and the job CA that issued it."""

    key: PrivateKey
    certificate: x509.Certificate
    ca: x509.Certificate


class Check(Protocol):
    """The verdict on a peer, carried by its connection."""

    error: AdmissionError | None


@dataclass(slots=True, kw_only=True)
class PeerCheck:
    """Judges the peer's certificate during one handshake and keeps the verdict."""

    ca: x509.Certificate
    role: Role
    trust_domain: str
    job: str
    clock: Callable[[], datetime]
    peer: SpiffeId | None = None
    """Set when everything about the peer's certificate was found good, and only then."""
    certificate: x509.Certificate | None = None
    """What the peer presented."""
    error: AdmissionError | None = None

    def judge(self, presented: crypto.X509) -> bool:
        """Judge whether the peer's certificate is good for its role in this job; never raises."""
        try:
            certificate = presented.to_cryptography()
            self.certificate = certificate
            self.peer = self._judge(certificate)
        except AdmissionError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - parsers raise many types; each is a refusal
            self.error = unauthenticated(
                f"the certificate cannot be read: {type(error).__name__}", "issue a new one"
            )
        return self.error is None

    def _judge(self, certificate: x509.Certificate) -> SpiffeId:
        now = self.clock()
        if not self.ca.not_valid_before_utc <= now <= self.ca.not_valid_after_utc:
            raise unauthenticated(
                "the job CA's certificate is not valid now", "start the job again"
            )
        try:
            peer = check_leaf(certificate, self.ca, self.role, now)
        except IdentityError as error:
            raise self._classify(certificate, now, error) from error
        if (peer.trust_domain, peer.job) != (self.trust_domain, self.job):
            raise AdmissionError(
                "ST-ADMN-004",
                f"{peer} is not of job {self.job} in {self.trust_domain}",
                "certificate",
            )
        return peer

    def _classify(
        self, certificate: x509.Certificate, now: datetime, error: IdentityError
    ) -> AdmissionError:
        """A certificate that is good for the other role deserves its own code."""
        try:
            other = check_leaf(certificate, self.ca, _OTHER[self.role], now)
        except IdentityError:
            return unauthenticated(f"{error.code}: {error.what}", error.fix)
        return AdmissionError(
            "ST-ADMN-003",
            f"{other} is a {other.role}, a {self.role} was expected",
            "certificate",
            f"present a certificate that was issued for the role {self.role}",
        )


def make_context(identity: TlsIdentity, *, server: bool) -> SSL.Context:
    """One side's context; it may serve many connections.

    Raises:
        IdentityError: ST-IDEN-005 when key and certificate do not belong together.
    """
    if identity.key.public.spki != spki_of(identity.certificate):
        raise IdentityError(
            "ST-IDEN-005", "the certificate is for another key", fix="write the identity again"
        )
    context = plain_context(server=server)
    context.use_certificate(identity.certificate)
    context.use_privatekey(identity.key.curve)
    store = context.get_cert_store()
    assert store is not None
    store.add_cert(crypto.X509.from_cryptography(identity.ca))
    # A job CA that a cluster CA certified is not self-signed, and is the anchor all the same.
    store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
    context.set_verify_depth(0)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _on_certificate)
    set_protocol(context, _ALPN, server=server)
    return context


def plain_context(*, server: bool) -> SSL.Context:
    """TLS 1.3 without resumption, and nobody authenticated yet."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD if server else SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    return context


def set_protocol(context: SSL.Context, name: bytes, *, server: bool) -> None:
    """Set the one ALPN protocol of a context."""

    def select(connection: SSL.Connection, offered: list[bytes]) -> Any:  # noqa: ARG001 - OpenSSL's signature
        # Going on without a protocol lets `agreed` refuse with a reason for the ledger.
        return name if name in offered else SSL.NO_OVERLAPPING_PROTOCOLS

    if server:
        context.set_alpn_select_callback(select)
    else:
        context.set_alpn_protos([name])


def make_connection(context: SSL.Context, check: Check, *, server: bool) -> SSL.Connection:
    """A connection over memory: the caller moves the bytes."""
    connection = SSL.Connection(context, None)
    connection.set_app_data(check)
    if server:
        connection.set_accept_state()
    else:
        connection.set_connect_state()
    return connection


def finish(connection: SSL.Connection) -> SpiffeId:
    """Judge a finished handshake; returns who the peer is.

    Raises:
        AdmissionError: ST-ADMN-002, or what the certificate was refused with.
    """
    check: PeerCheck = connection.get_app_data()
    if check.error is not None:
        raise check.error
    if check.peer is None:
        raise unauthenticated("the peer presented no certificate", "enroll the node first")
    agreed(connection, _ALPN)
    return check.peer


def agreed(connection: SSL.Connection, protocol: bytes) -> None:
    """Check what a finished handshake agreed on.

    Raises:
        AdmissionError: ST-ADMN-002.
    """
    if connection.get_protocol_version_name() != _VERSION:
        raise unauthenticated(
            f"{connection.get_protocol_version_name()} was negotiated, not {_VERSION}",
            "use securetrain on both sides",
        )
    if connection.get_alpn_proto_negotiated() != protocol:
        raise unauthenticated(
            f"the peer does not speak {protocol.decode()}",
            "give the coordinator's port, not its enrollment port; and run one version everywhere",
        )


def group_of(connection: SSL.Connection) -> str:
    """The group in which the keys of a finished handshake were agreed on, as OpenSSL names it."""
    return connection.get_group_name() or "unknown"


def require_hybrid(group: str, where: str) -> None:
    """Refuse keys that a quantum computer could recover from a recording.

    Raises:
        AdmissionError: ST-ADMN-039.
    """
    if group != HYBRID:
        raise AdmissionError(
            "ST-ADMN-039", f"the keys were agreed on with {group}, not with {HYBRID}", where
        )


def failed(connection: SSL.Connection, error: SSL.Error) -> AdmissionError:
    """The refusal behind a TLS error: the certificate's own, else what OpenSSL says."""
    check: Check = connection.get_app_data()
    if check.error is not None:
        return check.error
    return unauthenticated(f"TLS failed: {reason_of(error)}", "connect with securetrain")


def reason_of(error: SSL.Error) -> str:
    """OpenSSL's reason strings, or the exception's own text."""
    entries = error.args[0] if error.args and isinstance(error.args[0], list) else []
    reasons = [str(entry[-1]) for entry in entries if entry]
    return "; ".join(dict.fromkeys(reasons)) or str(error) or type(error).__name__


def exporter(connection: SSL.Connection, session: bytes) -> bytes:
    """The value that only the two ends of this connection know, for one session id."""
    return connection.export_keying_material(EXPORTER_LABEL, EXPORTER_SIZE, session)


def unauthenticated(what: str, fix: str) -> AdmissionError:
    """ST-ADMN-002."""
    return AdmissionError("ST-ADMN-002", what, "TLS", fix)


def spki_of(certificate: x509.Certificate) -> bytes:
    """SubjectPublicKeyInfo (DER) of a certificate's key."""
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _on_certificate(
    connection: SSL.Connection,
    certificate: crypto.X509,
    errnum: int,
    depth: int,
    ok: int,
) -> bool:
    """OpenSSL asks after each certificate of the chain; its own verdict is never overruled."""
    check: PeerCheck = connection.get_app_data()
    # Nothing may be raised here: pyOpenSSL would raise it from another connection's handshake.
    judged = depth > 0 or check.judge(certificate)
    if not ok and check.error is None:
        check.error = unauthenticated(
            f"OpenSSL refused the chain: X509_V_ERR {errnum} at depth {depth}",
            "enroll the node with the CA of this job",
        )
    return bool(ok) and judged
