# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Measurement lists that are too long for one message: joins, renewals, and those who abuse them.

A list counts as long from a few bytes on here, so that the boot of a test machine is long.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from securetrain.attest.node.attester import sign_evidence
from securetrain.attest.node.tpm import measurements
from securetrain.core.errors import AdmissionError, AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import Ask, node_evidence
from securetrain.evidence.node_evidence import parse_node
from securetrain.rendezvous.coordinator import list_intake
from securetrain.rendezvous.coordinator.list_intake import ListIntake
from securetrain.rendezvous.wire.protocol import (
    Admit,
    AskPart,
    Heartbeat,
    Leave,
    ListPart,
    Renew,
)
from tests.attest.swtpms import without_swtpm
from tests.rendezvous.worlds import attested, policy_of, two_machines
from tests.vocabulary import changed

PART = 512
FILES = {f"/usr/lib/library-{number}.so": bytes([number]) for number in range(12)}


class Node:
    """A connection as `ListIntake` sees it; what it is asked for comes at once."""

    def __init__(self, name, lease_end=0.0):
        self.node = name
        self.lease_end = lease_end
        self.deadlines = []

    def next_part(self, index, deadline):
        self.deadlines.append(deadline)
        return bytes([index])


def test_room_is_given_back_whatever_happens():
    intake = ListIntake(0.2, monotonic=lambda: 100.0, parts=1)
    first, second = Node("node-0"), Node("node-1")
    with intake.of(first) as fetch, intake.of(second) as fetch_too:
        assert [fetch(0, b""), fetch(1, b"")] == [b"\0", b"\1"]
        with pytest.raises(AttestationError) as caught:
            fetch_too(0, b"")
        assert (caught.value.code, caught.value.where) == ("ST-ATTS-315", "node-1")
    with pytest.raises(ZeroDivisionError), intake.of(first) as fetch:
        raise ZeroDivisionError(fetch(0, b""))
    with intake.of(second) as fetch:
        assert fetch(0, b"") == b"\0"


def test_a_list_has_an_end_and_so_has_a_lease():
    now = [0.0]
    intake = ListIntake(10.0, monotonic=lambda: now[0], seconds=25.0)
    node, leased = Node("node-0"), Node("node-1", lease_end=4.0)
    with intake.of(node) as fetch:
        for index, moment in enumerate((0.0, 9.0, 18.0, 24.0)):
            now[0] = moment
            fetch(index, b"")
    assert node.deadlines == [10.0, 19.0, 25.0, 25.0]
    now[0] = 0.0
    with intake.of(leased) as fetch:
        fetch(0, b"")
    assert leased.deadlines == [4.0]


# With software TPMs.


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with two_machines(tmp_path_factory.mktemp("machines"), FILES) as made:
        yield made


@pytest.fixture
def policy(machines, tmp_path, monkeypatch):
    made = policy_of(machines, tmp_path)
    monkeypatch.setattr(measurements, "IMA_SEND_LIMIT", PART)
    monkeypatch.setattr(node_evidence, "PART_SIZE", PART)
    return made


def proven(job, machine, tools):
    """A raw connection that was asked for the first part of its list, and the parts."""
    identity = job.identity(machine.name)
    attester = machine.attester(identity.key)
    keys = attester.keys()
    channel, challenge = job.challenged(identity, tpm=keys)
    parts = []

    class Collecting:
        def collect(self, binding, ask):
            evidence = attester.collect(binding, Ask(credential=ask.credential, parts=True))
            parts.extend(evidence.parts)
            return evidence

    proof = tools.prove(
        Collecting(), tools.binding_of(channel, challenge, identity), challenge, keys
    )
    channel.send(proof, tools.soon())
    return channel, parts, identity


def answer_all(channel, parts, tools):
    """Answer until something else than a question comes, which is given back."""
    while isinstance(message := tools.answer(channel), AskPart):
        channel.send(ListPart(index=message.index, data=parts[message.index]), tools.soon())
    return message


@pytest.mark.tpm
@without_swtpm
def test_two_nodes_with_long_lists_join_at_once_and_renew(job, machines, policy, tools):
    job.start(2, 2, policy=policy)
    with ThreadPoolExecutor(4) as pool:
        joins = [pool.submit(attested, job, machine) for machine in machines]
        members = [one.result(tools.PATIENCE) for one in joins]
        rounds = [pool.submit(member.next_round, lambda _: 29500, 60.0) for member in members]
        for found in rounds:
            tiers = [m.tier for m in found.result(tools.PATIENCE).membership.members]
            assert tiers == [NodeTier.TEST_ONLY] * 2
    first = members[0].result
    entries = first.submods["tpm"].claims["ima_entries"]
    assert entries == len(FILES) + 1
    for number in range(10):  # more than one message, again
        machines[0].execute(f"/opt/new-{number}", bytes([number]))
    members[0]._link.renew()
    tools.wait_until(
        lambda: members[0].result.submods["tpm"].claims["ima_entries"] == entries + 10,
        "the lease is renewed with what is new",
    )
    assert all(member.connected for member in members)


