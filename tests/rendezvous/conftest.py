# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One job on loopback: a CA, a coordinator, members, and an attacker who speaks raw TLS."""

import dataclasses
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from OpenSSL import SSL

from securetrain.attest.node.attester import Attester, SoftwareAttester
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.evidence.binding import Binding
from securetrain.evidence.case import Ask
from securetrain.evidence.node_evidence import AttestationKeys
from securetrain.evidence.tpm.structures import parse_public
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import PrivateKey, PublicKey
from securetrain.identity.spiffe import Role
from securetrain.ledger import Event, Ledger, verify_ledger
from securetrain.policy import LoadedPolicy, load_policy
from securetrain.policy.load import digest_of
from securetrain.policy.schema import SelfAsserted
from securetrain.rendezvous.coordinator.coordinator import Coordinator, CoordinatorSettings
from securetrain.rendezvous.member.client import Member
from securetrain.rendezvous.member.identity_dir import NodeIdentity, write_identity
from securetrain.rendezvous.wire.channel import Channel
from securetrain.rendezvous.wire.protocol import (
    DOCUMENT_LIMIT,
    PROTOCOL,
    AnyMessage,
    Challenge,
    Hello,
    Proof,
)
from securetrain.rendezvous.wire.tls import PeerCheck, make_connection, make_context, spki_of

PATIENCE = 60.0


def now() -> datetime:
    return datetime.now(UTC)


def wait_until(condition: Any, what: str) -> None:
    """Poll until `condition()` holds; fails after a long time rather than at a tight one."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)


def make_policy(max_nodes: int = 16, **rendezvous: int) -> LoadedPolicy:
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
        pass

    def drop(self, *_: object) -> None:
        pass

    def clear(self) -> None:
        pass


@dataclass
class Job:
    """Everything about one job in one test."""

    root: Path
    name: str = "job-1"
    ca: JobCA = field(init=False)
    ledger: Ledger = field(init=False)
    coordinator: Coordinator = field(init=False)
    host: str = ""
    port: int = 0
    members: list[Member] = field(default_factory=list)
    started: list[Coordinator] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ca = JobCA.create("securetrain.local", self.name, now())
        key = PrivateKey.generate()
        self.ledger = Ledger(self.root / "ledger.jsonl", key, "coordinator", now)

    def start(self, min_nodes: int = 1, max_nodes: int = 1, **settings: Any) -> Coordinator:
        settings.setdefault("policy", make_policy())
        settings.setdefault("clock", now)
        settings.setdefault("ledger", self.ledger)
        settings.setdefault("generation", len(self.started) + 1)
        port = settings.pop("port", 0)
        self.coordinator = Coordinator(
            self.name, self.ca, min_nodes=min_nodes, max_nodes=max_nodes, **in_settings(settings)
        )
        self.host, self.port = self.coordinator.start(port=port)
        self.started.append(self.coordinator)
        return self.coordinator

    def identity(self, node: str = "node-0", ca: JobCA | None = None) -> NodeIdentity:
        folder = self.folder(node) if ca is None else self.root / f"foreign-{node}"
        return write_identity(folder, ca or self.ca, node, now())

    def folder(self, node: str = "node-0") -> Path:
        """Where `identity` writes."""
        return self.root / f"id-{node}"

    def attester(self, identity: NodeIdentity) -> SoftwareAttester:
        return SoftwareAttester(key=identity.key, executable=Path(sys.executable))

    def make_member(
        self,
        node: str = "node-0",
        identity: NodeIdentity | None = None,
        attester: Attester | None = None,
        **settings: Any,
    ) -> Member:
        identity = identity or self.identity(node)
        settings.setdefault("clock", now)
        if key := settings.pop("wireguard", ""):
            settings["tunnel"] = SilentTunnel(key, port=5000 + len(self.members))
        member = Member(identity, attester or self.attester(identity), **settings)
        self.members.append(member)
        return member

    def join(self, node: str = "node-0", **settings: Any) -> Member:
        member = self.make_member(node, **settings)
        member.connect(self.host, self.port)
        return member

    def connect(self, identity: NodeIdentity, context: SSL.Context | None = None) -> Channel:
        """A raw connection as the owner of `identity`, before the handshake."""
        check = PeerCheck(
            ca=self.ca.certificate,
            role=Role.COORDINATOR,
            trust_domain="securetrain.local",
            job=self.name,
            clock=now,
        )
        sock = socket.create_connection((self.host, self.port), PATIENCE)
        context = context or make_context(identity.tls, server=False)
        channel = Channel(sock, make_connection(context, check, server=False))
        self.channels.append(channel)
        return channel

    def challenged(self, identity: NodeIdentity, **hello: Any) -> tuple[Channel, Challenge]:
        """A raw connection that has said Hello and was challenged."""
        channel = self.connect(identity)
        channel.handshake(soon())
        channel.send(make_hello(identity, **hello), soon())
        challenge = channel.receive(soon())
        assert isinstance(challenge, Challenge), challenge
        return channel, challenge

    def events(self) -> list[Event]:
        """The ledger's events, after its chain and signatures were verified."""
        path = self.ledger.path
        data = path.read_bytes() if path.exists() else b""
        data = data[: data.rfind(b"\n") + 1]  # the last line may just be being written
        key = self.ledger.key
        return [e.body.event for e in verify_ledger(data, {key.key_id: key.public}).entries]

    def expect(self, code: str, event: str | None = None) -> Event:
        """Wait until the ledger has a refusal with `code`, and nothing else is refused."""

        def found() -> list[Event]:
            events = self.events()
            return [e for e in events if e.code == code and (event is None or e.event == event)]

        wait_until(found, f"{code} in the ledger; it has {[e.code for e in self.events()]}")
        return found()[0]

    def finish(self) -> None:
        for channel in self.channels:
            channel._socket.close()
        for member in self.members:
            member.leave()
        for coordinator in self.started:
            coordinator.stop()
            assert coordinator.problem is None


