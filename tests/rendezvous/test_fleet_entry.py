# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Machines that are admitted to a fleet over the real listener, and what may go wrong there."""

import dataclasses
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from securetrain.attest.fleet.guest_list import Guest
from securetrain.attest.fleet.intake import Intake, Rule
from securetrain.core.errors import AdmissionError, AttestationError
from securetrain.ledger import events
from securetrain.rendezvous.coordinator import FleetService, Seen
from securetrain.rendezvous.coordinator.fleet_desk import Visit
from securetrain.rendezvous.member import fleet_entry
from securetrain.rendezvous.wire.fleet_entry import (
    ANSWER_LIMIT,
    FLEET,
    KNOCK_LIMIT,
    Kept,
    Knock,
    Question,
    decode_fleet,
    encode_fleet,
)
from securetrain.rendezvous.wire.protocol import Refuse
from securetrain.testing.bootlog import Boot
from tests import vocabulary
from tests.attest.fleet.worlds import Office
from tests.attest.worlds import Machine
from tests.evidence.tpm.forge import Authority, Tpm
from tests.waiting import until


@pytest.fixture
def office(tmp_path):
    made = Office(tmp_path)
    yield made
    made.desk.close()


def refused(code, what, *args, **how):
    error = AttestationError if code.startswith("ST-ATTS") else AdmissionError
    return vocabulary.refused(error, code, what, *args, **how)


def test_a_machine_proves_itself_and_waits(office):
    machine = Machine("node-4")
    with office.open(signed_by=("KEY",), coordinator="10.0.0.1:29400"):
        token = office.token(group="gpu-h100")
        bundle, kept = office.join(token, machine)
    assert kept.digest == bundle.evidence.digest.hex()
    assert kept.worth.startswith("tpm")
    assert kept.learned
    assert (kept.signed_by, kept.coordinator) == (("KEY",), "10.0.0.1:29400")
    (proven,) = office.desk.waiting()
    assert (proven.node, proven.group, proven.ek) == ("node-4", "gpu-h100", machine.ek_name)
    assert office.intake.current() is None, "nothing is signed yet"
    taken = office.intake.sign(office.desk, [proven])
    assert list(taken.edition.values.nodes) == ["node-4"]
    assert taken.edition.values.nodes["node-4"].group == "gpu-h100"
    assert office.desk.waiting() == []


@pytest.mark.forgery
def test_a_token_is_good_once(office):
    machine, other = Machine("node-4"), Machine("node-5")
    with office.open():
        token = office.token()
        office.join(token, machine)
        refused("ST-ADMN-016", office.join, token, machine, says="this machine")
        refused("ST-ADMN-016", office.join, token, other, says="another machine")
    assert [one.ek for one in office.desk.waiting()] == [machine.ek_name]


@pytest.mark.forgery
def test_a_listener_that_is_not_the_tokens(office, tmp_path):
    impostor = Office(tmp_path / "impostor")
    token = office.token()
    with impostor.open():
        elsewhere = replace(token, port=impostor.address[1])
        refused("ST-ADMN-002", office.join, elsewhere, Machine("node-4"))
    assert impostor.desk.waiting() == []
    impostor.desk.close()


def test_nobody_answers(office):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        office.address = free.getsockname()
        token = office.token()
        refused("ST-ADMN-007", office.join, token, Machine("node-4"))


def test_a_token_that_ended_is_not_even_shown(office):
    token = office.token(hours=1)
    office.now += timedelta(hours=1)
    refused("ST-ADMN-015", office.join, token, Machine("node-4"))


def test_a_machine_without_a_tpm(office):
    class Nothing:
        def keys(self):
            return None

    refused("ST-ATTS-013", office.join, office.token(), Machine("node-4"), Nothing())


def not_understood(office, frame):
    """What the desk answers to this first frame: a refusal."""
    with office.open():
        channel = fleet_entry._connect(office.token(), 60.0, time.monotonic)
        channel.shake_hands(time.monotonic() + 60)
        channel.send_frame(frame, time.monotonic() + 60)
        said = channel.receive_frame(time.monotonic() + 60, limit=KNOCK_LIMIT)
        channel.close()
    assert said is not None
    answer = decode_fleet(said)
    assert isinstance(answer, Refuse)
    assert answer.code == "ST-ADMN-001"
    return answer


def service_of(office, **how):
    return FleetService(
        desk=office.desk,
        state=office.state,
        values=office.intake.current,
        clock=lambda: office.now,
        seen=office.seen.append,
        **how,
    )


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\0"])
def test_a_stranger_gets_nothing(office, frame):
    not_understood(office, frame)
    assert office.desk.waiting() == []


