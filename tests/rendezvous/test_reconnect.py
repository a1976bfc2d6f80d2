# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator dies and comes back; the nodes go on meanwhile.

The coordinator is the real command in a process of its own, killed by SIGKILL. The nodes are in
this process, and a thread of each stands for its workers: it makes a step as long as nothing tells
its agent to restart or to end.
"""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from securetrain.core.errors import AdmissionError, SecureTrainError, UsageError
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.coordinator.memory import JobMemory, decode_state, encode_state
from securetrain.rendezvous.member.client import Member
from securetrain.rendezvous.member.reconnect import Reconnect
from securetrain.rendezvous.wire.protocol import Close, Done, Ready
from tests.rendezvous.worlds import certified, meet
from tests.vocabulary import free_port, refused

NODES = ["node-0", "node-1", "node-2"]


class Workers(threading.Thread):
    """A node's workers, and the agent that looks after them."""

    def __init__(self, member: Member) -> None:
        super().__init__(daemon=True)
        self.member, self.steps, self.restarts = member, 0, 0
        self.over = threading.Event()
        self.error: SecureTrainError | None = None

    def run(self):
        while not self.over.wait(0.01):
            try:
                self.restarts += self.member.num_waiting > 0
            except SecureTrainError as error:
                self.error = error
                return
            self.steps += 1


class Cluster:
    """A coordinator that can be killed, and three nodes in a round."""

    def __init__(self, job, tools, root, lease_seconds=None):
        self.job, self.tools, self.root = job, tools, root
        self.ca = ClusterCA.create(root / "ca", "securetrain.local", tools.now())
        self.port = free_port()
        self.policy = root / "policy.yaml"
        text = {
            "extends": "dev",
            "apiVersion": "securetrain.dev/policy/v1",
            "kind": "Policy",
            "metadata": {"id": "mine", "version": "1.0.0", "title": "mine"},
            "node": {"allow_self_asserted": {"max_nodes": 8, "reason": "a test"}},
        }
        self.policy.write_text(yaml.safe_dump(text))
        self.start()
        self.members = [self.join(node) for node in NODES]
        self.rounds = self.meet()
        self.workers = [Workers(member) for member in self.members]
        for worker in self.workers:
            worker.start()

    def start(self):
        command = [sys.executable, "-m", "securetrain", "coordinator", "--ca", self.root / "ca"]
        command += ["--job", self.job.name, "--nnodes", "2:3", "--policy", self.policy]
        command += ["--run-dir", self.root / "run", "--port", self.port, "--last-call", "0.5"]
        self.log = (self.root / "log").open("ab")
        self.process = subprocess.Popen(
            [*map(str, command), "--json"], stdout=self.log, stderr=subprocess.STDOUT
        )
        self.tools.wait_until(self.answers, "the coordinator listens")

    def answers(self):
        assert self.process.poll() is None, (self.root / "log").read_text()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 5).close()
            return True
        return False

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait()
        self.log.close()

    def identity(self, node):
        return certified(self.ca, self.job.name, node, self.root / f"id-{node}")

    def join(self, node, identity=None):
        identity = identity or self.identity(node)
        member = self.job.make_member(node, identity=identity, comes_back=True)
        member.connect("127.0.0.1", self.port)
        return member

    def meet(self, members=None):
        return meet(members or self.members)

    def events(self, name):
        data = (self.root / "run" / "ledger.jsonl").read_bytes()
        whole = data[: data.rfind(b"\n") + 1]  # the last line may just be being written
        found = [json.loads(line) for line in whole.splitlines()]
        return [line["body"]["event"] for line in found if line["body"]["event"]["event"] == name]

    def resumed(self, number):
        self.tools.wait_until(lambda: len(self.events("node-resumed")) >= number, "they are back")

    def all_step(self):
        """Every node has made steps since now, and restarted for nothing."""
        before = [worker.steps for worker in self.workers]
        self.tools.wait_until(
            lambda: all(w.steps > b for w, b in zip(self.workers, before, strict=True)), "steps"
        )
        assert [worker.restarts for worker in self.workers] == [0, 0, 0]
        assert [worker.error for worker in self.workers] == [None, None, None]

    def end(self):
        for worker in self.workers:
            worker.over.set()
            worker.join()
        for member in self.members:
            member.leave()
        if self.process.poll() is None:
            self.kill()


@pytest.fixture
def cluster(job, tools, tmp_path):
    made = Cluster(job, tools, tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.many)])
