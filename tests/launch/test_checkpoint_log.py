# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run logs its checkpoints, and its agents watch the log (T40)."""

import base64
import hashlib
import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from securetrain.artifacts.lineage import head
from securetrain.artifacts.lineage.folder import log_policy
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    TreeInfo,
    digest_of,
    sign,
)
from securetrain.artifacts.tree.layout import INDEX, STATEMENT
from securetrain.artifacts.tree.storage import LocalStorage
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IdentityError, IntegrityError, UsageError
from securetrain.core.hashtree import TreeParams
from securetrain.identity.keys import PrivateKey
from securetrain.identity.log.checkpoint import LogPolicy, open_checkpoint
from securetrain.identity.log.entry import entry_of
from securetrain.identity.log.node_witness import machine_witness, witness_key
from securetrain.identity.log.store import Log
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.launch.checkpoints.checkpoint_log import CheckpointLog
from securetrain.launch.setup import LOG_KEY, prepare_run
from securetrain.ledger import Ledger, events, verify_ledger
from tests.launch.worlds import write_policy
from tests.tables import items
from tests.vocabulary import refused


def spki(key):
    return base64.b64encode(key.public.spki).decode()


class World:
    """A run whose policy names two machines as witnesses, and asks for both."""

    def __init__(self, folder, quorum=2):
        self.folder = folder
        self.now = datetime.now(UTC)
        self.keys = [witness_key(folder / f"machine-{n}" / "witness.pem") for n in range(2)]
        asked = {"witnesses": [spki(key) for key in self.keys], "quorum": quorum}
        policy = write_policy(folder / "policy.yaml", checkpoint={"log": asked})
        self.made = prepare_run(folder / "run", policy, self.now)
        self.run = self.made.run
        found = self.made.policy.policy.checkpoint.log
        assert found is not None
        self.asked = found
        self.trust = TrustRoot.load(self.run.trust, self.now)
        self.run.checkpoints.mkdir()
        self.ledger = Ledger(
            self.run.ledger, PrivateKey.load(self.run.key("agent")), "agent", self.clock
        )
        self.ledger.write(events.RunStarted())
        self.key = PrivateKey.load(self.run.key("checkpoint"))

    def clock(self):
        return self.now

    @property
    def log(self):
        return Log(self.run.log, log_policy(self.trust, self.asked))

    def agent(self, number, *, writes=True, key=None):
        policy = self.log.policy
        seen = self.folder / f"machine-{number}" / "seen"
        mine = key or self.keys[number]
        return CheckpointLog(
            run=self.run,
            run_id=self.made.job,
            folder=self.run.log,
            asked=self.asked,
            key=PrivateKey.load(self.run.key(LOG_KEY)) if writes else None,
            witness=machine_witness(f"node {number}", mine, seen, {policy.origin: policy}),
            ledger=self.ledger,
            clock=self.clock,
        )

    def save(self, step, **said):
        """A checkpoint of a value and nothing else, and its head."""
        data = json.dumps(
            {"tensors": [], "values": [{"fqn": "n", "value": step}], "version": 1},
            separators=(",", ":"),
        ).encode()
        predicate = CheckpointPredicate(
            **{
                "run_id": self.made.job,
                "step": step,
                "seq": step,
                "save_id": "ab" * 16,
                "created": self.now,
                "world_size": 1,
                "tree": TreeInfo.of(TreeParams()),
                "files": [],
                "index": IndexFile(
                    name=INDEX, size=len(data), sha256=hashlib.sha256(data).hexdigest()
                ),
                **said,
            }
        )
        path = self.run.checkpoint(step)
        path.mkdir()
        (path / INDEX).write_bytes(data)
        (path / STATEMENT).write_bytes(sign(predicate, path.name, self.key))
        head.advance(LocalStorage(self.run.checkpoints), predicate, self.key, self.trust, self.now)
        return digest_of(predicate)

    def head_index(self):
        shown = head.read_head(LocalStorage(self.run.checkpoints), self.trust)
        assert shown is not None
        return shown.log_index

    def proof(self, step):
        return self.run.checkpoint(step).with_name(f"step-{step:08d}.tlog-proof")

    def codes(self, step):
        found = verify_path(
            self.run.checkpoint(step),
            trust=self.trust,
            policy=self.made.policy.policy,
            now=self.now,
        )
        return {problem.code for problem in found.problems} & {"ST-CKPT-180", "ST-CKPT-130"}

    def events(self, name):
        keys = self.trust.keys_for(TrustRole.LEDGER)
        entries = verify_ledger(self.run.ledger.read_bytes(), keys).entries
        return [e.body.event for e in entries if e.body.event.event == name]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def turn(*agents):
    for agent in agents:
        agent.run_once()


