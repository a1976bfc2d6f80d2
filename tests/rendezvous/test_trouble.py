# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around the protocol: disks, dead and silent coordinators, nonsense from one.

Each ends in one error with its code, and nothing waits longer than its time-out. What a node may
try is in `test_attacks`; how `securetrain run` ends is in tests/launch.
"""

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from securetrain.core.codes import ExitCode
from securetrain.core.errors import AdmissionError, os_error
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.job_ca import JobCA
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.register import How
from securetrain.identity.spiffe import Role
from securetrain.ledger import Ledger, verify_ledger
from securetrain.rendezvous.coordinator.session import Session
from securetrain.rendezvous.member.identity_dir import store_identity
from securetrain.rendezvous.wire.protocol import Heartbeat, Status, encode_frame
from tests.tables import items
from tests.vocabulary import refused

PATIENCE = 30.0
_ports = count(20000)


def open_store(_membership):
    return next(_ports)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


# A full disk at the coordinator.


@pytest.fixture
def fail_at(monkeypatch):
    """Have the ledger's disk be full for one event."""
    append = Ledger.append

    def fail(name):
        def full(self, event):
            if event.event == name:
                raise os_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), str(self.path))
            append(self, event)

        monkeypatch.setattr(Ledger, "append", full)

    return fail


@pytest.fixture
def recorded(job, tools):
    """After the test: the coordinator has kept what was wrong with its disk."""
    yield
    for coordinator in job.started:
        tools.wait_until(lambda c=coordinator: c.problem, "the problem is kept")
        assert coordinator.problem.code == "ST-USAG-006"
        coordinator._problem = None


@pytest.mark.parametrize("last_call", [600.0, 0.2], ids=["when all are in", "after the last call"])
def test_a_round_that_cannot_be_recorded_is_none(job, pool, fail_at, recorded, last_call):
    """Everybody in it hears so at once. (The time-out would be ten minutes.)"""
    fail_at("round-formed")
    job.start(2, 2 if last_call > 1 else 3, last_call=last_call)
    members = [job.join(f"node-{n}") for n in range(2)]
    for future in [pool.submit(m.next_round, open_store) for m in members]:
        with pytest.raises(AdmissionError, match="ST-ADMN-012: the round could not be recorded"):
            future.result(PATIENCE)
    assert job.coordinator.membership is None
    assert not job.coordinator._assembly.evictions.all, "nobody is to blame"


def test_after_a_full_disk_the_next_round_forms_with_the_next_epoch(job, pool, fail_at, recorded):
    job.start(1, 1)
    assert job.join().next_round(open_store).membership.epoch == 0
    job.members[-1].leave()
    fail_at("round-formed")
    refused(AdmissionError, "ST-ADMN-012", job.join().next_round, open_store)
    fail_at("nothing")
    assert job.join().next_round(open_store).membership.epoch == 1


def test_a_store_that_cannot_be_recorded_is_announced_to_nobody(job, pool, tools, fail_at):
    fail_at("store-announced")
    job.start(2, 2)
    members = [job.join(f"node-{n}") for n in range(2)]
    first, second = (pool.submit(m.next_round, open_store, 2.0) for m in members)
    refused(AdmissionError, "ST-ADMN-012", first.result, PATIENCE)
    refused(AdmissionError, "ST-ADMN-005", second.result, PATIENCE)


def test_a_lease_that_cannot_be_recorded_is_not_renewed(job, tools, fail_at):
    fail_at("lease-renewed")
    job.start(lease=0.9, heartbeat=0.2)
    member = job.join()
    tools.wait_until(lambda: not member.connected, "it is out")
    refused(AdmissionError, "ST-ADMN-012", lambda m=member: m.num_waiting)
    assert not job.coordinator._assembly.evictions.all, "the node is not to blame"


# A coordinator of its own: killed, restarted, out of disk.


