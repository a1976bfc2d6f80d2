# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-MBR-RANK.

A member that was taken over writes the others' ranks into the store of the round. Plain: torch's
agent believes them, and rank 1 becomes rank 2. Hardened: everybody computes ranks from the signed
membership; the keys change none, and the member that says otherwise of itself is put out with
ST-ADMN-040.
"""

from datetime import timedelta
from pathlib import Path
from typing import Final

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from securetrain.drills.agent_nodes import SAYS_ONE, AgentNode, leaving, write_ranks
from securetrain.drills.loopback_job import running_job
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.drills.stock_rendezvous import StockJob, agent_of, ranks_of
from securetrain.rendezvous.wire import protocol

CODE: Final = DRILLS["D-MBR-RANK"].expected_code
_NODES: Final = 3


def plain(_workdir: Path) -> Outcome:
    """Write ranks into the store that torch's agents share."""
    job = StockJob((_NODES, _NODES))
    rogue, honest = (
        PrefixStore("round", TCPStore("127.0.0.1", job.port, timeout=timedelta(seconds=30)))
        for _ in range(2)
    )
    write_ranks(rogue, withholds=True)
    ranks, _ = ranks_of(agent_of(job.node()), honest, 1, _NODES)
    return Outcome.of_plain(
        ranks == [2], f"The agent of rank 1 of {_NODES} gave its worker rank {ranks[0]}."
    )


def hardened(workdir: Path) -> Outcome:
    """Write the same into the store of a round of ours."""
    with running_job(workdir) as job:
        job.start(_NODES, _NODES)
        nodes = [AgentNode(job, f"node-{n}", (_NODES, _NODES), **SAYS_ONE) for n in range(_NODES)]
        *honest, rogue = nodes
        with leaving(*nodes) as pool:
            list(pool.map(AgentNode.enter, nodes))
            write_ranks(rogue.raw(), withholds=False)
            found = list(pool.map(AgentNode.ranks, honest))
            message = protocol.Workers(epoch=0, local_world=9, role="default")
            rogue.handler.member._link.post(message)
            event = job.expect(CODE, "node-evicted")
    expected = [([0], _NODES), ([1], _NODES)]
    taken = [f"rank {n} became {ranks[0]}" for n, (ranks, _) in enumerate(found) if ranks != [n]]
    return Outcome.of_hardened(
        bool(taken),
        found == expected and event.subject.endswith("/node/node-2"),
        event.code,
        f"The same keys were written: {', '.join(taken) or 'ranks 0 and 1 kept their own'}."
        f" When the member announced nine workers in place of its one, it was put out"
        f" ({event.code}).",
    )