@pytest.fixture
def proven(world):
    """Two agents, and one checkpoint that both have witnessed."""
    agents = world.agent(0), world.agent(1)
    world.save(1)
    turn(*agents, agents[0])
    return agents


def test_every_checkpoint_is_logged_witnessed_and_proven(world):
    one, two = world.agent(0), world.agent(1)
    digest = world.save(1)
    one.run_once()
    assert one.pending == ("step-00000001",)  # one witness of two
    assert world.codes(1) == {"ST-CKPT-180"}
    assert world.events("log-witnessed")[-1].details["before"] == 0
    two.run_once()
    assert two.pending == ()
    one.run_once()
    assert one.pending == ()
    one.require_all()
    assert world.codes(1) == set()
    (event,) = world.events("checkpoint-logged")
    assert event.details["digest"] == digest
    assert (event.details["index"], event.details["witnesses"]) == (0, 2)
    assert world.head_index() == 0
    world.save(2)
    turn(one, two, one)
    assert world.log.state()[0].size == 2  # each once, whoever tried
    assert world.codes(2) == set()
    assert world.head_index() == 1


def test_what_is_done_is_not_done_again(world, proven):
    one, two = proven
    before = world.run.ledger.read_bytes(), (world.run.log / "checkpoint").read_bytes()
    turn(one, two)
    assert (world.run.ledger.read_bytes(), (world.run.log / "checkpoint").read_bytes()) == before
    # Nor by the agent of a later start, which finds the proof.
    again = world.agent(0)
    again.run_once()
    assert again.num_logged == 0
    assert world.log.state()[0].size == 1


def test_without_enough_witnesses_the_end_of_a_run_is_a_refusal(world):
    one = world.agent(0)
    world.save(1)
    one.run_once()
    refused(IntegrityError, "ST-CKPT-180", one.require_all, says="step-00000001")
    assert not world.proof(1).exists()


def test_a_machine_that_nobody_named_watches_and_counts_for_nothing(world):
    one = world.agent(0)
    stranger = world.agent(2, writes=False, key=PrivateKey.generate())
    world.save(1)
    one.run_once()
    stranger.run_once()
    one.run_once()
    assert one.pending == ("step-00000001",)
    shrink(world)
    refused(IdentityError, "ST-IDEN-042", stranger.run_once)


def test_who_has_no_key_of_the_log_waits_for_who_has(world):
    reader, writer = world.agent(0, writes=False), world.agent(1)
    world.save(1)
    reader.run_once()
    assert reader.pending == ("step-00000001",)
    assert world.log.state()[0].size == 0
    writer.run_once()
    reader.run_once()
    assert reader.pending == ()


@pytest.mark.forgery
def test_what_is_no_checkpoint_of_the_run_is_not_logged(world):
    world.save(1, run_id="another")
    forged = world.run.checkpoint(2)
    forged.mkdir()
    (forged / STATEMENT).write_bytes(b"{}")
    (world.run.checkpoints / "step-00000003.tmp-abc").mkdir()
    for step, name in ((4, "step-00000004.quarantined-abc"), (5, "step-00000005.tmp-abc")):
        world.save(step)
        world.run.checkpoint(step).rename(world.run.checkpoints / name)
    (world.run.checkpoints / "notes").write_text("x")
    one = world.agent(0)
    one.run_once()
    assert one.pending == ()
    assert world.log.state()[0].size == 0


def test_a_proof_that_was_changed_is_made_again(world, proven):
    good = world.proof(1).read_bytes()
    world.proof(1).write_bytes(good[:-30])
    assert world.codes(1) == {"ST-CKPT-180"}
    world.agent(0).run_once()
    assert world.codes(1) == set()


# The log's owner lies. It has the log's key; a plain reader takes whatever it signs.


def shrink(world):
    """Put the log back to what it was when it was empty."""
    rewrite(world)


def rewrite(world, *texts):
    """Another history, signed by the log's own key."""
    key = PrivateKey.load(world.run.key(LOG_KEY))
    origin = world.log.policy.origin
    shutil.rmtree(world.run.log)
    log = Log.create(world.run.log, origin, key)
    for text in texts:
        envelope = sign(_other(world, text), "other", world.key)
        halves = (world.key.public, world.key.public.companion)
        log.append(envelope, {half.key_id: half for half in halves}, key)
    return origin, key