class Machine:
    """``securetrain coordinator`` in a process, and identities of its job."""

    def __init__(self, job, tools, root):
        self.job, self.tools, self.root = job, tools, root
        self.ca = ClusterCA.create(root / "ca", "securetrain.local", tools.now())
        self.process: Any = None

    def start(self, port=0):
        command = [
            *(sys.executable, "-m", "securetrain", "coordinator", "--ca", str(self.root / "ca")),
            *("--job", self.job.name, "--nnodes", "2", "--policy", str(self.policy()), "--json"),
            *("--port", str(port)),
        ]
        self.process = subprocess.Popen(
            command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        address = self.wait_for("ready")["address"]
        self.job.host, port = address.rsplit(":", 1)
        self.job.port = int(port)

    def policy(self):
        """Two unattested nodes, and short time-outs."""
        path = self.root / "two.yaml"
        path.write_text(
            "apiVersion: securetrain.dev/policy/v1\nkind: Policy\nextends: dev\n"
            "metadata: {id: two, version: 1.0.0, title: Two}\n"
            "node:\n  allow_self_asserted: {max_nodes: 2, reason: a test}\n"
        )
        return path

    def wait_for(self, event):
        for line in self.process.stdout:
            found = json.loads(line)
            if found["event"] == event:
                return found
        raise AssertionError(f"no {event}: {self.process.communicate()}")

    def fill_up(self):
        """From now on the kernel lets none of its files grow."""
        size = self.ledger.stat().st_size
        _, self.limit = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, self.limit))

    def make_room(self):
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (self.limit, self.limit))

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def join(self, node="node-0", **settings):
        now = self.tools.now()
        key = PrivateKey.generate(KeyKind.P256)
        ca = self.ca.job(self.job.name, now, self.ca.key)
        leaf = self.ca.issue(
            *(ca, Role.NODE, key.public, now),
            node=node,
            lifetime=timedelta(hours=1),
            how=How.COMMAND,
        )
        folder = self.root / f"{node}-{next(_ports)}"
        identity = store_identity(folder, key, leaf, ca.certificate, now)
        member = self.job.make_member(identity=identity, **settings)
        member.connect(self.job.host, self.job.port)
        return member

    @property
    def ledger(self):
        return self.root / f"runs/{self.job.name}-coordinator/ledger.jsonl"


@pytest.fixture
def machine(job, tools, tmp_path):
    made = Machine(job, tools, tmp_path)
    yield made
    if made.process is not None:
        made.kill()
    made.ca.close()


@pytest.mark.dist
def test_a_coordinator_that_is_killed(machine, pool, tools):
    """Before the round, in it, and after it: each node hears at once; and then it comes back."""
    machine.start()
    waits = machine.join("node-0")
    future = pool.submit(waits.next_round, open_store)
    machine.wait_for("node-admitted")
    machine.kill()
    refused(AdmissionError, "ST-ADMN-007", future.result, PATIENCE)
    refused(AdmissionError, "ST-ADMN-007: no coordinator answers", machine.join, "node-0")

    machine.start(machine.job.port)
    members = [machine.join(f"node-{n}") for n in range(2)]

    def dies(membership):
        machine.kill()
        return open_store(membership)

    for future in [pool.submit(member.next_round, dies) for member in members]:
        refused(AdmissionError, "ST-ADMN-007", future.result, PATIENCE)

    machine.start(machine.job.port)
    members = [machine.join(f"node-{n}") for n in range(2)]
    rounds = [pool.submit(member.next_round, open_store) for member in members]
    assert [r.result(PATIENCE).membership.epoch for r in rounds] == [1, 1], "epochs go on"
    machine.process.send_signal(signal.SIGKILL)
    for member in members:
        tools.wait_until(lambda m=member: not m.connected, "it notices")
        refused(AdmissionError, "ST-ADMN-007", lambda m=member: m.num_waiting)


@pytest.mark.dist
def test_a_coordinator_whose_disk_fills_up(machine):
    """The kernel refuses to let its files grow. Nobody gets in; the ledger stays whole; and when
    there is room again it goes on."""
    machine.start()
    machine.join("node-0")
    machine.fill_up()
    size = machine.ledger.stat().st_size
    refused(AdmissionError, "ST-ADMN-012", machine.join, "node-1")
    assert machine.ledger.stat().st_size == size
    machine.make_room()
    assert machine.join("node-1").connected
    machine.process.send_signal(signal.SIGTERM)
    machine.process.communicate(timeout=60)
    key = PrivateKey.load(machine.ledger.parent / "keys/coordinator.pem")
    keys = {key.key_id: key.public}
    events = verify_ledger(machine.ledger.read_bytes(), keys, require_closed=True).entries
    admitted = [e.body.event.subject[-6:] for e in events if e.body.event.event == "node-admitted"]
    assert admitted == ["node-0", "node-1"]