def test_a_machine_of_another_protocol_is_told_of_it(office):
    machine = Machine("node-4")
    knocked = Knock(
        protocol="securetrain-fleet/0",
        token="ab" * 32,
        key=machine.key.public.spki,
        keys=machine.keys(),
        proof=bytes(64),
        possession=bytes(70),
    )
    assert "securetrain-fleet/0" in not_understood(office, encode_fleet(knocked)).what


@pytest.mark.forgery
def test_a_machine_that_does_not_begin_with_its_token(office):
    kept = Kept(digest="ab" * 32, worth="", learned=(), notes=())
    not_understood(office, encode_fleet(kept))


def test_who_is_pushed_out_is_told_so():
    """And not what the connection that is cut then ends with."""

    class Cut:
        def shake_hands(self, _):
            raise AdmissionError("ST-ADMN-007", "it hung up", "peer")

        def send_frame(self, body, _):
            sent.append(body)

        abort = close = lambda self: None

    sent: list[Any] = []
    told: list[Seen] = []
    desk: Any = SimpleNamespace(passed=lambda _: None, tell=told.append, monotonic=time.monotonic)
    channel: Any = Cut()
    for verdict in (None, AdmissionError("ST-ADMN-008", "too many", "peer")):
        visit = Visit(desk=desk, channel=channel, remote="x")
        visit.evict(verdict)
        if verdict is not None:
            visit.evict(AdmissionError("ST-ADMN-012", "the first word stays", "peer"))
        visit.run()
    assert [one.error.code for one in told if one.error] == ["ST-ADMN-007", "ST-ADMN-008"]
    assert [b"ST-ADMN-008" in one for one in sent] == [False, True]


@pytest.mark.forgery
def test_a_listener_that_shows_no_certificate(office):
    connection: Any = SimpleNamespace(
        get_peer_certificate=lambda **_: None,
        get_protocol_version_name=lambda: "TLSv1.3",
        get_alpn_proto_negotiated=FLEET.encode,
    )
    refused("ST-ADMN-002", fleet_entry._check_desk, connection, office.token())


@pytest.mark.forgery
def test_nobody_signs_without_a_rule_and_a_key(office):
    """A desk that may sign, and was told of no rule, leaves everything to a person."""
    first, same = Machine("node-0"), Machine("node-1")
    one, two = office.tokens(Guest(node="node-0", group="g"), Guest(node="node-1", group="g"))
    office.prove(one, first)
    office.intake.sign(office.desk, office.desk.waiting())
    office.prove(two, same)
    told: list[object] = []
    stop = threading.Event()
    stop.set()
    for how in ({"intake": office.intake}, {"rule": Rule.SAME}):
        service = service_of(office, taken=told.append, **how)
        assert service.serve(stop)
        assert office.desk.waiting_nodes() == ["node-1"]
    assert told == []
    control = dataclasses.replace(service, intake=office.intake)
    assert control.serve(stop)
    assert office.desk.waiting_nodes() == []


@pytest.mark.forgery
@pytest.mark.parametrize("early", [True, False], ids=["for a question", "for the end"])
def test_a_listener_that_answers_with_something_else(office, monkeypatch, early):
    """It holds the token's key, and says what this machine did not ask for."""

    def serve(visit):
        visit.channel.shake_hands(visit._soon())
        visit._receive(KNOCK_LIMIT, 60.0)
        if early:
            visit._send(Kept(digest="ab" * 32, worth="tpm", learned=(), notes=()))
            return
        question = Question(fresh=bytes(32), credential=asked.question.credential)
        visit._send(question)
        visit._receive(ANSWER_LIMIT, 60.0)
        visit._send(question)

    machine, token = Machine("node-4"), office.token()
    asked = office.ask(token, machine)
    monkeypatch.setattr(Visit, "_serve", serve)
    with office.open():
        token = office.token()
        error = refused("ST-ADMN-001", office.join, token, machine)
    assert ("Question" if early else "Kept") in f"{error.what} {error.where}"


@pytest.mark.parametrize("nodes", [None, ["node-4"]])
def test_a_service_that_is_told_to_stop_stops(office, nodes):
    service = service_of(office)
    office.token()
    stop = threading.Event()
    stop.set()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(service.serve, stop, nodes)
        assert ended.result(60) is (nodes is None)


def crowd(office, number, workers):
    """Machines of two templates and two groups that come at once; gives how many got in."""
    machines = [
        Machine(f"node-{n}", tpm=Tpm("H-3" if n % 3 == 0 else "H-2")) for n in range(number)
    ]
    with office.open():
        tokens = office.tokens(
            *(Guest(node=m.name, group=f"image-{n % 2}") for n, m in enumerate(machines))
        )
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(office.join, tokens, machines))
    return machines


def test_twenty_come_at_once(office):
    machines = crowd(office, 20, 8)
    assert sorted(office.desk.waiting_nodes()) == sorted(m.name for m in machines)
    taken = office.intake.sign_by_rule(office.desk, Rule.FIRST)
    assert (len(taken.edition.values.nodes), taken.held) == (20, ())
    assert taken.edition.values.version == 1
    assert set(taken.edition.values.groups) == {"image-0", "image-1"}


