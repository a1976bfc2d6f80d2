# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job network of a run, around an overlay that is a recording (real: test_overlay_netns)."""

import os
import signal
from datetime import UTC, datetime
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError, NetworkError, UsageError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.identity.keys import PrivateKey
from securetrain.launch import agent
from securetrain.launch.jobnetwork import JobNetwork, needs_network, own_address, prober
from securetrain.ledger import Ledger, verify_ledger
from securetrain.network import engines, leftovers, rootless
from securetrain.network.leftovers import Collected
from securetrain.network.overlay import Overlay
from securetrain.network.wireguard import WireGuardKey

OVERLAY = NetworkProfile.OVERLAY
DEAD = NetworkError("ST-NETW-014", "the engine died", "wireguard-go", "start again")


@pytest.fixture
def ledger(tmp_path):
    return Ledger(
        tmp_path / "ledger.jsonl", PrivateKey.generate(), "agent", lambda: datetime.now(UTC)
    )


def events(ledger):
    found = verify_ledger(ledger.path.read_bytes(), {ledger.key.key_id: ledger.key.public})
    return [entry.body.event for entry in found.entries]


class Recorded:
    """Instead of an overlay."""

    def __init__(self, plan=None, *, fails=None) -> None:
        self.plan = plan or SimpleNamespace(key=WireGuardKey.generate())
        self.names = SimpleNamespace(namespace="st-x")
        self.engine = SimpleNamespace(name="recorded")
        self.port = 5000
        self.address = ip_address("100.64.0.1")
        self.fails = fails
        self.num_downs = 0
        self.died: Any = None

    def watch(self, died):
        self.died = died

    def command(self, argv):
        return ["/usr/bin/nsenter", "--", *argv]

    def down(self):
        self.num_downs += 1
        if self.fails:
            raise self.fails


@pytest.fixture
def up(monkeypatch, ledger):
    """`JobNetwork.up` without a kernel."""
    made = []

    def build(plan):
        made.append(Recorded(plan))
        return made[-1]

    monkeypatch.setattr(Overlay, "up", build)
    monkeypatch.setattr(leftovers, "collect", lambda: Collected(removed=("st-old",)))

    def start(coordinator="127.0.0.1:29400", bind=""):
        return JobNetwork.up(
            job="job-1", node="node-0", coordinator=coordinator, bind=bind, ledger=ledger
        )

    return start


def test_which_profiles_need_one():
    assert needs_network(OVERLAY)
    assert needs_network(NetworkProfile.OVERLAY_ROOTLESS)
    assert not needs_network(NetworkProfile.LOOPBACK)


def test_several_nodes_need_a_coordinator_that_all_reach(monkeypatch):
    monkeypatch.setattr(engines, "probe", lambda _: "")
    assert "--rdzv-endpoint" in prober(max_nodes=2, joins=False)(OVERLAY)
    assert not prober(max_nodes=2, joins=True)(OVERLAY)
    assert not prober(max_nodes=1, joins=False)(OVERLAY)


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(engines, "probe", lambda _: "missing: user id 0")
    assert prober(max_nodes=2, joins=True)(OVERLAY) == "missing: user id 0"


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_user_namespace_is_not_entered_by_itself(monkeypatch, is_inside):
    monkeypatch.setattr(rootless, "is_inside", lambda: is_inside)
    monkeypatch.setattr(engines, "probe", lambda _: "")
    reason = prober(max_nodes=1, joins=False)(NetworkProfile.OVERLAY_ROOTLESS)
    assert (not reason) is is_inside


def test_up_cleans_up_first_and_records(up, ledger):
    network = up()
    assert [event.event for event in events(ledger)] == ["leftovers-removed", "job-network-up"]
    assert events(ledger)[0].subject == "st-old"
    details = events(ledger)[1].details
    assert details["key"] == network.tunnel.key
    assert details["endpoint"] == "127.0.0.1 port 5000"
    # Loopback's packets are larger than any tunnel's may be.
    assert network.overlay.plan.endpoint is None
    assert network.tunnel.endpoint == ip_address("127.0.0.1")


def test_an_address_of_the_users_own(up):
    network = up(bind="192.0.2.7")
    assert network.overlay.plan.endpoint == network.endpoint == ip_address("192.0.2.7")


def test_an_address_that_is_none(up):
    with pytest.raises(UsageError) as error:
        up(bind="node-a.example")
    assert error.value.code == "ST-USAG-001"


def test_workers_start_inside(up):
    plan = agent.Plan(config=None, program="python", arguments=("-u", "s.py"), protected=True)
    inside = up().inside(plan)
    assert inside.program == "/usr/bin/nsenter"
    assert inside.arguments == ("--", "python", "-u", "s.py")
    assert inside.protected


def test_down_once(up, ledger):
    network = up()
    network.down()
    network.down()
    assert network.overlay.num_downs == 1
    assert network.problem is None
    assert events(ledger)[-1].event == "job-network-down"


def test_what_could_not_be_removed_is_a_problem(up, ledger):
    network = up()
    network.overlay.fails = NetworkError("ST-NETW-021", "it stays")
    network.down()
    assert network.problem is network.overlay.fails
    assert (events(ledger)[-1].event, events(ledger)[-1].code) == (
        "job-network-failed",
        "ST-NETW-021",
    )


def test_a_dead_engine_ends_the_run(up, ledger, monkeypatch):
    network = up()
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    network.overlay.died(DEAD)
    assert sent == [(os.getpid(), signal.SIGTERM)]
    network.overlay.fails = NetworkError("ST-NETW-021", "it stays")
    network.down()
    assert network.problem is DEAD
    assert events(ledger)[-1].code == "ST-NETW-014"


def test_nothing_stays_when_the_network_cannot_be_watched(up, monkeypatch):
    seen = []

    def watch(overlay, _died):
        seen.append(overlay)
        raise DEAD

    monkeypatch.setattr(Recorded, "watch", watch)
    with pytest.raises(NetworkError):
        up()
    assert [overlay.num_downs for overlay in seen] == [1]


def test_own_address():
    assert own_address("127.0.0.1:29400") == ip_address("127.0.0.1")
    with pytest.raises(UsageError):
        own_address("nowhere")
    with pytest.raises(AdmissionError) as error:
        own_address("name.invalid:29400")
    assert error.value.code == "ST-ADMN-007"
