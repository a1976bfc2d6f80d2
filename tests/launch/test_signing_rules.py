# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Lies of a worker that knows the code: each is refused for the reason that is asserted."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from securetrain.artifacts.lineage import head as heads
from securetrain.artifacts.lineage.machine import Head
from securetrain.artifacts.statement import members, statements
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    IndexFile,
    NodeRef,
    PolicyRef,
    RankFile,
    RankSignature,
    digest_of,
)
from securetrain.artifacts.tree.layout import INDEX
from securetrain.core import canonical
from securetrain.core.errors import RuntimeRefusal
from securetrain.core.vocabulary import NodeTier
from securetrain.identity import dsse
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import PrivateKey
from securetrain.identity.signing import VERSION, Hello
from securetrain.identity.trust import TrustRoot
from securetrain.launch.setup import make_identity, prepare_run
from securetrain.launch.signing.peers import Worker
from securetrain.launch.signing.rules import Circumstances, Judge
from securetrain.ledger import WriterRole, events
from securetrain.ledger.events import WriterRole as Role
from securetrain.ledger.events import encode_event
from securetrain.policy.schema import GuardResponse
from tests import vocabulary
from tests.launch.worlds import SAVE, TREE, dispute_message, file_message
from tests.tables import each, items

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODE = "spiffe://securetrain.local/job/{}/node/a"


def worker(rank=0, local_rank=None, world_size=2):
    return Worker(
        pid=1 + rank,
        rank=rank,
        local_rank=rank if local_rank is None else local_rank,
        world_size=world_size,
        round=1,
        handle=-1,
    )


class Recorder:
    """A `Signer` that keeps what it is asked to sign."""

    def __init__(self, key):
        self.key, self.public, self.key_id = key, key.public, key.key_id
        self.messages = []

    def sign(self, data):
        self.messages.append(data)
        return self.key.sign(data)


class Bench:
    """One run and its judge."""

    def __init__(self, folder):
        setup = prepare_run(folder, "dev", NOW)
        self.run, self.job = setup.run, setup.job
        ca = JobCA.create(setup.policy.policy.identity.trust_domain, setup.job, NOW)
        self.signer = make_identity(setup, ca, NOW)
        self.policy = setup.policy.digest
        self.key = Recorder(PrivateKey.load(self.run.key("checkpoint")))
        self.now = NOW
        self.admitted = {NODE.format(self.job): NodeTier.SELF_ASSERTED}
        self.here = Circumstances(
            run_id=self.job,
            name="toy-model",
            policy=self.policy,
            response=GuardResponse.SKIP_STEP,
            trust=TrustRoot.load(self.run.trust, NOW),
            clock=lambda: self.now,
            admitted=lambda: self.admitted,
        )

    def judge(self):
        return Judge(here=self.here, epoch=3)

    def file(self, rank=0):
        return RankFile(name=f"rank-{rank:05d}.bin", size=8, root="cd" * 32, rank=rank)

    def rank_file(self, **changes):
        return file_message(**{"run_id": self.job, "file": self.file(), **changes})

    def predicate(self, *, sign=True, **changes):
        said = CheckpointPredicate(
            run_id=self.job,
            step=5,
            seq=1,
            save_id=SAVE,
            created=NOW,
            world_size=2,
            tree=TREE,
            files=[self.file()],
            index=IndexFile(name=INDEX, size=9, sha256="ef" * 32),
            policy=PolicyRef(id="dev", digest=self.policy),
            nodes=[NodeRef(node=NODE.format(self.job), tier=NodeTier.SELF_ASSERTED, ranks=[0, 1])],
            epoch=3,
        )
        said = msgspec.structs.replace(said, **changes)
        if not sign:
            return said
        signatures = [
            RankSignature(rank=rank, key=self.signer.key.key_id, sig=self.signer.sign(message))
            for rank, message in enumerate(members.messages_of(said))
        ]
        given = {"members": [self.signer.certificate], "signatures": signatures}
        return msgspec.structs.replace(said, **given)

    def word(self, **changes):
        return dispute_message(**{"run_id": self.job, **changes})

    def statement(self, **changes):
        statements.sign(self.predicate(**{"nodes": [], **changes}), "step", self.key)
        return self.key.messages[-1]

    def head(self, **changes):
        said = Head(
            run_id=self.job,
            seq=1,
            step=5,
            digest=digest_of(self.predicate()),
            created=NOW,
            expires=NOW + heads.LIFETIME,
        )
        heads.sign_head(msgspec.structs.replace(said, **changes), self.key)
        return self.key.messages[-1]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("run"))


