# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""torch's own rendezvous (c10d) on loopback, and agents of torch's own: the plain side of attacks.

A `StockJob` holds the store that torchrun's first agent would host; `stock_handler` makes what each
agent meets the others with.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerSpec
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

JOB: Final = "job-1"
_PATIENCE: Final = 60.0


def stock_handler(
    port: int,
    nodes: tuple[int, int],
    address: str,
    times: Mapping[str, float],
    *,
    kind: type[DynamicRendezvousHandler] = DynamicRendezvousHandler,
) -> Any:
    """A node's end of torch's rendezvous.

    Args:
        port: Of the store, on loopback.
        nodes: A round needs at least so many, and at most.
        address: The node's own, as it announces it.
        times: In seconds: `store`, `join`, `last_call`, `heartbeat`.
        kind: The class of the handler.
    """
    patience = timedelta(seconds=times.get("store", _PATIENCE))
    store = TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=patience)
    return kind.from_backend(
        JOB,
        store,
        C10dRendezvousBackend(store, JOB),
        *nodes,
        address,
        RendezvousTimeout(
            join=timedelta(seconds=times.get("join", _PATIENCE)),
            last_call=timedelta(seconds=times.get("last_call", 600.0)),
        ),
        keep_alive_interval=times.get("heartbeat", 5.0),  # type: ignore[arg-type]
    )


class StockJob:
    """A rendezvous of torch's on loopback."""

    def __init__(self, nodes: tuple[int, int]) -> None:
        """Open it for so many nodes, at least and at most."""
        self.nodes = nodes
        self.server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    @property
    def port(self) -> int:
        """The port of its store."""
        return int(self.server.port)

    def node(self, address: str = "127.0.0.1") -> Any:
        """One more node."""
        return stock_handler(self.port, self.nodes, address, {})


def taken_over() -> tuple[StockJob, Any, Any]:
    """A round of two nodes, an honest one and one that was taken over; both see the state anew."""
    job = StockJob((2, 2))
    honest, rogue = uncached(job.node()), uncached(job.node("127.0.0.2"))
    meet([honest, rogue])
    return job, honest, rogue


def meet(handlers: Iterable[RendezvousHandler]) -> list[RendezvousInfo]:
    """One round of all of them."""
    asked = list(handlers)
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda handler: handler.next_rendezvous(), asked))


def uncached(handler: Any) -> Any:
    """The same handler, which reads the state anew whenever it is asked."""
    handler._state_holder._cache_duration = 0
    return handler


def remove(own: Any, other: Any) -> None:
    """Write the state without another node, as the handler writes its own entries."""
    holder = own._state_holder
    holder.sync()
    holder.state.participants.pop(other._this_node)
    holder.mark_dirty()
    holder.sync()


def participants(job: StockJob) -> dict[Any, int]:
    """The nodes of the round, as somebody sees them who comes now."""
    holder = uncached(job.node("127.0.0.98"))._state_holder
    holder.sync()
    found: dict[Any, int] = holder.state.participants
    return found


class Agent(SimpleElasticAgent):
    """torch's own agent, without workers."""

    def _nothing(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("no worker is started here")

    _start_workers = _stop_workers = _monitor_workers = _nothing

    def _shutdown(self, *_: Any, **__: Any) -> None:
        """There is nothing to end."""


def agent_of(handler: RendezvousHandler, workers: int = 1, role: str = "default") -> Agent:
    """An agent that runs so many workers."""
    return Agent(
        WorkerSpec(role=role, local_world_size=workers, rdzv_handler=handler, entrypoint="x")
    )


def ranks_of(agent: Agent, store: Store, rank: int, world: int) -> tuple[list[int], int]:
    """The ranks of an agent's workers and the size of their world, as a store gives them."""
    spec = agent.get_worker_group().spec
    workers = agent._assign_worker_ranks(store, rank, world, spec)
    return [worker.global_rank for worker in workers], workers[0].world_size
