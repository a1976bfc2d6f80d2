# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One job on loopback: a CA, a coordinator, members, and connections for those who speak raw TLS.

Everything is in this process, over real sockets. What waits, waits long: a slow machine is no
reason for an outcome.
"""

import dataclasses
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from securetrain.attest.node import SoftwareAttester
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.drills import process_tree
from securetrain.evidence import Ask, AttestationKeys, Binding
from securetrain.identity import JobCA, Role
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.ledger import Event, Ledger, verify_ledger
from securetrain.policy import LoadedPolicy, load_policy
from securetrain.policy.load import digest_of
from securetrain.policy.schema import SelfAsserted
from securetrain.rendezvous.coordinator import Coordinator, CoordinatorSettings
from securetrain.rendezvous.member import Member, NodeIdentity, write_identity
from securetrain.rendezvous.wire import channel, protocol, tls

if TYPE_CHECKING:
    from OpenSSL import SSL

    from securetrain.attest.node import Attester

PATIENCE: Final = 60.0


class NeverHappenedError(AssertionError):
    """The job never came to what was waited for."""


def now() -> datetime:
    """The time, for everything in a job."""
    return datetime.now(UTC)


def soon() -> float:
    """A deadline that no working machine reaches."""
    return time.monotonic() + PATIENCE


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll until `condition()` holds; fails after a long time rather than at a tight one.

    Raises:
        NeverHappenedError: It never held.
    """
    if not process_tree.wait_until(condition, PATIENCE, 0.005):
        raise NeverHappenedError(f"never happened: {what}")


def make_policy(max_nodes: int = 16, **rendezvous: Any) -> LoadedPolicy:
    """The policy `dev` for many nodes, with other settings of its rendezvous."""
    dev = load_policy("dev").policy
    exception = SelfAsserted(max_nodes=max_nodes, reason="a test")
    policy = msgspec.structs.replace(
        dev,
        node=msgspec.structs.replace(dev.node, allow_self_asserted=exception),
        rendezvous=msgspec.structs.replace(dev.rendezvous, **rendezvous),
    )
    return LoadedPolicy(policy=policy, digest=digest_of(policy))


def in_settings(given: dict[str, Any]) -> dict[str, Any]:
    """A coordinator's arguments, with those that belong there in its settings."""
    names = {one.name for one in dataclasses.fields(CoordinatorSettings)}
    chosen = CoordinatorSettings(**{name: given[name] for name in names & given.keys()})
    return {**{name: given[name] for name in given.keys() - names}, "settings": chosen}


@dataclass
class SilentTunnel:
    """A tunnel that says what it is told to say, and builds nothing."""

    key: str
    port: int
    profile: NetworkProfile = NetworkProfile.OVERLAY

    def apply(self, *_: object) -> None:
        """Build nothing."""

    def drop(self, *_: object) -> None:
        """Take nothing down."""

    def clear(self) -> None:
        """There is nothing to clear."""


