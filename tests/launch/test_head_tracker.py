# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node whose disk was put back hears of the newest checkpoint from the others (T32)."""

import threading
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from securetrain import artifacts
from securetrain.artifacts import SaveContext
from securetrain.artifacts.lineage import head as heads
from securetrain.artifacts.lineage.head import sign_head
from securetrain.artifacts.lineage.judging import Floors, Freshness
from securetrain.artifacts.lineage.machine import HEAD, Floor, Head, History
from securetrain.artifacts.lineage.waivers import Waiver, sign_waiver
from securetrain.artifacts.statement.statements import CheckpointPredicate, Parent, open_statement
from securetrain.artifacts.tree.layout import STATEMENT, Kind
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.attest.node.attester import SoftwareAttester
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import (
    RoleKeys,
    TrustDocument,
    TrustRole,
    TrustRoot,
    key_table,
    sign_document,
)
from securetrain.launch.checkpoints.head_tracker import HeadTracker
from securetrain.ledger import verify_ledger
from securetrain.policy import LoadedPolicy, load_policy
from securetrain.policy.load import digest_of as digest_of_policy
from securetrain.policy.schema import SelfAsserted
from securetrain.rendezvous.coordinator.coordinator import Coordinator
from securetrain.rendezvous.member.client import Member
from securetrain.rendezvous.member.identity_dir import write_identity
from securetrain.rendezvous.wire.membership import Membership, gather
from securetrain.testing.runs import make_run
from tests.rendezvous.worlds import membership_of
from tests.vocabulary import changed, refused

RUN = "run-1"


class World:
    """One run's store, its trust root, and nodes that each remember for themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # OpenSSL goes by the real time.
        self.made = make_run(folder / "run", clock=lambda: datetime.now(UTC))
        self.clock = self.made.clock
        self.run = self.made.run_dir
        self.key = self.made.keys["checkpoint"]
        self.operator = PrivateKey.generate()
        self._name_operator()
        self.trust = TrustRoot.load(self.run.trust, self.clock())
        self.digests: list[str] = []

    def _name_operator(self) -> None:
        document: TrustDocument = self.made.trust.document
        changed = msgspec.structs.replace(
            document,
            keys={**document.keys, **key_table([self.operator.public])},
            roles={**document.roles, TrustRole.OPERATOR: RoleKeys([self.operator.key_id])},
        )
        self.run.trust.write_bytes(sign_document(changed, [self.made.keys["root"]]))

    def save(self, step: int) -> str:
        """A checkpoint, its head, and the same state in torch's own format."""
        parents = tuple(Parent(digest=digest) for digest in self.digests[-1:])
        context = SaveContext(
            run_id=RUN, step=step, seq=step, created=self.clock(), parents=parents
        )
        path = self.run.checkpoint(step)
        saved = artifacts.save({"a": state(step)}, path, key=self.key, context=context)
        data = (path / STATEMENT).read_bytes()
        opened = open_statement(data, Kind.CHECKPOINT, self.trust)
        assert isinstance(opened.predicate, CheckpointPredicate)
        folder = LocalStorage(self.run.checkpoints)
        heads.advance(folder, opened.predicate, self.key, self.trust, self.clock())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp_save({"a": state(step)}, checkpoint_id=self.stock(step))
        self.digests.append(saved.digest)
        return saved.digest

    def stock(self, step: int) -> Path:
        return self.folder / "stock" / f"step-{step}"

    def node(self, name: str) -> HeadTracker:
        return HeadTracker(
            run=self.run,
            run_id=RUN,
            floors=Floors(self.folder / name / "floors.json"),
            ledger=self.made.ledger(),
            clock=self.clock,
        )

    def remembered(self, node: HeadTracker) -> int | None:
        floor = node.floors.floor(RUN, self.trust.keys_for(TrustRole.CHECKPOINT))
        return None if floor is None else floor.seq

    def load(self, node: HeadTracker, step: int, *waivers: bytes) -> torch.Tensor:
        target = {"a": torch.full((64,), -1.0)}
        known = Freshness(floors=node.floors, waivers=waivers, head=False)
        path = self.run.checkpoint(step)
        artifacts.load(
            target, path, trust=self.trust, policy=None, now=self.clock(), freshness=known
        )
        return target["a"]

    def codes(self, event: str) -> list[tuple[str, str]]:
        keys = self.trust.keys_for(TrustRole.LEDGER)
        entries = verify_ledger(self.run.ledger.read_bytes(), keys).entries
        events = [entry.body.event for entry in entries]
        return [(one.subject, one.code) for one in events if one.event == event]


