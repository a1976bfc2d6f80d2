# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-MBR-ADDRESS.

A member that was taken over announces what can be nobody's. Plain: with the address 0.0.0.0 it is
rank 0 of torch's rendezvous, and the workers of all nodes are sent to that address. Hardened: every
such address and WireGuard key of low order is refused with ST-ADMN-032 before it is in.
"""

from pathlib import Path
from typing import Final

from securetrain.drills.loopback_job import running_job
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.drills.rogue_member import MEANINGLESS, WIREGUARD, announce

CODE: Final = DRILLS["D-MBR-ADDRESS"].expected_code
_NOBODY: Final = "0.0.0.0"  # noqa: S104 - it is announced, and nothing is bound to it


def plain(_workdir: Path) -> Outcome:
    """Announce an address to torch's rendezvous."""
    from securetrain.drills.stock_rendezvous import StockJob, meet  # noqa: PLC0415 - needs torch

    job = StockJob((2, 2))
    honest, _ = meet([job.node(), job.node(_NOBODY)])
    store = honest.bootstrap_store_info
    sent_to = store.master_addr if store is not None else ""
    return Outcome.of_plain(
        sent_to == _NOBODY and honest.rank == 1,
        f"A node that announced {_NOBODY} is in the round, the honest one is rank"
        f" {honest.rank}, and its workers are sent to {sent_to}.",
    )


def hardened(workdir: Path) -> Outcome:
    """Announce all of it to ours."""
    answers = {}
    with running_job(workdir) as job:
        job.start(1, 3)
        honest = job.join("node-0", wireguard=WIREGUARD)
        for name, hello in MEANINGLESS.items():
            answers[name] = announce(job, hello)
        codes = {event.code for event in job.events()} - {""}
        unharmed = honest.connected and not honest.closed
    wrong = [name for name, said in answers.items() if CODE not in said]
    let_in = [name for name, said in answers.items() if not said]
    return Outcome.of_hardened(
        bool(let_in) or not unharmed,
        not wrong and unharmed,
        CODE if CODE in codes else next(iter(codes), ""),
        f"{len(MEANINGLESS) - len(wrong)} of {len(MEANINGLESS)} announcements were refused"
        f" ({', '.join(sorted(codes))}): {', '.join(MEANINGLESS)}."
        f" Let in: {', '.join(let_in) or 'none'}.",
    )
