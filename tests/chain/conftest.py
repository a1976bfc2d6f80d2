# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A job's evidence as a coordinator signs it, and a checkpoint that was made under it; no torch."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.statement import Bound, CheckpointPredicate, NodeRef, Opened, PolicyRef
from securetrain.artifacts.statement.checkpoint_predicate import IndexFile
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.tree.parts import TreeInfo
from securetrain.chain import documents
from securetrain.chain.coordinators import endorse
from securetrain.chain.keeper import Keeper
from securetrain.chain.links import Given, Subject
from securetrain.chain.store import InMemory
from securetrain.core.hashtree import TreeParams
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import AttestationResult, Binding, Evidence
from securetrain.identity import JobCA, Role, SpiffeId
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_document
from securetrain.rendezvous.coordinator import Shown
from securetrain.rendezvous.wire import Membership
from securetrain.rendezvous.wire.membership import Member, sign_membership
from tests.vocabulary import trust_document

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
POLICY = "cd" * 32
MINUTE = timedelta(minutes=1)


@dataclass
class Roles:
    """The keys of one run's trust root."""

    root: PrivateKey = field(default_factory=PrivateKey.generate)
    node: PrivateKey = field(default_factory=PrivateKey.generate)
    worker: PrivateKey = field(default_factory=PrivateKey.generate)

    def trust(self) -> TrustRoot:
        roles = {
            TrustRole.ROOT: [self.root.public],
            TrustRole.NODE: [self.node.public],
            TrustRole.LEDGER: [self.worker.public],
            TrustRole.LEDGER_WORKER: [self.worker.public],
        }
        made = trust_document(roles, NOW - timedelta(days=9), NOW + timedelta(days=300))
        return TrustRoot.parse(sign_document(made, [self.root]), NOW)


