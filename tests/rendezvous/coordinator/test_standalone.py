# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A coordinator on its own: its run directory, revocation while nodes are in, restarts."""

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
from msgspec.structs import replace

from securetrain.attest.fleet import explain, fleet_status
from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.reference_file import write_reference_values
from securetrain.attest.session.state import Revocation
from securetrain.core.errors import (
    AdmissionError,
    AttestationError,
    IdentityError,
    PolicyError,
    SecureTrainError,
    UsageError,
)
from securetrain.core.rundir import RunDir
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.inventory import EnrolledNode
from securetrain.evidence.reference import ReferenceValues
from securetrain.identity.cluster_ca import ClusterCA
from securetrain.identity.keys import PrivateKey
from securetrain.identity.register import How, Kind
from securetrain.identity.trust import TrustRole, TrustRoot
from securetrain.ledger import Event, verify_ledger
from securetrain.policy.load import LoadedPolicy, digest_of, load_policy
from securetrain.rendezvous.coordinator import Watchers, standalone
from securetrain.rendezvous.coordinator.revoked import RevocationWatch
from securetrain.rendezvous.coordinator.standalone import Plan, Standalone
from securetrain.rendezvous.member.enrollee import enroll
from securetrain.rendezvous.member.identity_dir import NodeIdentity
from securetrain.testing.machine import REFERENCE_FILE, write_policy
from tests.rendezvous.webhook_reader import Reader
from tests.rendezvous.worlds import certified
from tests.vocabulary import refused


class Cluster:
    """A cluster CA and stand-alone coordinators of one job."""

    def __init__(self, job, tools, root: Path) -> None:
        self.job, self.tools, self.root = job, tools, root
        self.ca = ClusterCA.create(root / "ca", "securetrain.local", tools.now())
        self.events: list[str] = []
        self.started: list[Standalone] = []
        self.stop = threading.Event()
        self.watchers: list[Watchers] = []

    def start(self, **plan) -> Standalone:
        fields = {
            "job": self.job.name,
            "min_nodes": 1,
            "max_nodes": 1,
            "policy": self.tools.make_policy(),
            "run_dir": self.root / "run",
            "fleet": self.root / "fleet",
            **plan,
        }
        made = Standalone(
            plan=Plan(**fields),
            cluster=self.ca,
            unlock=self.ca.key,
            clock=self.tools.now,
            tell=self.hear,
        )
        made.start()
        self.started.append(made)
        self.job.host, self.job.port = made.address
        return made

    def hear(self, event) -> None:
        self.events.append(event.event)
        for watcher in self.watchers:
            watcher.take(event)

    def identity(self, node="node-0") -> NodeIdentity:
        return certified(self.ca, self.job.name, node, self.root / f"id-{node}")

    def join(self, identity):
        member = self.job.make_member(identity=identity)
        member.connect(self.job.host, self.job.port)
        return member

    def serve(self, running):
        result: list[bool] = []
        thread = threading.Thread(target=lambda: result.append(running.serve(self.stop)))
        thread.start()
        return thread, result

    def revoke(self, kind, name):
        self.ca.revoke(kind, name, "a test", self.tools.now(), self.ca.key())


@pytest.fixture
def cluster(job, tools, tmp_path, monkeypatch) -> Iterator[Cluster]:
    monkeypatch.setattr(standalone, "LOOK_SECONDS", 0.02)
    made = Cluster(job, tools, tmp_path)
    yield made
    made.stop.set()
    for running in made.started:
        running.stop()
    made.ca.close()


def test_a_job_from_its_first_node_to_its_end(cluster):
    running = cluster.start()
    thread, result = cluster.serve(running)
    member = cluster.join(cluster.identity())
    assert member.next_round(lambda membership: 20000).rank == 0
    member.close_job()
    member.leave()
    thread.join(30)
    assert result == [True]
    running.stop()
    run = RunDir(cluster.root / "run")
    keys = TrustRoot.load(run.trust, cluster.tools.now()).keys_for(TrustRole.LEDGER)
    ledger = verify_ledger(run.ledger.read_bytes(), keys, require_closed=True)
    assert [e.body.event.event for e in ledger.entries[1:]] == cluster.events
    assert {"node-admitted", "round-formed", "job-closed", "node-left"} <= set(cluster.events)
    private = (run.root / "keys/coordinator.pem", run.ledger, *(cluster.root / "fleet").iterdir())
    for path in private:
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert not run.attestation.exists()


