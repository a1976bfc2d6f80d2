# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Nodes whose agents are torch's own, in our rendezvous: they ask for ranks as torchrun does.

The job and all of its nodes are in this process.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeAlias

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from securetrain.drills.loopback_job import PATIENCE, Job, NeverHappenedError, wait_until
from securetrain.drills.stock_rendezvous import agent_of, ranks_of

ROLE_INFO: Final = "torchelastic/role_info/"
ASSIGNED: Final = "torchelastic/assigned_ranks/"

SAYS_ONE: Final[dict[str, Any]] = {"conf": {"local_world": "1", "role": "default"}}
"""A node that says in its Hello what it runs; plain torchrun does not."""

Ranks: TypeAlias = tuple[list[int], int]


class AgentNode:
    """A node with an agent of torch's."""

    def __init__(
        self,
        job: Job,
        name: str,
        nodes: tuple[int, int],
        *,
        workers: int = 1,
        role: str = "default",
        conf: Any = None,
    ) -> None:
        """Prepare; it joins with its first round.

        Args:
            job: Whose coordinator it asks.
            name: Its own.
            nodes: A round needs at least so many, and at most.
            workers: So many it runs.
            role: Theirs.
            conf: More settings of the rendezvous.
        """
        if not job.folder(name).exists():
            job.identity(name)
        self.name, self.workers = name, workers
        self.handler: Any = get_rendezvous_handler(
            RendezvousParameters(
                "securetrain",
                f"{job.host}:{job.port}",
                job.name,
                *nodes,
                identity=str(job.folder(name)),
                **(conf or {}),
            )
        )
        self.agent = agent_of(self.handler, workers, role)
        self.spec = self.agent.get_worker_group().spec
        self.info: Any = None
        self.store: Any = None

    def enter(self) -> Any:
        """Have a round, and ask for no ranks."""
        self.info = self.handler.next_rendezvous()
        self.store = self.info.store
        return self.info

    def ranks(self) -> Ranks:
        """The ranks of its workers in the round that it is in, and the size of the world."""
        return ranks_of(self.agent, self.store, self.info.rank, self.info.world_size)

    def meet(self) -> Ranks:
        """Have a round, as the agent has it."""
        info = self.enter()
        self.agent._store = info.store
        self.agent._worker_group.group_world_size = info.world_size
        return self.ranks()

    def raw(self) -> PrefixStore:
        """The store of its round, as a member that follows no rule sees it."""
        where = self.info.bootstrap_store_info
        store = TCPStore(
            where.master_addr,
            where.master_port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=10),
        )
        return PrefixStore(f"securetrain/{self.store._membership.epoch}", store)

    def drop(self) -> None:
        """Be gone without a word."""
        self.handler.member._link._channel.abort()

    def leave(self) -> None:
        """Take itself out, where it is in."""
        if self.handler.member is not None:
            self.handler.member.leave()


def write_ranks(store: Store, *, withholds: bool) -> None:
    """Write the keys that make the last of three nodes rank 1, and rank 1 rank 2.

    Args:
        store: Of the round.
        withholds: Whether the writer leaves out role info, lies about everybody's otherwise.
    """
    for rank, said in ((0, [5, 1, 5, 1]), (1, [2, 3, 2, 3]), (2, [1, 3, 1, 3])):
        store.set(f"{ASSIGNED}{rank}", json.dumps(said))
        if not withholds:
            lie = {"role": "default", "rank": rank, "local_world_size": 99}
            store.set(f"{ROLE_INFO}{rank}", json.dumps(lie))


@contextmanager
def leaving(*nodes: AgentNode) -> Iterator[ThreadPoolExecutor]:
    """Threads for the nodes, which leave with the block."""
    with ThreadPoolExecutor(8) as pool:
        try:
            yield pool
        finally:
            for node in nodes:
                node.leave()


def ranks_after_a_drop(job: Job) -> Ranks:
    """One of two nodes drops before it has said what it runs; the other one's next ranks.

    Its agent asks for ranks, and stock agents wait for role info of all the others.
    """
    job.start(1, 2, last_call=600)
    stays, drops = (AgentNode(job, f"node-{n}", (1, 2)) for n in range(2))
    with leaving(stays, drops) as pool:
        list(pool.map(AgentNode.enter, (stays, drops), timeout=PATIENCE))
        asked = pool.submit(stays.ranks)
        drops.drop()
        if asked.result(PATIENCE)[1] != 2:
            raise NeverHappenedError(
                "the agent was told of another world than the one that is over"
            )
        wait_until(stays.handler.num_nodes_waiting, "the agent restarts its workers")
        return pool.submit(stays.meet).result(PATIENCE)


def ranks_beside_a_silent_one(job: Job) -> Ranks:
    """One of two nodes never says what it runs, and stays connected; the other one's next ranks."""
    stays, withholds = (AgentNode(job, f"node-{n}", (1, 2)) for n in range(2))
    with leaving(stays, withholds) as pool:
        list(pool.map(AgentNode.enter, (stays, withholds), timeout=PATIENCE))
        stays.ranks()
        return pool.submit(stays.meet).result(PATIENCE)