def _other(world, text):
    index = IndexFile(name=INDEX, size=1, sha256=hashlib.sha256(text.encode()).hexdigest())
    return CheckpointPredicate(
        run_id=world.made.job,
        step=9,
        seq=9,
        save_id="cd" * 16,
        created=world.now,
        world_size=1,
        tree=TreeInfo.of(TreeParams()),
        files=[],
        index=index,
    )


def plain_reader(world, origin, key):
    """What a reader who trusts the log's signature believes: the size of the log."""
    policy = LogPolicy(origin=origin, keys={key.key_id: key.public})
    state, signed = Log(world.run.log, policy).state()
    assert open_checkpoint(signed.encode(), policy, world.now).checkpoint == state
    return state.size


@pytest.mark.forgery
@items(
    "id, texts, code, kept",
    ("shrunk", (), "ST-IDEN-042", 0),
    ("another of that size", ("x",), "ST-IDEN-043", 1),
    ("another that is longer", ("x", "y", "z"), "ST-IDEN-043", 1),
)
def test_a_log_that_lies_is_believed_by_a_plain_reader_and_not_by_a_node(
    world, texts, code, kept, proven
):
    _, two = proven
    assert world.codes(1) == set()
    origin, key = rewrite(world, *texts)
    assert plain_reader(world, origin, key) == len(texts)
    world.save(2)
    watcher = world.agent(1, writes=False)  # a later start: what was seen is the machine's
    for agent in (watcher, two):
        refused(IdentityError, code, agent.run_once)
    seen = world.folder / "machine-1" / "seen"
    assert len(list(seen.glob("*.contradiction"))) == kept
    # No witness signed it, so there is no proof that a reader would take.
    assert not world.proof(2).exists()
    _, signed = Log(world.run.log, world.log.policy).state()
    assert len(signed.lines) == 1
    assert world.codes(1) == set()  # what was proven stays proven


@pytest.mark.forgery
def test_a_witness_of_the_future(world):
    """No reader would take such a proof, so it is not just too few."""
    one, two = world.agent(0), world.agent(1)
    world.save(1)
    one.run_once()
    two.clock = lambda: world.now + timedelta(hours=1)
    refused(IdentityError, "ST-IDEN-040", turn, two, one)
    assert world.codes(1) == {"ST-CKPT-180"}


def test_a_log_whose_files_are_gone(world):
    one = world.agent(0)
    shutil.rmtree(world.run.log)
    refused(IdentityError, "ST-IDEN-040", one.run_once)


# The run directory.


def test_a_policy_without_witnesses_needs_to_know_the_machine(tmp_path):
    policy = write_policy(tmp_path / "policy.yaml", checkpoint={"log": {}})
    now = datetime.now(UTC)
    refused(UsageError, "ST-USAG-001", prepare_run, tmp_path / "none", str(policy), now)
    key = witness_key(tmp_path / "witness.pem")
    made = prepare_run(tmp_path / "run", str(policy), now, lambda: key.public)
    trust = TrustRoot.load(made.run.trust, now)
    assert set(trust.keys_for(TrustRole.WITNESS)) == {key.key_id}
    assert trust.document.log_origin == f"securetrain.local/{made.job}"
    assert Log(made.run.log, LogPolicy.from_trust_root(trust)).state()[0].size == 0
    again = prepare_run(tmp_path / "run", str(policy), now + timedelta(days=1))
    assert not again.created


def test_a_log_that_others_keep(tmp_path):
    log_key, watcher = PrivateKey.generate(), PrivateKey.generate()
    log = {
        "origin": "log.example/team",
        "keys": [spki(log_key)],
        "witnesses": [spki(watcher)],
    }
    policy = write_policy(tmp_path / "policy.yaml", checkpoint={"log": log})
    made = prepare_run(tmp_path / "run", str(policy), datetime.now(UTC))
    trust = TrustRoot.load(made.run.trust, datetime.now(UTC))
    assert trust.document.log_origin == "log.example/team"
    assert set(trust.keys_for(TrustRole.LOG)) == {log_key.key_id}
    assert not made.run.log.exists()
    assert not made.run.key(LOG_KEY).exists()


def test_a_machine_has_one_key(tmp_path):
    path = tmp_path / "state" / "witness.pem"
    assert witness_key(path).key_id == witness_key(path).key_id
    assert path.stat().st_mode & 0o777 == 0o600


def test_entries_hold_no_content(world):
    one = world.agent(0)
    world.save(1)
    one.run_once()
    entry = world.log.entry(0)
    data = (world.run.checkpoint(1) / STATEMENT).read_bytes()
    assert entry == entry_of(data, world.trust.keys)
    assert world.made.job.encode() not in entry