@dataclass
class Job:
    """One job with its coordinator, and the evidence that is kept of it."""

    name: str = "job-1"
    roles: Roles = field(default_factory=Roles)
    nodes: tuple[str, ...] = ("node-0", "node-1")
    tier: NodeTier = NodeTier.TPM
    policy: str = POLICY
    began: datetime = NOW
    epoch: int = 1
    lease: timedelta = 10 * MINUTE
    local_world: int = 2
    pieces: InMemory = field(default_factory=InMemory)

    def __post_init__(self) -> None:
        day = timedelta(days=1)
        self.ca = JobCA.create("securetrain.local", self.name, self.began)
        self.key = PrivateKey.generate(KeyKind.P256)
        leaf = self.ca.issue(Role.COORDINATOR, self.key.public, self.began, lifetime=day)
        self.node_keys = {node: PrivateKey.generate(KeyKind.P256) for node in self.nodes}
        self.keeper = Keeper(
            store=self.pieces,
            endorse=lambda ca: endorse(
                ca, self.name, self.began - MINUTE, self.began + day, self.roles.node
            ),
        )
        self.keeper.credential(self.name, (leaf, self.ca.certificate))
        self.results = {node: self.attest(node, self.began) for node in self.nodes}
        self.form()

    def spiffe(self, node: str) -> str:
        return str(SpiffeId("securetrain.local", self.name, Role.NODE, node))

    def result(self, node: str, at: datetime, **said: Any) -> AttestationResult:
        made = AttestationResult(
            job=self.name,
            node=node,
            key_id=self.node_keys[node].key_id,
            tier=self.tier,
            label=self.tier.value,
            media_type="application/vnd.securetrain.node-evidence+cbor",
            evidence="ee" * 32,
            policy=self.policy,
            issued=at,
            expires=at + self.lease,
            submods={},
        )
        return msgspec.structs.replace(made, **said)

    def attest(
        self, node: str, at: datetime, key: PrivateKey | None = None, **said: Any
    ) -> AttestationResult:
        """Have the coordinator sign a result, and keep it."""
        made = self.result(node, at, **said)
        binding = Binding(
            nonce=b"n" * 32,
            session=b"s" * 16,
            job=self.name,
            client_spki=self.node_keys[node].public.spki,
            server_spki=self.key.public.spki,
            exporter=b"e" * 32,
        )
        evidence = Evidence(
            media_type=made.media_type,
            body=b"quote of " + node.encode(),
            binding=b"",
            signature=b"",
        )
        shown = Shown(evidence=evidence, binding=binding, keys=None, secret=b"")
        self.keeper.result(made.sign(key or self.key), made, shown)
        return made

    def membership(self, **said: Any) -> Membership:
        of = Membership(
            job=self.name,
            coordinator=str(SpiffeId("securetrain.local", self.name, Role.COORDINATOR)),
            epoch=self.epoch,
            round=0,
            policy=self.policy,
            issued=self.began + MINUTE,
            members=tuple(
                Member(
                    rank=rank,
                    node=node,
                    certificate=f"{rank:064x}",
                    tier=self.results[node].tier,
                    result=self.results[node].digest,
                    address="127.0.0.1",
                    local_world=self.local_world,
                    role="default",
                )
                for rank, node in enumerate(self.nodes)
            ),
        )
        return msgspec.structs.replace(of, **said)

    def form(self, key: PrivateKey | None = None, **said: Any) -> None:
        made = self.membership(**said)
        self.keeper.membership(sign_membership(made, key or self.key), made)

    def refs(self) -> list[NodeRef]:
        return [
            NodeRef(
                node=self.spiffe(node),
                tier=self.results[node].tier,
                label=self.results[node].label,
                ranks=list(range(self.local_world * rank, self.local_world * (rank + 1))),
                result=self.results[node].digest,
            )
            for rank, node in enumerate(self.nodes)
        ]

    def checkpoint(self, created: datetime | None = None, **said: Any) -> CheckpointPredicate:
        """The honest word of a launcher on a checkpoint."""
        fields: dict[str, Any] = {
            "run_id": self.name,
            "step": 100,
            "seq": 1,
            "save_id": "0" * 32,
            "created": created or self.began + 5 * MINUTE,
            "world_size": self.local_world * len(self.nodes),
            "tree": TreeInfo.of(TreeParams(leaf_size=1024)),
            "files": [],
            "index": IndexFile(name="index", size=1, sha256="11" * 32),
            "epoch": self.epoch,
            "policy": PolicyRef(id="hardened", digest=self.policy),
            "nodes": self.refs(),
            "bound": Bound(membership=self.keeper.bound(self.epoch)),
        }
        return CheckpointPredicate(**(fields | said))

    def given(self, trust: TrustRoot | None = None, pieces: InMemory | None = None) -> Given:
        return Given(
            trust=trust or self.roles.trust(),
            pieces=self.pieces if pieces is None else pieces,
            now=NOW + timedelta(hours=1),
        )


def opened(said: CheckpointPredicate, digest: str = "aa" * 32) -> Opened:
    return Opened(kind=Kind.CHECKPOINT, predicate=said, digest=digest, key_ids=frozenset())


def subject(said: CheckpointPredicate, **more: Any) -> Subject:
    return Subject(opened=opened(said), **more)


def rebound(job: Job, said: CheckpointPredicate, changes: dict[str, Any]) -> CheckpointPredicate:
    """A checkpoint that binds an altered document of its membership, signed again by its key."""
    assert said.bound.membership is not None
    kept = documents.decode(job.pieces.pieces[said.bound.membership], documents.Membership)
    digest = job.pieces.keep(msgspec.structs.replace(kept, **changes))
    bound = msgspec.structs.replace(said.bound, membership=digest)
    return msgspec.structs.replace(said, bound=bound)


@pytest.fixture(scope="session")
def roles() -> Roles:
    return Roles()


@pytest.fixture
def job(roles) -> Job:
    return Job(roles=roles)


__all__ = ["Job", "Roles", "opened", "rebound", "replace", "subject"]
