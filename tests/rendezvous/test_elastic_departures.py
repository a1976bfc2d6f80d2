# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Where our rendezvous deliberately does otherwise than torchelastic's.

Each test shows what torch 2.13 does first, and then what ours does: so that a torch that changes is
noticed, and no difference is an accident. The list is in docs/explanation/rendezvous.md too.
"""

import threading

import pytest
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from tests.rendezvous.elastic import PATIENCE, Fresh, Ours, Scene, Stock
from tests.vocabulary import refused


@pytest.fixture
def scenes(job, tools, monkeypatch):
    made = []

    def make(kind=Fresh):
        sides = Stock(monkeypatch, kind), Ours(job, tools, monkeypatch)
        made.extend([Scene(sides[0]), Scene(sides[1])])
        return made

    yield make
    for scene in made:
        scene.side.end()
        scene.end()


def ranks(infos):
    return [info.rank for info in infos]


@pytest.mark.parametrize("how", ["kill", "hang"])
def test_the_others_are_told_of_a_member_that_is_lost(scenes, how):
    """torch drops it and tells nobody: the others notice when their collectives time out
    (pytorch/pytorch#111646); what its documentation says of departures is what ours does."""
    for scene in scenes():
        times = {"heartbeat": 0.5} if how == "hang" else {"dead_after": 1.2}
        scene.start(1, 3, last_call=0.3, **times)
        nodes = scene.nodes(2)
        scene.meet(*nodes)
        getattr(scene, how)(nodes[1])
        scene.until(lambda s=scene, n=nodes: not s.is_in(n[1]), "it is out")
        if scene.backend == "c10d":
            assert nodes[0].num_nodes_waiting() == 0
        else:
            scene.waiting(nodes[0], 1)


def test_one_identity_is_one_node(scenes):
    """To torch every handler is a node, so one machine can take two places."""
    stock, ours = scenes()
    stock.start(2, 2)
    assert ranks(stock.meet(stock.node(0), stock.node(0))) == [0, 1]

    ours.start(2, 2)
    first = ours.node(0)
    ours.come(first)
    ours.until(lambda: ours.is_in(first), "the first is in")
    refused(RendezvousConnectionError, "ST-ADMN-011", ours.node(0).next_rendezvous)


def test_a_node_that_never_joined_closes_nothing_but_its_own_handler(scenes):
    """Whoever reaches torch's store closes the job; nobody has authenticated yet."""
    stock, ours = scenes()
    for scene in (stock, ours):
        scene.start(1, 2, last_call=0.2)
        member, stranger = scene.nodes(2)
        scene.meet(member)
        stranger.set_closed()
        assert stranger.is_closed()
        assert member.is_closed() == (scene is stock)
    with pytest.raises(RendezvousClosedError):
        stranger.next_rendezvous()
    assert ranks(ours.meet(member)) == [0], "the job goes on"


def test_a_node_that_has_given_up_does_not_close_the_job_for_the_others(scenes):
    """torchrun shuts its rendezvous down on the way out, also after a time-out."""
    stock, ours = scenes()
    for scene in (stock, ours):
        scene.start(1, 2, last_call=0.2, join=0.3)
        member, late = scene.nodes(2)
        scene.be_patient(member)
        scene.meet(member)
        with pytest.raises(RendezvousTimeoutError):
            late.next_rendezvous()
        late.shutdown()
        assert member.is_closed() == (scene is stock)


def test_a_node_that_shuts_down_before_the_round_is_complete_takes_only_itself_out(scenes):
    """In torch whoever shuts down first ends the job for all; here it is in no round yet."""
    stock, ours = scenes()
    for scene in (stock, ours):
        scene.start(2, 3, last_call=0.3)
        nodes = scene.nodes(3)
        futures = scene.come(nodes[0])
        scene.until(lambda s=scene, n=nodes: s.is_in(n[0]), "one of two is in")
        assert nodes[0].shutdown()
        if scene is stock:
            with pytest.raises(RendezvousClosedError):
                futures[0].result(PATIENCE)
            with pytest.raises(RendezvousClosedError):
                nodes[1].next_rendezvous()
        else:
            refused(RendezvousConnectionError, "ST-ADMN-007", futures[0].result, PATIENCE)
            assert ranks(scene.meet(*nodes[1:])) == [0, 1], "the others have their round"


def test_one_member_alone_does_not_end_the_job(scenes):
    """In torch any node does. Here rank 0's does, or more than half of the round."""
    stock, ours = scenes()
    for scene in (stock, ours):
        scene.start(3, 4, last_call=0.3)
        nodes = scene.nodes(4)
        scene.meet(*nodes[:3])
        nodes[2].set_closed()
        assert nodes[2].is_closed(), "to itself it has"
        if scene is stock:
            scene.until(nodes[0].is_closed, "the others know")
            continue
        late = scene.come(nodes[3])
        scene.waiting(nodes[0], 1)
        assert not nodes[0].is_closed()
        assert nodes[2].shutdown()
        infos = scene.results([*scene.come(*nodes[:2]), *late])
        assert sorted(ranks(infos)) == [0, 1, 2], "without the one that is done"
        for handler in nodes[1:]:
            handler.set_closed()
        ours.until(nodes[0].is_closed, "two of three have closed it")


def test_a_spare_node_does_not_end_the_job(scenes):
    """In torch it does, though it has no part in it."""
    stock, ours = scenes()
    for scene in (stock, ours):
        scene.start(1, 1)
        nodes = scene.nodes(2)
        scene.meet(nodes[0])
        scene.come(nodes[1])
        scene.until(lambda s=scene, n=nodes: s.is_spare(n[1]), "the second node is spare")
        nodes[1].set_closed()
        if scene is stock:
            scene.until(nodes[0].is_closed, "the member knows")
        else:
            assert ranks(scene.meet(nodes[0])) == [0]
            job = scene.side.job
            assert job.expect("ST-ADMN-033", "close-ignored")


def test_all_nodes_are_started_for_the_same_number_of_nodes(scenes):
    """torch believes each node its own numbers."""
    stock, ours = scenes()
    stock.start(2, 2)
    two = stock.node(0)
    stock.side.low = stock.side.high = 1
    assert stock.meet(stock.node(1))[0].world_size == 1
    (waits,) = stock.come(two)
    stock.until(lambda: stock.is_spare(two) or two.num_nodes_waiting(), "it waits in vain")
    assert not waits.done()

    ours.start(2, 2)
    ours.side.range = 1, 1
    refused(RendezvousConnectionError, r"--nnodes 2:2 on every node", ours.node(0).next_rendezvous)


def test_the_workers_never_open_a_store_themselves(scenes, monkeypatch):
    """theirs would listen on every interface."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    stock, ours = scenes()
    for scene in (stock, ours):
        scene.start(1, 1)
        assert scene.node(0).use_agent_store == (scene is ours)


def test_a_member_that_restarts_keeps_its_place_before_a_spare_node(scenes):
    """In torch a member that restarts makes room, and the spare nodes race it for that; all are
    counted as waiting, and the one that loses perhaps also in the full round that follows."""
    stock, ours = scenes()
    for scene in (stock, ours):
        scene.start(2, 2)
        nodes = scene.nodes(3)
        scene.meet(*nodes[:2])
        spare = scene.come(nodes[2])
        scene.until(lambda s=scene, n=nodes: s.is_spare(n[2]), "the third node is spare")
        restarts = scene.come(nodes[0])
        scene.waiting(nodes[1], 2 if scene is stock else 1)
        futures = [*restarts, *scene.come(nodes[1]), *spare]
        scene.until(lambda f=futures: sum(map(is_done, f)) == 2, "two of three are in")
        winners = [node for node, future in zip(nodes, futures, strict=True) if future.done()]
        if scene is stock:  # whether torch still counts the loser is part of the race
            assert winners[0].num_nodes_waiting() in {0, 1}
        else:
            scene.waiting(winners[0], 0)
    assert winners == nodes[:2]
    assert ours.is_spare(nodes[2])


def is_done(future):
    return future.done()


def test_every_round_has_a_store_of_its_own_and_everybody_learns_its_address(scenes):
    """torch 2.13 keeps the first round's address: a node that joins later waits for it in vain."""
    stock, ours = scenes(DynamicRendezvousHandler)
    for scene in (stock, ours):
        scene.start(1, 2, last_call=0.2, **({"store": 1.0} if scene is stock else {}))
        nodes = scene.nodes(2)
        scene.meet(nodes[0])
        (late,) = scene.come(nodes[1])
        scene.waiting(nodes[0], 1)
        (again,) = scene.meet(nodes[0])
        if scene is stock:
            with pytest.raises(DistStoreError):
                late.result(PATIENCE)
        else:
            first, second = again.bootstrap_store_info, late.result(PATIENCE).bootstrap_store_info
            assert first.master_port == second.master_port


def test_after_rank_0_the_others_learn_the_address_of_the_next_one(scenes):
    """In torch 2.13 rank 2, now rank 1, still sends its workers to the node that is gone."""
    stock, ours = scenes(DynamicRendezvousHandler)
    for scene in (stock, ours):
        scene.start(1, 3, last_call=0.3, dead_after=1.2)
        nodes = scene.nodes(3)
        scene.meet(*nodes)
        scene.kill(nodes[0])
        scene.until(lambda s=scene, n=nodes: not s.is_in(n[0]), "it is out")
        first, second = (info.bootstrap_store_info for info in scene.meet(*nodes[1:]))
        same = (first.master_addr, first.master_port) == (second.master_addr, second.master_port)
        assert same == (scene is ours)


def test_a_round_whose_rank_0_dies_before_its_store_is_up_begins_again(scenes, monkeypatch):
    """In torch the others wait for its address until a time-out of the store."""
    stock, ours = scenes()

    def broken(*_):
        raise RuntimeError("no store today")

    stock.start(1, 2, last_call=0.2, store=1.0)
    nodes = stock.nodes(2)
    monkeypatch.setattr(nodes[0], "_create_tcp_store_server", broken)
    dies, lives = stock.come(*nodes)
    refused(RuntimeError, "no store today", dies.result, PATIENCE)
    with pytest.raises(DistStoreError):
        lives.result(PATIENCE)

    ours.start(1, 2, last_call=0.2)
    nodes = ours.nodes(2)
    monkeypatch.setattr(nodes[0], "_host", broken)
    dies, lives = ours.come(*nodes)
    refused(RuntimeError, "no store today", dies.result, PATIENCE)
    assert (lives.result(PATIENCE).rank, lives.result(PATIENCE).world_size) == (0, 1)


def test_who_has_closed_the_job_stays_until_the_others_of_its_round_have(scenes, monkeypatch):
    """Its store and its end of the job network would go with it. torch returns at once."""
    stock, ours = scenes()
    for scene in (stock, ours):
        scene.start(2, 2)
        nodes = scene.nodes(2)
        scene.meet(*nodes)
        if scene is ours:
            monkeypatch.setattr("securetrain.rendezvous.member.handler.LINGER_SECONDS", PATIENCE)
        ended = threading.Event()
        threading.Thread(
            target=lambda n=nodes[0], e=ended: (n.shutdown(), e.set()), daemon=True
        ).start()
        scene.until(nodes[1].is_closed, "it has closed the job")
        if scene is stock:
            assert ended.wait(PATIENCE)
        else:
            assert not ended.wait(0.2)
        assert nodes[1].shutdown()
        assert ended.wait(PATIENCE)
