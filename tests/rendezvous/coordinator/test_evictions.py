# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Who is evicted is cut off at once, and every later membership says since when it is doubted."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError, AttestationError, UsageError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.rendezvous.coordinator.evictions import Evictions
from securetrain.rendezvous.wire.protocol import MAX_EVICTED, Status
from tests.rendezvous.worlds import entry, membership_of

CONTRADICTED = AttestationError("ST-ATTS-008", "its kernel is another one")
REVOKED = AdmissionError("ST-ADMN-013", "node-1 was revoked")
START = datetime(2026, 1, 1, tzinfo=UTC)


def fake_session(node: str, proven: datetime | None = START) -> Any:
    return SimpleNamespace(node=node, proven=proven)


def membership(epoch, *nodes):
    entries = [entry(rank, node=node) for rank, node in enumerate(nodes)]
    issued = START + timedelta(hours=1)
    return membership_of(*entries, epoch=epoch, round=epoch, issued=issued)


@pytest.fixture
def account():
    made = Evictions()
    made.formed(membership(3, "node-0", "node-1", "node-2"))
    return made


def test_nobody(account):
    assert account.all == account.out == ()


def test_who_is_gone_is_out_of_its_epoch(account):
    account.gone("node-1")
    account.gone("node-1")
    account.gone("spare")
    assert account.out == ("node-1",)
    assert account.all == ()


def test_who_was_contradicted_is_doubted_since_its_last_good_evidence(account):
    gone = account.add(fake_session("node-1"), CONTRADICTED)
    assert account.all == (gone,)
    assert (gone.code, gone.last_good, gone.epoch, gone.led) == ("ST-ATTS-008", START, 3, False)


@pytest.mark.parametrize(
    "error",
    [
        None,
        AdmissionError("ST-ADMN-005", "silence"),
        AdmissionError("ST-ADMN-007", "hung up"),
        AdmissionError("ST-ADMN-012", "the coordinator could not decide"),
        UsageError("ST-USAG-006", "the coordinator's disk is full"),
    ],
    ids=lambda error: getattr(error, "code", "left"),
)
def test_who_goes_is_doubted_only_if_the_policy_says_so(account, error):
    gone = account.add(fake_session("node-1"), error)
    assert (gone.code, gone.last_good, gone.epoch) == ("ST-ADMN-018", START, 3)
    trusting = Evictions(doubt_lost=False)
    trusting.formed(membership(3, "node-0", "node-1"))
    assert trusting.add(fake_session("node-1"), error) is None
    assert trusting.all == ()
    doubted = trusting.add(fake_session("node-1"), REVOKED)
    assert doubted is not None
    assert doubted.code == "ST-ADMN-013"


def test_who_found_the_job_closed_is_not_doubted(account):
    assert account.add(fake_session("node-1"), AdmissionError("ST-ADMN-008", "closed")) is None


def test_who_was_in_no_epoch_left_nothing_to_doubt(account):
    assert account.add(fake_session("spare"), REVOKED) is None
    assert account.all == ()


def test_who_has_never_proven_anything_was_never_believed(account):
    assert account.add(fake_session("node-1", None), REVOKED) is None
    assert account.all == ()


def test_a_spare_node_of_an_earlier_epoch_is_doubted_for_that_one(account):
    account.formed(membership(4, "node-0", "node-2"))
    gone = account.add(fake_session("node-1"), REVOKED)
    account.gone("node-1")
    assert gone.epoch == 3
    assert account.out == ()


def test_rank_0_signed_what_it_says(account):
    assert account.add(fake_session("node-0"), REVOKED).led
    account.formed(membership(4, "node-1", "node-2"))
    assert account.add(fake_session("node-1"), REVOKED).led


def test_the_next_epoch_begins_without_anybody_out_but_remembers(account):
    gone = account.add(fake_session("node-1"), REVOKED)
    account.gone("node-1")
    account.formed(membership(4, "node-0", "node-2"))
    assert account.out == ()
    assert account.all == (gone,)


def test_the_oldest_are_forgotten_first(account):
    for n in range(MAX_EVICTED + 5):
        account.add(fake_session("node-1", START + timedelta(seconds=n)), REVOKED)
    assert len(account.all) == MAX_EVICTED
    assert account.all[-1].last_good == START + timedelta(seconds=MAX_EVICTED + 4)


# On a real coordinator.


@dataclass
class RecordingTunnel:
    """What a node was told to do with its end of the job network."""

    key: str
    port: int
    profile: NetworkProfile = NetworkProfile.OVERLAY
    done: list[str] = field(default_factory=list)

    def apply(self, given, *_):
        self.done.append(f"apply {given.epoch}")

    def drop(self, nodes):
        self.done.append(f"drop {' '.join(nodes)}")

    def clear(self):
        self.done.append("clear")


