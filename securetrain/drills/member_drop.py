# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-MBR-DROP.

A member is in a complete round and then drops, or stays and never says what it runs. Plain: torch's
agents wait for it in the store, five minutes by default. Hardened: the one that drops costs a new
round, the one that stays silent is put out with ST-ADMN-005; the honest node trains on in both.
"""

import json
import threading
from pathlib import Path
from typing import Final

from securetrain.drills.agent_nodes import (
    ROLE_INFO,
    Ranks,
    ranks_after_a_drop,
    ranks_beside_a_silent_one,
)
from securetrain.drills.loopback_job import make_policy, running_job
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.drills.stock_rendezvous import StockJob, agent_of, meet, ranks_of

CODE: Final = DRILLS["D-MBR-DROP"].expected_code
_LONG: Final = 5.0
"""Seconds after which a wait counts as one; where nobody waits, it takes milliseconds."""
_JOIN_SECONDS: Final = 2


def plain(_workdir: Path) -> Outcome:
    """Leave a complete round of torch's, and see how long the other agent waits."""
    job = StockJob((2, 2))
    honest, rogue = job.node(), job.node("127.0.0.2")
    info, rogues = meet([honest, rogue])
    rogue._stop_heartbeats()
    came: list[Ranks] = []

    def ask() -> None:
        came.append(ranks_of(agent_of(honest), info.store, info.rank, info.world_size))

    waits = threading.Thread(target=ask)
    waits.start()
    waits.join(_LONG)
    is_stuck = waits.is_alive()
    # Nothing but the word of the node that has gone ends the wait.
    said = {"role": "default", "rank": 1 - info.rank, "local_world_size": 1}
    rogues.store.set(f"{ROLE_INFO}{1 - info.rank}", json.dumps(said))
    waits.join()
    return Outcome.of_plain(
        is_stuck and bool(came),
        f"{_LONG:g} seconds after the other node had gone, the agent"
        f" {'still waited for its role info' if is_stuck else 'had its ranks'}.",
    )


def hardened(workdir: Path) -> Outcome:
    """Leave a complete round of ours; then stay in one and be silent."""
    with running_job(_folder(workdir, "drops")) as job:
        after_drop = ranks_after_a_drop(job)
    with running_job(_folder(workdir, "withholds")) as job:
        policy = make_policy(join_timeout_seconds=_JOIN_SECONDS)
        job.start(1, 2, last_call=600, policy=policy)
        beside_silent = ranks_beside_a_silent_one(job)
        event = job.expect(CODE, "node-evicted")
    goes_on = after_drop == beside_silent == ([0], 1)
    return Outcome.of_hardened(
        not goes_on,
        goes_on and event.subject.endswith("/node/node-1"),
        event.code,
        f"After one member dropped, the other one had ranks {after_drop[0]} in a world of"
        f" {after_drop[1]}; the one that stayed silent was put out ({event.code}), and the"
        f" other one had ranks {beside_silent[0]} in a world of {beside_silent[1]}.",
    )


def _folder(workdir: Path, name: str) -> Path:
    folder = workdir / name
    folder.mkdir()
    return folder