def test_it_ends_when_it_is_told(cluster):
    thread, result = cluster.serve(cluster.start())
    cluster.stop.set()
    thread.join(30)
    assert result == [False]


def test_epochs_go_on_after_a_restart(cluster):
    first = cluster.start()
    member = cluster.join(cluster.identity())
    assert member.next_round(lambda membership: 20000).membership.epoch == 0
    assert member.next_round(lambda membership: 20000).membership.epoch == 1
    first.stop()
    cluster.start()
    again = cluster.join(cluster.identity())
    assert again.next_round(lambda membership: 20000).membership.epoch == 2


def test_a_ledger_that_was_edited_is_a_refusal(cluster):
    first = cluster.start()
    first.stop()
    path = cluster.root / "run/ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"coordinator-started", b"coordinator-stopped"))
    refused(SecureTrainError, "ST-LEDG-00", cluster.start)


def test_another_policy_in_the_same_directory(cluster):
    cluster.start().stop()
    with pytest.raises(PolicyError, match="ST-PLCY-005"):
        cluster.start(policy=cluster.tools.make_policy(max_nodes=7))


def test_another_kind_of_run_directory(cluster):
    cluster.start().stop()
    (cluster.root / "run/keys/coordinator.pem").unlink()
    refused(UsageError, "ST-USAG-005", cluster.start)


def test_a_policy_of_another_trust_domain(cluster):
    policy = cluster.tools.make_policy().policy
    identity = replace(policy.identity, trust_domain="other.example")
    changed = replace(policy, identity=identity)
    with pytest.raises(PolicyError, match="ST-PLCY-004"):
        cluster.start(policy=LoadedPolicy(policy=changed, digest=digest_of(changed)))


def test_a_port_that_is_taken_leaves_nothing_open(cluster):
    first = cluster.start()
    before = threading.active_count()
    with pytest.raises(UsageError, match="ST-USAG-003"):
        cluster.start(port=first.address[1], run_dir=cluster.root / "second")
    cluster.tools.wait_until(lambda: threading.active_count() <= before, "its threads end")


@pytest.mark.parametrize("whose", ["the coordinator's", "the enrollment server's", "both"])
def test_what_could_not_be_recorded_is_said_at_the_end(cluster, whose):
    running = cluster.start(enroll_port=0)
    full, other = (UsageError("ST-USAG-006", what) for what in ("the disk is full", "it still is"))
    if whose != "the enrollment server's":
        running.coordinator._note_problem(full)
    if whose != "the coordinator's":
        running.enrollment_server.note_problem(other if whose == "both" else full)
    with pytest.raises(UsageError) as caught:
        running.stop()
    assert caught.value is full
    running.stop()  # which is over: it has been said


# Revocation.


@pytest.mark.parametrize("kind", [Kind.NODE, Kind.SERIAL])
def test_a_revoked_node_is_evicted_and_stays_out(cluster, kind):
    running = cluster.start(min_nodes=2, max_nodes=2)
    thread, _ = cluster.serve(running)
    identity, other = cluster.identity(), cluster.identity("node-1")
    member, bystander = cluster.join(identity), cluster.join(other)
    serial = f"{identity.certificate.serial_number:x}"
    names = {Kind.NODE: "node-0", Kind.SERIAL: serial}
    cluster.revoke(kind, names[kind])
    cluster.tools.wait_until(lambda: "node-evicted" in cluster.events, "the node is evicted")
    cluster.tools.wait_until(lambda: not member.connected, "the node notices")
    refused(AdmissionError, "ST-ADMN-013", lambda m=member: m.num_waiting)
    assert bystander.connected
    refused(AdmissionError, "ST-ADMN-013", cluster.join, identity)
    codes = [e.code for e in ledger_of(cluster)]
    assert codes.count("ST-ADMN-013") == 2, "evicted, then refused"
    assert bystander.connected
    cluster.stop.set()
    thread.join(30)


def test_a_revoked_job_ends_for_everybody_and_does_not_start_again(cluster):
    running = cluster.start(min_nodes=2, max_nodes=2)
    thread, _ = cluster.serve(running)
    identity = cluster.identity()
    members = [cluster.join(identity), cluster.join(cluster.identity("node-1"))]
    cluster.revoke(Kind.JOB, cluster.job.name)
    for member in members:
        cluster.tools.wait_until(lambda m=member: not m.connected, "it is out")
        refused(
            AdmissionError, "ST-ADMN-013: job job-1 was revoked", lambda m=member: m.num_waiting
        )
    refused(AdmissionError, "ST-ADMN-013", cluster.join, identity)
    cluster.stop.set()
    thread.join(30)
    running.stop()
    refused(IdentityError, "ST-IDEN-011", cluster.start)
    refused(IdentityError, "ST-IDEN-011", cluster.identity, "node-2")


