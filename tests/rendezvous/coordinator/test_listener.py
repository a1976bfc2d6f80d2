# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The connections that end when too many strangers wait."""

import socket
import subprocess
import sys
import threading

import pytest

from securetrain.rendezvous.coordinator.listener import Listener, bucket_of
from tests.tables import each

# Opens and keeps connections from one address of the machine, as fast as it can.
FLOOD = """
import socket, sys
host, port, source, number = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
held, failed = [], 0
for n in range(number):
    try:
        held.append(socket.create_connection((host, port), 30, (source, 0)))
    except OSError:
        failed += 1
    if n + 1 == number // 2:
        print("half", flush=True)
print("all", len(held), failed, flush=True)
sys.stdin.read()
"""


class Guest:
    """Waits until it is told to go."""

    def __init__(self, sock: socket.socket, remote: str) -> None:
        sock.close()
        self.remote = remote
        self.gone = threading.Event()
        self.error = None

    def run(self):
        self.gone.wait(60)

    def evict(self, error):
        self.error = error
        self.gone.set()


class Entrance:
    """A listener with three places, and a fake address for each newcomer."""

    def __init__(self, limit=3):
        self.listener = Listener(Guest, limit, lambda problem: None, stay=0.0)
        self.port = 0

    def come(self, address):
        self.port += 1
        near, far = socket.socketpair()
        self.listener._serve(near, address, self.port)
        far.close()
        guest = next(g for g in self.listener._strangers if g.remote == f"{address}:{self.port}")
        assert isinstance(guest, Guest)
        return guest


@pytest.fixture
def entrance():
    made = Entrance()
    yield made
    for guest in list(made.listener._strangers):
        guest.evict(None)


def test_one_address_pushes_out_its_own_oldest(entrance):
    guests = [entrance.come("10.0.0.1") for _ in range(5)]
    assert [g.gone.is_set() for g in guests] == [True, True, False, False, False]
    assert guests[0].error.code == "ST-ADMN-010"
    assert "3 of them from 10.0.0.1" in guests[0].error.what


def test_a_crowd_does_not_push_out_somebody_else(entrance):
    """The honest one came first and is the oldest of all."""
    honest = entrance.come("10.0.0.2")
    crowd = [entrance.come("10.0.0.1") for _ in range(50)]
    assert not honest.gone.is_set()
    assert sum(not g.gone.is_set() for g in crowd) == 2


def test_two_that_came_alone_share_with_the_crowd(entrance):
    crowd = [entrance.come("10.0.0.1") for _ in range(3)]
    alone = [entrance.come("10.0.0.2"), entrance.come("10.0.0.3")]
    more = entrance.come("10.0.0.1")
    assert all(g.gone.is_set() for g in crowd)
    assert not any(g.gone.is_set() for g in alone)
    assert not more.gone.is_set()


def test_an_ipv6_network_is_one_address(entrance):
    honest = entrance.come("2001:db8:0:2::1")
    for n in range(20):
        entrance.come(f"2001:db8:0:1::{n:x}")
    assert not honest.gone.is_set()


@each(
    "address, bucket",
    ("10.0.0.1", "10.0.0.1"),
    ("::1", "::/64"),
    ("fe80::1%eth0", "fe80::/64"),
    ("::ffff:10.0.0.1", "10.0.0.1"),
    ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
)
def test_what_counts_as_one_address(address, bucket):
    assert bucket_of(address) == bucket


def test_who_has_passed_has_a_place_no_more(entrance):
    guests = [entrance.come("10.0.0.1") for _ in range(3)]
    entrance.listener.passed(guests[0])
    entrance.come("10.0.0.1")
    assert not any(g.gone.is_set() for g in guests)


def flood(job, source, number):
    return subprocess.Popen(
        [sys.executable, "-c", FLOOD, job.host, str(job.port), source, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow  # a process of its own makes the flood
def test_5000_idle_connections_cannot_keep_a_member_out(job, tools):
    """One node joins in the middle of the flood and one after it; what is held stays bounded."""
    job.start(2, 2, policy=tools.make_policy(max_unauthenticated=64))
    before = threading.active_count()
    with flood(job, "127.0.0.2", 5000) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdin is not None
        assert attacker.stdout.readline() == "half\n"
        early = job.join("node-0")
        line = attacker.stdout.readline().split()
        late = job.join("node-1")
        assert line == ["all", "5000", "0"], "every connection was made"
        assert early.connected
        assert late.connected
        assert job.coordinator._listener.num_strangers <= 64
        tools.wait_until(
            lambda: threading.active_count() <= before + 64 + 8, "the threads of the evicted end"
        )
        attacker.stdin.close()
    assert job.expect("ST-ADMN-010", "connection-refused").details["what"]
    assert sum(e.code == "ST-ADMN-010" for e in job.events()) <= 50 * 2, "and so is the ledger"
