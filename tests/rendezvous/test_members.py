# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A member that follows no rule: it has a certificate, was admitted, and runs other software.

Two honest nodes are in a round with it. Whatever it says, they keep their ranks and the job goes
on; what it may not do is refused with a code of its own, and what it causes to be written is
bounded. `test_attacks` has those who were never admitted.
"""

import random

import pytest

from securetrain.core.errors import SecureTrainError
from securetrain.drills.loopback_job import make_hello
from securetrain.drills.rogue_member import MEANINGLESS, WIREGUARD, Rogue, Scene, announce
from securetrain.rendezvous.wire.protocol import (
    Challenge,
    Close,
    CloseState,
    Formed,
    Heartbeat,
    Hello,
    Leave,
    Proof,
    Ready,
    Refuse,
    Renew,
    Status,
    Store,
    Suspect,
)


@pytest.fixture
def scene(job):
    return Scene(job)


def evicted(scene, answer, code):
    assert isinstance(answer, Refuse), answer
    assert answer.code == code
    scene.job.expect(code, "node-evicted")


# Ending what is not one's own.


def test_a_member_alone_does_not_end_the_job(scene):
    assert scene.rogue.close_alone() is CloseState.COUNTED
    assert not scene.table.closed
    scene.leave()
    counted = [event for event in scene.job.events() if event.event == "close-counted"]
    assert [event.details for event in counted] == [{"votes": 1, "members": 3}]
    assert scene.harm_later() == []


def test_a_node_in_no_round_ends_nothing(scene):
    late = Rogue(scene.job, "node-9")
    assert late.close_alone() is CloseState.IGNORED
    assert not scene.table.closed
    event = scene.job.expect("ST-ADMN-033", "close-ignored")
    assert event.subject.endswith("node-9")
    assert sum(e.code == "ST-ADMN-033" for e in scene.job.events()) == 1
    assert scene.harm() == []


def test_a_spare_node_ends_nothing(scene):
    spare = Rogue(scene.job, "node-9")
    spare.send(Ready(floors=()))
    assert isinstance(spare.until(Status, lambda s: s.spare), Status)
    spare.send(Close())
    status = spare.until(Status, lambda s: s.close is not CloseState.NONE)
    assert isinstance(status, Status)
    assert (status.close, status.closed) == (CloseState.IGNORED, False)
    scene.job.expect("ST-ADMN-033", "close-ignored")
    assert scene.harm() == []


def test_a_vote_is_withdrawn_with_the_next_question_for_a_round(scene):
    """Else a node could leave its vote behind and go on."""
    scene.rogue.send(Close())
    scene.rogue.until(Status, lambda s: s.close is CloseState.COUNTED)
    scene.rogue.send(Ready(floors=()))
    status = scene.rogue.until(Status, lambda s: s.waiting)
    assert status.close is CloseState.NONE
    scene.honest[1].close_job()
    assert not scene.table.closed, "one of three"


def test_a_majority_ends_it_and_so_does_rank_0(job, tools):
    scene = Scene(job)
    scene.rogue.send(Close())
    scene.rogue.until(Status, lambda s: s.close is CloseState.COUNTED)
    scene.honest[1].close_job()
    tools.wait_until(lambda: scene.honest[0].closed, "two of three")
    assert [e.event for e in job.events()].count("job-closed") == 1


def test_rank_0s_node_ends_it(scene, tools):
    scene.honest[0].close_job()
    tools.wait_until(lambda: scene.honest[1].closed, "its word is enough")


# Costing more than a member may.


def test_renewals_without_end(scene):
    """They were 1,661 in 20 s, and 966 KB in the ledger."""
    before = scene.written()
    evicted(scene, scene.rogue.renew(50), "ST-ADMN-031")
    renewed = [e for e in scene.job.events() if e.event == "lease-renewed"]
    assert len(renewed) <= 6
    assert scene.written() - before < 16 << 10
    assert scene.harm_later() == []


@pytest.mark.parametrize("message", [Heartbeat(), Close()], ids=["beats", "closes"])
def test_messages_without_end(scene, message):
    before = scene.written()
    evicted(scene, scene.rogue.flood(message, 5000), "ST-ADMN-031")
    assert scene.written() - before < 16 << 10
    assert scene.harm_later() == []


def test_rounds_without_end(scene):
    """Each would make the others restart."""
    before = scene.written()
    evicted(scene, scene.rogue.flood(Ready(floors=()), 500), "ST-ADMN-031")
    assert scene.written() - before < 16 << 10
    assert scene.harm_later() == []


def test_a_member_that_comes_and_goes(job, tools):
    job.start(1, 2, last_call=0.1)
    honest = job.join("node-0")
    for _ in range(5):
        Rogue(job).send(Leave())
        tools.wait_until(lambda: "node-2" not in job.coordinator._nodes, "it has gone")
    with pytest.raises(SecureTrainError, match=r"let in again in \d+ s") as error:
        job.join("node-2")
    assert error.value.code == "ST-ADMN-030"
    job.expect("ST-ADMN-030", "connection-refused")
    assert honest.next_round(lambda _: 1).rank == 0


# Announcing what can be nobody's.


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        *((hello, "ST-ADMN-032") for hello in MEANINGLESS.values()),
        ({"wireguard": WIREGUARD}, "ST-ADMN-011"),
    ],
    ids=[*MEANINGLESS, "a member's key"],
)
def test_a_hello_that_can_be_nobodys(job, hello, code):
    job.start(1, 3)
    honest = job.join("node-0", wireguard=WIREGUARD)
    assert code in announce(job, hello)
    assert job.expect(code).subject.endswith("/node/node-2")
    assert honest.connected


# Accusing others.


def test_a_suspicion_evicts_nobody(scene, tools):
    scene.rogue.accuse("node-0", 10)
    tools.wait_until(
        lambda: [e for e in scene.job.events() if e.event == "member-suspected"], "it is recorded"
    )
    scene.leave()
    (event,) = [e for e in scene.job.events() if e.event == "member-suspected"]
    # What statistics say of a gradient (ST-GRAD-001) is recorded, and is no voice.
    assert (event.details["suspect"], event.details["voices"]) == ("node-0", 0)
    assert scene.harm_later() == []


def test_a_majority_of_the_members_evicts(scene):
    for node in scene.honest:
        node.suspect("node-2", "ST-GRAD-003", "its gradient was another")
    evicted(scene, scene.rogue.until(Refuse), "ST-ADMN-034")
    assert scene.harm_later() == []


def test_a_transcript_that_nobody_has_checked_evicts_nobody(scene):
    scene.rogue.send(Suspect(node="node-0", epoch=0, code="ST-GRAD-001", transcript=b"proof!"))
    scene.rogue.send(Heartbeat())
    assert isinstance(scene.rogue.until(Status), Status)
    assert scene.harm() == []


@pytest.mark.parametrize(("node", "epoch"), [("node-2", 0), ("node-0", 7), ("nobody", 0)])
def test_an_accusation_that_makes_no_sense(scene, node, epoch):
    scene.rogue.accuse(node, epoch=epoch)
    evicted(scene, scene.rogue.until(Refuse), "ST-ADMN-035")
    assert scene.harm_later() == []


# Anything at all.

KNOWN = {
    "ST-ATTS-006",
    "ST-ADMN-001",
    "ST-ADMN-031",
    "ST-ADMN-035",
    "ST-ATTS-003",
    "ST-ATTS-002",
    "ST-ADMN-030",
}


def anything(dice, rogue):
    """A message of the protocol, of either side, with values at random."""
    epoch = dice.choice([0, 0, 1, 2, 1 << 40])
    node = dice.choice(["node-0", "node-1", "node-2", "node-7"])
    host = dice.choice(["127.0.0.1", "192.0.2.1", "::1"])
    return dice.choice(
        [
            Heartbeat(),
            Ready(floors=tuple(dice.randbytes(9) for _ in range(dice.randrange(5)))),
            Close(),
            Renew(),
            Leave(),
            Store(epoch=epoch, host=host, port=dice.randrange(1, 65536)),
            Suspect(node=node, epoch=epoch, code="ST-GRAD-001", what="x" * 99),
            Suspect(node=node, epoch=epoch, code="ST-GRAD-001", transcript=b"y"),
            Proof(media_type="x", body=b"y", binding=bytes(32), signature=b"z"),
            make_hello(rogue.identity),
            Hello(protocol="p", job="j", node=node, address=host),
            Status(waiting=9, ready=9, closed=True),
            Formed(membership="{}"),
            Refuse(code="ST-ADMN-013", what="go", fix=""),
            Challenge(nonce=bytes(32), session=bytes(16)),
        ]
    )


@pytest.mark.parametrize(
    "messages", [80, pytest.param(2500, marks=[pytest.mark.slow, pytest.mark.many])]
)
def test_whatever_a_member_says_the_others_go_on(job, tools, messages):
    """It comes back under another name whenever it was put out."""
    dice = random.Random(20261122)
    scene = Scene(job)
    rogue, sent, turn, codes = scene.rogue, 0, 0, set()
    while sent < messages:
        for _ in range(dice.randrange(1, 12)):
            rogue.send_quietly(anything(dice, rogue))
            sent += 1
        rogue.send_quietly(Leave())
        end = rogue.until(Refuse)
        codes.add(end.code)
        assert scene.harm() == []
        turn += 1
        name = f"rogue-{turn}"
        tools.wait_until(lambda: len(job.coordinator._nodes) == 2, "it is out")
        rogue = Rogue(job, name)
        if dice.random() < 0.5:
            rogue.send(Ready(floors=()))
    assert codes <= KNOWN | {"ST-ADMN-007"}, codes
    rogue.send(Leave())
    tools.wait_until(lambda: len(job.coordinator._nodes) == 2, "it is out")
    assert scene.harm_later() == []
    assert {e.subject for e in job.events() if e.event == "node-evicted"} <= {
        f"spiffe://securetrain.local/job/job-1/node/{name}"
        for name in ("node-2", *(f"rogue-{n}" for n in range(turn + 1)))
    }, "nobody else is out"
