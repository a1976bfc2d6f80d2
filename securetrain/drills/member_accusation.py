# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-MBR-ACCUSE.

A member that was taken over throws an honest one out. Plain: it takes the other one out of the
state that all nodes of torch's rendezvous may write. Hardened: what one member says of another is
recorded and evicts nobody; an accusation that makes no sense puts the accuser out: ST-ADMN-035.
"""

from pathlib import Path
from typing import Final

from securetrain.drills.loopback_job import running_job, wait_until
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.drills.rogue_member import Scene
from securetrain.rendezvous.wire import protocol

CODE: Final = DRILLS["D-MBR-ACCUSE"].expected_code


def plain(_workdir: Path) -> Outcome:
    """Remove a node from the state of torch's rendezvous."""
    from securetrain.drills.stock_rendezvous import (  # noqa: PLC0415 - the other side needs no torch
        participants,
        remove,
        taken_over,
    )

    job, honest, rogue = taken_over()
    before = participants(job)
    remove(rogue, honest)
    after = participants(job)
    return Outcome.of_plain(
        len(before) == 2 and len(after) == 1,
        f"One node wrote the state without the other one: {len(before)} participants before,"
        f" {len(after)} after, in a round that is complete.",
    )


def hardened(workdir: Path) -> Outcome:
    """Accuse an honest member, again and again, and then one that is not there."""
    with running_job(workdir) as job:
        scene = Scene(job)
        scene.rogue.accuse("node-0", 10)
        wait_until(
            lambda: any(event.event == "member-suspected" for event in job.events()),
            "it is recorded",
        )
        harm = scene.harm()
        scene.rogue.accuse("nobody")
        end = scene.rogue.until(protocol.Refuse)
        event = job.expect(CODE, "node-evicted")
        harm += scene.harm_later()
        recorded = [event for event in job.events() if event.event == "member-suspected"]
    voices = recorded[0].details["voices"]
    return Outcome.of_hardened(
        bool(harm),
        not harm and len(recorded) == 1 and end.code == CODE,
        event.code,
        f"Ten suspicions of one member were recorded as {voices} voice and evicted nobody; when"
        f" it accused a node that is not there, it was put out itself ({end.code})."
        f" Harm to the honest nodes: {', '.join(harm) or 'none'}.",
    )
