# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side of one connection.

In order: TLS handshake, and whether the peer is revoked; Hello, which must equal the certificate;
Challenge and Proof, judged by the verifier; Admit. From then on the node asks for rounds, beats,
and renews its lease. The connection ends, and the node is out, at the first message that has no
place, when the node falls silent for three heart-beats, when its machine answers nothing for two
(`Channel.expect_answers`), or when its lease ends.
"""

import hashlib
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec.structs import replace

from securetrain.attest.session import Passport, Verifier, issue_passport, svid_pem
from securetrain.core.errors import AdmissionError, AttestationError, SecureTrainError
from securetrain.evidence import SESSION_SIZE, AttestationResult, Binding, Evidence
from securetrain.identity import SpiffeId, certificate_pem, public_key_of
from securetrain.identity.keys import PublicKey
from securetrain.rendezvous.coordinator.hello_rules import check_hello
from securetrain.rendezvous.coordinator.keep import Shown
from securetrain.rendezvous.coordinator.terms import Terms
from securetrain.rendezvous.wire.channel import Channel, PeerClosedError, Wakeup
from securetrain.rendezvous.wire.protocol import (
    ANSWER_HEARTBEATS,
    DOCUMENT_LIMIT,
    FRAME_LIMIT,
    MISSED_HEARTBEATS,
    PART_LIMIT,
    Admit,
    AnyMessage,
    Arrival,
    AskPart,
    AskSecrets,
    Challenge,
    Close,
    CloseState,
    Done,
    Going,
    Heartbeat,
    Hello,
    Leave,
    ListPart,
    Proof,
    Ready,
    Refuse,
    Renew,
    Status,
    Store,
    Suspect,
    Workers,
    unexpected,
)

MAX_OUTBOX: Final = 256


class Hub(Protocol):
    """The part of the coordinator that a session needs. Every call may raise a refusal."""

    @property
    def epoch(self) -> int:
        """The job's current epoch; -1 before the first one."""

    def recognised(self, session: "Session") -> None:
        """The TLS peer is a node of this job; nothing that it says has been read yet."""

    def authenticated(self, session: "Session") -> None:
        """The TLS peer is a node of this job and said Hello: reserve its name."""

    def admitted(self, session: "Session", result: AttestationResult) -> None:
        """The evidence was accepted: record it before the node hears of it."""

    def heard(self, session: "Session", message: AnyMessage) -> None:
        """The admitted node has sent a message: is it too many?"""

    def renewed(self, session: "Session", result: AttestationResult) -> None:
        """The evidence was accepted again."""

    def ready(self, session: "Session") -> None:
        """The node asks for the next round."""

    def store(self, session: "Session", store: Store) -> None:
        """The node announces the workers' store."""

    def hear(self, session: "Session", message: Workers | Arrival | Done | Going) -> None:
        """The node says something about its workers, or that it will leave."""

    def close(self, session: "Session", *, failed: bool = False) -> None:
        """The node is done with the job."""

    def suspect(self, session: "Session", message: Suspect) -> None:
        """The node does not trust another member."""

    def secrets(self, session: "Session", ask: AskSecrets) -> None:
        """The member asks for what the policy gives it."""

    def beat(self, session: "Session") -> None:
        """The node is alive: post where the job stands, and nothing that is older than news."""

    def ended(self, session: "Session", error: SecureTrainError | None) -> None:
        """The connection is over: with a refusal, or because the node left."""


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One connection; `run` is its thread."""

    channel: Channel
    remote: str
    """Address of the peer, for the ledger."""
    hub: Hub
    verifier: Verifier
    terms: Terms
    wakeup: Wakeup = field(default_factory=Wakeup)
    peer: SpiffeId | None = None
    hello: Hello | None = None
    result: AttestationResult | None = None
    certificate: str = ""
    """SHA-256 (hex) of the peer's certificate."""
    proven: datetime | None = None
    """When the challenge was made that the node's last good evidence answers."""
    floors: tuple[bytes, ...] = ()
    """What the node showed with its latest Ready."""
    asked: int = -1
    """The last epoch in which the node has asked for secrets."""
    admitted: bool = False
    said_goodbye: bool = False
    _renewing: bool = False
    _outbox: deque[AnyMessage] = field(default_factory=deque)
    _verdict: SecureTrainError | None = None
    _cut: bool = False
    _farewell: SecureTrainError | None = None
    _told: tuple[object, ...] = (0, False, False, (), CloseState.NONE, 0, 0)
    _pending: Binding | None = None
    _passport: Passport | None = None
    _challenged: datetime | None = None
    _holder: PublicKey | None = None
    _latest: x509.Certificate | None = None
    """The certificate that the node will come with next time."""
    _lease_end: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def node(self) -> str:
        """The node's name, once authenticated."""
        return self.peer.node if self.peer else ""

    @property
    def subject(self) -> str:
        """The peer's name in the ledger: the SPIFFE id once proven, else the address."""
        return str(self.peer) if self.peer else self.remote

    def post(self, message: AnyMessage) -> None:
        """Have the session's thread send a message, from any thread.

        A peer that reads nothing is cut off rather than waited for.
        """
        with self._lock:
            full = len(self._outbox) >= MAX_OUTBOX
            if not full:
                self._outbox.append(message)
        if full:
            self.evict(AdmissionError("ST-ADMN-005", "the node does not read", self.subject))
        else:
            self.wakeup.set()

    def tell(self, status: Status) -> None:
        """Post a status when it says something that an agent acts on and has not heard yet."""
        news = (
            *(status.waiting, status.closed, status.spare, status.evicted),
            *(status.close, status.running, status.owed),
        )
        if news != self._told:
            self._told = news
            self.post(status)

    def evict(self, error: SecureTrainError | None) -> None:
        """End the session from any thread, with a reason (None at shutdown).

        An authenticated peer is told the reason, if it reads: see `_say`.
        """
        with self._lock:
            self._verdict = self._verdict or error
            self._cut = True
        if error is None or self.peer is None:
            self.channel.abort()
        else:
            self.channel.halt()

    def dismiss(self, farewell: SecureTrainError | None) -> None:
        """End the session of a node that has done nothing wrong, from any thread.

        Args:
            farewell: What an admitted node is told; None cuts the connection.
        """
        with self._lock:
            self._cut = True
            self._farewell = farewell if self.admitted else None
        if self._farewell is None:
            self.channel.abort()
        else:
            self.channel.halt()

    def run(self) -> None:
        """Serve the connection until it ends."""
        error: SecureTrainError | None = None
        try:
            self._admit()
            self._serve()
        except SecureTrainError as refusal:
            error = refusal
        except Exception as failure:  # noqa: BLE001 - fail closed, whatever it was
            error = AdmissionError(
                "ST-ADMN-012",
                f"the coordinator failed: {type(failure).__name__}: {failure}",
                self.subject,
            )
        error = self._final(error)
        try:
            # The others first: they must not wait for a node that does not read.
            self.hub.ended(self, error)
            self._say(error or self._farewell)
        finally:
            self.channel.close()
            self.wakeup.close()

    def _final(self, error: SecureTrainError | None) -> SecureTrainError | None:
        """The session's end: a verdict from outside comes before what followed it."""
        if self._cut:
            return self._verdict
        if isinstance(error, PeerClosedError) and self.admitted:
            return None
        return error

    def _say(self, error: SecureTrainError | None) -> None:
        """Tell an authenticated peer why, as far as it still listens."""
        if error is None or self.peer is None:
            return
        try:
            refusal = Refuse(code=error.code, what=error.what[:2000], fix=error.fix[:2000])
            self.channel.send(refusal, self._soon(), last=True)
        except SecureTrainError:
            return  # it is gone; the ledger has the reason

    @property
    def lease_end(self) -> float:
        """The end of the lease, by the steady clock; 0 for a node that is not admitted."""
        return self._lease_end

    def _soon(self) -> float:
        return self.terms.monotonic() + self.terms.handshake_timeout

    def _admit(self) -> None:
        self.peer = self.channel.handshake(self._soon())
        certificate = self.channel.check.certificate
        assert certificate is not None
        self.certificate = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
        self.hub.recognised(self)
        hello = self.channel.receive(self._soon())
        if not isinstance(hello, Hello):
            raise _misplaced(hello, "Hello")
        check_hello(hello, self.peer, self.remote, alone=self.terms.max_nodes == 1)
        self.hello = hello
        self.hub.authenticated(self)
        self._challenge()
        proof = self.channel.receive(self._soon(), limit=DOCUMENT_LIMIT)
        if not isinstance(proof, Proof):
            raise _misplaced(proof, "Proof")
        result = self._appraise(proof)
        self.hub.admitted(self, result)
        self.admitted = True
        self.channel.expect_answers(ANSWER_HEARTBEATS * self.terms.heartbeat)
        self._send_admit(result)
        self._renewing = True

    def _key(self) -> PublicKey:
        """The node's identity key, from the certificate of this connection."""
        if self._holder is None:
            certificate = self.channel.check.certificate
            assert certificate is not None
            self._holder = public_key_of(certificate)
        return self._holder

    def _challenge(self) -> None:
        assert self.hello is not None
        self._challenged = self.terms.renewal.clock()
        challenge = self.verifier.challenge(self.node, self.hello.tpm)
        session = self.terms.random(SESSION_SIZE)
        self._pending = Binding(
            nonce=challenge.nonce,
            session=session,
            job=self.terms.job,
            client_spki=self._key().spki,
            server_spki=self.terms.key.public.spki,
            exporter=self.channel.exporter(session),
            ak_name=challenge.ak_name,
            wireguard=self.hello.wireguard.encode(),
            sealing=self.hello.sealing.encode(),
        )
        message = Challenge(
            nonce=challenge.nonce,
            session=session,
            credential=challenge.ask.credential,
            ima_first=challenge.ask.ima_first,
            full=challenge.ask.full,
        )
        self.channel.send(message, self._soon())

    def _appraise(self, proof: Proof) -> AttestationResult:
        binding, self._pending = self._pending, None
        if binding is None:
            raise unexpected(proof, "no Proof without a Challenge")
        evidence = Evidence(
            media_type=proof.media_type,
            body=proof.body,
            binding=proof.binding,
            signature=proof.signature,
        )
        with self.terms.lists.of(self) as fetch:
            result = self.verifier.appraise(
                evidence, binding, node=self.node, key=self._key(), fetch=fetch
            )
        self.proven = self._challenged
        self._passport = issue_passport(
            result, key=self.terms.key, ca=self.terms.ca, node_key=self._key()
        )
        spent = self.verifier.spent(self.node)
        keys = self.hello.tpm if self.hello is not None else None
        shown = Shown(
            evidence=evidence,
            binding=binding,
            keys=keys,
            secret=spent.secret,
            documents=spent.documents,
        )
        self.terms.keep.result(self._passport.ear, result, shown)
        return result

    def _send_admit(self, result: AttestationResult) -> None:
        terms = self.terms
        certificate = self.channel.check.certificate
        assert certificate is not None
        assert self.peer is not None
        renewed = terms.renewal.renew(self.peer, self._latest or certificate)
        self._latest = renewed or self._latest
        passport = self._passport
        assert passport is not None
        self.result = result
        self._lease_end = terms.monotonic() + terms.lease
        self.channel.send(
            Admit(
                tier=result.tier,
                label=result.label,
                result=passport.ear,
                svid=svid_pem(passport),
                certificate=certificate_pem(renewed).decode() if renewed is not None else "",
                policy=terms.policy_digest,
                lease_seconds=terms.lease,
                heartbeat_seconds=terms.heartbeat,
                join_timeout_seconds=terms.waits.join_timeout_seconds,
                min_nodes=terms.min_nodes,
                max_nodes=terms.max_nodes,
                epoch=self.hub.epoch,
                generation=None if self._renewing else terms.generation.statement,
            ),
            self._soon(),
        )

    def _serve(self) -> None:
        heard = self.terms.monotonic()
        while not (self.said_goodbye or self._cut):
            self._send_posted()
            silent = heard + MISSED_HEARTBEATS * self.terms.heartbeat
            limit = FRAME_LIMIT if self._pending is None else DOCUMENT_LIMIT
            try:
                message = self.channel.receive(
                    min(silent, self._lease_end), limit=limit, wakeup=self.wakeup
                )
            except AdmissionError as error:
                # The channel looks at the deadline at every read: a node that never falls silent
                # comes here too when its lease ends.
                self._check_lease(error)
                raise
            if message is not None and not self._cut:
                self._handle(message)
                heard = self.terms.monotonic()  # later than it came, where a list came with it

    def next_part(self, index: int, deadline: float) -> bytes:
        """Ask for a part of the announced list; what else the node says meanwhile is served.

        Args:
            index: which, from 0.
            deadline: of the steady clock.

        Raises:
            AdmissionError: ST-ADMN-001 for another part or a message that has no place, 005, 007.
        """
        self.channel.send(AskPart(index=index), deadline)
        while True:
            if self.admitted:
                self._send_posted()
            message = self.channel.receive(
                deadline, limit=PART_LIMIT, wakeup=self.wakeup if self.admitted else None
            )
            if isinstance(message, ListPart) and message.index == index:
                return message.data
            if message is None:
                continue
            if not self.admitted or isinstance(message, Renew | Proof | ListPart):
                raise unexpected(message, f"part {index} of the measurement list")
            self._handle(message)
            if self.said_goodbye:
                raise PeerClosedError("ST-ADMN-007", "the node left while it was asked", self.node)

    def _send_posted(self) -> None:
        self.wakeup.clear()
        while True:
            with self._lock:
                if not self._outbox:
                    return
                message = self._outbox.popleft()
            self.channel.send(message, self._soon())

    def _check_lease(self, cause: AdmissionError) -> None:
        if self.terms.monotonic() >= self._lease_end:
            raise AttestationError(
                "ST-ATTS-007", "the lease ended and was not renewed", self.subject
            ) from cause

    def _staff(self, workers: Workers | Arrival | Done | Going) -> None:
        """Take a node's word about its workers, which it gives once."""
        if not isinstance(workers, Workers):
            return
        said = self.hello
        assert said is not None, "it is admitted"
        known = said.local_world or workers.local_world, said.role or workers.role
        if known != (workers.local_world, workers.role) or self.staffed:
            raise AdmissionError(
                "ST-ADMN-040",
                f"{self.node} runs {known[0]} workers of role {known[1]}, and now says"
                f" {workers.local_world} of role {workers.role}",
                self.subject,
            )
        self.hello = replace(said, local_world=workers.local_world, role=workers.role)

    @property
    def staffed(self) -> bool:
        """Tell whether the node has said what workers it runs."""
        return self.hello is not None and bool(self.hello.local_world and self.hello.role)

    def _handle(self, message: AnyMessage) -> None:
        self.hub.heard(self, message)
        match message:
            case Heartbeat():
                self.hub.beat(self)
            case Ready():
                self.floors = message.floors
                self.hub.ready(self)
            case Store():
                self.hub.store(self, message)
            case Workers() | Arrival() | Done() | Going():
                self._staff(message)
                self.hub.hear(self, message)
            case Renew():
                self._challenge()
            case Proof():
                result = self._appraise(message)
                self.hub.renewed(self, result)
                self._send_admit(result)
            case Close() | Suspect() | AskSecrets():
                self._claim(message)
            case Leave():
                self.said_goodbye = True
            case _:
                raise unexpected(message, "a request of an admitted node")

    def _claim(self, message: Close | Suspect | AskSecrets) -> None:
        match message:
            case Close():
                self.hub.close(self, failed=message.failed)
            case Suspect():
                self.hub.suspect(self, message)
            case AskSecrets():
                self.hub.secrets(self, message)


def _misplaced(message: AnyMessage | None, wanted: str) -> AdmissionError:
    assert message is not None, "nobody wakes a session that is not admitted yet"
    return unexpected(message, wanted)