@pytest.mark.tpm
@pytest.mark.forgery
@without_swtpm
def test_lies_about_parts(job, machines, policy, tools):
    """Each lie on a connection of its own; the control is the last."""
    job.start(1, 1, policy=policy)
    lies = {
        "another number": (lambda p: ListPart(index=1, data=p[0]), "ST-ADMN-001"),
        "another part": (lambda p: ListPart(index=0, data=p[1]), "ST-ATTS-314"),
        "altered": (lambda p: ListPart(index=0, data=p[0][:-1] + b"?"), "ST-ATTS-314"),
        "more": (lambda p: ListPart(index=0, data=p[0] + p[1]), "ST-ATTS-314"),
        "less": (lambda p: ListPart(index=0, data=p[0][:-1]), "ST-ATTS-314"),
        "a question": (lambda _: Renew(), "ST-ADMN-001"),
        "a sign of life": (lambda _: Heartbeat(), "ST-ADMN-001"),
        "a goodbye": (lambda _: Leave(), "ST-ADMN-001"),
    }
    for lie, (make, code) in lies.items():
        channel, parts, _ = proven(job, machines[0], tools)
        assert tools.answer(channel) == AskPart(index=0)
        channel.send(make(parts), tools.soon())
        assert tools.answer(channel).code == code, lie
        tools.wait_until(lambda: not job.coordinator._nodes, "the coordinator dropped it")
    channel, parts, _ = proven(job, machines[0], tools)
    assert isinstance(answer_all(channel, parts, tools), Admit)
    channel.send(ListPart(index=0, data=parts[0]), tools.soon())  # nobody has asked
    job.expect("ST-ADMN-001", "node-evicted")


@pytest.mark.tpm
@pytest.mark.forgery
@without_swtpm
def test_a_list_is_asked_for_only_when_all_before_it_holds(job, machines, policy, tools):
    """A stranger's and a liar's megabytes are never asked for."""
    job.start(1, 1, policy=policy)
    identity = job.identity("node-0")
    attester = machines[0].attester(identity.key)
    keys = attester.keys()

    def altered(field):
        class Altering:
            def collect(self, binding, ask):
                found = attester.collect(binding, Ask(credential=ask.credential, parts=True))
                said = parse_node(found.body)
                data = bytearray(getattr(said.tpm, field))
                data[len(data) // 2] ^= 1
                changed = with_tpm(said, **{field: bytes(data)})
                return sign(changed.encode(), found, identity)

        return Altering()

    for field, code in {
        "activation": "ST-ATTS-016",
        "signature": "ST-ATTS-111",
        "event_log": "ST-ATTS-20",
    }.items():
        channel, challenge = job.challenged(identity, tpm=keys)
        binding = tools.binding_of(channel, challenge, identity)
        proof = tools.prove(altered(field), binding, challenge, keys)
        said = parse_node(proof.body).tpm
        assert said is not None
        assert said.ima_parts is not None
        channel.send(proof, tools.soon())
        assert tools.answer(channel).code.startswith(code), field
        tools.wait_until(lambda: not job.coordinator._nodes, "the coordinator dropped it")


def with_tpm(said, **changes):
    return changed(said, tpm=changes)


def sign(body, found, identity):
    return sign_evidence(found.media_type, body, found.binding, identity.key)


@pytest.mark.tpm
@pytest.mark.forgery
@without_swtpm
def test_a_node_that_stops_in_the_middle_keeps_nobody_out(
    job, machines, policy, tools, monkeypatch
):
    """It holds the only room there is, is cut off, and the other one gets in."""
    monkeypatch.setattr(list_intake, "PARTS_AT_ONCE", 1)
    job.start(1, 2, policy=policy)
    channel, parts, _ = proven(job, machines[1], tools)
    for index in range(2):
        assert tools.answer(channel) == AskPart(index=index)
        if index == 0:
            channel.send(ListPart(index=0, data=parts[0]), tools.soon())
    channel._socket.close()
    job.expect("ST-ADMN-007", "node-refused")
    member = attested(job, machines[0])
    assert member.result.submods["tpm"].claims["ima_entries"] == len(FILES) + 1


@pytest.mark.tpm
@without_swtpm
def test_what_a_member_says_while_its_list_comes_is_heard(job, machines, policy, tools):
    """Signs of life between parts, and a goodbye, which is no refusal."""
    job.start(1, 1, policy=policy)
    channel, parts, identity = proven(job, machines[0], tools)
    assert isinstance(answer_all(channel, parts, tools), Admit)
    for number in range(10):
        machines[0].execute(f"/opt/another-{number}", bytes([number]))
    channel.send(Renew(), tools.soon())
    challenge = tools.answer(channel)
    attester = machines[0].attester(identity.key)
    found = []

    class Collecting:
        def collect(self, binding, ask):
            del ask
            found.append(
                attester.collect(
                    binding, Ask(ima_first=challenge.ima_first, full=False, parts=True)
                )
            )
            return found[0]

    proof = tools.prove(
        Collecting(), tools.binding_of(channel, challenge, identity), challenge, attester.keys()
    )
    channel.send(proof, tools.soon())
    assert tools.answer(channel) == AskPart(index=0)
    channel.send(Heartbeat(), tools.soon())
    channel.send(Heartbeat(), tools.soon())
    channel.send(ListPart(index=0, data=found[0].parts[0]), tools.soon())
    while not isinstance(message := tools.answer(channel), AskPart):
        assert not isinstance(message, AdmissionError), message
    assert message.index == 1
    channel.send(Leave(), tools.soon())
    tools.wait_until(
        lambda: [event for event in job.events() if event.event == "node-left"],
        "the node has left in peace",
    )
