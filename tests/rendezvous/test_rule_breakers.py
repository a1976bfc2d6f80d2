# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A member that follows no rule: any message, in any order. Two honest ones go on with their ranks.

It has a certificate of the job, it is admitted, and it knows the epoch and everybody's names.
"""

import random
import threading
from typing import Any

import pytest

from securetrain.core.codes import CODES
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import CloseQuorum
from securetrain.rendezvous.wire.protocol import (
    Admit,
    AnyMessage,
    Challenge,
    Close,
    Done,
    Formed,
    Going,
    Heartbeat,
    Leave,
    Proof,
    Ready,
    Refuse,
    Renew,
    Staffed,
    Status,
    Store,
    Suspect,
    Workers,
    encode_frame,
)
from securetrain.rendezvous.wire.ranks import node_ranks
from tests.rendezvous.worlds import meet
from tests.tables import items

HONEST = ("node-0", "node-1")


class Honest(threading.Thread):
    """What an agent does with a member: it meets again whenever it is asked to."""

    def __init__(self, member: Any, end: threading.Event) -> None:
        super().__init__(daemon=True)
        self.member, self.end = member, end
        self.error: SecureTrainError | None = None
        self.seen: list[tuple[int, dict[str, range]]] = []
        self.round: Any = None

    def run(self) -> None:
        try:
            while not self.end.is_set():
                self.round = found = self.member.next_round(lambda _: 20000)
                ranks = {each.node: each.ranks for each in node_ranks(found.membership)}
                self.seen.append((found.membership.epoch, ranks))
                while not self.member.num_waiting and not self.end.wait(0.005):
                    pass
        except SecureTrainError as error:
            self.error = error


def anything(chance: random.Random, epoch: int, names: list[str]) -> bytes:
    """A frame: one of any message, in its place or not, true or not, or no message at all."""
    node, near = chance.choice(names), max(0, epoch + chance.choice([-1, 0, 0, 0, 1, 9]))
    text = "".join(chance.choices('abc/\\"\u00e9\n', k=chance.randrange(1, 9)))
    made: list[AnyMessage] = [
        Ready(floors=tuple(chance.randbytes(8) for _ in range(chance.randrange(4)))),
        Ready(floors=()),
        Store(epoch=near, host=chance.choice(["127.0.0.1", "198.51.100.7"]), port=20001),
        Workers(epoch=near, local_world=chance.choice([1, 7, 65536]), role=text),
        Workers(epoch=near, local_world=1, role="default"),
        Done(),
        Going(),
        Heartbeat(),
        Renew(),
        Close(),
        Leave(),
        Suspect(node=node, epoch=near, code="ST-GRAD-002", what=text),
        Status(waiting=9, ready=9, closed=True, evicted=tuple(names[:2])),
        Formed(membership=text),
        Staffed(membership=text),
        Challenge(nonce=chance.randbytes(32), session=chance.randbytes(16)),
        Proof(media_type=text, body=b"x", binding=chance.randbytes(32), signature=b"y"),
        Refuse(code="ST-ADMN-013", what=text, fix=""),
    ]
    frame = encode_frame(chance.choice(made))
    if chance.random() < 0.1:  # and what is no message
        body = bytearray(frame[4:])
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        frame = len(body).to_bytes(4, "big") + bytes(body)
    return frame


def live(job, tools, chance, name, *, budget, epoch):
    """One life of the rule breaker; returns how many messages it got out before it was put out."""
    identity = job.identity(name)
    channel, challenge = job.challenged(
        identity, local_world=chance.choice([0, 0, 1]), role=chance.choice(["", "default"])
    )
    attester = job.attester(identity)
    channel.send(
        tools.prove(attester, tools.binding_of(channel, challenge, identity)), tools.soon()
    )
    assert isinstance(tools.answer(channel), Admit)
    if chance.random() < 0.8:
        channel.send(Ready(floors=()), tools.soon())
    sent = 0
    try:
        while sent < budget:
            frame = anything(chance, epoch(), [*HONEST, name, "nobody"])
            channel.send_frame(frame, tools.soon())
            sent += 1
    except Exception:  # noqa: BLE001 - it was put out, whatever that looks like here
        return sent
    finally:
        channel._socket.close()
    return sent


def campaign(job, tools, seed, messages):
    chance = random.Random(seed)
    policy = tools.make_policy(join_timeout_seconds=30, close_quorum=CloseQuorum.MAJORITY)
    job.start(2, 3, last_call=0.05, policy=policy)
    end = threading.Event()
    honest = [
        Honest(job.join(node, local_world=n + 1, role="default"), end)
        for n, node in enumerate(HONEST)
    ]
    for thread in honest:
        thread.start()
    tools.wait_until(lambda: all(thread.seen for thread in honest), "the honest ones have met")
    sent = life = 0
    while sent < messages:
        life += 1
        # Before them in the order of ranks, or after.
        name = f"{chance.choice(['evil', 'zealot'])}-{life}"
        sent += live(
            job,
            tools,
            chance,
            name,
            budget=min(12, messages - sent),
            epoch=lambda: honest[0].seen[-1][0],
        )
        for thread in honest:
            assert thread.error is None, thread.error
    # It is gone; they meet once more, alone.
    tools.wait_until(
        lambda: all(
            thread.seen[-1][1].keys() == set(HONEST) and thread.member.connected
            for thread in honest
        ),
        "the honest ones are among themselves",
    )
    end.set()
    for thread in honest:
        thread.join(tools.PATIENCE)
        # One may have asked for a round that the other, which has ended, does not come to any more.
        assert thread.error is None or thread.error.code == "ST-ADMN-005", thread.error
    return honest, sent


def check(job, honest):
    first, second = (dict(thread.seen) for thread in honest)
    for epoch in first.keys() & second.keys():
        assert first[epoch] == second[epoch], "both see the same ranks in an epoch"
        sizes = {node: len(ranks) for node, ranks in first[epoch].items()}
        assert (sizes["node-0"], sizes["node-1"]) == (1, 2)
        assert first[epoch]["node-0"][-1] + 1 == first[epoch]["node-1"][0]
    events = job.events()
    refused = [e for e in events if e.event in {"node-evicted", "node-refused"}]
    assert refused
    assert {e.code for e in refused} <= CODES.keys()
    assert not [e for e in events if e.event == "job-closed"]
    for event in events:
        if event.event in {"node-evicted", "node-lost", "node-left", "trust-ended"}:
            assert not event.subject.endswith(HONEST), event
    return {e.code for e in refused}


def test_a_member_that_follows_no_rule_harms_nobody(job, tools):
    honest, _ = campaign(job, tools, 1, 120)
    check(job, honest)


@pytest.mark.many
@pytest.mark.parametrize("seed", range(4))
def test_a_member_that_follows_no_rule_at_length(job, tools, seed):
    honest, sent = campaign(job, tools, 100 + seed, 600)
    assert sent == 600
    assert {"ST-ADMN-001", "ST-ADMN-035", "ST-ADMN-040"} <= check(job, honest)


@items(
    "message, code",
    (Workers(epoch=0, local_world=5, role="default"), "ST-ADMN-040"),
    (Staffed(membership="{}"), "ST-ADMN-001"),
    (Status(waiting=1, ready=0, closed=True), "ST-ADMN-001"),
    (Store(epoch=0, host="127.0.0.1", port=20001), "ST-ADMN-001"),
)
def test_what_one_message_is_refused_with(job, tools, message, code):
    """From a member that is not rank 0, and has said what it runs."""
    job.start(2, 2)
    members = [job.join(f"node-{n}", local_world=1, role="default") for n in range(2)]
    meet(members)
    members[1]._link.post(message)
    assert "node-1" in job.expect(code, "node-evicted").subject
    tools.wait_until(lambda: members[0].num_waiting, "the other one is told")
    assert members[0].connected