@pytest.fixture
def judge(bench):
    bench.now = NOW
    return bench.judge()


def refused(code, said, ask, *arguments):
    vocabulary.refused(RuntimeRefusal, code, ask, *arguments, says=said)


# Control: the truth.


def test_what_a_worker_may_say(bench, judge):
    judge.hello(canonical.encode(Hello(VERSION)))
    judge.rank_file(worker(), bench.rank_file())
    judge.rank_file(worker(1), bench.rank_file(rank=1, file=None))
    judge.statement(worker(), bench.statement())
    judge.head(worker(), bench.head())
    signed = events.CheckpointSigned(step=5, digest=digest_of(bench.predicate()))
    body = canonical.encode(encode_event(signed))
    assert judge.event(worker(), body) == (signed, Role.RANK)


def test_a_statement_names_the_nodes_that_were_admitted(bench, judge):
    said = {"nodes": bench.predicate(sign=False).nodes}
    with pytest.raises(RuntimeRefusal, match="which was not its node"):
        judge.statement(worker(), bench.statement(**said))  # of another name in the certificate
    judge.statement(worker(), bench.statement(sign=False, **said))
    bench.admitted = None
    try:
        judge.statement(worker(), bench.statement(sign=False, **said))
    finally:
        bench.admitted = {NODE.format(bench.job): NodeTier.SELF_ASSERTED}


def test_rank_zero_may_save_alone(bench, judge):
    judge.rank_file(worker(), bench.rank_file(world_size=1))
    judge.statement(worker(), bench.statement(world_size=1))


# A rank's file.

RANK_LIES: dict[str, tuple[str, Any, str]] = {
    "another rank": ("ST-RUNT-031", {"rank": 1, "file": None}, "the word of 1"),
    "another rank's file": ("ST-RUNT-031", "file of 1", "a file of rank 1"),
    "another run": ("ST-RUNT-033", {"run_id": "job-other"}, "of run job-other"),
    "another world": ("ST-RUNT-031", {"world_size": 3}, "for 3 ranks"),
    "an old step": ("ST-RUNT-033", {"step": 4}, "step 4 comes after step 5"),
    "no save": ("ST-RUNT-032", {"save_id": "x"}, ""),
    "half a step": ("ST-RUNT-032", {"step": 5.5}, ""),
}


@pytest.mark.parametrize("lie", RANK_LIES)
def test_lies_about_a_ranks_file(bench, judge, lie):
    code, changes, said = RANK_LIES[lie]
    judge.rank_file(worker(), bench.rank_file())
    changes = {"file": bench.file(1)} if isinstance(changes, str) else changes
    refused(code, said, judge.rank_file, worker(), bench.rank_file(**changes))
    judge.rank_file(worker(), bench.rank_file())  # a refusal changes nothing


def test_a_word_in_a_dispute_is_signed_once(bench, judge):
    judge.word(worker(), bench.word())
    refused("ST-RUNT-033", "word 1 comes after word 1", judge.word, worker(), bench.word())
    other = bench.word(whole="cd" * 32)
    refused("ST-RUNT-033", "after word 1", judge.word, worker(), other)
    judge.word(worker(), bench.word(number=2))
    judge.word(worker(), bench.word(guard=1))
    judge.word(worker(), bench.word(group="ef" * 32))
    judge.word(worker(1), bench.word(rank=1))
    judge.begin_round()
    judge.word(worker(), bench.word())


@items(
    "change, code, said",
    ({"rank": 1}, "ST-RUNT-031", "asks for the word of 1"),
    ({"world_size": 3}, "ST-RUNT-031", "speaks of 3 ranks"),
    ({"run_id": "another"}, "ST-RUNT-033", "of run another"),
)
def test_lies_about_a_word(bench, judge, change, code, said):
    refused(code, said, judge.word, worker(), bench.word(**change))
    judge.word(worker(), bench.word())


@items("message", b"", b"{}", b"securetrain/dispute/1\n{}", b"securetrain/dispute/1\n")
def test_bytes_that_are_no_word(bench, judge, message):
    refused("ST-RUNT-032", "", judge.word, worker(), message)
    refused("ST-RUNT-032", "", judge.word, worker(), bench.rank_file())
    refused("ST-RUNT-032", "", judge.rank_file, worker(), bench.word())
    refused("ST-RUNT-032", "", judge.word, worker(), bench.word() + b" ")


