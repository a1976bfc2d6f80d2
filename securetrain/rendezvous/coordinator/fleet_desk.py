# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The listener at which machines are admitted to a fleet; `rendezvous.wire.fleet_entry` has the
protocol, `attest.fleet.doorkeeper` decides.

It is a listener of its own, of no job and no CA: tokens pin its key. Strangers are limited in
number as at a coordinator (`listener`).
"""

import contextlib
import datetime as dt
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID
from OpenSSL import SSL

from securetrain.attest.fleet import Asked, Doorkeeper, Proven
from securetrain.attest.fleet import Knock as Claim
from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.coordinator.listener import Listener
from securetrain.rendezvous.wire.channel import Anonymous, Channel
from securetrain.rendezvous.wire.enrollment import new_key
from securetrain.rendezvous.wire.fleet_entry import (
    ANSWER_LIMIT,
    EXPORTER_LABEL,
    EXPORTER_SIZE,
    FLEET,
    KNOCK_LIMIT,
    Answer,
    AnyFleet,
    Kept,
    Knock,
    Question,
    decode_fleet,
    encode_fleet,
)
from securetrain.rendezvous.wire.protocol import Refuse, unexpected
from securetrain.rendezvous.wire.tls import agreed, make_connection, plain_context, set_protocol

TIMEOUT: Final = 30.0
TPM_TIMEOUT: Final = 240.0
"""For the answer: slow TPMs take seconds for each of its steps, and logs can be long."""
MAX_STRANGERS: Final = 256
_TEXT: Final = 2000
_CERTIFICATE_LIFE: Final = dt.timedelta(days=3650)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The end of one visit, for people."""

    node: str
    """Empty where no token was shown."""
    remote: str
    proven: Proven | None = None
    error: SecureTrainError | None = None


class FleetDesk:
    """Takes in machines for one desk."""

    def __init__(
        self,
        doorkeeper: Doorkeeper,
        *,
        clock: Callable[[], datetime],
        tell: Callable[[Seen], None],
        signed_by: tuple[str, ...] = (),
        coordinator: str = "",
        limit: int = MAX_STRANGERS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing listens yet.

        Args:
            doorkeeper: decides.
            clock: the time, timezone-aware.
            tell: hears how each visit ended, from its thread.
            signed_by: keys (SPKI, base64) that sign the fleet's values, for the machines.
            coordinator: where the fleet's jobs meet, HOST:PORT, for the machines.
            limit: connections at once that have not shown a good token.
            monotonic: a steady clock in seconds.
        """
        self.doorkeeper = doorkeeper
        self.tell = tell
        self.signed_by = signed_by
        self.coordinator = coordinator
        self.monotonic = monotonic
        self._context = desk_context(doorkeeper.desk.key, clock())
        self._listener = Listener(self._begin, limit, self._problem, name="fleet-desk")

    def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen on one address; returns it with the port.

        Raises:
            UsageError: ST-USAG-003 when the port is taken, ST-USAG-002 for a bad address.
        """
        return self._listener.open(host, port)

    def stop(self) -> None:
        """Take in nobody any more."""
        self._listener.close()

    def passed(self, visit: "Visit") -> None:
        """The machine has shown a good token, or the connection is over."""
        self._listener.passed(visit)

    def _problem(self, error: AdmissionError) -> None:
        self.tell(Seen(node="", remote="", error=error))

    def _begin(self, sock: socket.socket, remote: str) -> "Visit":
        connection = make_connection(self._context, Anonymous(), server=True)
        return Visit(desk=self, channel=Channel(sock, connection), remote=remote)


@dataclass(slots=True, kw_only=True, eq=False)
class Visit:
    """One connection; `run` is its thread."""

    desk: FleetDesk
    channel: Channel
    remote: str
    _node: str = ""
    """Of the token, once the peer has proven that it holds it."""
    _proven: Proven | None = None
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
                "ST-ADMN-012", f"the desk failed: {type(failure).__name__}: {failure}", self.remote
            )
        error = self._verdict or error
        try:
            if error is not None:
                with contextlib.suppress(SecureTrainError, SSL.Error):
                    self._send(_refusal(error))
        finally:
            self.desk.passed(self)
            self.channel.close()
            self.desk.tell(
                Seen(node=self._node, remote=self.remote, proven=self._proven, error=error)
            )

    def _holds(self, node: str) -> None:
        self._node = node

    def _serve(self) -> None:
        self.channel.shake_hands(self._soon())
        agreed(self.channel.connection, FLEET.encode())
        knock = self._receive(KNOCK_LIMIT, TIMEOUT)
        if not isinstance(knock, Knock):
            raise unexpected(knock, "Knock")
        if knock.protocol != FLEET:
            raise AdmissionError(
                "ST-ADMN-001", f"protocol {knock.protocol!r}, this is {FLEET}", "Knock.protocol"
            )
        exporter = self.channel.connection.export_keying_material(
            EXPORTER_LABEL, EXPORTER_SIZE, b""
        )
        keeper = self.desk.doorkeeper
        claim = Claim(
            token=knock.token,
            key=new_key(knock.key),
            keys=knock.keys,
            proof=knock.proof,
            possession=knock.possession,
        )
        asked: Asked = keeper.ask(claim, exporter, self._holds)
        self.desk.passed(self)  # a stranger no more: nobody pushes it out
        assert asked.question.credential is not None, "a doorkeeper asks for one"
        self._send(Question(fresh=asked.fresh, credential=asked.question.credential))
        answer = self._receive(ANSWER_LIMIT, TPM_TIMEOUT)
        if not isinstance(answer, Answer):
            raise unexpected(answer, "Answer")
        proven = self._proven = keeper.judge(asked, answer.bundle, self.remote)
        self._send(
            Kept(
                digest=proven.bundle.evidence.digest.hex(),
                worth=proven.worth[:_TEXT],
                learned=tuple(text[:_TEXT] for text in proven.learned[:16]),
                notes=tuple(text[:_TEXT] for text in proven.notes[:64]),
                signed_by=self.desk.signed_by,
                coordinator=self.desk.coordinator,
            )
        )

    def _receive(self, limit: int, seconds: float) -> AnyFleet:
        body = self.channel.receive_frame(self.desk.monotonic() + seconds, limit=limit)
        assert body is not None, "nobody wakes a visit"
        return decode_fleet(body, limit)

    def _send(self, message: AnyFleet) -> None:
        self.channel.send_frame(encode_fleet(message), self._soon())

    def _soon(self) -> float:
        return self.desk.monotonic() + TIMEOUT


def desk_context(key: PrivateKey, now: datetime) -> SSL.Context:
    """TLS that shows a certificate for the desk's key; who connects pins the key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "securetrain fleet desk")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.curve.public_key())
        .serial_number(int.from_bytes(secrets.token_bytes(16), "big") | 1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + _CERTIFICATE_LIFE)
    )
    context = plain_context(server=True)
    context.use_certificate(builder.sign(key.curve, hashes.SHA256()))
    context.use_privatekey(key.curve)
    set_protocol(context, FLEET.encode(), server=True)
    return context


def _refusal(error: SecureTrainError) -> Refuse:
    return Refuse(code=error.code, what=error.what[:_TEXT], fix=error.fix[:_TEXT])
