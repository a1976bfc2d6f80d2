# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Named secrets between a coordinator and its members, over real connections: who gets them."""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec.structs import replace

from securetrain.core.errors import AdmissionError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.drills.rogue_member import Rogue
from securetrain.policy.load import LoadedPolicy, digest_of
from securetrain.policy.schema import Secret
from securetrain.rendezvous.coordinator.vault import Vault
from securetrain.rendezvous.member.desk import Desk
from securetrain.rendezvous.wire.protocol import AskSecrets, Refuse, SealedSecret, Secrets
from securetrain.rendezvous.wire.sealing import info_of, open_sealed, seal, sealing_text
from tests.tables import items
from tests.vocabulary import refused

CANARY = b"CANARY-SECRET-7c1f-0123456789\n"
ANYBODY = Secret(min_tier=NodeTier.SELF_ASSERTED)
PROVEN = Secret(min_tier=NodeTier.VTPM)
GROUPED = Secret(min_tier=NodeTier.SELF_ASSERTED, groups=("gpu-h100-2026.11",))


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "dataset.key"
    path.write_bytes(CANARY)
    path.chmod(0o600)
    return path


@pytest.fixture
def begin(job, tools, place):
    """Starts a coordinator whose policy names some secrets, which all lie in one file."""

    def start(rules, nodes=1, most=0, **settings):
        plain = tools.make_policy().policy
        node = replace(plain.node, secrets=rules)
        policy = replace(plain, node=node)
        vault = Vault.open(policy, [f"{name}=file:{place}" for name in rules], {})
        loaded = LoadedPolicy(policy=policy, digest=digest_of(policy))
        job.start(nodes, most or nodes, policy=loaded, vault=vault, last_call=0.1, **settings)
        return job

    return start


def meet(*members):
    with ThreadPoolExecutor(len(members)) as pool:
        rounds = [pool.submit(member.next_round, lambda _: 29500, 60.0) for member in members]
        return max(one.result(90).membership.epoch for one in rounds)


def told(job, name):
    return [e for e in job.events() if e.event == name]


def test_a_member_gets_what_the_policy_gives_it_and_the_ledger_has_no_byte_of_it(begin, job):
    begin({"dataset-key": ANYBODY, "tpm-key": PROVEN, "h100-key": GROUPED}, nodes=2)
    members = [job.join("node-0"), job.join("node-1")]
    epoch = meet(*members)
    for member in members:
        opened = member.ask_secrets(epoch, 60.0)
        assert opened.secrets == {"dataset-key": CANARY}
        assert {n: w.code for n, w in opened.withheld.items()} == {
            "tpm-key": "ST-ADMN-043",
            "h100-key": "ST-ADMN-043",
        }
        assert "CANARY" not in repr(opened)
    released, withheld = told(job, "secret-released"), told(job, "secret-withheld")
    assert {e.subject.rpartition("/")[2] for e in released} == {"node-0", "node-1"}
    assert {(e.details["secret"], e.details["tier"], e.details["edition"]) for e in released} == {
        ("dataset-key", "self-asserted", 1)
    }
    assert [e.code for e in withheld] == ["ST-ADMN-043"] * 4
    assert b"CANARY" not in job.ledger.path.read_bytes()


@pytest.mark.forgery
def test_who_waits_for_a_place_who_asks_again_and_who_asks_for_another_epoch(begin, job):
    begin({"dataset-key": ANYBODY}, nodes=1, most=1)
    member = job.join("node-0")
    early = member.ask_secrets(0, 60.0)
    assert early.withheld["dataset-key"].code == "ST-ADMN-046"
    epoch = meet(member)
    spare = job.join("node-1")
    assert spare.ask_secrets(epoch, 60.0).withheld["dataset-key"].code == "ST-ADMN-046"
    assert member.ask_secrets(epoch + 1, 60.0).withheld["dataset-key"].code == "ST-ADMN-046"
    assert member.ask_secrets(epoch, 60.0).secrets == {"dataset-key": CANARY}
    assert member.ask_secrets(epoch, 60.0).secrets == {}
    assert [e.code for e in told(job, "secret-withheld")] == ["ST-ADMN-046"] * 4
    assert len(told(job, "secret-released")) == 1