def test_a_rank_has_words_in_a_bounded_number_of_groups(bench, judge):
    for number in range(256):
        judge.word(worker(), bench.word(guard=number))
    refused("ST-RUNT-031", "256 groups", judge.word, worker(), bench.word(guard=256))
    judge.word(worker(1), bench.word(rank=1))
    judge.word(worker(), bench.word(number=2))


def test_a_world_of_one_is_rank_zeros(bench, judge):
    message = bench.rank_file(world_size=1, rank=1, file=None)
    refused("ST-RUNT-031", "for 1 ranks", judge.rank_file, worker(1), message)


def test_workers_that_were_started_again_go_on_from_an_older_step(bench, judge):
    judge.rank_file(worker(), bench.rank_file())
    judge.statement(worker(), bench.statement())
    judge.begin_round()
    judge.rank_file(worker(), bench.rank_file(step=4))
    judge.statement(worker(), bench.statement(step=4))


@items(
    "change",
    lambda m: b"",
    lambda m: m[:-1],
    lambda m: m + b" ",
    lambda m: m.partition(b"\n")[2],
    lambda m: b"securetrain/rank-file/2\n" + m.partition(b"\n")[2],
    lambda m: m.replace(b'"rank":0,"runId"', b'"rank":0,"rank":0,"runId"'),
    lambda m: m.replace(b'"step":5', b'"step": 5'),
    lambda m: m.replace(b'"step":5', b'"step":5,"then":1'),
    lambda m: m.replace(b'"saveId"', b'"saveid"'),
)
def test_bytes_that_are_not_a_ranks_message(bench, judge, change):
    message = change(bench.rank_file())
    assert message != bench.rank_file()
    refused("ST-RUNT-032", "", judge.rank_file, worker(), message)


# A statement.

STATEMENT_LIES: dict[str, tuple[str, Any, str]] = {
    "another run": ("ST-RUNT-033", {"run_id": "job-other"}, "of run job-other"),
    "another policy": ("ST-RUNT-031", {"policy": PolicyRef(digest="0" * 64)}, "names the policy"),
    "the name of another model": ("ST-RUNT-031", {"name": "prod-model"}, "the name 'prod-model'"),
    "more than the launcher keeps": (
        "ST-RUNT-031",
        {"bound": statements.Bound(ledger_head="0" * 64)},
        "it binds",
    ),
    "a membership that is over": ("ST-RUNT-033", {"epoch": 2}, "membership 2"),
    "a membership to come": ("ST-RUNT-033", {"epoch": 4}, "membership 4"),
    "an old step": ("ST-RUNT-033", {"step": 4}, "step 4, number 1"),
    "an old number": ("ST-RUNT-033", {"seq": 0}, "step 5, number 0"),
    "a date before this round": ("ST-RUNT-033", {"created": NOW - timedelta(hours=1)}, "dated"),
    "a date to come": ("ST-RUNT-033", {"created": NOW + timedelta(hours=1)}, "dated"),
    "another world": ("ST-RUNT-031", {"world_size": 4, "sign": False}, "for 4 ranks"),
    "a node that was not admitted": (
        "ST-RUNT-031",
        {"nodes": [NodeRef(node="mallory", tier=NodeTier.SELF_ASSERTED)], "sign": False},
        "node mallory was not admitted",
    ),
    "a rank that signed something else": ("ST-RUNT-031", "other signature", "signatures"),
    "certificates without signatures": ("ST-RUNT-031", "certificates", "more certificates"),
}


def lie_about(bench, changes):
    match changes:
        case "other signature":
            good = bench.predicate(nodes=[])
            first, second = good.signatures
            wrong = msgspec.structs.replace(second, sig=first.sig)
            return bench.statement(sign=False, members=good.members, signatures=[first, wrong])
        case "certificates":
            return bench.statement(sign=False, members=["x"])
        case _:
            return bench.statement(**changes)


@pytest.mark.parametrize("lie", STATEMENT_LIES)
def test_lies_about_a_checkpoint(bench, judge, lie):
    code, changes, said = STATEMENT_LIES[lie]
    judge.statement(worker(), bench.statement())
    refused(code, said, judge.statement, worker(), lie_about(bench, changes))
    judge.statement(worker(), bench.statement())


def test_a_tier_that_a_node_has_not_proved(bench, judge):
    nodes = [NodeRef(node=NODE.format(bench.job), tier=NodeTier.TPM)]
    message = bench.statement(sign=False, nodes=nodes)
    refused("ST-RUNT-031", "was not admitted as", judge.statement, worker(), message)