@pytest.mark.slow
def test_a_coordinator_that_is_killed_costs_a_pause_and_no_step(cluster, times):
    for n in range(times):
        cluster.kill()
        cluster.all_step()
        cluster.start()
        cluster.resumed(3 * (n + 1))
        cluster.all_step()
    epochs = [int(event["subject"].split()[1]) for event in cluster.events("round-formed")]
    assert epochs == [0], "the same epoch all the time"
    again = cluster.meet()
    assert [found.rank for found in again] == [0, 1, 2]
    assert {found.membership.epoch for found in again} == {1}, "and the next one follows it"


@pytest.mark.slow
def test_a_coordinator_may_be_restarted_in_an_orderly_way(cluster):
    """SIGTERM leaves the nodes waiting; SIGINT tells them that it is over."""
    cluster.kill(signal.SIGTERM)
    cluster.all_step()
    cluster.start()
    cluster.resumed(3)
    cluster.all_step()
    cluster.kill(signal.SIGINT)
    cluster.tools.wait_until(lambda: all(w.error for w in cluster.workers), "they have heard it")
    assert {w.error.code for w in cluster.workers} == {"ST-ADMN-007"}
    assert "stopped" in cluster.workers[0].error.what


# The same in one process: every decision of the two sides.


class Three:
    """Coordinators one after the other, over one state file, and three nodes in a round."""

    def __init__(self, job, tools, root):
        self.job, self.tools = job, tools
        self.memory = JobMemory(root / "coordinator.json", job.ledger.key)
        self.start()
        self.port = job.port
        self.identities = {node: job.identity(node) for node in NODES}
        self.members = {node: self.join(node) for node in NODES}
        self.meet()

    def start(self, **settings):
        settings = {"memory": self.memory, "last_call": 0.3} | settings
        return self.job.start(2, 3, **settings)

    def join(self, node):
        member = self.job.make_member(node, identity=self.identities[node], comes_back=True)
        member.connect(self.job.host, self.job.port)
        return member

    def meet(self, *nodes):
        members = [self.members[node] for node in nodes or NODES]
        with ThreadPoolExecutor(len(members)) as pool:
            return list(pool.map(lambda member: member.next_round(lambda _: 4000), members))

    def die(self):
        self.job.coordinator.stop(for_good=False)

    def again(self, **settings):
        return self.start(**{"port": self.port, "last_epoch": 0} | settings)

    def again_without_the_third(self):
        """It has gone while nobody was there to hear it."""
        self.die()
        self.members.pop("node-2").leave()
        self.again()
        self.back("node-0", "node-1")

    def names(self, name):
        return [
            event.subject.rpartition("/")[2] for event in self.job.events() if event.event == name
        ]

    def back(self, *nodes):
        self.tools.wait_until(
            lambda: set(self.names("node-resumed")) >= set(nodes or NODES), "they are back"
        )


@pytest.fixture
def three(job, tools, tmp_path):
    return Three(job, tools, tmp_path)


def state_of(three):
    return decode_state(three.memory.path.read_bytes(), three.memory.key.public)


def test_the_next_coordinator_goes_on_with_the_same_epoch(three):
    three.die()
    coordinator = three.again()
    three.back()
    assert coordinator.epoch == 0
    assert coordinator.membership.epoch == 0
    (resumed,) = [e for e in three.job.events() if e.event == "coordinator-resumed"]
    assert (resumed.details["epoch"], set(resumed.details["nodes"].split())) == (0, set(NODES))
    assert all(m.connected and not m.num_waiting for m in three.members.values())
    assert {found.membership.epoch for found in three.meet()} == {1}


def test_the_state_holds_no_secret_and_is_the_owners(three):
    data = three.memory.path.read_bytes()
    assert three.memory.path.stat().st_mode & 0o777 == 0o600
    state = state_of(three)
    assert sorted(held.node for held in state.members) == NODES
    assert b"preshared" not in data
    assert b"PRIVATE" not in data


def test_what_was_said_in_the_meantime_is_said_again(three):
    """Rank 0 ends the job while nobody is there to hear it."""
    three.die()
    three.members["node-0"]._link.post(Close())
    three.again()
    three.tools.wait_until(lambda: three.members["node-1"].closed, "it is heard")