def test_asking_without_end_costs_the_asker(begin, job, tools):
    begin({"dataset-key": ANYBODY})
    rogue = Rogue(job, "node-0")
    rogue.flood(AskSecrets(epoch=0, nonce=os.urandom(16)), 500)
    job.expect("ST-ADMN-031", "node-evicted")
    assert told(job, "secret-released") == []
    assert job.ledger.path.stat().st_size < 400 << 10


def test_a_secret_that_was_changed_comes_with_the_next_epoch(begin, job, place):
    begin({"dataset-key": ANYBODY})
    member = job.join()
    assert member.ask_secrets(meet(member), 60.0).secrets["dataset-key"] == CANARY
    place.write_bytes(b"another one")
    assert member.ask_secrets(meet(member), 60.0).secrets["dataset-key"] == b"another one"
    place.unlink()
    gone = member.ask_secrets(meet(member), 60.0)
    assert (gone.secrets, gone.withheld["dataset-key"].code) == ({}, "ST-ADMN-044")
    assert str(place) not in gone.withheld["dataset-key"].what
    place.write_bytes(b"for all to see")
    place.chmod(0o644)
    assert member.ask_secrets(meet(member), 60.0).withheld["dataset-key"].code == "ST-ADMN-044"
    assert [e.details["edition"] for e in told(job, "secret-released")] == [1, 2]


@pytest.mark.forgery
def test_a_node_that_is_out_is_given_nothing(begin, job, tools):
    """Its lease has ended, it was revoked, or it has said goodbye."""
    thrown_out = set()

    def check(peer, _certificate):
        if peer.node in thrown_out:
            raise AdmissionError("ST-ADMN-013", "it was revoked", str(peer))

    begin({"dataset-key": ANYBODY}, nodes=2, revoked=check)
    members = [job.join("node-0"), job.join("node-1")]
    epoch = meet(*members)
    thrown_out.add("node-1")
    job.coordinator.recheck()
    tools.wait_until(lambda: not members[1].connected, "the node is out")
    assert members[1].ask_secrets(epoch, 60.0) is None
    assert [e.subject[-6:] for e in told(job, "secret-released")] == []
    refused(AdmissionError, "ST-ADMN-013", job.join, "node-1")


@pytest.mark.forgery
def test_a_relay_that_puts_its_own_key_into_hello(begin, job, tools):
    """The evidence is about the key of the node: another one in Hello is not the one it signed."""
    begin({"dataset-key": ANYBODY})
    identity = job.identity("node-0")
    mine = sealing_text(X25519PrivateKey.generate())
    channel, challenge = job.challenged(identity, sealing=mine)
    binding = tools.binding_of(channel, challenge, identity)  # what the node itself signs
    channel.send(tools.prove(job.attester(identity), binding), tools.soon())
    answer = tools.answer(channel)
    assert isinstance(answer, Refuse)
    assert answer.code == "ST-ATTS-003"


@pytest.mark.forgery
@items(
    "id, key, code",
    ("short", "AAAA", "ST-ADMN-001"),
    ("low-order", "A" * 43 + "=", "ST-ADMN-032"),
    ("no-base64", "\u00e9" * 44, "ST-ADMN-001"),
)
def test_a_key_that_is_nobodys(begin, job, tools, key, code):
    begin({"dataset-key": ANYBODY})
    channel = job.connect(job.identity("node-0"))
    channel.handshake(tools.soon())
    channel.send(tools.make_hello(job.identity("node-0"), sealing=key), tools.soon())
    answer = tools.answer(channel)
    assert isinstance(answer, Refuse)
    assert answer.code == code


def about(**changes):
    """What a secret is bound to here."""
    fields: dict[str, Any] = {
        "job": "job-1",
        "node": "node-0",
        "epoch": 3,
        "name": "dataset-key",
        "edition": 1,
        "exporter": b"\1" * 32,
    }
    return info_of(**{**fields, **changes})


def answer_for(desk, *, bound=True):
    """What a coordinator says to `desk`'s question; unbound, as a plain sealed box would be."""
    asked = AskSecrets(epoch=3, nonce=b"\7" * 16)
    sealed = seal(desk.public, CANARY, about() if bound else b"")
    given = SealedSecret(name="dataset-key", edition=1, sealed=sealed)
    return asked, Secrets(epoch=3, nonce=asked.nonce, given=(given,))


