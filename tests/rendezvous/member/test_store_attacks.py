# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Attacks that need one connection to a store: on torch's own rendezvous first, then on ours.

That strangers cannot reach the store of a job network at all is shown in
tests/launch/test_strangers_netns.py; here the attacker has reached it.
"""

import errno
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    ReduceOp,
    TCPStore,
)
from torch.distributed.elastic.rendezvous import RendezvousParameters, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from securetrain.core.errors import AdmissionError
from securetrain.drills.tcpstore_client import NotAStoreError, StoreClient
from securetrain.identity.job_ca import JobCA
from tests.vocabulary import refused

SOON = timedelta(seconds=20)
ELSEWHERE, ITS_PORT = "192.0.2.7", 666


@pytest.fixture
def ours(job):
    """Makes handlers of the running job, as torchrun does."""
    made: list[Any] = []

    def make(number, nodes):
        job.identity(f"node-{number}")
        made.append(
            get_rendezvous_handler(
                RendezvousParameters(
                    backend="securetrain",
                    endpoint=f"{job.host}:{job.port}",
                    run_id=job.name,
                    min_nodes=nodes,
                    max_nodes=nodes,
                    identity=str(job.folder(f"node-{number}")),
                )
            )
        )
        return made[-1]

    yield make
    for handler in made:
        if handler.member is not None:
            handler.member.leave()


@contextmanager
def stock_handler(run_id: str) -> Iterator[Any]:
    """A c10d rendezvous of one node, as ``torchrun --standalone`` makes it."""
    handler = get_rendezvous_handler(
        RendezvousParameters(
            backend="c10d",
            endpoint="localhost:0",
            run_id=run_id,
            min_nodes=1,
            max_nodes=1,
            is_host=True,
            last_call_timeout=1,
        )
    )
    try:
        yield handler
    finally:
        handler.shutdown()


def redirect(client: StoreClient, prefix: str) -> None:
    client.set(f"{prefix}MASTER_ADDR", ELSEWHERE.encode())
    client.set(f"{prefix}MASTER_PORT", str(ITS_PORT).encode())
    assert client.ping()


def test_workers_are_sent_to_another_store(job, ours):
    """Attack 21: the address of the workers' store is a key that anybody may write."""
    stock = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with StoreClient("127.0.0.1", stock.port) as client:
        client.hello()
        redirect(client, "/torch.rendezvous.run.0/")
    # What the agent of every node but the first does to learn where its workers must go.
    found = RendezvousStoreInfo.build(1, PrefixStore("torch.rendezvous.run.0", stock), None)
    assert (found.master_addr, found.master_port) == (ELSEWHERE, ITS_PORT)

    job.start(2, 2)
    handlers = [ours(number, 2) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
        where = first[0].bootstrap_store_info
        with StoreClient(where.master_addr, where.master_port) as client:
            client.hello()
            names = {key.rpartition("/")[0] for key in client.list_keys()}
            for prefix in ("", *(f"{name}/" for name in names), "/securetrain/0/"):
                redirect(client, prefix)
        second = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
    for info in (*first, *second):
        assert info.bootstrap_store_info.master_addr == job.host
        assert info.bootstrap_store_info.master_port != ITS_PORT


def test_the_store_of_the_last_round(job, ours):
    """Attack 24: a worker that comes late, with what it was told a round ago."""
    with stock_handler("stale") as handler:
        before = handler.next_rendezvous().bootstrap_store_info
        late = StoreClient("127.0.0.1", before.master_port)
        with late:
            late.hello()
            late.set("written", b"before")
            handler.next_rendezvous()
            late.set("written", b"after")
            assert late.get("written") == b"after"
        with StoreClient("127.0.0.1", before.master_port) as later:
            later.hello()
            assert later.get("written") == b"after"

    job.start()
    handler = ours(0, 1)
    before = handler.next_rendezvous().bootstrap_store_info
    with StoreClient(job.host, before.master_port) as late:
        late.hello()
        late.set("written", b"before")
        now = handler.next_rendezvous()
        gc.collect()
        assert now.bootstrap_store_info.master_port != before.master_port
        with pytest.raises(NotAStoreError):  # the connection ended with the round
            late.get("written")
    error = refused(OSError, "refused", StoreClient, job.host, before.master_port)
    assert error.errno == errno.ECONNREFUSED
    assert not now.store.check(["written"])


def gloo(port: int, rank: int, patience: timedelta = SOON) -> Any:
    """A rank of a world of two, for whoever knows a port."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = SOON
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    store = TCPStore("127.0.0.1", port, timeout=patience, wait_for_workers=False)
    return ProcessGroupGloo(PrefixStore("default_pg", store), rank, 2, options)


def test_a_stranger_takes_a_rank_first(job, tools):
    """Attack 27: who connects first as rank 1 is rank 1."""
    stock = TCPStore("127.0.0.1", 0, is_master=True, timeout=SOON, wait_for_workers=False)
    with ThreadPoolExecutor(2) as pool:
        # The victim, which waits for its peer, and the stranger, which asks nobody.
        victim, stranger = pool.map(lambda rank: gloo(stock.port, rank), range(2))
        tensor = torch.ones(2)
        rogue = torch.full((2,), -1337.0)
        works = [victim.allreduce([tensor], ReduceOp.SUM), stranger.allreduce([rogue])]
        for work in works:
            work.wait(SOON)
    assert tensor.tolist() == [-1336.0, -1336.0]

    job.start(2, 2)
    with ThreadPoolExecutor(2) as pool:
        honest = [pool.submit(job.join("node-0").next_round, lambda _: 20000)]
        with pytest.raises(RuntimeError):  # our coordinator is no store
            gloo(job.port, 1, timedelta(seconds=1))
        job.expect("ST-ADMN-002", "connection-refused")
        other = JobCA.create("securetrain.local", job.name, tools.now())
        with pytest.raises(AdmissionError):
            job.join("node-1", identity=job.identity("node-1", other))
        assert not honest[0].done()  # the world is not complete
        honest.append(pool.submit(job.join("node-1").next_round, lambda _: 20000))
        rounds = [future.result(60) for future in honest]
    assert [m.node for m in rounds[0].membership.members] == ["node-0", "node-1"]
    assert {found.rank for found in rounds} == {0, 1}
