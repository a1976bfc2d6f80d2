# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A machine's side of enrollment: `enroll` turns a token into an identity folder.

The key is made here and never leaves. Nothing is sent to a server whose chain does not hold the job
CA of the token, and nothing is written unless the certificate that comes back is for this key, this
node and this job.
"""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from OpenSSL import SSL, crypto

from securetrain.core.errors import (
    AdmissionError,
    IdentityError,
)
from securetrain.identity import (
    Role,
    Token,
    check_leaf,
    fingerprint,
    load_certificate,
    path_search,
    paths,
    public_key_of,
)
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.rendezvous.member.identity_dir import NodeIdentity, new_folder, store_identity
from securetrain.rendezvous.wire.channel import Anonymous, Channel
from securetrain.rendezvous.wire.enrollment import (
    ENROLLMENT,
    EXPORTER_LABEL,
    EXPORTER_SIZE,
    AnyEnrollment,
    Apply,
    Filed,
    Grant,
    Report,
    decode_enrollment,
    encode_enrollment,
    statement,
)
from securetrain.rendezvous.wire.protocol import FRAME_LIMIT, Refuse, refusal_of, unexpected
from securetrain.rendezvous.wire.tls import (
    agreed,
    make_connection,
    plain_context,
    set_protocol,
    unauthenticated,
)

TIMEOUT: Final = 10.0


def enroll(
    token: Token,
    folder: Path,
    *,
    clock: Callable[[], datetime],
    report: bytes = b"",
    timeout: float = TIMEOUT,
    monotonic: Callable[[], float] = time.monotonic,
) -> NodeIdentity:
    """Enroll this machine and write its identity folder (0700).

    Args:
        token: the invitation.
        folder: for the identity; must not hold one.
        clock: the time, timezone-aware.
        report: an attestation bundle for the inventory; may be empty.
        timeout: seconds for each step.
        monotonic: a steady clock in seconds.

    Raises:
        AdmissionError: ST-ADMN-002 not the server of the token, 005 or 007 no answer, 012 to 017.
        IdentityError: ST-IDEN-005 or 006 for a certificate that is not what was asked for.
        UsageError: ST-USAG-005 when there is an identity in `folder`, ST-USAG-002.
    """
    with ExitStack() as stack:
        with new_folder(folder):
            now = clock()
            if now >= token.ends:
                raise AdmissionError(
                    "ST-ADMN-015",
                    f"it ended at {token.ends:%Y-%m-%dT%H:%M:%SZ}, and it is"
                    f" {now:%Y-%m-%dT%H:%M:%SZ}",
                    str(token.spiffe),
                )
            channel = _connect(token, timeout, monotonic)
            stack.callback(channel.close)
            channel.shake_hands(monotonic() + timeout)
            talk = _Talk(channel, timeout, monotonic)
            ca = _check_server(channel.connection, token, clock())
            key = PrivateKey.generate(KeyKind.P256)
            certificate = _apply(talk, token, key)
            _check_grant(certificate, ca, key, token, clock())
            identity = store_identity(folder, key, certificate, ca, clock())
        if report:  # what is refused now does not undo an enrollment whose token is spent
            filed = talk.ask(Report(body=report))
            if not isinstance(filed, Filed):
                raise unexpected(filed, "Filed")
    return identity


class _Talk:
    """Question and answer."""

    def __init__(self, channel: Channel, timeout: float, monotonic: Callable[[], float]) -> None:
        self.channel = channel
        self._timeout = timeout
        self._monotonic = monotonic

    def ask(self, message: AnyEnrollment) -> AnyEnrollment:
        """Send a message; returns the answer.

        Raises:
            SecureTrainError: what the server refused it with.
        """
        deadline = self._monotonic() + self._timeout
        with suppress(AdmissionError):  # it may have refused already, and says why
            self.channel.send_frame(encode_enrollment(message), deadline)
        body = self.channel.receive_frame(deadline, limit=FRAME_LIMIT)
        assert body is not None, "nobody wakes a machine that enrolls"
        answer = decode_enrollment(body)
        if isinstance(answer, Refuse):
            raise refusal_of(answer, "the enrollment server", IdentityError)
        return answer


def _connect(token: Token, timeout: float, monotonic: Callable[[], float]) -> Channel:
    # OpenSSL verifies no chain with it, and has no trust store that could say more: the server's is
    # judged by `_check_server`, against the one certificate that the token pins.
    context = plain_context(server=False)
    set_protocol(context, ENROLLMENT.encode(), server=False)
    try:
        sock = socket.create_connection((token.host, token.port), timeout)
    except OSError as error:
        raise AdmissionError(
            "ST-ADMN-007",
            f"no enrollment server answers: {error.strerror or error}",
            f"{token.host}:{token.port}",
            "start 'securetrain coordinator' with --enroll-port, and check the firewall",
        ) from error
    connection = make_connection(context, Anonymous(), server=False)
    return Channel(sock, connection, monotonic=monotonic)


def _check_server(connection: SSL.Connection, token: Token, now: datetime) -> x509.Certificate:
    """The job CA of the token, if the server's certificate is a coordinator's under it."""
    agreed(connection, ENROLLMENT.encode())
    chain = connection.get_peer_cert_chain(as_cryptography=True) or []
    ca = next((c for c in chain[1:4] if fingerprint(c) == token.ca), None)
    if ca is None:
        raise unauthenticated(
            "the server does not show the job CA whose fingerprint stands in the token",
            "do not go on: somebody else answers at this address, or the token is of another CA",
        )
    leaf = chain[0]
    try:
        peer = check_leaf(leaf, ca, Role.COORDINATOR, now)
        anchor, own = (crypto.X509.from_cryptography(one) for one in (ca, leaf))
        path_search.openssl_path(own, [], [anchor], now=now, partial=True)
    except IdentityError as error:
        raise unauthenticated(f"{error.code}: {error.what}", error.fix) from error
    except paths.BadPathError as error:
        raise unauthenticated(
            f"OpenSSL refused the chain: {error.what}", "ask for a new token"
        ) from error
    if (peer.trust_domain, peer.job) != (token.trust_domain, token.job):
        raise unauthenticated(
            f"the server is of {peer}, not of the token's job", "ask for a new token"
        )
    return ca


def _apply(talk: _Talk, token: Token, key: PrivateKey) -> x509.Certificate:
    exporter = talk.channel.connection.export_keying_material(EXPORTER_LABEL, EXPORTER_SIZE, b"")
    signed = statement(token.spiffe, key.public.spki, exporter)
    secret = token.key
    answer = talk.ask(
        Apply(
            protocol=ENROLLMENT,
            token=secret.key_id,
            key=key.public.spki,
            proof=secret.sign(signed),
            possession=key.sign(signed),
        )
    )
    if not isinstance(answer, Grant):
        raise unexpected(answer, "Grant")
    return load_certificate(answer.certificate.encode(), "Grant")


def _check_grant(
    certificate: x509.Certificate,
    ca: x509.Certificate,
    key: PrivateKey,
    token: Token,
    now: datetime,
) -> None:
    spiffe = check_leaf(certificate, ca, Role.NODE, now)
    if spiffe != token.spiffe or public_key_of(certificate).spki != key.public.spki:
        raise IdentityError(
            "ST-IDEN-005",
            f"the server certified {spiffe}, not this key as {token.spiffe}",
            "Grant",
            "ask for a new token",
        )
