# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What torchelastic's agents rely on, in our words, run against torch's own rendezvous and ours.

Each test is one scenario for both sides (`elastic.Side`); its assertions are the same for both.
Where ours deliberately ends otherwise: `test_elastic_departures`. Every order of events, and not
only these: `test_elastic_model`.
"""

import threading
import time

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)

from tests.rendezvous.elastic import PATIENCE, Ours, Scene, Stock


# Torch is pinned, so what its own rendezvous does changes with the pin alone.
@pytest.fixture(params=[pytest.param("c10d", marks=pytest.mark.many), "securetrain"])
def scene(request, job, tools, monkeypatch):
    side = Stock(monkeypatch) if request.param == "c10d" else Ours(job, tools, monkeypatch)
    made = Scene(side)
    yield made
    side.end()
    made.end()


def ranks(infos):
    return [info.rank for info in infos]


# Joining.


def test_all_nodes_join(scene):
    scene.start(3, 3)
    infos = scene.meet(*scene.nodes(3))
    assert sorted(ranks(infos)) == [0, 1, 2]
    assert {info.world_size for info in infos} == {3}


def test_one_node_alone(scene):
    scene.start(1, 1)
    (info,) = scene.meet(scene.node(0))
    assert (info.rank, info.world_size) == (0, 1)


def test_ranks_follow_the_nodes_and_not_who_came_first(scene):
    scene.start(3, 3)
    nodes = scene.nodes(3)
    first = scene.come(nodes[2])
    scene.until(lambda: scene.is_in(nodes[2]), "the last node is first")
    others = scene.come(nodes[1], nodes[0])
    assert ranks(scene.results([*first, *others])) == [2, 1, 0]


def test_a_round_is_complete_at_once_when_all_are_in(scene):
    scene.start(1, 2, last_call=600)
    assert ranks(scene.meet(*scene.nodes(2))) == [0, 1]


def test_after_the_last_call_a_round_goes_without_the_others(scene):
    scene.start(2, 3, last_call=0.3)
    infos = scene.meet(*scene.nodes(2))
    assert {info.world_size for info in infos} == {2}


def test_who_comes_during_the_last_call_is_in(scene):
    scene.start(1, 2, last_call=600)
    nodes = scene.nodes(2)
    (first,) = scene.come(nodes[0])
    scene.until(lambda: scene.is_in(nodes[0]), "the first one is in")
    assert not first.done(), "it waits for more, though one would do"
    (second,) = scene.meet(nodes[1])
    assert (first.result(PATIENCE).world_size, second.world_size) == (2, 2)


def test_before_the_first_round_nobody_waits_and_nothing_is_closed(scene):
    scene.start(1, 2)
    handler = scene.node(0)
    assert handler.num_nodes_waiting() == 0
    assert not handler.is_closed()


def test_what_a_handler_says_of_itself(scene):
    scene.start(1, 1)
    handler = scene.node(0)
    assert handler.get_backend() == scene.backend
    assert handler.get_run_id() == "job-1"
    assert handler.use_agent_store


# Rounds.


def test_asking_again_is_the_next_round(scene):
    scene.start(1, 1)
    handler = scene.node(0)
    for _ in range(4):
        (info,) = scene.meet(handler)
        assert (info.rank, info.world_size) == (0, 1)


def test_one_that_restarts_waits_until_the_others_have_seen_it(scene):
    scene.start(2, 2)
    nodes = scene.nodes(2)
    scene.meet(*nodes)
    assert nodes[1].num_nodes_waiting() == 0
    (failed,) = scene.come(nodes[0])
    scene.waiting(nodes[1], 1)
    assert not failed.done()
    (other,) = scene.meet(nodes[1])
    assert (failed.result(PATIENCE).rank, other.rank) == (0, 1), "and ranks stay what they were"


def test_a_late_node_waits_and_is_in_the_next_round(scene):
    scene.start(1, 2, last_call=0.2)
    nodes = scene.nodes(2)
    (alone,) = scene.meet(nodes[0])
    assert alone.world_size == 1
    (late,) = scene.come(nodes[1])
    scene.waiting(nodes[0], 1)
    assert not late.done()
    (again,) = scene.meet(nodes[0])
    assert (again.world_size, late.result(PATIENCE).world_size) == (2, 2)
    assert nodes[0].num_nodes_waiting() == 0


def test_several_late_nodes_are_all_counted(scene):
    scene.start(1, 3, last_call=0.2)
    nodes = scene.nodes(3)
    scene.meet(nodes[0])
    late = scene.come(nodes[1], nodes[2])
    scene.waiting(nodes[0], 2)
    infos = scene.results([*scene.come(nodes[0]), *late])
    assert ranks(infos) == [0, 1, 2]


def test_a_late_node_with_a_lower_name_takes_rank_0(scene):
    scene.start(1, 2, last_call=0.2)
    nodes = scene.nodes(2)
    (alone,) = scene.meet(nodes[1])
    assert alone.rank == 0
    late = scene.come(nodes[0])
    scene.waiting(nodes[1], 1)
    assert ranks(scene.results([*late, *scene.come(nodes[1])])) == [0, 1]


def test_scaling_up_and_down_again(scene):
    scene.start(1, 3, last_call=0.3, dead_after=1.2)
    nodes = scene.nodes(3)
    scene.meet(nodes[0])
    sizes = []
    for number in (2, 3):
        late = scene.come(nodes[number - 1])
        scene.waiting(nodes[0], 1)
        members = scene.come(*nodes[: number - 1])
        sizes.append({info.world_size for info in scene.results([*members, *late])})
    for number in (2, 1):
        scene.kill(nodes[number])
        scene.until(lambda n=number: not scene.is_in(nodes[n]), "it is out")
        sizes.append({info.world_size for info in scene.meet(*nodes[:number])})
    assert sizes == [{2}, {3}, {2}, {1}]


def test_when_rank_0_goes_the_others_move_up(scene):
    scene.start(1, 3, last_call=0.3, dead_after=1.2)
    nodes = scene.nodes(3)
    assert ranks(scene.meet(*nodes)) == [0, 1, 2]
    scene.kill(nodes[0])
    scene.until(lambda: not scene.is_in(nodes[0]), "it is out")
    assert ranks(scene.meet(*nodes[1:])) == [0, 1]


# Spare nodes.


def full(scene, **times):
    """Two members and a third node that has no place."""
    scene.start(1, 2, **times)
    nodes = scene.nodes(3)
    for handler in nodes[:2]:
        scene.be_patient(handler)
    scene.meet(*nodes[:2])
    (spare,) = scene.come(nodes[2])
    scene.until(lambda: scene.is_spare(nodes[2]), "the third node is spare")
    return nodes, spare


def test_a_node_too_many_is_spare_and_makes_nobody_restart(scene):
    nodes, spare = full(scene)
    assert [h.num_nodes_waiting() for h in nodes[:2]] == [0, 0]
    assert not spare.done()


def test_a_spare_node_waits_longer_than_the_join_timeout(scene):
    nodes, spare = full(scene, join=0.3)
    threading.Event().wait(0.6)
    assert not spare.done()
    assert scene.is_spare(nodes[2])


def test_a_spare_node_steps_in_when_a_member_is_lost(scene):
    nodes, spare = full(scene, last_call=0.2, dead_after=1.2)
    scene.kill(nodes[1])
    scene.waiting(nodes[0], 1)
    infos = scene.results([*scene.come(nodes[0]), spare])
    assert ranks(infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}


def test_a_spare_node_leaves_gracefully_when_the_job_closes(scene):
    nodes, spare = full(scene)
    nodes[0].set_closed()
    with pytest.raises(RendezvousGracefulExitError):
        spare.result(PATIENCE)


# Signs of life.


@pytest.mark.slow  # silence is measured
def test_a_silent_node_is_out_of_the_next_round(scene):
    scene.start(1, 2, last_call=0.3, heartbeat=0.5)
    nodes = scene.nodes(2)
    scene.meet(*nodes)
    scene.hang(nodes[1])
    scene.until(lambda: not scene.is_in(nodes[1]), "it is out")
    (info,) = scene.meet(nodes[0])
    assert (info.rank, info.world_size) == (0, 1)


@pytest.mark.slow  # silence is measured
def test_nodes_that_beat_stay_in(scene):
    scene.start(1, 3, last_call=0.2, heartbeat=0.5)
    nodes = scene.nodes(2)
    scene.meet(*nodes)
    threading.Event().wait(2.0)  # four beats; three missed ones would be the end
    third = scene.come(scene.node(2))
    scene.waiting(nodes[0], 1)
    infos = scene.results([*scene.come(*nodes), *third])
    assert {info.world_size for info in infos} == {3}


def test_a_waiting_node_that_dies_does_not_wait_any_more(scene):
    scene.start(1, 2, last_call=0.2, dead_after=1.2)
    nodes = scene.nodes(2)
    scene.meet(nodes[0])
    (late,) = scene.come(nodes[1])
    scene.waiting(nodes[0], 1)
    scene.kill(nodes[1])
    scene.waiting(nodes[0], 0)
    with pytest.raises(RendezvousConnectionError):
        late.result(PATIENCE)


def threads_of(scene):
    name = "RendezvousKeepAliveTimer_" if scene.backend == "c10d" else "rendezvous-link"
    return [t for t in threading.enumerate() if t.name.startswith(name)]


@pytest.mark.parametrize("how", ["shutdown", "dropped"])
def test_a_handlers_thread_ends_with_it(scene, how):
    scene.start(1, 1)
    before = len(threads_of(scene))
    handler = scene.node(0)
    handler.next_rendezvous()
    assert len(threads_of(scene)) == before + 1
    if how == "shutdown":
        handler.shutdown()
    del handler
    scene.until(lambda: len(threads_of(scene)) == before, "its thread has ended")


# Closing.


def test_a_closed_rendezvous_takes_nobody(scene):
    scene.start(1, 2, last_call=0.2)
    nodes = scene.nodes(2)
    scene.meet(nodes[0])
    nodes[0].set_closed()
    assert nodes[0].is_closed()
    for handler in nodes:
        with pytest.raises(RendezvousClosedError):
            handler.next_rendezvous()


def test_everybody_hears_that_it_is_closed(scene):
    scene.start(2, 2)
    nodes = scene.nodes(2)
    scene.meet(*nodes)
    nodes[0].set_closed()
    scene.until(nodes[1].is_closed, "the other one knows")
    with pytest.raises(RendezvousClosedError):
        nodes[1].next_rendezvous()


def test_closing_twice_is_closing(scene):
    scene.start(1, 1)
    handler = scene.node(0)
    scene.meet(handler)
    handler.set_closed()
    handler.set_closed()
    assert handler.is_closed()


def test_closing_ends_the_wait_of_who_waits_for_a_round(scene):
    scene.start(1, 3, last_call=0.2)
    nodes = scene.nodes(2)
    scene.meet(nodes[0])
    (waits,) = scene.come(nodes[1])
    scene.waiting(nodes[0], 1)
    nodes[0].set_closed()
    with pytest.raises(RendezvousClosedError):
        waits.result(PATIENCE)


def test_nobody_waits_for_a_round_any_more_once_all_that_ran_have_shut_down(scene):
    scene.start(1, 3, last_call=0.2)
    nodes = scene.nodes(3)
    infos = scene.meet(*nodes[:2])
    assert {info.world_size for info in infos} == {2}
    (waits,) = scene.come(nodes[2])
    scene.waiting(nodes[0], 1)
    for handler in nodes[:2]:
        assert handler.shutdown()
    with pytest.raises(RendezvousClosedError):
        waits.result(PATIENCE)


def test_shutting_down_closes(scene):
    scene.start(1, 1)
    handler = scene.node(0)
    scene.meet(handler)
    assert handler.shutdown()
    assert handler.shutdown(), "and again"
    assert handler.is_closed()
    with pytest.raises(RendezvousClosedError):
        handler.next_rendezvous()
    with pytest.raises(RendezvousClosedError):
        scene.node(1).next_rendezvous()


# Time-outs.


def test_too_few_nodes_in_time(scene):
    scene.start(2, 2, join=0.3)
    with pytest.raises(RendezvousTimeoutError):
        scene.node(0).next_rendezvous()


def test_a_late_node_for_which_nobody_restarts(scene):
    scene.start(1, 2, last_call=0.1, join=0.5)
    nodes = scene.nodes(2)
    scene.be_patient(nodes[0])
    scene.meet(nodes[0])
    with pytest.raises(RendezvousTimeoutError):
        nodes[1].next_rendezvous()
    scene.waiting(nodes[0], 0)


def test_who_has_given_up_is_in_no_later_round(scene):
    scene.start(2, 3, last_call=0.2, join=0.3)
    gives_up, *others = scene.nodes(3)
    with pytest.raises(RendezvousTimeoutError):
        gives_up.next_rendezvous()
    for handler in others:
        scene.be_patient(handler)
    infos = scene.meet(*others)
    assert ranks(infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}


def test_who_has_given_up_may_try_again(scene):
    scene.start(2, 2, join=0.3)
    nodes = scene.nodes(2)
    with pytest.raises(RendezvousTimeoutError):
        nodes[0].next_rendezvous()
    for handler in nodes:
        scene.be_patient(handler)
    assert ranks(scene.meet(*nodes)) == [0, 1]


# The store.


def test_the_members_of_a_round_share_a_store(scene):
    scene.start(2, 2)
    infos = scene.meet(*scene.nodes(2))
    infos[1].store.set("key", "value")
    assert infos[0].store.get("key") == b"value"
    assert infos[0].store.add("count", 1) == 1
    assert infos[1].store.add("count", 1) == 2


def test_a_round_does_not_see_the_keys_of_the_one_before(scene):
    scene.start(2, 2)
    nodes = scene.nodes(2)
    before = scene.meet(*nodes)
    before[0].store.set("old", "round")
    after = scene.meet(*nodes)
    assert not after[0].store.check(["old"])
    assert not after[1].store.check(["old"])


def test_every_member_tells_its_workers_the_same_address_which_is_rank_0s(scene):
    scene.start(2, 2)
    infos = scene.meet(*scene.nodes(2))
    where = {
        (i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos
    }
    assert len(where) == 1
    assert next(iter(where))[0] == "127.0.0.1"


def test_the_workers_address_is_the_nodes_local_address(scene):
    scene.start(1, 1)
    (info,) = scene.meet(scene.node(4))
    assert info.bootstrap_store_info.master_addr == "127.0.0.5"


# What holds it together is gone.


def test_when_the_backend_is_gone_every_call_says_so(scene):
    scene.start(1, 1)
    handler = scene.node(0)
    handler.next_rendezvous()
    scene.break_down()
    scene.until(lambda: fails(handler.num_nodes_waiting), "it notices")
    with pytest.raises(RendezvousConnectionError):
        handler.next_rendezvous()
    assert not handler.shutdown(), "nobody could be told"


def fails(call):
    try:
        call()
    except RendezvousConnectionError:
        return True
    return False


def test_a_backend_that_was_never_there(scene):
    scene.start(1, 1)
    handler = scene.node(0)
    scene.break_down()
    begin = time.monotonic()
    with pytest.raises(RendezvousConnectionError):
        handler.next_rendezvous()
    assert time.monotonic() - begin < PATIENCE
