# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's connection to the coordinator: join it, then keep the lease alive in the background.

Rules:

1. the coordinator is authenticated before anything is said: TLS 1.3, a coordinator's certificate of
   this job (a node's certificate is refused);
2. an admission must carry a result that the coordinator's key signed, about this node and its key;
3. a certificate that comes with an admission is this node's next one, or the node goes (`renewal`);
4. one background thread owns the connection. It beats, answers challenges, and asks for a new lease
   after a third of the old one. When the coordinator is lost it comes back (`reconnect`); at any
   other error it ends: the node is out;
5. where the connection ends because the coordinator has refused this node, that is the error.
"""

import dataclasses
import hashlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.attest.node import Attester
from securetrain.attest.session import Passport, verify_passport
from securetrain.core.errors import AdmissionError, AttestationError, NetworkError, SecureTrainError
from securetrain.evidence import AttestationResult
from securetrain.identity import Role
from securetrain.rendezvous.member.desk import Desk
from securetrain.rendezvous.member.identity_dir import NodeIdentity
from securetrain.rendezvous.member.places import Herald, Place, Places, reach
from securetrain.rendezvous.member.proving import Prover, peer_key
from securetrain.rendezvous.member.reconnect import FIRST_PAUSE, LONGEST_PAUSE, Reconnect, given_up
from securetrain.rendezvous.member.renewed import check_renewed
from securetrain.rendezvous.wire.channel import Channel, PeerClosedError, Wakeup
from securetrain.rendezvous.wire.membership import Expected
from securetrain.rendezvous.wire.protocol import (
    DOCUMENT_LIMIT,
    MISSED_HEARTBEATS,
    Admit,
    AnyMessage,
    AskPart,
    Challenge,
    Formed,
    Heartbeat,
    Hello,
    Leave,
    Refuse,
    Renew,
    Secrets,
    Staffed,
    Status,
    Store,
    Workers,
    refusal_of,
    unexpected,
)
from securetrain.rendezvous.wire.tls import PeerCheck, make_connection, make_context

_LEAVE_SECONDS: Final = 5.0
_LAST_WORD_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admission whose result has been checked."""

    terms: Admit
    passport: Passport

    @property
    def result(self) -> AttestationResult:
        """The coordinator's result about this node."""
        return self.passport.result


class Link:
    """The connection of one node. Joining happens in the constructor's caller, in `open`."""

    def __init__(
        self,
        identity: NodeIdentity,
        hello: Hello,
        attester: Attester,
        *,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        timeout: float,
        on_message: Callable[[Status | Formed | Store | Staffed], None],
        on_failure: Callable[[SecureTrainError], None],
        on_certificate: Callable[[x509.Certificate], None] | None = None,
        reconnect: Reconnect | None = None,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            identity: the node's key and certificate.
            hello: what the node says of itself.
            attester: makes evidence.
            clock: the time, timezone-aware.
            monotonic: a steady clock in seconds.
            timeout: seconds for each step.
            on_message: hears, in the background thread, what the coordinator says about rounds.
            on_failure: hears, in the background thread, why the link ended.
            on_certificate: keeps the node's next certificate, when the coordinator renews it.
            reconnect: how it comes back when the coordinator is lost; by default it does not.
        """
        self._identity = self._latest = identity
        self._reconnect = reconnect or Reconnect(allowed=False)
        self._places = Places([("", 0)])
        self._herald = Herald(self._show)
        self._quit = threading.Event()
        self._refused = False
        self.desk = Desk(job=hello.job, node=hello.node)
        self._hello = msgspec.structs.replace(hello, sealing=self.desk.public)
        self._prover = Prover(attester, identity, clock)
        self._clock = clock
        self._monotonic = monotonic
        self._timeout = timeout
        self._on_message = on_message
        self._on_failure = on_failure
        self._on_certificate = on_certificate
        self._wakeup = Wakeup()
        self._outbox: deque[AnyMessage] = deque()
        self._channel: Channel | None = None
        self._thread: threading.Thread | None = None
        self._leaving = False
        self._admitted: Admitted | None = None
        self._previous: AttestationResult | None = None
        self._renew_at = 0.0
        self._lease_end = 0.0
        self._away = False
        self.clock_offset = timedelta(0)
        """How far this node's clock is ahead of the coordinator's, at least: it sent its evidence
        before the coordinator dated the result."""

    def open(self, *places: Place) -> None:
        """Connect and join, at the first place that answers; returns when the node is admitted.

        Raises:
            AdmissionError: ST-ADMN-002 to 008 and 011; ST-ADMN-007 when nobody answers.
            AttestationError: what the verifier refused the evidence with.
        """
        self._places = Places(places)
        channel = self._channel = self._places.first_that(self._connect)
        self._thread = threading.Thread(
            target=self._run, args=(channel,), name="rendezvous-link", daemon=True
        )
        self._thread.start()

    def _reach(self, place: Place) -> Channel:
        sock = reach(place, self._timeout)
        spiffe = self._identity.spiffe
        check = PeerCheck(
            ca=self._identity.ca,
            role=Role.COORDINATOR,
            trust_domain=spiffe.trust_domain,
            job=spiffe.job,
            clock=self._clock,
        )
        context = make_context(self._identity.tls, server=False)
        connection = make_connection(context, check, server=False)
        return Channel(sock, connection, monotonic=self._monotonic)

    def _connect(self, place: Place) -> Channel:
        channel = self._reach(place)
        try:
            self._join(channel)
        except PeerClosedError as error:
            refusal = self._last_word(channel)
            channel.close()
            if refusal is None:
                raise
            raise refusal from error
        except BaseException:
            channel.close()
            raise
        return channel

    @property
    def is_open(self) -> bool:
        """Tell whether the background thread runs and the node has not said goodbye."""
        return self._thread is not None and self._thread.is_alive() and not self._leaving

    @property
    def is_away(self) -> bool:
        """Tell whether the coordinator was lost and this node is on its way back to it."""
        return self._away

    @property
    def admitted(self) -> Admitted:
        """The latest admission."""
        assert self._admitted is not None, "open the link first"
        return self._admitted

    @property
    def key_exchange(self) -> str:
        """The group in which the keys of this connection were agreed on."""
        assert self._channel is not None, "open the link first"
        return self._channel.key_exchange

    def post(self, message: AnyMessage) -> None:
        """Have the background thread send a message."""
        self._reconnect.say(message)
        self._outbox.append(message)
        self._wakeup.set()

    def renew(self) -> None:
        """Have the background thread ask for a new lease now."""
        self._renew_at = self._monotonic()
        self._wakeup.set()

    @property
    def workers(self) -> tuple[int, str]:
        """The number of this node's workers and their role; 0 and empty until it knows."""
        return self._hello.local_world, self._hello.role

    def say_workers(self, message: Workers) -> None:
        """Say what workers this node runs; from now on it has said so."""
        self._hello = msgspec.structs.replace(
            self._hello, local_world=message.local_world, role=message.role
        )
        self.post(message)

    def leave(self) -> None:
        """Say goodbye and end the connection; may be called twice and from any thread."""
        if self._thread is None:
            return
        self._outbox.append(Leave())
        self._leaving = True
        self._herald.stop()
        self._quit.set()
        self._wakeup.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_LEAVE_SECONDS)

    def expected(self, epoch: int) -> Expected:
        """The facts that the next membership must state, seen from this connection."""
        channel = self._channel
        assert channel is not None, "open the link first"
        spiffe = self._identity.spiffe
        certificate = self._identity.certificate.public_bytes(Encoding.DER)
        results = (self._previous, self.admitted.result)
        return Expected(
            job=spiffe.job,
            coordinator=str(channel.check.peer),
            key=peer_key(channel),
            policy=self.admitted.terms.policy,
            epoch=epoch,
            node=spiffe.node,
            certificate=hashlib.sha256(certificate).hexdigest(),
            results={result.digest: result.tier for result in results if result is not None},
            address=self._hello.address,
            local_world=self._hello.local_world,
            role=self._hello.role,
            wireguard=self._hello.wireguard,
            wireguard_port=self._hello.wireguard_port,
        )

    # Joining: the caller's thread owns the channel.

    def _join(self, channel: Channel) -> None:
        channel.handshake(self._soon())
        keys = self._prover.keys()
        self._hello = self._reconnect.introduce(msgspec.structs.replace(self._hello, tpm=keys))
        channel.send(self._hello, self._soon())
        challenge = self._expect(channel)
        if not isinstance(challenge, Challenge):
            raise unexpected(challenge, "Challenge")
        self._answer(channel, challenge)
        while isinstance(admit := self._expect(channel), AskPart):
            self._answer(channel, admit)
        if not isinstance(admit, Admit):
            raise unexpected(admit, "Admit")
        before = self._reconnect.latest
        self._reconnect.follow(admit, peer_key(channel), self._identity)
        self._accept(channel, admit)
        if before not in {None, self._reconnect.latest}:
            self._herald.go(self._places.others)

    def _show(self, place: Place) -> None:
        """Show another coordinator the latest one that this node has seen; it stands down."""
        channel = self._reach(place)
        try:
            channel.handshake(self._soon())
            channel.send(self._reconnect.introduce(self._hello), self._soon())
            channel.receive(self._soon())
        finally:
            channel.close()

    def _expect(self, channel: Channel) -> AnyMessage:
        message = channel.receive(self._soon())
        assert message is not None, "nobody wakes a node that joins"
        if isinstance(message, Refuse):
            self._refused = True
            raise _refusal(message)
        return message

    def _soon(self) -> float:
        return self._monotonic() + self._timeout

    def _answer(self, channel: Channel, asked: Challenge | AskPart) -> None:
        channel.send(self._prover.answer(self._hello, channel, asked), self._soon())

    def _accept(self, channel: Channel, admit: Admit) -> None:
        """Check an admission and start its lease."""
        try:
            passport = verify_passport(
                admit.result,
                admit.svid.encode(),
                key=peer_key(channel),
                ca=self._identity.ca,
                now=self._clock(),
            )
        except SecureTrainError as error:
            raise _foreign(f"{error.code}: {error.what}") from error
        result, spiffe = passport.result, self._identity.spiffe
        said = (result.job, result.node, result.key_id, result.tier, result.policy)
        wanted = (spiffe.job, spiffe.node, self._identity.key.key_id, admit.tier, admit.policy)
        if said != wanted:
            raise _foreign(f"the result is about {said[:2]}, not this node of this job")
        if admit.certificate:
            certificate = check_renewed(admit.certificate, self._identity, self._clock())
            self._latest = dataclasses.replace(self._identity, certificate=certificate)
            if self._on_certificate is not None:
                self._on_certificate(certificate)
        now = self._monotonic()
        self._previous = self._admitted.result if self._admitted else None
        self._admitted = Admitted(admit, passport)
        if self._prover.proved is not None:
            self.clock_offset = self._prover.proved - result.issued
        self._prover.judged()
        self._renew_at = now + admit.lease_seconds / 3
        self._lease_end = now + admit.lease_seconds

    # Afterwards: the background thread owns the channel.

    def _run(self, channel: Channel) -> None:
        try:
            while True:
                lost = self._until_lost(channel)
                if lost is None:
                    return
                channel.close()
                self._away = True
                channel = self._channel = self._come_back(lost)
                self._away = False
        except SecureTrainError as error:
            self._on_failure(error)
        except Exception as error:  # noqa: BLE001 - the agent must hear of it, whatever it was
            self._on_failure(AdmissionError("ST-ADMN-007", f"{type(error).__name__}: {error}"))
        finally:
            channel.close()
            self._herald.stop()
            self._wakeup.close()

    def _until_lost(self, channel: Channel) -> SecureTrainError | None:
        """Serve a connection until it is lost; None when this node has left.

        Raises:
            SecureTrainError: why this node is out.
        """
        try:
            self._loop(channel)
        except SecureTrainError as error:
            told = self._last_word(channel) if isinstance(error, PeerClosedError) else None
            if told is not None:
                raise told from error
            if self._refused or self._leaving or not self._reconnect.from_loss(error):
                raise
            return error
        return None

    def _come_back(self, cause: SecureTrainError) -> Channel:
        """Connect and prove this node anew, with growing pauses.

        Raises:
            SecureTrainError: why this node is out.
        """
        pause, longest = FIRST_PAUSE, LONGEST_PAUSE * self.admitted.terms.heartbeat_seconds
        self._identity = self._latest
        while (left := self._lease_end - self._monotonic()) > 0:
            if self._quit.wait(min(pause, left)):
                raise cause
            pause = min(2 * pause, longest)
            self._refused = False
            try:
                channel = self._connect(self._places.here)
            except SecureTrainError as error:
                if not self._reconnect.passes(error, refused=self._refused):
                    raise
                self._places.go_on()
                cause = error
                continue
            try:
                self._reconnect.check(self.admitted.terms)
            except SecureTrainError:
                channel.close()
                raise
            self._outbox.extendleft(reversed(self._reconnect.again(self._outbox)))
            return channel
        raise given_up(cause) from cause

    def _loop(self, channel: Channel) -> None:
        beat = self.admitted.terms.heartbeat_seconds
        heard, next_beat, asked = self._monotonic(), self._monotonic() + beat, False
        while True:
            self._send_posted(channel)
            if self._leaving:
                return
            now = self._monotonic()
            if now >= next_beat:
                channel.send(Heartbeat(), self._soon())
                next_beat = now + beat
            if now >= self._renew_at and not asked:
                channel.send(Renew(), self._soon())
                asked = True
            self._check_alive(now, heard + MISSED_HEARTBEATS * beat)
            wake = min(next_beat, self._lease_end, *(() if asked else (self._renew_at,)))
            message = self._receive(channel, wake)
            if message is not None:
                heard = self._monotonic()
                asked = asked and not isinstance(message, Admit)
                self._handle(channel, message)

    def _receive(self, channel: Channel, wake: float) -> AnyMessage | None:
        """The next message, or None when it is time to look at the clock or the outbox."""
        try:
            return channel.receive(wake, limit=DOCUMENT_LIMIT, wakeup=self._wakeup)
        except AdmissionError as error:
            if error.code == "ST-ADMN-005":
                return None
            raise

    def _last_word(self, channel: Channel) -> SecureTrainError | None:
        """The reason why the coordinator closed the connection, if it gave one.

        A node that is about to send when it is refused meets the closed connection first.
        """
        deadline = self._monotonic() + _LAST_WORD_SECONDS
        try:
            while True:
                message = channel.receive(deadline, limit=DOCUMENT_LIMIT)
                if isinstance(message, Refuse):
                    self._refused = True
                    return _refusal(message)
        except SecureTrainError:
            return None

    def _check_alive(self, now: float, silent: float) -> None:
        if now >= self._lease_end:
            raise AttestationError("ST-ATTS-007", "the lease ended and was not renewed")
        if now >= silent:
            raise AdmissionError(
                "ST-ADMN-007",
                f"the coordinator was silent for {MISSED_HEARTBEATS} heart-beats",
                "coordinator",
            )

    def _send_posted(self, channel: Channel) -> None:
        self._wakeup.clear()
        while self._outbox:
            channel.send(self._outbox.popleft(), self._soon())

    def _handle(self, channel: Channel, message: AnyMessage) -> None:
        match message:
            case Status() | Formed() | Store() | Staffed():
                self._reconnect.hear(message)
                self._on_message(message)
            case Challenge() | AskPart():
                self._answer(channel, message)
            case Secrets():
                self._reconnect.hear(message)
                self.desk.hear(message, channel.exporter)
            case Admit():
                self._accept(channel, message)
            case Refuse():
                self._refused = True
                raise _refusal(message)
            case _:
                raise unexpected(message, "an answer of the coordinator")


def _refusal(message: Refuse) -> SecureTrainError:
    """The coordinator's refusal of this node."""
    return refusal_of(message, "the coordinator", AttestationError, NetworkError)


def _foreign(what: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-006", what, "Admit.result")
