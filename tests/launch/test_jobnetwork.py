# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job network of a run, around an overlay that is a recording (real: test_overlay_netns)."""

import os
import signal
import threading
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import NetworkError, UsageError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.identity.keys import PrivateKey
from securetrain.launch.agent import elastic_agent
from securetrain.launch.network.jobnetwork import JobNetwork, needs_network, prober
from securetrain.ledger import Ledger, verify_ledger
from securetrain.network import engines, leftovers, rootless
from securetrain.network.leftovers import Collected
from securetrain.network.overlay import Overlay
from securetrain.network.profile import VERBS
from securetrain.network.wireguard import Endpoint, WireGuardKey
from tests.vocabulary import refused

OVERLAY = NetworkProfile.OVERLAY
PLAN = elastic_agent.Plan(config=None, program="python", arguments=("-u", "s.py"), protected=True)
MEMBERSHIP: Any = SimpleNamespace(
    epoch=1,
    members=[
        SimpleNamespace(node="node-0", address="192.0.2.1"),
        SimpleNamespace(node="node-1", address="192.0.2.2"),
    ],
)
DEAD = NetworkError("ST-NETW-014", "the engine died", "wireguard-go", "start again")


@pytest.fixture
def ledger(tmp_path):
    return Ledger(
        tmp_path / "ledger.jsonl", PrivateKey.generate(), "agent", lambda: datetime.now(UTC)
    ).begin()


def events(ledger):
    found = verify_ledger(ledger.path.read_bytes(), {ledger.key.key_id: ledger.key.public})
    return [entry.body.event for entry in found.entries[1:]]


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
        self.folder = Path("/no/such")

    def watch(self, died):
        self.died = died

    def command(self, argv, **options):
        self.options = options
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

    def start(coordinator="127.0.0.1:29400", bind="", **options):
        return JobNetwork.up(
            job="job-1",
            node="node-0",
            coordinator=coordinator,
            bind=bind,
            ledger=ledger,
            **options,
        )

    return start


def test_which_profiles_need_one():
    assert needs_network(OVERLAY)
    assert needs_network(NetworkProfile.OVERLAY_ROOTLESS)
    assert needs_network(NetworkProfile.RDMA_TRUSTED)
    assert not needs_network(NetworkProfile.LOOPBACK)


def test_several_nodes_need_a_coordinator_that_all_reach(monkeypatch):
    monkeypatch.setattr(engines, "probe", lambda _: "")
    assert "--rdzv-endpoint" in prober(max_nodes=2, joins=False)(OVERLAY)
    assert not prober(max_nodes=2, joins=True)(OVERLAY)
    assert not prober(max_nodes=1, joins=False)(OVERLAY)


@pytest.mark.parametrize("profile", [NetworkProfile.NCCL_TLS, *sorted(VERBS)])
def test_what_nccl_does_beside_the_tunnel_needs_the_tunnel_and_a_look(monkeypatch, profile):
    monkeypatch.setattr(engines, "probe", lambda asked: "" if asked is OVERLAY else "wrong")
    assert "nobody looked" in prober(max_nodes=1, joins=True)(profile)
    assert prober(max_nodes=1, joins=True, fabric_obstacle=lambda _: "")(profile) == ""
    assert (
        prober(max_nodes=1, joins=True, fabric_obstacle=lambda p: f"no {p}")(profile)
        == f"no {profile}"
    )
    monkeypatch.setattr(engines, "probe", lambda _: "no root")
    assert prober(max_nodes=1, joins=True, fabric_obstacle=lambda _: "")(profile) == "no root"


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(engines, "probe", lambda _: "missing: user id 0")
    assert prober(max_nodes=2, joins=True)(OVERLAY) == "missing: user id 0"


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