def ledger_of(cluster):
    lines = (cluster.root / "run/ledger.jsonl").read_bytes().splitlines()
    return [Event(**json.loads(line)["body"]["event"]) for line in lines]


def test_a_revoked_node_is_out_at_its_next_lease_even_if_nobody_looks(cluster):
    """The watch is not running: renewing finds out all the same."""
    running = cluster.start()
    identity = cluster.identity()
    member = cluster.join(identity)
    cluster.revoke(Kind.NODE, "node-0")
    assert member.connected
    coordinator = running.coordinator
    session = coordinator._nodes["node-0"]
    refused(AdmissionError, "ST-ADMN-013", coordinator.renewed, session, member.result)


def test_a_broken_list_lets_nobody_in_and_evicts_nobody(cluster):
    running = cluster.start(min_nodes=2, max_nodes=2)
    thread, _ = cluster.serve(running)
    member = cluster.join(cluster.identity())
    other = cluster.identity("node-1")
    good = cluster.ca.revocations_file.read_bytes()
    cluster.ca.revocations_file.write_bytes(b"{}")
    cluster.tools.wait_until(lambda: "revocations-refused" in cluster.events, "it is noticed")
    refused(AdmissionError, "ST-ADMN-012", cluster.join, other)
    assert "ST-ADMN-012" in [e.code for e in ledger_of(cluster)]
    assert member.connected
    cluster.ca.revocations_file.write_bytes(good)
    cluster.tools.wait_until(lambda: "revocations-read" in cluster.events, "it is read again")
    cluster.join(other)
    cluster.stop.set()
    thread.join(30)


def test_a_list_that_goes_back_while_it_runs(cluster, tmp_path):
    """On a coordinator elsewhere no register knows better: the running one remembers."""
    cluster.ca.export(cluster.job.name, tmp_path / "there", cluster.tools.now(), cluster.ca.key)
    there = ClusterCA.load(tmp_path / "there", cluster.tools.now())
    old = there.revocations_file.read_bytes()
    watch = RevocationWatch(there)
    assert watch.refresh()
    assert not watch.refresh()
    cluster.revoke(Kind.NODE, "node-0")
    there.revocations_file.write_bytes(cluster.ca.revocations_file.read_bytes())
    assert watch.refresh()
    assert (watch.number, watch.problem) == (1, None)
    there.revocations_file.write_bytes(old)
    assert watch.refresh()
    assert isinstance(watch.problem, IdentityError)
    assert "an old list" in watch.problem.what
    there.close()


def test_no_start_without_a_list(cluster):
    cluster.ca.revocations_file.unlink()
    refused(IdentityError, "ST-IDEN-012", cluster.start)


def test_a_renewed_certificate_stands_in_the_register(cluster):
    running = cluster.start()
    identity = cluster.identity()
    made = running._issue("node-0", identity.key.public)
    entries = cluster.ca.register.issued()
    assert {(e.serial, e.how) for e in entries} >= {(f"{made.serial_number:x}", How.RENEWAL)}
    cluster.revoke(Kind.NODE, "node-0")
    refused(IdentityError, "ST-IDEN-011", running._issue, "node-0", identity.key.public)


# Enrollment.


def test_an_invitation_leads_into_the_job(cluster):
    running = cluster.start(enroll_port=0)
    ends = cluster.tools.now() + timedelta(minutes=5)
    token = running.invite("node-0", ends)
    assert cluster.ca.register.endpoint(cluster.job.name) == f"{token.host}:{token.port}"
    member = cluster.join(enroll(token, cluster.root / "id", clock=cluster.tools.now))
    assert member.connected
    assert running.address != running.enrollment
    running.stop()
    assert cluster.ca.register.endpoint(cluster.job.name) == ""


def test_tokens_name_the_host_that_is_advertised(cluster):
    running = cluster.start(enroll_port=0, advertise="head.example")
    token = running.invite("node-0", cluster.tools.now() + timedelta(minutes=5))
    assert token.host == "head.example"