def soon() -> float:
    return time.monotonic() + PATIENCE


def make_hello(identity: NodeIdentity, **changes: Any) -> Hello:
    fields: dict[str, Any] = {
        "protocol": PROTOCOL,
        "job": identity.spiffe.job,
        "node": identity.spiffe.node,
        "address": "127.0.0.1",
    }
    return Hello(**{**fields, **changes})


def binding_of(channel: Channel, challenge: Challenge, identity: NodeIdentity) -> Binding:
    """The binding as an honest node computes it."""
    certificate = channel.check.certificate
    assert certificate is not None
    return Binding(
        nonce=challenge.nonce,
        session=challenge.session,
        job=identity.spiffe.job,
        client_spki=identity.key.public.spki,
        server_spki=PublicKey.from_spki(spki_of(certificate)).spki,
        exporter=channel.exporter(challenge.session),
    )


def prove(
    attester: Attester,
    binding: Binding,
    challenge: Challenge | None = None,
    keys: AttestationKeys | None = None,
) -> Proof:
    """What a node answers; with its TPM's keys it answers for the TPM too."""
    if keys is not None:
        binding = replace(binding, ak_name=parse_public(keys.ak_public).name)
    evidence = attester.collect(
        binding, Ask(credential=challenge.credential if challenge else None)
    )
    return Proof(
        media_type=evidence.media_type,
        body=evidence.body,
        binding=evidence.binding,
        signature=evidence.signature,
    )


def answer(channel: Channel) -> AnyMessage | SecureTrainError:
    """What comes back: a message, or how the connection ended."""
    try:
        message = channel.receive(soon(), limit=DOCUMENT_LIMIT)
    except SecureTrainError as error:
        return error
    assert message is not None
    return message


class Tools:
    """The helpers above, for tests (which cannot import this file by name)."""

    PATIENCE = PATIENCE
    now = staticmethod(now)
    soon = staticmethod(soon)
    wait_until = staticmethod(wait_until)
    in_settings = staticmethod(in_settings)
    make_policy = staticmethod(make_policy)
    make_hello = staticmethod(make_hello)
    binding_of = staticmethod(binding_of)
    prove = staticmethod(prove)
    answer = staticmethod(answer)
    day = timedelta(days=1)


@pytest.fixture
def tools() -> type[Tools]:
    return Tools


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.finish()
