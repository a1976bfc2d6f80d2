# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What members do when nobody attacks: join, form rounds, restart, scale, close."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from securetrain.core.errors import AdmissionError, AttestationError, SecureTrainError
from securetrain.core.vocabulary import UNATTESTED, Boundary, Decision, NodeTier
from securetrain.rendezvous.member.round import SpareNodeError
from tests.vocabulary import refused

_ports = count(20000)


def open_store(membership):
    return next(_ports)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(16) as executor:
        yield executor


def rounds(pool, members, timeout=20.0) -> list[Future[Any]]:
    return [pool.submit(member.next_round, open_store, timeout) for member in members]


def results(futures):
    return [future.result(20) for future in futures]


def test_one_node_joins_and_the_ledger_says_unattested(job):
    coordinator = job.start()
    member = job.join()
    found = member.next_round(open_store)
    assert (found.rank, found.world_size, found.host) == (0, 1, "127.0.0.1")
    assert member.result.tier is NodeTier.SELF_ASSERTED
    assert member.result.label == UNATTESTED
    (admission,) = coordinator.admissions
    assert (admission.node, admission.label) == ("node-0", UNATTESTED)
    assert admission.result == member.result.digest
    assert found.membership.members[0].result == admission.result
    admitted = next(e for e in job.events() if e.event == "node-admitted")
    assert admitted.boundary is Boundary.NODE
    assert admitted.decision is Decision.ALLOW
    assert admitted.details["label"] == UNATTESTED


def test_three_nodes_get_ranks_by_name_and_the_store_of_rank_0(job, pool):
    job.start(3, 3)
    members = [job.join(f"node-{n}") for n in (2, 0, 1)]
    found = results(rounds(pool, members))
    assert [r.rank for r in found] == [2, 0, 1]
    assert len({(r.host, r.port) for r in found}) == 1
    assert len({r.membership for r in found}) == 1
    assert [m.node for m in found[0].membership.members] == ["node-0", "node-1", "node-2"]
    assert {r.world_size for r in found} == {3}


def test_everybody_restarts_after_one_asks(job, pool):
    job.start(2, 2)
    members = [job.join(f"node-{n}") for n in range(2)]
    first = results(rounds(pool, members))
    assert [m.num_waiting for m in members] == [0, 0]
    (failed,) = rounds(pool, members[:1])
    while members[1].num_waiting == 0:  # this is how the other agent learns of it
        pass
    (other,) = rounds(pool, members[1:])
    second = results([failed, other])
    assert [r.membership.epoch for r in second] == [first[0].membership.epoch + 1] * 2
    assert second[0].port != first[0].port, "each round has a store of its own"


def test_the_answer_to_a_heartbeat_does_not_overtake_news(job, pool):
    """A status of the round before would have the agent restart workers that have just begun."""
    coordinator = job.start(2, 2)
    members = [job.join(f"node-{n}") for n in range(2)]
    results(rounds(pool, members))
    held = []
    session = SimpleNamespace(
        node="node-0", post=lambda _: held.append(coordinator._lock._is_owned())
    )
    coordinator.beat(session)
    assert held == [True], "nobody can change the rounds between the look and the message"


def test_min_nodes_start_after_the_last_call_and_a_late_one_makes_them_restart(job, pool, tools):
    job.start(1, 2, last_call=0.05)
    early = job.join("node-0")
    assert early.next_round(open_store).world_size == 1
    late = job.join("node-1")
    (waits,) = rounds(pool, [late])
    tools.wait_until(lambda: early.num_waiting == 1, "the late node is seen")
    (again,) = rounds(pool, [early])
    assert [r.world_size for r in results([waits, again])] == [2, 2]


def test_the_last_call_waits_for_more_nodes(job, pool):
    job.start(1, 2, last_call=600)
    first = job.join("node-0")
    (waits,) = rounds(pool, [first])
    second = job.join("node-1")
    assert second.next_round(open_store).world_size == 2
    assert waits.result(20).world_size == 2


def test_the_job_goes_on_with_fewer_nodes(job, pool, tools):
    job.start(1, 2, last_call=0.05)
    members = [job.join(f"node-{n}") for n in range(2)]
    results(rounds(pool, members))
    members[0].leave()
    found = members[1].next_round(open_store)
    assert (found.rank, found.world_size) == (0, 1)
    assert "node-left" in [e.event for e in job.events()]


def test_a_spare_node_steps_in(job, pool, tools):
    job.start(1, 1)
    member, spare = job.join("node-0"), job.join("node-1")
    member.next_round(open_store)
    (waits,) = rounds(pool, [spare], timeout=0.2)
    tools.wait_until(lambda: spare._status.spare, "it is spare")
    assert member.num_waiting == 0, "a spare node is no reason to restart"
    threading.Event().wait(0.3)
    assert not waits.done(), "a spare node waits longer than the join time-out"
    member.leave()
    assert waits.result(20).rank == 0