@dataclass
class Job:
    """Everything about one job."""

    root: Path
    name: str = "job-1"
    ca: JobCA = field(init=False)
    ledger: Ledger = field(init=False)
    coordinator: Coordinator = field(init=False)
    host: str = ""
    port: int = 0
    members: list[Member] = field(default_factory=list)
    started: list[Coordinator] = field(default_factory=list)
    channels: list[channel.Channel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ca = JobCA.create("securetrain.local", self.name, now())
        key = PrivateKey.generate()
        self.ledger = Ledger(self.root / "ledger.jsonl", key, "coordinator", now).begin(self.name)

    def start(self, min_nodes: int = 1, max_nodes: int = 1, **settings: Any) -> Coordinator:
        """Start a coordinator; `settings` are its arguments or its settings."""
        own = {"clock": now, "ledger": self.ledger, "generation": len(self.started) + 1}
        given = {"policy": make_policy(), "min_nodes": min_nodes, "max_nodes": max_nodes}
        port = settings.pop("port", 0)
        self.coordinator = Coordinator(self.name, self.ca, **in_settings(own | given | settings))
        self.host, self.port = self.coordinator.start(port=port)
        self.started.append(self.coordinator)
        return self.coordinator

    def identity(self, node: str = "node-0", ca: JobCA | None = None) -> NodeIdentity:
        """Give a node a key and a certificate: of the job's CA, or of another one."""
        folder = self.folder(node) if ca is None else self.root / f"foreign-{node}"
        return write_identity(folder, ca or self.ca, node, now())

    def folder(self, node: str = "node-0") -> Path:
        """The place to which `identity` writes."""
        return self.root / f"id-{node}"

    def attester(self, identity: NodeIdentity) -> SoftwareAttester:
        """An attester that proves nothing, and says so."""
        return SoftwareAttester(key=identity.key, executable=Path(sys.executable))

    def make_member(
        self,
        node: str = "node-0",
        identity: NodeIdentity | None = None,
        attester: "Attester | None" = None,
        **settings: Any,
    ) -> Member:
        """An honest node, not connected yet."""
        identity = identity or self.identity(node)
        settings.setdefault("clock", now)
        if key := settings.pop("wireguard", ""):
            settings["tunnel"] = SilentTunnel(key, port=5000 + len(self.members))
        member = Member(identity, attester or self.attester(identity), **settings)
        self.members.append(member)
        return member

    def join(self, node: str = "node-0", **settings: Any) -> Member:
        """An honest node, which joins."""
        member = self.make_member(node, **settings)
        member.connect(self.host, self.port)
        return member

    def connect(
        self, identity: NodeIdentity, context: "SSL.Context | None" = None
    ) -> channel.Channel:
        """A raw connection as the owner of `identity`, before the handshake."""
        check = tls.PeerCheck(
            ca=self.ca.certificate,
            role=Role.COORDINATOR,
            trust_domain="securetrain.local",
            job=self.name,
            clock=now,
        )
        sock = socket.create_connection((self.host, self.port), PATIENCE)
        context = context or tls.make_context(identity.tls, server=False)
        made = channel.Channel(sock, tls.make_connection(context, check, server=False))
        self.channels.append(made)
        return made

    def challenged(
        self, identity: NodeIdentity, **hello: Any
    ) -> tuple[channel.Channel, protocol.Challenge]:
        """A raw connection that has said Hello and was challenged."""
        made = self.connect(identity)
        made.handshake(soon())
        made.send(make_hello(identity, **hello), soon())
        challenge = made.receive(soon())
        if not isinstance(challenge, protocol.Challenge):
            raise NeverHappenedError(f"no challenge, but {challenge!r}")
        return made, challenge

    def events(self) -> list[Event]:
        """The ledger's events, after its chain and signatures were verified."""
        path = self.ledger.path
        data = path.read_bytes()
        data = data[: data.rfind(b"\n") + 1]  # the last line may just be being written
        key = self.ledger.key
        return [e.body.event for e in verify_ledger(data, {key.key_id: key.public}).entries[1:]]

    def expect(self, code: str, event: str | None = None) -> Event:
        """Wait until the ledger has a refusal with `code`; its first entry."""

        def found() -> list[Event]:
            events = self.events()
            return [e for e in events if e.code == code and (event is None or e.event == event)]

        wait_until(found, f"{code} in the ledger; it has {[e.code for e in self.events()]}")
        return found()[0]

    def finish(self) -> None:
        """End everything.

        Raises:
            SecureTrainError: The coordinator met a problem of its own.
        """
        for made in self.channels:
            made._socket.close()
        for member in self.members:
            member.leave()
        for coordinator in self.started:
            coordinator.stop()
            if coordinator.problem is not None:
                raise coordinator.problem


@contextmanager
def running_job(root: Path) -> Iterator[Job]:
    """A job whose files are below `root`; everything of it ends with the block."""
    made = Job(root)
    yield made
    made.finish()


def make_hello(identity: NodeIdentity, **changes: Any) -> protocol.Hello:
    """The first words of an honest node, but for `changes`."""
    own = {"job": identity.spiffe.job, "node": identity.spiffe.node, "address": "127.0.0.1"}
    return protocol.Hello(**{"protocol": protocol.PROTOCOL, **own, **changes})


def binding_of(
    made: channel.Channel, challenge: protocol.Challenge, identity: NodeIdentity
) -> Binding:
    """The binding as an honest node computes it."""
    certificate = made.check.certificate
    if certificate is None:
        raise NeverHappenedError("the coordinator showed no certificate")
    return Binding(
        nonce=challenge.nonce,
        session=challenge.session,
        job=identity.spiffe.job,
        client_spki=identity.key.public.spki,
        server_spki=PublicKey.from_spki(tls.spki_of(certificate)).spki,
        exporter=made.exporter(challenge.session),
    )


def prove(
    attester: "Attester",
    binding: Binding,
    challenge: protocol.Challenge | None = None,
    keys: AttestationKeys | None = None,
) -> protocol.Proof:
    """The answer of a node; with its TPM's keys it answers for the TPM too."""
    if keys is not None:
        from securetrain.evidence.tpm import parse_public  # noqa: PLC0415 - software has no TPM

        binding = replace(binding, ak_name=parse_public(keys.ak_public).name)
    ask = Ask(credential=challenge.credential if challenge else None)
    evidence = attester.collect(binding, ask)
    names = ("media_type", "body", "binding", "signature")
    return protocol.Proof(**{name: getattr(evidence, name) for name in names})


def answer(made: channel.Channel) -> protocol.AnyMessage | SecureTrainError:
    """Return a message, or how the connection ended."""
    try:
        message = made.receive(soon(), limit=protocol.DOCUMENT_LIMIT)
    except SecureTrainError as error:
        return error
    if message is None:
        raise NeverHappenedError("nothing came back, and the connection did not end")
    return message