def test_inside_a_user_namespace_the_machines_address_is_announced(up, ledger):
    """The device's MTU is the one inside; the port is the one that leads there."""
    network = up(bind="192.0.2.9", forwarded_endpoint=Endpoint(ip_address("192.0.2.7"), 5000))
    assert network.tunnel.endpoint == ip_address("192.0.2.7")
    assert network.overlay.plan.endpoint == rootless.INNER_ADDRESS
    assert network.overlay.plan.port == 5000
    assert events(ledger)[1].details["endpoint"] == "192.0.2.7 port 5000"


def test_an_address_that_is_none(up):
    refused(UsageError, "ST-USAG-001", up, bind="node-a.example")


def test_workers_start_inside(up):
    network = up()
    inside = network.inside(PLAN)
    assert network.overlay.options == {"hidden": (Path("/dev/infiniband"),), "inherited_files": {}}
    assert inside.program == "/usr/bin/nsenter"
    assert inside.arguments == ("--", "python", "-u", "s.py")
    assert inside.protected


def test_a_worker_inherits_nccls_key_of_the_epoch(up, tmp_path, ledger):
    network = up(profile=NetworkProfile.NCCL_TLS)
    network.overlay.folder = tmp_path / "net"
    network.overlay.folder.mkdir()
    assert network.tunnel.profile is NetworkProfile.NCCL_TLS
    network.inside(PLAN)
    key = network.overlay.folder / "nccl.key"
    assert network.overlay.options["inherited_files"] == {"SECURETRAIN_NCCL_KEY": key}
    network.tunnel.applied(MEMBERSHIP, "a-key")
    network.tunnel.applied(MEMBERSHIP, "another")
    assert key.read_text() == "another"
    assert key.stat().st_mode & 0o777 == 0o600
    assert "another" not in ledger.path.read_text()
    refused(NetworkError, "ST-NETW-031", network.tunnel.applied, MEMBERSHIP, "")


def test_no_other_profile_leaves_a_key(up, tmp_path):
    network = up()
    network.overlay.folder = tmp_path / "net"
    network.overlay.folder.mkdir()
    network.tunnel.applied(MEMBERSHIP, "a-key")
    assert list(network.overlay.folder.iterdir()) == []


class Evidence:
    """Instead of `Verbs`: what stands behind RDMA, until it does not."""

    place, isolation = "mlx5_0 port 1", None

    def __init__(self) -> None:
        self.members: list[Any] = []
        self.how = ""

    def with_members(self, members):
        self.members = members
        return self

    def process(self):
        return None

    def failure_reason(self):
        return self.how

    def failure(self, how):
        return NetworkError("ST-NETW-033", how, "mlx5_0 port 1")


def test_rdma_is_looked_at_for_every_epoch_and_watched(up, ledger, monkeypatch):
    sent: list[Any] = []
    ended = threading.Event()

    def kill(*what):
        sent.append(what)
        ended.set()

    monkeypatch.setattr(os, "kill", kill)
    evidence: Any = Evidence()
    network = up(profile=NetworkProfile.IPSEC_OFFLOAD, verbs=evidence)
    network.inside(PLAN)
    assert network.overlay.options["hidden"] == ()
    network.tunnel.applied(MEMBERSHIP, "a-key")
    assert evidence.members == [ip_address("192.0.2.2")]
    (guarded,) = [e for e in events(ledger) if e.event == "rdma-guarded"]
    assert guarded.details["members"] == 1
    evidence.how = "the state is gone"
    assert ended.wait(30)
    assert sent == [(os.getpid(), signal.SIGTERM)]
    network.down()
    assert network.problem is not None
    assert (network.problem.code, events(ledger)[-1].code) == ("ST-NETW-033", "ST-NETW-033")


def test_without_evidence_no_epoch_is_applied(up):
    evidence: Any = Evidence()

    def with_members(_members):
        raise evidence.failure("nothing")

    evidence.with_members = with_members
    network = up(profile=NetworkProfile.IPSEC_OFFLOAD, verbs=evidence)
    refused(NetworkError, "ST-NETW-033", network.tunnel.applied, MEMBERSHIP, "")
    assert network.watcher is None


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