@pytest.mark.many
def test_a_thousand_come_at_once(office):
    crowd(office, 1000, 32)
    taken = office.intake.sign_by_rule(office.desk, Rule.FIRST)
    assert (len(taken.edition.values.nodes), taken.held) == (1000, ())


@pytest.mark.forgery
def test_one_token_on_many_machines_at_once(office):
    machines = [Machine(f"m-{n}") for n in range(6)]
    with office.open():
        token = office.token("node-4")

        def attempt(machine):
            try:
                office.join(token, machine)
            except AdmissionError as error:
                return error.code
            return ""

        with ThreadPoolExecutor(6) as pool:
            ends = sorted(pool.map(attempt, machines))
    assert ends[0] == ""
    # Those that had asked before the first was kept hear of its name, not of the token.
    assert set(ends[1:]) <= {"ST-ADMN-016", "ST-ADMN-021"}
    assert len(ends[1:]) == 5
    assert len(office.desk.waiting()) == 1


def test_what_a_rule_signs_and_what_it_leaves(office):
    with office.open():
        first, same, other = (Machine(f"node-{n}") for n in range(3))
        other.boot(Boot(kernel=b"a kernel with a back door"))
        tokens = office.tokens(*(Guest(node=f"node-{n}", group="g") for n in range(3)))
        office.join(tokens[0], first)
        assert office.intake.sign_by_rule(office.desk, Rule.SAME).edition is None
        office.intake.sign(office.desk, office.desk.waiting(["node-0"]))
        office.join(tokens[1], same)
        office.join(tokens[2], other)
    taken = office.intake.sign_by_rule(office.desk, Rule.SAME)
    assert sorted(taken.edition.values.nodes) == ["node-0", "node-1"]
    (held,) = taken.held
    assert held.proven.node == "node-2"
    assert "boots what its image group does not" in held.why
    assert office.desk.waiting_nodes() == ["node-2"]


def test_the_last_machine_that_comes_while_others_are_signed_is_signed_too(office, monkeypatch):
    """Found with a thousand: the command ended with 3, and six machines waited for a person."""
    service = service_of(office, intake=office.intake, rule=Rule.FIRST)
    early, late = Machine("node-0"), Machine("node-1")
    one, two = office.tokens(Guest(node="node-0"), Guest(node="node-1"))
    office.prove(one, early)
    sign, signed = Intake.sign_by_rule, []

    def slowly(self, desk, rule):
        signed.append(taken := sign(self, desk, rule))
        if len(signed) == 1:
            office.prove(two, late)
        return taken

    monkeypatch.setattr(Intake, "sign_by_rule", slowly)
    assert service.serve(threading.Event(), ["node-0", "node-1"])
    assert office.desk.waiting_nodes() == []
    assert set(office.intake.current().nodes) == {"node-0", "node-1"}


def wait_for(seen, count):
    """Wait: a visit is written down a moment after the machine has been told."""
    until(lambda: len(seen) >= count, lambda: seen)
    assert len(seen) == count


def test_refusals_of_machines_with_a_token_are_in_the_ledger(office):
    """Those of strangers are not: anybody could fill the disk."""
    heard: list[object] = []
    service = service_of(office, taken=heard.append)
    with service.listening("127.0.0.1", 0) as address:
        office.address = address
        token = office.token()
        stranger = Machine("node-4", maker=Authority("somebody else's root"))
        refused("ST-ATTS-107", office.join, token, stranger)
        unknown = replace(token, secret=bytes(16))
        refused("ST-ADMN-014", office.join, unknown, Machine("node-4"))
        wait_for(office.seen, 2)
        office.join(token, Machine("node-4"))
        wait_for(office.seen, 3)
    said = [one.body.event for one in office.desk.decisions()]
    assert [(one.event, one.code) for one in said] == [
        ("fleet-token-made", ""),
        ("machine-refused", "ST-ATTS-107"),
        ("machine-proven", ""),
    ]
    assert events.decode_event(said[1]) == events.MachineRefused(
        subject="node-4",
        code="ST-ATTS-107",
        what=said[1].details["what"],
        where=said[1].details["where"],
    )
    assert heard == []


def test_a_refusal_that_cannot_be_written_is_told(office):
    heard: list[Any] = []
    service = service_of(office, taken=heard.append)
    (office.folder / "admission" / "ledger.jsonl").mkdir()
    error = AttestationError("ST-ATTS-016", "another key", "node node-4")
    service._seen(Seen(node="node-4", remote="x", error=error))
    assert [one.code for one in heard] == ["ST-ADMN-023"]
    assert len(office.seen) == 1