@pytest.mark.forgery
def test_a_secret_opens_for_its_question_and_for_nothing_else():
    """Played back, exchanged, renamed or of another epoch, job or node: it does not open.

    Without what it is bound to, the same bytes open wherever the key is: that is the control.
    """
    chosen = random.Random(18)
    desk = Desk(job="job-1", node="node-0")

    def hear(asked, said, exporter=b"\1" * 32):
        desk._asked, desk._answer = asked, None
        desk.hear(said, lambda _: exporter)
        answer: Any = desk._answer
        return answer.secrets

    assert hear(*answer_for(desk)) == {"dataset-key": CANARY}
    for _ in range(40):
        changed: dict[str, Any] = chosen.choice(
            [
                {"exporter": chosen.randbytes(32)},
                {"epoch": chosen.randrange(4, 1000)},
                {"job": f"job-{chosen.randrange(2, 99)}"},
                {"node": f"node-{chosen.randrange(1, 99)}"},
                {"name": chosen.choice(["dataset-kez", "dataset-key-2", "a"])},
                {"edition": chosen.randrange(2, 99)},
            ]
        )
        asked, said = answer_for(desk)
        sealed = seal(desk.public, CANARY, about(**changed))
        one = replace(said.given[0], sealed=sealed)
        forged = replace(said, given=(one,))
        refused(AdmissionError, "ST-ADMN-045", hear, asked, forged)
    # Its own words on another connection, in answer to another question, or without one.
    asked, said = answer_for(desk)
    refused(AdmissionError, "ST-ADMN-045", hear, asked, said, b"\2" * 32)
    later = replace(asked, nonce=b"\0" * 16)
    refused(AdmissionError, "ST-ADMN-045", hear, later, said)
    refused(AdmissionError, "ST-ADMN-045", hear, None, said)
    # Another node that has all of it.
    other = Desk(job="job-1", node="node-1")
    refused(AdmissionError, "ST-ADMN-045", open_sealed, other.key, said.given[0], about())
    # The control.
    _, plain = answer_for(desk, bound=False)
    assert open_sealed(desk.key, plain.given[0], b"") == CANARY


def test_where_a_secret_lies(tmp_path, place, tools):
    plain = tools.make_policy().policy
    node = replace(plain.node, secrets={"token": ANYBODY})
    policy = replace(plain, node=node)

    def opened(*given, environ=None):
        return Vault.open(policy, given, {} if environ is None else environ).sources["token"].held

    environ = {"TOKEN": "from here", "OTHER": "x"}
    assert opened("token=env:TOKEN", environ=environ) == b"from here"
    assert environ == {"OTHER": "x"}
    assert opened("token=command:printf %s 'from a program'") == b"from a program"
    assert opened(f"token=file:{place}") == CANARY
    assert "CANARY" not in repr(Vault.open(policy, [f"token=file:{place}"], {}))

    large, open_to_all, link = tmp_path / "large", tmp_path / "open", tmp_path / "link"
    large.write_bytes(b"x" * (33 << 10))
    large.chmod(0o600)
    open_to_all.write_bytes(b"x")
    open_to_all.chmod(0o640)
    link.symlink_to(place)
    (tmp_path / "empty").touch(0o600)
    for bad, code in (
        ("token=CANARY-IN-THE-LINE", "ST-USAG-001"),
        ("token=vault:CANARY-IN-THE-LINE", "ST-USAG-001"),
        ("token=env:NOT_SET", "ST-USAG-001"),
        (f"token=file:{large}", "ST-USAG-001"),
        (f"token=file:{open_to_all}", "ST-USAG-001"),
        (f"token=file:{tmp_path / 'empty'}", "ST-USAG-001"),
        (f"token=file:{link}", "ST-USAG-002"),
        (f"token=file:{tmp_path / 'none'}", "ST-USAG-002"),
        (f"token=file:{tmp_path}", "ST-USAG-002"),
        ("token=command:false", "ST-USAG-001"),
        ("token=command:/no/such/program", "ST-USAG-001"),
        ("token=command:cat /dev/zero", "ST-USAG-001"),
        ("token=command:'", "ST-USAG-001"),
        ("token=command: ", "ST-USAG-001"),
    ):
        error = refused(UsageError, code, opened, bad)
        assert "CANARY" not in str(error)
    refused(UsageError, "ST-USAG-001", opened)
    refused(UsageError, "ST-USAG-001", opened, f"token=file:{place}", f"token=file:{place}")
    other = f"other=file:{place}"
    refused(UsageError, "ST-USAG-001", opened, f"token=file:{place}", other)