def test_a_statement_of_another_rank_than_zero(bench, judge):
    refused("ST-RUNT-031", "only rank 0", judge.statement, worker(1), bench.statement())


@items(
    "payload_type",
    "application/vnd.securetrain.trust-root+json",
    "application/vnd.securetrain.rank-key+json",
    "application/vnd.securetrain.waiver+json",
    "text/plain",
    heads.PAYLOAD_TYPE,
)
def test_any_other_payload_is_not_signed(bench, judge, payload_type):
    message = dsse.pae(payload_type, b"{}")
    refused("ST-RUNT-032", "payload", judge.statement, worker(), message)


def test_another_predicate_and_another_subject(bench, judge):
    good = dsse.payload_of(bench.statement(), dsse.IN_TOTO)
    digest = digest_of(bench.predicate()).encode()
    for old, new in ((b"checkpoint/v2", b"dataset/v1"), (digest, b"0" * 64)):
        message = dsse.pae(dsse.IN_TOTO, good.replace(old, new))
        refused("ST-RUNT-032", "", judge.statement, worker(), message)


@items(
    "change",
    lambda m: b"",
    lambda m: m[:-1],
    lambda m: m + b"x",
    lambda m: m.replace(b"DSSEv1", b"DSSEv2"),
    lambda m: m.replace(b"DSSEv1 28", b"DSSEv1 028"),
    lambda m: m.replace(b'"seq":1', b'"seq":1,"seq":1'),
    lambda m: m.replace(b'"seq":1', b'"seq":1,"extra":1'),
)
def test_bytes_that_are_not_a_statement(bench, judge, change):
    message = change(bench.statement())
    assert message != bench.statement()
    refused("ST-RUNT-032", "", judge.statement, worker(), message)


# The head.

HEAD_LIES: dict[str, tuple[str, Any, str]] = {
    "a checkpoint that nobody signed": ("ST-RUNT-031", {"digest": "0" * 64}, "not signed in this"),
    "another step of it": ("ST-RUNT-031", {"step": 6}, "not signed in this"),
    "another number of it": ("ST-RUNT-031", {"seq": 9}, "not signed in this"),
    "another run": ("ST-RUNT-033", {"run_id": "job-other"}, "of run job-other"),
    "a place in the log": ("ST-RUNT-031", {"log_index": 4}, "a place in the log"),
    "a long life": ("ST-RUNT-031", {"expires": NOW + timedelta(days=365)}, "keeps too long"),
    "an old date": ("ST-RUNT-033", {"created": NOW - timedelta(days=1)}, "dated"),
}


@pytest.mark.parametrize("lie", HEAD_LIES)
def test_lies_about_the_head(bench, judge, lie):
    code, changes, said = HEAD_LIES[lie]
    judge.statement(worker(), bench.statement())
    refused(code, said, judge.head, worker(), bench.head(**changes))
    judge.head(worker(), bench.head())


def test_the_head_never_goes_back(bench, judge):
    judge.statement(worker(), bench.statement())
    judge.head(worker(), bench.head())
    refused("ST-RUNT-033", "checkpoint 1 already", judge.head, worker(), bench.head())
    judge.begin_round()
    refused("ST-RUNT-033", "checkpoint 1 already", judge.head, worker(), bench.head())
    refused("ST-RUNT-031", "only rank 0", judge.head, worker(1), bench.head())
    refused("ST-RUNT-032", "", judge.head, worker(), bench.statement())


# The ledger.