def test_that_a_member_has_gone_is_not_forgotten(three):
    """The others had not heard of it, or had not looked yet."""
    three.members.pop("node-2").leave()
    three.tools.wait_until(lambda: state_of(three).restart, "it is noted")
    three.die()
    three.again()
    three.back("node-0", "node-1")
    for node in ("node-0", "node-1"):
        three.tools.wait_until(lambda n=node: three.members[n].num_waiting, "they restart")
        assert three.members[node].lost == ("node-2",)
    assert {found.membership.epoch for found in three.meet("node-0", "node-1")} == {1}


def test_evictions_are_not_forgotten_when_nobody_is_in_a_round(three):
    """The coordinator dies between an eviction and the epoch whose membership names it."""
    for member in three.members.values():
        member.leave()
    three.tools.wait_until(lambda: not state_of(three).members, "nobody is in")
    gone = state_of(three).evicted
    assert {found.node for found in gone} == set(NODES)
    three.die()
    three.again()
    three.members = {node: three.join(node) for node in NODES}
    found = three.meet()[0].membership
    assert found.epoch == 1
    assert found.evicted == gone


def test_the_end_of_the_job_is_heard_from_the_next_coordinator(three):
    """It is closed, that is on disk, and nobody has heard it: nobody ends with an error."""
    three.job.coordinator._assembly.tell_everybody = lambda: None
    three.members["node-0"]._link.post(Close())
    three.tools.wait_until(lambda: state_of(three).closed, "it is noted")
    three.die()
    coordinator = three.again()
    assert coordinator.closed
    for member in three.members.values():
        three.tools.wait_until(lambda m=member: m.closed and m.connected, "it is heard")
    refused(AdmissionError, "ST-ADMN-008", three.job.join, "node-9")
    for member in three.members.values():
        member.leave()
    coordinator.wait_empty(three.tools.PATIENCE)
    assert not coordinator._nodes


def test_a_job_that_has_ended_begins_anew_when_its_leases_have(three):
    three.members["node-0"]._link.post(Close())
    three.tools.wait_until(lambda: state_of(three).closed, "it is noted")
    three.die()
    state = state_of(three)
    held = [replace(h, lease_ends=h.lease_ends - timedelta(days=1)) for h in state.members]
    three.memory.save(replace(state, members=tuple(held)))
    coordinator = three.again()
    assert not coordinator.closed
    assert coordinator.epoch == 0, "and epochs go on"


def test_a_restart_in_an_orderly_way_does_not_end_the_job(three):
    """What a node says just then is written down, and no more than that."""
    coordinator = three.job.coordinator
    closing = coordinator._listener.close

    def say_something_first():
        coordinator._listener.close = closing
        session = coordinator._nodes["node-1"]
        coordinator.hear(session, Done())
        closing()

    coordinator._listener.close = say_something_first
    three.die()
    assert not state_of(three).closed
    three.again()
    three.back()


def test_a_node_that_waits_for_a_round_waits_on(job, tools, tmp_path):
    memory = JobMemory(tmp_path / "coordinator.json", job.ledger.key)
    job.start(2, 2, memory=memory)
    port = job.port
    first = job.make_member("node-0", comes_back=True)
    first.connect(job.host, port)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(first.next_round, lambda _: 4000)
        tools.wait_until(lambda: job.coordinator._rounds.participants, "it waits")
        job.coordinator.stop(for_good=False)
        job.start(2, 2, memory=memory, port=port)
        tools.wait_until(lambda: job.coordinator._rounds.participants, "it waits again")
        job.join("node-1")._link.post(Ready(floors=()))
        assert found.result(tools.PATIENCE).rank == 0


def test_a_node_that_does_not_come_back_is_lost_when_its_lease_ends(three):
    three.die()
    three.members.pop("node-2").leave()
    three.again(lease=8.0)  # by then the others must be back, on a slow machine, too
    three.back("node-0", "node-1")
    assert not three.members["node-0"].num_waiting, "its place is kept"
    three.tools.wait_until(lambda: three.members["node-0"].num_waiting, "it is given up")
    assert three.names("node-lost")[-1:] == ["node-2"]
    after = three.meet("node-0", "node-1")[0].membership
    assert [member.node for member in after.members] == ["node-0", "node-1"]
    assert [gone.node for gone in after.evicted] == ["node-2"]


def test_a_node_that_starts_anew_does_not_take_its_old_place(three):
    """Its workers are others: the rest restarts with them."""
    three.again_without_the_third()
    three.members["node-2"] = three.join("node-2")
    three.tools.wait_until(lambda: three.members["node-0"].num_waiting, "the others restart")
    with ThreadPoolExecutor(1) as pool:
        new = pool.submit(three.members["node-2"].next_round, lambda _: 4000)
        waiting = three.job.coordinator._rounds.waiting
        three.tools.wait_until(lambda: "node-2" in waiting, "it waits for the others")
        assert {found.membership.epoch for found in three.meet("node-0", "node-1")} == {1}
        assert new.result(three.tools.PATIENCE).rank == 2