@pytest.mark.dist
def test_a_coordinator_that_cannot_close_its_ledger_says_so(machine):
    machine.start()
    machine.fill_up()
    machine.process.send_signal(signal.SIGTERM)
    out, err = machine.process.communicate(timeout=60)
    assert machine.process.returncode == int(ExitCode.IO)
    assert "ST-USAG-002" in out + err, "which is what the kernel calls a limit of file sizes"
    assert "ledger.jsonl" in out + err


@pytest.mark.dist
def test_a_coordinator_that_hangs(machine):
    """The kernel still takes the connection; nobody answers."""
    machine.start()
    machine.process.send_signal(signal.SIGSTOP)
    refused(AdmissionError, "ST-ADMN-005", machine.join, timeout=0.5)


def test_a_coordinator_that_falls_silent(job, tools, monkeypatch):
    job.start(heartbeat=0.2)
    member = job.join()
    monkeypatch.setattr(Session, "_send_posted", lambda self: self.wakeup.clear())
    tools.wait_until(lambda: not member.connected, "the node gives up")
    refused(
        AdmissionError, "ST-ADMN-007: the coordinator was silent", lambda m=member: m.num_waiting
    )


def test_whoever_accepts_and_says_nothing_is_no_coordinator(job):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        job.host, job.port = listener.getsockname()
        begin = time.monotonic()
        refused(AdmissionError, "ST-ADMN-005", job.join, timeout=0.5)
        assert time.monotonic() - begin < PATIENCE


def test_a_coordinator_that_comes_back_with_another_key(job, pool, tools):
    """Each coordinator has a key of its own. The old connection is over, and what the new one
    signs is checked against the certificate that it shows."""
    first = job.start(1, 1)
    old = job.join()
    old.next_round(open_store)
    key = first._terms.key.public.key_id
    first.stop()
    tools.wait_until(lambda: not old.connected, "it notices")
    refused(AdmissionError, "ST-ADMN-007", old.next_round, open_store)
    again = job.start(1, 1, last_epoch=first.membership.epoch)
    assert again._terms.key.public.key_id != key
    new = job.join()
    assert new.next_round(open_store).membership.epoch == 1


def test_a_coordinator_that_comes_back_with_another_ca(job, tools):
    """The node tells it nothing, not even its name."""
    job.start().stop()
    identity = job.identity()
    job.ca = JobCA.create("securetrain.local", job.name, tools.now())
    job.start()
    refused(AdmissionError, "ST-ADMN-002", job.join, identity=identity)
    (event,) = [e for e in job.events() if e.event == "connection-refused"]
    assert "node-0" not in event.subject


# Nonsense from the coordinator: a node judges its frames as the coordinator judges the node's.


def frame(body):
    return len(body).to_bytes(4, "big") + body


@items(
    "id, data",
    ("4 GiB", b"\xff\xff\xff\xff"),
    ("empty frame", bytes(4)),
    ("duplicate key", frame(b'{"type":"heartbeat","type":"heartbeat"}')),
    ("deep", frame(b"[" * 60000)),
    ("NaN", frame(b'{"type":"status","waiting":NaN}')),
    ("out of bounds", frame(b'{"type":"status","waiting":-1}')),
    ("pickle", frame(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00.")),
    ("only nodes send this", frame(b'{"type":"renew"}')),
)
def test_bad_frames_from_the_coordinator(job, tools, monkeypatch, data):
    job.start()
    member = job.join()

    def bad(message):
        return data if isinstance(message, Status) else encode_frame(message)

    monkeypatch.setattr("securetrain.rendezvous.wire.channel.encode_frame", bad)
    member._link.post(Heartbeat())
    tools.wait_until(lambda: not member.connected, "the node leaves")
    refused(AdmissionError, "ST-ADMN-001", lambda m=member: m.num_waiting)
