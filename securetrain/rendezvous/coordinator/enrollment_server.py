# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The enrollment server; `rendezvous.wire.enrollment` has the protocol and its rules.

It is a listener of its own, so that the rendezvous port never hears a peer without a certificate.
"""

import contextlib
import hashlib
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from OpenSSL import SSL

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError, IdentityError, SecureTrainError
from securetrain.core.files import PRIVATE_FILE, make_private_dir, write_atomic
from securetrain.identity import (
    SECRET_SIZE,
    ClusterCA,
    How,
    Invitation,
    JobCA,
    Role,
    SpiffeId,
    Token,
    certificate_pem,
    fingerprint,
)
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey
from securetrain.ledger import events
from securetrain.rendezvous.coordinator.journal import Journal
from securetrain.rendezvous.coordinator.listener import Listener
from securetrain.rendezvous.coordinator.reception import Reception
from securetrain.rendezvous.wire.channel import Anonymous, Channel, PeerClosedError
from securetrain.rendezvous.wire.enrollment import (
    ENROLLMENT,
    EXPORTER_LABEL,
    EXPORTER_SIZE,
    MAX_TRIES,
    AnyEnrollment,
    Apply,
    Filed,
    Grant,
    Report,
    decode_enrollment,
    encode_enrollment,
    new_key,
    statement,
)
from securetrain.rendezvous.wire.protocol import (
    DOCUMENT_LIMIT,
    FRAME_LIMIT,
    Refuse,
    unexpected,
)
from securetrain.rendezvous.wire.tls import (
    TlsIdentity,
    agreed,
    make_connection,
    plain_context,
    set_protocol,
)

MAX_CONNECTIONS: Final = 64


def make_token(
    cluster: ClusterCA,
    ca: JobCA,
    node: str,
    address: tuple[str, int],
    ends: datetime,
    *,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> Token:
    """Make a token for one node and note it in the register.

    Raises:
        IdentityError: ST-IDEN-006 for a bad name, ST-IDEN-011 for a revoked node, ST-IDEN-013.
    """
    cluster.refuse_revoked(node)
    token = Token(
        host=address[0],
        port=address[1],
        ca=fingerprint(ca.certificate),
        trust_domain=ca.trust_domain,
        job=ca.job,
        node=node,
        ends=ends,
        secret=random(SECRET_SIZE),
    )
    cluster.register.invite(token.invitation)
    return token


class EnrollmentServer:
    """Takes enrollments for one job."""

    def __init__(
        self,
        cluster: ClusterCA,
        ca: JobCA,
        journal: Journal,
        *,
        lifetime: timedelta,
        timeout: float,
        clock: Callable[[], datetime],
        inventory: Path | None = None,
        limit: int = MAX_CONNECTIONS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a server; nothing listens yet.

        Args:
            cluster: the cluster CA, whose register knows the tokens.
            ca: the job's CA, which issues.
            journal: where decisions are recorded.
            lifetime: of the certificates.
            timeout: seconds for each step of a machine.
            clock: the time, timezone-aware.
            inventory: a folder for the machines' reports; None takes none.
            limit: connections at once that have not shown a good token; the rendezvous' own limit.
            monotonic: a steady clock in seconds.
        """
        self.cluster = cluster
        self.ca = ca
        self.journal = journal
        self.lifetime = lifetime
        self.timeout = timeout
        self.clock = clock
        self.inventory = inventory
        self.monotonic = monotonic
        self.problem: SecureTrainError | None = None
        self._reception = Reception(
            ca=ca,
            key=PrivateKey.generate(KeyKind.P256),
            lifetime=lifetime,
            clock=clock,
            make=enrollment_context,
        )
        self._listener = Listener(self._begin, limit, self.note_problem, name="enrollment")

    def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen on one address; returns it with the port.

        Raises:
            UsageError: ST-USAG-003 when the port is taken, ST-USAG-002 for a bad address.
        """
        address = self._listener.open(host, port)
        self.journal.write(events.EnrollmentOpened(address=f"{address[0]}:{address[1]}"))
        return address

    def stop(self) -> None:
        """Take no more enrollments."""
        self._listener.close()

    def note_problem(self, problem: SecureTrainError) -> None:
        """Keep why an enrollment could not be served or recorded."""
        self.problem = self.problem or problem

    def passed(self, visit: "Visit") -> None:
        """The machine has shown a good token, or the connection is over."""
        self._listener.passed(visit)

    def _begin(self, sock: socket.socket, remote: str) -> "Visit":
        connection = make_connection(self._reception.context(), Anonymous(), server=True)
        return Visit(server=self, channel=Channel(sock, connection), remote=remote)

    # Decisions. Everything that an unknown peer can reach is in `judge`.

    def judge(self, application: Apply, exporter: bytes) -> tuple[Invitation, PublicKey]:
        """Tell whether an application holds a token that is good now.

        Raises:
            AdmissionError: ST-ADMN-001 malformed, ST-ADMN-014 not a token or not its holder,
                ST-ADMN-015 expired, ST-ADMN-016 used, ST-ADMN-017 tried too often.
            IdentityError: ST-IDEN-013.
        """
        if application.protocol != ENROLLMENT:
            raise AdmissionError(
                "ST-ADMN-001",
                f"protocol {application.protocol!r}, this is {ENROLLMENT}",
                "Apply.protocol",
            )
        register = self.cluster.register
        found = register.invitation(application.token)
        if found is None or found.job != self.ca.job:
            raise _unknown()
        try:
            key = new_key(application.key)
            spiffe = SpiffeId(self.ca.trust_domain, found.job, Role.NODE, found.node)
            signed = statement(spiffe, application.key, exporter)
            found.key.verify(application.proof, signed)
            key.verify(application.possession, signed)
        except (IdentityError, AdmissionError) as error:
            register.tried(application.token)
            raise _unknown() from error
        # From here on the peer holds the token, and may know what is wrong with it.
        subject = str(spiffe)
        if found.tries >= MAX_TRIES:
            what = f"{found.tries} wrong proofs were given for it"
            raise AdmissionError("ST-ADMN-017", what, subject)
        if self.clock() >= found.ends:
            what = f"it ended at {found.ends:%Y-%m-%dT%H:%M:%SZ}"
            raise AdmissionError("ST-ADMN-015", what, subject)
        if not register.use(found.id, self.clock()):
            raise AdmissionError("ST-ADMN-016", "it was used before", subject)
        return found, key

    def grant(self, invitation: Invitation, key: PublicKey, remote: str) -> Grant:
        """Issue the certificate, recorded before anybody hears of it.

        Raises:
            IdentityError: ST-IDEN-011 when the node has been revoked.
        """
        certificate = self.cluster.issue(
            self.ca,
            Role.NODE,
            key,
            self.clock(),
            node=invitation.node,
            lifetime=self.lifetime,
            how=How.ENROLLMENT,
        )
        node = SpiffeId(self.ca.trust_domain, invitation.job, Role.NODE, invitation.node)
        self.journal.write(
            events.NodeEnrolled(
                subject=str(node),
                serial=f"{certificate.serial_number:x}",
                key=key.key_id,
                token=invitation.id,
                address=remote,
            )
        )
        return Grant(certificate=certificate_pem(certificate).decode())

    def file(self, report: Report, invitation: Invitation) -> Filed:
        """Store a report.

        Raises:
            AdmissionError: ST-ADMN-001 when it is not JSON or nobody keeps an inventory.
        """
        if self.inventory is None:
            raise AdmissionError(
                "ST-ADMN-001", "no inventory is kept here", "Report", "send no inventory"
            )
        canonical.loads(report.body, limit=DOCUMENT_LIMIT, where="Report")
        digest = hashlib.sha256(report.body).hexdigest()
        path = make_private_dir(self.inventory) / f"node-{invitation.node}.json"
        write_atomic(path, report.body, mode=PRIVATE_FILE)
        self.journal.write(events.ReportFiled(subject=invitation.node, digest=digest))
        return Filed(digest=digest)


@dataclass(slots=True, kw_only=True, eq=False)
class Visit:
    """One connection; `run` is its thread."""

    server: EnrollmentServer
    channel: Channel
    remote: str
    _invitation: Invitation | None = None
    _verdict: AdmissionError | None = None

    def evict(self, error: AdmissionError | None) -> None:
        """End the visit from any thread."""
        self._verdict = self._verdict or error
        self.channel.abort()

    def run(self) -> None:
        """Serve the connection until it ends."""
        error: SecureTrainError | None = None
        try:
            self._serve()
        except SecureTrainError as refusal:
            error = refusal
        except Exception as failure:  # noqa: BLE001 - fail closed, whatever it was
            error = AdmissionError(
                "ST-ADMN-012",
                f"the server failed: {type(failure).__name__}: {failure}",
                self.remote,
            )
        error = self._verdict or error
        try:
            if error is not None:
                self._refuse(error)
        finally:
            self.server.passed(self)
            self.channel.close()

    def _serve(self) -> None:
        self.channel.shake_hands(self._soon())
        agreed(self.channel.connection, ENROLLMENT.encode())
        application = self._receive(FRAME_LIMIT)
        if not isinstance(application, Apply):
            raise unexpected(application, "Apply")
        exporter = self.channel.connection.export_keying_material(
            EXPORTER_LABEL, EXPORTER_SIZE, b""
        )
        self._invitation, key = self.server.judge(application, exporter)
        self.server.passed(self)  # a stranger no more: nobody pushes it out
        self._send(self.server.grant(self._invitation, key, self.remote))
        try:
            report = self._receive(DOCUMENT_LIMIT)
        except PeerClosedError:
            return  # it has nothing to report
        if not isinstance(report, Report):
            raise unexpected(report, "Report")
        self._send(self.server.file(report, self._invitation))

    def _refuse(self, error: SecureTrainError) -> None:
        try:
            if self._invitation is None:
                self.server.journal.refuse_stranger(error, self.remote)
            else:
                self.server.journal.write(events.EnrollmentRefused.of(error, self.remote))
        except SecureTrainError as problem:
            self.server.note_problem(problem)
        with contextlib.suppress(SecureTrainError, SSL.Error):
            self._send(Refuse(code=error.code, what=error.what[:2000], fix=error.fix[:2000]))

    def _receive(self, limit: int) -> AnyEnrollment:
        body = self.channel.receive_frame(self._soon(), limit=limit)
        assert body is not None, "nobody wakes a visit"
        return decode_enrollment(body)

    def _send(self, message: AnyEnrollment) -> None:
        self.channel.send_frame(encode_enrollment(message), self._soon())

    def _soon(self) -> float:
        return self.server.monotonic() + self.server.timeout


def enrollment_context(identity: TlsIdentity) -> SSL.Context:
    """TLS that shows the server's certificate with the job CA, and asks the peer for none."""
    context = plain_context(server=True)
    context.use_certificate(identity.certificate)
    context.use_privatekey(identity.key.curve)
    context.add_extra_chain_cert(identity.ca)
    set_protocol(context, ENROLLMENT.encode(), server=True)
    return context


def _unknown() -> AdmissionError:
    return AdmissionError("ST-ADMN-014", "the token is not accepted", "Apply")