EVENT_LIES = {
    "a launcher's": (worker(), events.RunEnded(outcome="succeeded", exit_code=0), "the launcher"),
    "the closing entry": (worker(), events.Closed(), "not by a worker"),
    "a coordinator's": (worker(), events.NodeEvicted(code="ST-ATTS-001"), "the coordinator"),
    "a restart point": (worker(), events.RestartPoint(step=1, digest="0"), "the launcher"),
    "a checkpoint that was recovered": (
        worker(),
        events.CheckpointRecovered(step=1, digest="0"),
        "the launcher",
    ),
    "a ledger that was mended": (
        worker(),
        events.LedgerMended(bytes=1, digest="0"),
        "whoever mends",
    ),
    "an epoch": (worker(), events.EpochStarted(epoch=9, nodes="mallory"), "the launcher"),
    "rank 0's": (worker(1), events.RunResumed(step=1, digest="0"), "rank 0 may"),
    "a checkpoint that was not signed": (
        worker(),
        events.CheckpointSigned(step=5, digest="0" * 64),
        "not signed here",
    ),
    "seen by another than a node's first rank": (
        worker(3, 1),
        events.CheckpointSeen(step=1, digest="0"),
        "first rank of a node",
    ),
    "a suspicion by another than a node's first rank": (
        worker(3, 1),
        events.RankSuspected(rank=0, cause="ST-GRAD-010", said=""),
        "first rank of a node",
    ),
    "a suspicion of nobody": (
        worker(0),
        events.RankSuspected(rank=2, cause="ST-GRAD-010", said=""),
        "no rank 2",
    ),
    "taken back by another than a node's first rank": (
        worker(3, 1),
        events.RolledBack(to=1, ranks="2", evidence=""),
        "first rank of a node",
    ),
    "a suspicion that the policy does not ask for": (
        worker(0),
        events.RankSuspected(rank=1, cause="ST-GRAD-011", said=""),
        "only silence is reported",
    ),
    "taken back where the policy does not ask for it": (
        worker(0),
        events.RolledBack(to=1, ranks="2", evidence=""),
        "nothing is taken back",
    ),
    "another rank": (worker(1), events.PickleLetThrough(rank=0), "speaks of rank 0"),
}


@pytest.mark.parametrize("lie", EVENT_LIES)
def test_lies_in_the_ledger(judge, lie):
    who, event, said = EVENT_LIES[lie]
    refused("ST-RUNT-031", said, judge.event, who, canonical.encode(encode_event(event)))


@each(
    "response, event",
    (GuardResponse.SKIP_STEP, events.RankSuspected(rank=1, cause="ST-GRAD-010", said="")),
    (GuardResponse.EVICT_NODE, events.RankSuspected(rank=1, cause="ST-GRAD-011", said="")),
    (GuardResponse.ROLLBACK, events.RolledBack(to=1, ranks="1", evidence="")),
)
def test_what_the_policy_asks_for_is_done(bench, response, event):
    judge = Judge(here=replace(bench.here, response=response), epoch=3)
    assert judge.event(worker(0), canonical.encode(encode_event(event)))[0] == event


def test_a_checkpoint_was_signed_at_its_own_step(bench, judge):
    judge.statement(worker(), bench.statement())
    said = events.CheckpointSigned(step=6, digest=digest_of(bench.predicate()))
    body = canonical.encode(encode_event(said))
    refused("ST-RUNT-031", "not signed here", judge.event, worker(), body)


def test_the_shim_writes_as_a_worker(judge):
    event = events.PickleRefused(code="ST-RUNT-001", subject="os.system")
    body = canonical.encode(encode_event(event))
    assert judge.event(worker(1), body) == (event, WriterRole.WORKER)


@items(
    "body",
    b"",
    b"{}",
    b"[]",
    b'{"boundary":"gradients","decision":"observe","event":"no-such-event"}',
    b'{"code":"","decision":"refuse","details":{"x":1},"event":"step-refused","subject":""}',
    b'{"writer":"agent"}',
)
def test_what_is_no_event(judge, body):
    refused("ST-RUNT-032", "", judge.event, worker(), body)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"version":1}', b'{"version":2,"rank":0}'])
def test_what_is_no_greeting(judge, body):
    refused("ST-RUNT-032", "", judge.hello, body)


def test_the_clock_is_the_launchers(bench, judge):
    bench.now = NOW + timedelta(hours=5)
    judge.statement(worker(), bench.statement())  # saved in the background for hours
    other = Judge(here=replace(bench.here), epoch=3)  # a round that begins now
    refused("ST-RUNT-033", "dated", other.statement, worker(), bench.statement())


def test_a_run_that_goes_back_does_its_steps_again_under_new_numbers(bench):
    judge = bench.judge()
    judge.rank_file(worker(0), bench.rank_file(step=8))
    older = {"step": 3, "save_id": "1" * 32}
    judge.rank_file(worker(1), bench.rank_file(rank=1, file=bench.file(1), **older))
    refused(
        "ST-RUNT-033", "step 5 comes after", judge.rank_file, worker(0), bench.rank_file(step=5)
    )
    judge.roll_back(4)
    judge.rank_file(worker(0), bench.rank_file(step=5, save_id="2" * 32))
    refused(
        "ST-RUNT-033", "step 2 comes after", judge.rank_file, worker(0), bench.rank_file(step=2)
    )
    again = bench.rank_file(step=2, rank=1, file=bench.file(1))
    refused("ST-RUNT-033", "step 2 comes after step 3", judge.rank_file, worker(1), again)
