# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A member that follows no rule: it has a certificate, was admitted, and runs other software.

Two honest nodes are in a round with it. Whatever it says, they keep their ranks and the job goes
on; what it may not do is refused with a code of its own, and what it causes to be written is
bounded. `test_attacks` has those who were never admitted.
"""

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from securetrain.core.errors import SecureTrainError
from securetrain.rendezvous.wire.protocol import (
    Admit,
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

WG = "Q" * 42 + "A="


class Rogue:
    """A raw connection of an admitted node."""

    def __init__(self, job, tools, node="node-2", **hello):
        self.job, self.tools = job, tools
        self.identity = job.identity(node)
        self.channel, challenge = job.challenged(self.identity, **hello)
        self.send(self.proof(challenge))
        answer = tools.answer(self.channel)
        assert isinstance(answer, Admit), answer

    def proof(self, challenge):
        binding = self.tools.binding_of(self.channel, challenge, self.identity)
        return self.tools.prove(self.job.attester(self.identity), binding, challenge)

    def send(self, message):
        self.channel.send(message, self.tools.soon())

    def until(self, kind, condition=lambda _: True):
        """The next message of a kind; a refusal or the end of the connection ends the wait too."""
        while True:
            answer = self.tools.answer(self.channel)
            if isinstance(answer, Refuse | SecureTrainError):
                return answer
            if isinstance(answer, kind) and condition(answer):
                return answer

    def flood(self, message, number):
        """Send one message many times, reading what comes back; returns how it ends."""
        for _ in range(number):
            try:
                self.send(message)
            except SecureTrainError:
                break
        self.send_quietly(Leave())
        return self.until(Refuse)

    def send_quietly(self, message):
        with contextlib.suppress(SecureTrainError):
            self.send(message)


class Scene:
    """Two honest nodes and a rogue one, in one round."""

    def __init__(self, job, tools, **settings):
        self.job, self.tools = job, tools
        job.start(2, 3, last_call=600.0, **settings)
        self.honest = [job.join(f"node-{n}") for n in range(2)]
        self.rogue = Rogue(job, tools)
        with ThreadPoolExecutor(2) as pool:
            rounds = [pool.submit(node.next_round, lambda _: 4000) for node in self.honest]
            tools.wait_until(lambda: len(self.table.participants) == 2, "the honest ones are in")
            self.rogue.send(Ready(floors=()))
            self.rounds = [found.result(tools.PATIENCE) for found in rounds]
        assert isinstance(self.rogue.until(Formed), Formed)

    @property
    def table(self):
        return self.job.coordinator._rounds

    def unharmed(self):
        """The honest nodes are in, with the ranks that they had, and the job is not over."""
        assert all(node.connected and not node.closed for node in self.honest)
        assert [found.rank for found in self.rounds] == [0, 1]
        assert {"node-0", "node-1"} <= set(self.table.participants)
        assert not self.table.closed

    def goes_on(self):
        """And they can have another round, without it."""
        self.unharmed()
        with ThreadPoolExecutor(2) as pool:
            self.job.coordinator._rounds.last_call = 0.1
            futures = [pool.submit(node.next_round, lambda _: 4000) for node in self.honest]
            again = [found.result(self.tools.PATIENCE) for found in futures]
        assert [found.rank for found in again] == [0, 1]
        assert [m.node for m in again[0].membership.members] == ["node-0", "node-1"]

    def written(self):
        return self.job.ledger.path.stat().st_size


@pytest.fixture
def scene(job, tools):
    return Scene(job, tools)


def evicted(scene, answer, code):
    assert isinstance(answer, Refuse), answer
    assert answer.code == code
    scene.job.expect(code, "node-evicted")


# Ending what is not one's own.


def test_a_member_alone_does_not_end_the_job(scene):
    scene.rogue.send(Close())
    status = scene.rogue.until(Status, lambda s: s.close is not CloseState.NONE)
    assert (status.close, status.closed) == (CloseState.COUNTED, False)
    for _ in range(20):
        scene.rogue.send(Close())
    scene.rogue.send(Leave())
    scene.tools.wait_until(lambda: "node-2" not in scene.table.participants, "it has gone")
    counted = [event for event in scene.job.events() if event.event == "close-counted"]
    assert [event.details for event in counted] == [{"votes": 1, "members": 3}]
    scene.goes_on()


def test_a_node_in_no_round_ends_nothing(scene):
    late = Rogue(scene.job, scene.tools, "node-9")
    for _ in range(20):
        late.send(Close())
    status = late.until(Status, lambda s: s.close is not CloseState.NONE)
    assert (status.close, status.closed) == (CloseState.IGNORED, False)
    event = scene.job.expect("ST-ADMN-033", "close-ignored")
    assert event.subject.endswith("node-9")
    assert sum(e.code == "ST-ADMN-033" for e in scene.job.events()) == 1
    scene.unharmed()


def test_a_spare_node_ends_nothing(scene):
    spare = Rogue(scene.job, scene.tools, "node-9")
    spare.send(Ready(floors=()))
    assert spare.until(Status, lambda s: s.spare).spare
    spare.send(Close())
    status = spare.until(Status, lambda s: s.close is not CloseState.NONE)
    assert (status.close, status.closed) == (CloseState.IGNORED, False)
    scene.job.expect("ST-ADMN-033", "close-ignored")
    scene.unharmed()


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
    scene = Scene(job, tools)
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
    before, rogue = scene.written(), scene.rogue
    for _ in range(50):
        rogue.send_quietly(Renew())
        challenge = rogue.until(Challenge)
        if not isinstance(challenge, Challenge):
            break
        rogue.send(rogue.proof(challenge))
        assert isinstance(rogue.until(Admit), Admit)
    evicted(scene, challenge, "ST-ADMN-031")
    renewed = [e for e in scene.job.events() if e.event == "lease-renewed"]
    assert len(renewed) <= 6
    assert scene.written() - before < 16 << 10
    scene.goes_on()


@pytest.mark.parametrize("message", [Heartbeat(), Close()], ids=["beats", "closes"])
def test_messages_without_end(scene, message):
    before = scene.written()
    evicted(scene, scene.rogue.flood(message, 5000), "ST-ADMN-031")
    assert scene.written() - before < 16 << 10
    scene.goes_on()


def test_rounds_without_end(scene):
    """Each would make the others restart."""
    before = scene.written()
    evicted(scene, scene.rogue.flood(Ready(floors=()), 500), "ST-ADMN-031")
    assert scene.written() - before < 16 << 10
    scene.goes_on()


def test_a_member_that_comes_and_goes(job, tools):
    job.start(1, 2, last_call=0.1)
    honest = job.join("node-0")
    for _ in range(5):
        Rogue(job, tools).send(Leave())
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
        ({"address": "255.255.255.255"}, "ST-ADMN-032"),
        ({"address": "224.0.0.1"}, "ST-ADMN-032"),
        ({"address": "0.0.0.0"}, "ST-ADMN-032"),
        ({"address": "::ffff:255.255.255.255"}, "ST-ADMN-032"),
        ({"address": "169.254.169.254"}, "ST-ADMN-032"),
        ({"wireguard": "AQ" + "A" * 41 + "="}, "ST-ADMN-032"),
        ({"wireguard": "7P" + "/" * 39 + "38="}, "ST-ADMN-032"),
        ({"wireguard": WG[:41] + "YA="}, "ST-ADMN-032"),
        ({"wireguard": WG}, "ST-ADMN-011"),
    ],
    ids=lambda given: "" if isinstance(given, str) else next(iter(given.values()))[:24],
)
def test_a_hello_that_can_be_nobodys(job, tools, hello, code):
    job.start(1, 3)
    honest = job.join("node-0", wireguard=WG)
    tunnel = {"wireguard": "g" * 42 + "A=", "wireguard_port": 7000, "network": "overlay"}
    with pytest.raises(AssertionError, match=code):
        Rogue(job, tools, **tunnel | hello)
    assert job.expect(code).subject.endswith("/node/node-2")
    assert honest.connected


# Accusing others.


def test_a_suspicion_evicts_nobody(scene):
    for _ in range(10):
        scene.rogue.send(Suspect(node="node-0", epoch=0, code="ST-GRAD-001", what="it lies"))
    scene.tools.wait_until(
        lambda: [e for e in scene.job.events() if e.event == "member-suspected"], "it is recorded"
    )
    scene.rogue.send(Leave())
    scene.tools.wait_until(lambda: "node-2" not in scene.table.participants, "it has gone")
    (event,) = [e for e in scene.job.events() if e.event == "member-suspected"]
    assert (event.details["suspect"], event.details["voices"]) == ("node-0", 1)
    scene.goes_on()


def test_a_majority_of_the_members_evicts(scene):
    for node in scene.honest:
        node.suspect("node-2", "ST-GRAD-001", "its gradient was another")
    evicted(scene, scene.rogue.until(Refuse), "ST-ADMN-034")
    scene.goes_on()


def test_a_transcript_that_nobody_has_checked_evicts_nobody(scene):
    scene.rogue.send(Suspect(node="node-0", epoch=0, code="ST-GRAD-001", transcript=b"proof!"))
    scene.rogue.send(Heartbeat())
    assert isinstance(scene.rogue.until(Status), Status)
    scene.unharmed()


@pytest.mark.parametrize(("node", "epoch"), [("node-2", 0), ("node-0", 7), ("nobody", 0)])
def test_an_accusation_that_makes_no_sense(scene, node, epoch):
    scene.rogue.send(Suspect(node=node, epoch=epoch, code="ST-GRAD-001"))
    evicted(scene, scene.rogue.until(Refuse), "ST-ADMN-035")
    scene.goes_on()


# Anything at all.

KNOWN = {"ST-ADMN-001", "ST-ADMN-031", "ST-ADMN-035", "ST-ATTS-003", "ST-ATTS-002", "ST-ADMN-030"}


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
            rogue.tools.make_hello(rogue.identity),
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
    scene = Scene(job, tools)
    rogue, sent, turn, codes = scene.rogue, 0, 0, set()
    while sent < messages:
        for _ in range(dice.randrange(1, 12)):
            rogue.send_quietly(anything(dice, rogue))
            sent += 1
        rogue.send_quietly(Leave())
        end = rogue.until(Refuse)
        codes.add(end.code)
        scene.unharmed()
        turn += 1
        name = f"rogue-{turn}"
        tools.wait_until(lambda: len(job.coordinator._nodes) == 2, "it is out")
        rogue = Rogue(job, tools, name)
        if dice.random() < 0.5:
            rogue.send(Ready(floors=()))
    assert codes <= KNOWN | {"ST-ADMN-007"}, codes
    rogue.send(Leave())
    scene.goes_on()
    assert {e.subject for e in job.events() if e.event == "node-evicted"} <= {
        f"spiffe://securetrain.local/job/job-1/node/{name}"
        for name in ("node-2", *(f"rogue-{n}" for n in range(turn + 1)))
    }, "nobody else is out"