def test_a_spare_node_goes_gracefully_when_the_job_closes(job, pool, tools):
    job.start(1, 1)
    member, spare = job.join("node-0"), job.join("node-1")
    member.next_round(open_store)
    (waits,) = rounds(pool, [spare])
    tools.wait_until(lambda: spare._status.spare, "it is spare")
    member.close_job()
    refused(SpareNodeError, "ST-ADMN-008", waits.result, 20)


def test_a_closed_job_takes_nobody(job, pool):
    job.start(1, 2, last_call=0)
    member = job.join("node-0")
    member.next_round(open_store)
    member.close_job()
    assert member.closed
    refused(AdmissionError, "ST-ADMN-008", member.next_round, open_store)
    refused(AdmissionError, "ST-ADMN-008", job.join, "node-1")
    job.expect("ST-ADMN-008", "node-refused")


def test_a_node_that_waits_too_long_says_which_number_is_missing(job):
    job.start(2, 2)
    member = job.join("node-0")
    refused(AdmissionError, r"ST-ADMN-005: fewer than 2 nodes", member.next_round, open_store, 0.05)
    refused(AdmissionError, "ST-ADMN-007", lambda: member.num_waiting)


def test_when_rank_0_dies_before_its_store_is_up_the_others_form_again(job, pool):
    job.start(1, 2, last_call=0.2)
    members = [job.join(f"node-{n}") for n in range(2)]

    def broken(membership):
        raise RuntimeError("no store today")

    dies = pool.submit(members[0].next_round, broken, 20)
    lives = pool.submit(members[1].next_round, open_store, 20)
    refused(RuntimeError, "no store today", dies.result, 20)
    found = lives.result(20)
    assert (found.rank, found.world_size, found.membership.epoch) == (0, 1, 1)


def test_losing_the_coordinator_is_an_error_at_the_next_call(job, tools):
    coordinator = job.start()
    member = job.join()
    member.next_round(open_store)
    coordinator.stop()
    tools.wait_until(lambda: not member.connected, "the member notices")
    refused(AdmissionError, "ST-ADMN-007", lambda: member.num_waiting)


def test_no_coordinator(job):
    job.host, job.port = "127.0.0.1", 1
    refused(AdmissionError, "ST-ADMN-007", job.join)


def test_a_taken_port_is_one_clear_error(job, tmp_path):
    job.start()
    from securetrain.core.errors import UsageError

    refused(UsageError, "ST-USAG-003", job.coordinator._listener.open, job.host, job.port)


def test_a_lease_is_renewed_and_the_membership_after_it_still_fits(job, tools):
    job.start(1, 1, lease=3)
    member = job.join()
    first = member.result
    tools.wait_until(lambda: member.result is not first, "the lease is renewed")
    assert member.next_round(open_store).rank == 0
    assert "lease-renewed" in [e.event for e in job.events()]


def test_a_lease_that_cannot_be_renewed_ends_closed(job, tools):
    job.start(1, 1, lease=1.5)
    identity = job.identity()
    honest = job.attester(identity)
    calls = []

    class FirstTimeOnly:
        def keys(self):
            return None

        def collect(self, binding, ask):
            calls.append(binding)
            if len(calls) > 1:
                raise AttestationError("ST-ATTS-001", "the attester broke")
            return honest.collect(binding, ask)

    member = job.join(identity=identity, attester=FirstTimeOnly())
    tools.wait_until(lambda: not member.connected, "the node is out")
    with pytest.raises(SecureTrainError):
        _ = member.num_waiting
    tools.wait_until(lambda: job.coordinator._nodes == {}, "the coordinator dropped it")


def test_a_silent_node_is_evicted_and_the_others_are_told(job, pool, tools):
    job.start(1, 2, last_call=0.3, heartbeat=0.4)
    members = [job.join(f"node-{n}") for n in range(2)]
    results(rounds(pool, members))
    members[0]._link._send_posted = lambda channel: threading.Event().wait(2)  # it hangs
    event = job.expect("ST-ADMN-005", "node-evicted")
    assert event.subject.endswith("/node/node-0")
    tools.wait_until(lambda: members[1].num_waiting == 1, "the other agent is told to restart")
    assert members[1].next_round(open_store).world_size == 1


def test_sixteen_nodes_at_once(job, pool):
    job.start(16, 16)
    members = list(pool.map(job.join, [f"node-{n:02}" for n in range(16)]))
    found = results(rounds(pool, members))
    assert sorted(r.rank for r in found) == list(range(16))


def test_too_few_that_are_left_are_told_who_has_gone(job, tools):
    job.start(2, 3, last_call=0.05, policy=tools.make_policy(join_timeout_seconds=10))
    members = [job.join(f"node-{n}") for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda member: member.next_round(lambda _: 20000), members))
        members[1].leave()
        tools.wait_until(lambda: members[0].num_waiting, "the other one is told")
        with pytest.raises(
            AdmissionError, match=r"fewer than 2 nodes .*; node-1 has gone"
        ) as caught:
            members[0].next_round(lambda _: 20000)
    assert caught.value.code == "ST-ADMN-005"
