# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-MBR-FLOOD.

A member that was taken over wears the control plane down. Plain: torch's store keeps whatever any
node writes, for as long as the job runs. Hardened: the member that renews its lease without end is
put out with ST-ADMN-031 after a few renewals, and the ledger has not grown by 16 KiB.
"""

from pathlib import Path
from typing import Final

from securetrain.drills.loopback_job import running_job
from securetrain.drills.registry import DRILLS, Outcome
from securetrain.drills.rogue_member import Scene
from securetrain.drills.tcpstore_client import StoreClient

CODE: Final = DRILLS["D-MBR-FLOOD"].expected_code
RENEWALS: Final = 50
LEDGER_LIMIT: Final = 16 << 10
_KEYS: Final = 5000
_SIZE: Final = 1 << 10


def plain(_workdir: Path) -> Outcome:
    """Write to torch's store without end."""
    from securetrain.drills.stock_rendezvous import StockJob  # noqa: PLC0415 - needs torch

    job = StockJob((1, 2))
    with StoreClient("127.0.0.1", job.port, 60.0) as client:
        client.hello()
        before = client.num_keys()
        for number in range(_KEYS):
            client.set(f"flood-{number}", bytes(_SIZE))
        kept = client.num_keys() - before
    return Outcome.of_plain(
        kept == _KEYS,
        f"{_KEYS} keys of {_SIZE} bytes were sent, and the store keeps {kept} of them.",
    )


def hardened(workdir: Path) -> Outcome:
    """Renew without end."""
    with running_job(workdir) as job:
        scene = Scene(job)
        before = scene.written()
        scene.rogue.renew(RENEWALS)
        event = job.expect(CODE, "node-evicted")
        grown = scene.written() - before
        harm = scene.harm_later()
        renewed = sum(event.event == "lease-renewed" for event in job.events())
    return Outcome.of_hardened(
        bool(harm) or grown >= LEDGER_LIMIT or renewed >= RENEWALS,
        not harm and grown < LEDGER_LIMIT,
        event.code,
        f"The member was put out after {renewed} renewals ({event.code}); the ledger grew by"
        f" {grown} bytes. Harm to the honest nodes: {', '.join(harm) or 'none'}.",
    )