def form(members, port=20000):
    """Let all members into one round; returns it by node."""
    found = {}

    def wait(name, member):
        found[name] = member.next_round(lambda _: port)

    threads = [threading.Thread(target=wait, args=pair) for pair in members.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == len(members)
    return found


@pytest.fixture
def trio(job):
    """Three members of a job that goes on with two, and who is revoked in it."""
    revoked: set[str] = set()

    def check(peer, _certificate):
        if peer.node in revoked:
            raise AdmissionError("ST-ADMN-013", f"{peer.node} was revoked")

    job.start(2, 3, last_call=0.2, revoked=check)
    tunnels, members = {}, {}
    for n in range(3):
        key = PrivateKey.generate(KeyKind.P256).public.key_id[:41]
        tunnels[f"node-{n}"] = RecordingTunnel(f"{key}AA=", 5000 + n)
        members[f"node-{n}"] = job.join(f"node-{n}", tunnel=tunnels[f"node-{n}"])
    return job, members, tunnels, revoked


def test_a_revoked_member_is_cut_off_before_anybody_restarts(trio, tools):
    job, members, tunnels, revoked = trio
    first = form(members)
    epoch = first["node-0"].membership.epoch
    revoked.add("node-1")
    job.coordinator.recheck()
    for name in ("node-0", "node-2"):
        tools.wait_until(
            lambda name=name: "drop node-1" in tunnels[name].done, "the tunnel to node-1 is cut"
        )
        assert tunnels[name].done[-2:] == [f"apply {epoch}", "drop node-1"]
        assert members[name].num_waiting
    del members["node-1"]
    after = form(members)["node-2"].membership
    (gone,) = after.evicted
    assert (gone.node, gone.code, gone.epoch, gone.led) == ("node-1", "ST-ADMN-013", epoch, False)
    assert gone.last_good < after.issued
    assert "node-1" not in {member.node for member in after.members}
    assert tunnels["node-0"].done[-1] == f"apply {after.epoch}"
    (ended,) = [event for event in job.events() if event.event == "trust-ended"]
    assert ended.details["cause"] == "ST-ADMN-013"
    assert ended.details["last_good"] == gone.last_good.isoformat()


def test_a_member_that_drops_its_connection_keeps_no_tunnel(trio, tools):
    """Otherwise it would only have to hang up to be trusted for ever."""
    _, members, tunnels, _ = trio
    form(members)
    members["node-1"]._link._channel.abort()
    for name in ("node-0", "node-2"):
        tools.wait_until(
            lambda name=name: "drop node-1" in tunnels[name].done, "the tunnel to node-1 is cut"
        )
        tools.wait_until(lambda name=name: members[name].num_waiting, "a new round is asked for")
    del members["node-1"]
    (gone,) = form(members)["node-0"].membership.evicted
    assert (gone.node, gone.code) == ("node-1", "ST-ADMN-018")


def test_a_member_that_cannot_renew_its_lease_does_not_help_itself_by_hanging_up(job, tools):
    """Its own side may end the connection a moment before the coordinator does."""
    job.start(1, 2, last_call=0.2, lease=1.5)
    members = {"node-0": job.join("node-0"), "node-1": job.join("node-1")}
    members["node-1"]._link._renew_at = float("inf")
    epoch = form(members)["node-0"].membership.epoch
    joined = members.pop("node-1").result.issued
    tools.wait_until(lambda: members["node-0"].num_waiting, "the other one is told")
    (gone,) = form(members)["node-0"].membership.evicted
    assert gone.code in {"ST-ATTS-007", "ST-ADMN-018"}
    assert (gone.node, gone.epoch) == ("node-1", epoch)
    assert gone.last_good <= joined


def test_the_end_of_a_job_leaves_nothing_in_doubt(job, tools):
    job.start(1, 2, last_call=0.2)
    members = {"node-0": job.join("node-0"), "node-1": job.join("node-1")}
    form(members)
    members["node-0"].close_job()
    for member in members.values():
        member.leave()
    tools.wait_until(lambda: len([e for e in job.events() if e.event == "node-left"]) == 2, "left")
    assert not [event for event in job.events() if event.event == "trust-ended"]


def test_a_member_that_leaves_keeps_no_tunnel_and_the_others_go_on_without_it(trio, tools):
    _, members, tunnels, _ = trio
    form(members)
    members["node-1"].leave()
    tools.wait_until(lambda: "drop node-1" in tunnels["node-0"].done, "its tunnel is cut")
    assert members["node-0"].num_waiting


def test_a_member_that_is_going_is_still_heard_and_the_others_meet_without_it(trio, tools):
    """Its workers may be saving, together with those of the others."""
    job, members, tunnels, _ = trio
    form(members)
    goes = members.pop("node-1")
    goes.say_going()
    for name in ("node-0", "node-2"):
        tools.wait_until(lambda name=name: members[name].num_waiting, "it is told")
        assert not [done for done in tunnels[name].done if done.startswith("drop")]
    assert goes.connected
    assert [entry.node for entry in form(members)["node-0"].membership.members] == [
        "node-0",
        "node-2",
    ]
    goes.say_going()
    goes.leave()
    tools.wait_until(lambda: [e for e in job.events() if e.event == "node-left"], "it has left")
    assert not any(member.num_waiting for member in members.values()), "nobody restarts again"
    assert [e.subject[-6:] for e in job.events() if e.event == "node-going"] == ["node-1"]


def test_what_a_member_did_until_it_proved_itself_before_leaving_is_believed(trio, tools):
    """Its last checkpoint, saved because it was told to end, is not set aside."""
    job, members, _, _ = trio
    form(members)
    goes = members.pop("node-1")
    goes.say_going()
    saved = tools.now()
    assert goes.prove_again(tools.PATIENCE)
    goes.leave()
    tools.wait_until(lambda: [e for e in job.events() if e.event == "trust-ended"], "it is gone")
    (gone,) = form(members)["node-0"].membership.evicted
    assert (gone.node, gone.code) == ("node-1", "ST-ADMN-018")
    assert gone.last_good > saved
    assert not goes.prove_again(0.1)


def test_a_member_that_is_done_and_leaves_makes_nobody_restart(trio, tools):
    """The others may have work left that needs no restart."""
    _, members, tunnels, _ = trio
    form(members)
    members["node-1"].close_job()
    members["node-1"].leave()
    tools.wait_until(lambda: "drop node-1" in tunnels["node-0"].done, "its tunnel is cut")
    assert not members["node-0"].num_waiting
    assert not members["node-0"].closed


def test_a_member_that_was_evicted_while_the_epoch_was_applied_is_cut_off_too(trio):
    """The coordinator's word may come before the main thread has applied the epoch."""
    _, members, tunnels, _ = trio
    member, tunnel = members["node-0"], tunnels["node-0"]
    apply = tunnel.apply

    def evict_first(*given):
        member._hear(Status(waiting=1, ready=0, closed=False, evicted=("node-2",)))
        apply(*given)

    class EnoughError(Exception):
        pass

    def drop(nodes):
        tunnel.done.append(f"drop {' '.join(nodes)}")
        if "apply 0" in tunnel.done:
            raise EnoughError

    tunnel.apply, tunnel.drop = evict_first, drop
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(form, {name: members[name] for name in ("node-1", "node-2")})
        with pytest.raises(EnoughError):
            member.next_round(lambda _: 20000)
        assert others.result(60)["node-1"].membership.epoch == 1, "they go on"
    assert tunnel.done[-3:] == ["drop node-2", "apply 0", "drop node-2"]


def test_a_renewal_moves_the_time_until_which_a_node_is_believed(job, tools):
    job.start(1, 2, last_call=0.2, lease=3.0)
    members = {"node-0": job.join("node-0"), "node-1": job.join("node-1")}
    form(members)
    joined = members["node-1"].result.issued
    tools.wait_until(lambda: members["node-1"].result.issued > joined, "it was attested again")
    renewed = members["node-1"].result.issued
    for session in list(job.coordinator._sessions):
        if session.node == "node-1":
            session.evict(CONTRADICTED)
    tools.wait_until(lambda: members["node-0"].num_waiting, "the other one is told")
    del members["node-1"]
    (gone,) = form(members)["node-0"].membership.evicted
    assert joined < gone.last_good
    assert gone.last_good < datetime.now(UTC)
    assert renewed - gone.last_good < timedelta(seconds=30)


@pytest.mark.parametrize("ahead", [timedelta(seconds=n) for n in (-50, 0, 50)])
def test_a_time_of_the_coordinator_by_a_clock_that_is_wrong(job, tools, ahead):
    job.start(1, 1, clock=lambda: tools.now() - ahead)
    member = job.join("node-0")
    theirs, ours = tools.now() - ahead, tools.now()
    assert ours - timedelta(seconds=30) < member.local_time(theirs) <= ours