def test_another_key_does_not_take_a_place(three):
    three.again_without_the_third()
    other = three.job.identity("node-2")
    channel = three.job.connect(other)
    channel.handshake(three.tools.soon())
    channel.send(three.tools.make_hello(other, resume=0), three.tools.soon())
    assert three.tools.answer(channel).code == "ST-ADMN-036"
    three.job.expect("ST-ADMN-036")
    assert not three.members["node-0"].num_waiting


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_nobody_takes_a_place_again_from_a_coordinator_that_lives(three, epoch):
    """Its connection was lost, and the others have heard that it is out."""
    three.members.pop("node-2").leave()
    three.tools.wait_until(lambda: "node-2" not in three.job.coordinator._nodes, "it is out")
    identity = three.identities["node-2"]
    channel = three.job.connect(identity)
    channel.handshake(three.tools.soon())
    channel.send(three.tools.make_hello(identity, resume=epoch), three.tools.soon())
    assert three.tools.answer(channel).code == "ST-ADMN-036"


def test_without_its_state_the_nodes_are_told_so(three):
    three.die()
    three.again(memory=None)
    for member in three.members.values():
        three.tools.wait_until(lambda m=member: not m.connected, "it is out")
        refused(AdmissionError, "ST-ADMN-036", lambda m=member: m.num_waiting)


def test_a_state_that_was_put_back_is_noticed(three):
    """Beside the ledger at the start, and by the members where both were put back."""
    old = three.memory.path.read_bytes()
    three.meet()
    three.meet()
    three.die()
    three.memory.path.write_bytes(old)
    refused(AdmissionError, "it knows epoch 0, the ledger 2", three.again, last_epoch=2)
    three.job.started.pop()
    three.again(last_epoch=0, generation=9)  # else it stands down, see test_two_coordinators
    for member in three.members.values():
        three.tools.wait_until(lambda m=member: not m.connected, "it is out")
        refused(AdmissionError, "ST-ADMN-036", lambda m=member: m.num_waiting)


def test_a_member_refuses_older_epochs():
    known = Reconnect(seen=lambda: 5)
    known.check(admit(5))
    error = refused(AdmissionError, "ST-ADMN-006", known.check, admit(4))
    assert "knows epoch 4, this node has seen 5" in str(error)


def admit(epoch) -> Any:
    return SimpleNamespace(epoch=epoch)


def test_killed_for_good_the_run_ends_at_the_lease(job, tools):
    job.start(1, 1, lease=1.5)
    member = job.make_member(comes_back=True)
    member.connect(job.host, job.port)
    member.next_round(lambda _: 4000)
    job.coordinator.stop(for_good=False)
    assert member.connected
    assert not member.num_waiting, "its workers go on"
    tools.wait_until(lambda: not member.connected, "the lease has ended")
    with pytest.raises(AdmissionError, match="did not come back before the lease ended") as error:
        assert member.num_waiting
    assert error.value.code == "ST-ADMN-007"


@pytest.mark.parametrize("how", ["bit", "short", "key", "job", "nonsense", "empty"])
def test_a_damaged_or_foreign_state_is_refused(three, how):
    three.die()
    path, data = three.memory.path, three.memory.path.read_bytes()
    changed = {
        "bit": bytes([*data[:200], data[200] ^ 1, *data[201:]]),
        "short": data[:-10],
        "key": encode_state(state_of(three), PrivateKey.generate()),
        "job": encode_state(replace(state_of(three), job="job-2"), three.memory.key),
        "nonsense": b"[]",
        "empty": b"",
    }
    path.write_bytes(changed[how])
    refused(AdmissionError, "ST-ADMN-037", three.again)
    three.job.started.pop()


def test_a_state_that_cannot_be_kept_forms_no_round(three, monkeypatch):
    """Else nodes would run an epoch that the next coordinator does not know."""

    def full(_state):
        raise UsageError("ST-USAG-006", "the disk is full")

    monkeypatch.setattr(JobMemory, "save", lambda _self, state: full(state))
    refused(AdmissionError, "ST-ADMN-012", three.meet)
    assert three.job.coordinator.problem is not None
    three.job.started.remove(three.job.coordinator)
    three.job.coordinator.stop()