def test_no_enrollment_server_no_invitation(cluster):
    refused(UsageError, "ST-USAG-001", cluster.start().invite, "node-0", cluster.tools.now())


def test_a_plan_is_data():
    assert dataclasses.is_dataclass(Plan)
    assert Plan.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.forgery
def test_who_is_revoked_here_is_out_of_every_job(cluster, tools):
    cluster.start()
    member = cluster.join(cluster.identity())
    member.leave()
    with closing(FleetState(cluster.root / "fleet", "securetrain.local")) as state:
        state.revoke(Revocation(subject="node:node-0", reason="it lied", since="then"))
    for running in cluster.started:
        running.stop()
    for run in ("run", "another"):
        cluster.start(run_dir=cluster.root / run)
        refused(AttestationError, "ST-ATTS-010", cluster.join, cluster.identity())
        cluster.started[-1].stop()


def test_a_refusal_of_a_running_coordinator_is_told_and_counted(cluster, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    secret.chmod(0o600)
    with closing(Reader(200)) as reader:
        watchers = Watchers(
            cluster.job.name, cluster.tools.now, metrics="0", webhook=reader.url, secret=secret
        )
        cluster.watchers.append(watchers)
        cluster.start()
        with closing(FleetState(cluster.root / "fleet", "securetrain.local")) as state:
            state.revoke(Revocation(subject="node:node-0", reason="it lied", since="then"))
        cluster.started.pop().stop()
        cluster.start(run_dir=cluster.root / "another")
        refused(AttestationError, "ST-ATTS-010", cluster.join, cluster.identity())
        cluster.started.pop().stop()
        with urlopen(f"http://{watchers.metrics}/metrics") as answer:
            page = answer.read().decode()
        watchers.stop()
        (heard,) = reader.heard
    assert 'nodes_refused_total{code="ST-ATTS-010"} 1' in page
    assert "securetrain_coordinator_barred 1" in page
    notice = json.loads(heard[1])
    assert notice["kind"] == "refusal"
    assert notice["subject"] == f"spiffe://securetrain.local/job/{cluster.job.name}/node/node-0"
    (refusal,) = explain(str(cluster.root / "another")).refusals
    assert refusal.code == "ST-ATTS-010"
    assert refusal.node == "node-0"


def test_a_fleet_is_shown_with_the_leases_of_a_job_that_runs(cluster):
    running = cluster.start()
    member = cluster.join(cluster.identity())
    with closing(FleetState(cluster.root / "fleet", "securetrain.local")) as state:

        def look():
            return fleet_status(
                state,
                cluster.tools.now(),
                policy=running.plan.policy,
                runs=[running.plan.run_dir],
                ca=cluster.root / "ca",
            )

        found = look()
        (node,) = found.nodes
        assert (node.name, node.tier, found.leases) == ("node-0", NodeTier.SELF_ASSERTED, 1)
        assert "certificate" in {one.kind for one in found.endings}
        assert not found.problems
        member.leave()
        running.stop()
        assert look().leases == 0


@pytest.mark.forgery
def test_old_reference_values_put_back_between_two_jobs(cluster, tools, tmp_path):
    now = tools.now() - timedelta(seconds=1)
    node = EnrolledNode(ek_names=("000b" + "ab" * 32,))
    ends = now + timedelta(days=1)
    values = ReferenceValues(version=1, issued=now, expires=ends, nodes={"node-0": node})
    operator = PrivateKey.generate()
    path = write_policy(tmp_path, values, operator)
    file = path.parent / REFERENCE_FILE
    old = file.read_bytes()
    write_reference_values(file, replace(values, version=2), operator)
    cluster.start(policy=load_policy(str(path))).stop()
    file.write_bytes(old)
    with pytest.raises(AttestationError, match="version 1, version 2 was accepted before"):
        cluster.start(policy=load_policy(str(path)), run_dir=tmp_path / "another")
    control = cluster.start(
        policy=load_policy(str(path)), run_dir=tmp_path / "third", fleet=tmp_path / "nobody"
    )
    control.stop()


@pytest.mark.forgery
def test_a_memory_that_was_put_back_is_noticed_by_the_run(cluster):
    with closing(FleetState(cluster.root / "fleet")) as state:
        state.revoke(Revocation(subject="ek:ab", reason="it lied", since="then"))
    cluster.start().stop()
    refused(AttestationError, "ST-ATTS-017", cluster.start, fleet=cluster.root / "an-older-copy")