def state(step: int) -> torch.Tensor:
    return torch.full((64,), float(step))


def membership(**shown: tuple[bytes, ...]) -> Membership:
    floors = gather({name.replace("_", "-"): floors for name, floors in shown.items()})
    return membership_of(epoch=3, round=1, floors=floors)


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.save(1)
    return made


def roll_back(world, to):
    """Put the store, of both formats, back to what it was when `to` was the newest."""
    for step in range(to + 1, len(world.digests) + 1):
        for path in (world.run.checkpoint(step), world.stock(step)):
            path.rename(path.with_name(f"gone-{path.name}"))


def test_a_disk_that_was_put_back_and_a_node_that_remembers(world):
    """The whole way: the other node's floor, over a real rendezvous, stops the load."""
    before = (world.run.checkpoints / HEAD).read_bytes()
    world.save(2)
    one, two = world.node("node-0"), world.node("node-1")
    two.refresh()
    # Node 0 is put back in whole: its store, its head, and what it remembers (nothing, here).
    roll_back(world, 1)
    (world.run.checkpoints / HEAD).write_bytes(before)
    target = {"a": torch.full((64,), -1.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_load(target, checkpoint_id=world.stock(1))
    assert torch.equal(target["a"], state(1))  # stock goes on from the old one
    assert torch.equal(world.load(one, 1), state(1))  # and so does a node that is alone
    for found, node in zip(meet(world, [one, two]), (one, two), strict=True):
        node.receive(found)
    assert world.remembered(one) == 2
    refused(IntegrityError, "ST-CKPT-151", world.load, one, 1)
    assert world.codes("floor-raised") == [("node-1", "")]
    # Operators excuse exactly this checkpoint.
    now = world.clock()
    waiver = Waiver(
        run_id=RUN,
        digest=world.digests[0],
        reason="the second one is lost",
        issued=now,
        expires=now + timedelta(hours=1),
    )
    assert torch.equal(world.load(one, 1, sign_waiver(waiver, [world.operator])), state(1))


def meet(world, nodes):
    """One round of a real rendezvous; the membership that each node was given."""
    clock, job = world.clock, "job-1"
    dev = load_policy("dev").policy
    exception = SelfAsserted(max_nodes=len(nodes), reason="a test")
    policy = changed(dev, node={"allow_self_asserted": exception})
    ca = JobCA.create("securetrain.local", job, clock())
    coordinator = Coordinator(
        *(job, ca, LoadedPolicy(policy=policy, digest=digest_of_policy(policy)), None),
        min_nodes=len(nodes),
        max_nodes=len(nodes),
        clock=clock,
    )
    host, port = coordinator.start()
    found: dict[int, Membership] = {}
    members = []
    try:
        for number, node in enumerate(nodes):
            identity = write_identity(world.folder / f"id-{number}", ca, f"node-{number}", clock())
            attester = SoftwareAttester(key=identity.key, executable=Path("/bin/sh"))
            member = Member(identity, attester, clock=clock, floors=node.advertise)
            member.connect(host, port)
            members.append(member)

        def take_part(number):
            found[number] = members[number].next_round(lambda _: 4711).membership

        threads = [threading.Thread(target=take_part, args=(n,)) for n in range(len(nodes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        for member in members:
            member.leave()
        coordinator.stop()
    return [found[number] for number in range(len(nodes))]


@pytest.mark.forgery
def test_a_node_that_lies_raises_nothing(world):
    """A huge number, to deny service: unsigned, of another key, of another run, or just noise."""
    node, now = world.node("node-0"), world.clock()
    node.refresh()
    huge = Head(
        run_id=RUN,
        seq=10**9,
        step=1,
        digest="f" * 64,
        created=now,
        expires=now + timedelta(days=1),
    )
    other = msgspec.structs.replace(huge, run_id="run-2")
    lies = (
        sign_head(huge, PrivateKey.generate()),
        sign_head(huge, world.made.keys["worker"]),
        sign_head(other, world.key),
        b"\x00" * 100,
    )
    node.receive(membership(node_1=lies))
    assert world.remembered(node) == 1
    assert torch.equal(world.load(node, 1), state(1))
    said = world.codes("floor-not-proven")
    assert sorted(said) == [
        ("node-1", "ST-CKPT-120"),
        ("node-1", "ST-CKPT-120"),
        ("node-1", "ST-CKPT-152"),
        ("node-1", "ST-CKPT-170"),
    ]
    # The control: who has the key is believed, and refused with it when the key is revoked.
    node.receive(membership(node_1=(sign_head(huge, world.key),)))
    assert world.remembered(node) == 10**9


def test_a_node_that_lies_lowers_nothing(world):
    node = world.node("node-0")
    old = node.advertise()
    world.save(2)
    node.refresh()
    node.receive(membership(node_1=old, node_2=()))
    assert world.remembered(node) == 2
    refused(IntegrityError, "ST-CKPT-151", world.load, node, 1)


@pytest.mark.forgery
def test_two_histories_under_the_runs_own_key_end_it(world):
    node, now = world.node("node-0"), world.clock()
    node.refresh()
    fork = Head(
        run_id=RUN, seq=1, step=1, digest="f" * 64, created=now, expires=now + timedelta(days=1)
    )
    with pytest.raises(IntegrityError, match="ST-CKPT-171"):
        node.receive(membership(node_1=(sign_head(fork, world.key),)))
    assert world.codes("run-forked") == [("node-1", "ST-CKPT-171")]


def test_a_head_that_is_not_good_is_noted_and_shown_to_nobody(world):
    node = world.node("node-0")
    shown = node.advertise()
    assert len(shown) == 1
    (world.run.checkpoints / HEAD).write_bytes(b"{}")
    assert node.advertise() == shown
    assert node.advertise() == shown
    assert world.codes("head-refused") == [(HEAD, "ST-CKPT-152")]  # once


def test_a_node_that_has_seen_nothing_shows_nothing(tmp_path):
    node = World(tmp_path).node("node-0")
    assert node.advertise() == ()


def test_memory_that_cannot_be_read_is_a_refusal(world):
    node = world.node("node-0")
    node.refresh()
    node.floors.path.write_bytes(b"{")
    refused(IntegrityError, "ST-CKPT-151", node.advertise)


def test_what_an_eviction_set_aside_does_not_hold_up_the_run(world):
    world.save(2)
    node = world.node("node-0")
    node.excuse_rollback(lambda: pytest.fail("nothing is remembered, so nothing is asked"))
    node.refresh()
    first, second = world.digests
    node.excuse_rollback(lambda: History(restart=first))
    refused(
        IntegrityError, "ST-CKPT-151", world.load, node, 1
    )  # the ledger does not say that the second was set aside
    node.excuse_rollback(lambda: History(restart=first, set_aside=frozenset({second})))
    assert torch.equal(world.load(node, 1), state(1))
    # A store that is put back to that moment later shows nothing new.
    node.floors.raise_to(RUN, Floor(seq=3, digest="3" * 64), [world.key.key_id])
    refused(IntegrityError, "ST-CKPT-151", world.load, node, 1)


def test_memory_that_cannot_be_written_says_where_it_could_be(world):
    node = world.node("node-0")
    (world.folder / "node-0").write_text("a file where a folder should be")
    error = refused(UsageError, "ST-USAG-002", node.refresh)
    assert "SECURETRAIN_STATE" in error.fix
