# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-MBR-CLOSE.

A member that was taken over ends the job. Plain: one word in torch's rendezvous ends it for every
node. Hardened: its word counts as one of three, that of a node in no round does not count at all
and is refused with ST-ADMN-033, and the honest nodes have another round.
"""

from pathlib import Path
from typing import Final

from securetrain.drills.loopback_job import running_job
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.drills.rogue_member import Rogue, Scene
from securetrain.rendezvous.wire import protocol

CODE: Final = DRILLS["D-MBR-CLOSE"].expected_code


def plain(_workdir: Path) -> Outcome:
    """Close torch's rendezvous from one of two nodes."""
    from securetrain.drills.stock_rendezvous import taken_over  # noqa: PLC0415 - needs torch

    _, honest, rogue = taken_over()
    open_before = not honest.is_closed()
    rogue.set_closed()
    over = honest.is_closed()
    return Outcome.of_plain(
        open_before and over,
        "One of two nodes called set_closed: for the other one the rendezvous is"
        f" {'closed, and it gets no further round' if over else 'still open'}.",
    )


def hardened(workdir: Path) -> Outcome:
    """Close ours from one of three nodes, and from a node in no round."""
    with running_job(workdir) as job:
        scene = Scene(job)
        alone = scene.rogue.close_alone()
        outside = Rogue(job, "node-9").close_alone()
        event = job.expect(CODE, "close-ignored")
        scene.leave()
        harm = scene.harm_later()
        votes = sum(event.event == "close-counted" for event in job.events())
    states = alone is protocol.CloseState.COUNTED and outside is protocol.CloseState.IGNORED
    return Outcome.of_hardened(
        bool(harm),
        states and votes == 1 and not harm,
        event.code,
        f"21 Close of one member of three counted as {votes} vote; those of a node in no round"
        f" were ignored ({event.code}). Harm to the honest nodes: {', '.join(harm) or 'none'}.",
    )
