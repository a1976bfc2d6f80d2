# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet decisions``, ``status`` and ``use``: a fleet's record, state and database."""

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.fleet.memory import fleet_desk, fleet_memory
from securetrain.cli.options import CA, KEY, POLICY
from securetrain.report import Document


@verb()
def decisions(*, nodes: tuple[str, ...]) -> Document:
    """Show what was decided, its ledger verified; of NODES or of all.

    Examples:
      securetrain fleet decisions
      securetrain fleet decisions node-17
      securetrain fleet decisions --json | jq '.decisions[] | select(.code)'

    Tokens, proofs, refusals of machines with a token, signings and rejections, in order. Each line
    is signed by the desk's key and names the one before it. A ledger that was changed, cut off or
    deleted is refused, also where its record was put back with it: the fleet's state knows the last
    entry.

    Exit codes: 0 shown; 1 the ledger was changed, or cannot be read; 2 bad command line.
    """
    from securetrain.report import fleet

    with fleet_desk() as (desk, _):
        found = desk.decisions()
    chosen = [one for one in found if not nodes or one.body.event.subject in nodes]
    return fleet.decisions_page(chosen)


@verb()
def status(
    *,
    policy: Annotated[str | None, POLICY.told("The fleet's policy, by name or file.")],
    runs: Annotated[
        tuple[Path, ...], Option("--run", "A coordinator's run directory; repeatable.")
    ],
    ca: Annotated[Path | None, CA],
    html: Annotated[Path | None, Option("--html", "Write the self-contained HTML page there.")],
) -> Document:
    r"""Show nodes, leases, bars, what ends: groups, tiers, last evidence too.

    Examples:
      securetrain fleet status
      securetrain fleet status --policy fleet.yaml --run runs/run-7-coordinator \
          --ca /etc/securetrain/ca --html fleet.html
      securetrain fleet status --policy fleet.yaml --json

    The state of this machine's coordinators, or of the database that they share, is always shown.
    The policy adds reference values and what its cache holds, each run its leases, the CA
    certificates and tokens. Without a policy it is not known who is enrolled and what ends.

    Exit codes: 0 all of it is known and nothing ends within 14 days; 1 the state is not whole or
    was changed; 2 bad command line or policy; 3 something ends within 14 days or has ended, or a
    part could not be read.
    """
    from securetrain.attest.fleet import fleet_status
    from securetrain.policy import load_policy
    from securetrain.report import fleet
    from securetrain.report import html as page

    loaded = load_policy(policy) if policy is not None else None
    with closing(fleet_memory()) as state:
        found = fleet_status(state, now(), policy=loaded, runs=runs, ca=ca)
    written = page.write(fleet.status_page(found), html) if html is not None else None
    return fleet.status_page(found, written)


@verb()
def use(
    *,
    url: str,
    key: Annotated[Path | None, KEY.told("The fleet's key, when another machine made the tables.")],
) -> Document:
    r"""Share the state in the PostgreSQL database at URL.

    Bars, TPM clocks and accepted editions that are here are taken along. It holds for every command
    and coordinator on this machine; those that run refuse until they are started again.

    Examples:
      securetrain fleet use postgresql://coordinator@db.example/fleet
      securetrain fleet use --key fleet-key.pem \
          'postgresql://coordinator@db.example/fleet?sslrootcert=/etc/db-ca.pem'

    The first machine makes the tables. Copy fleet/database/key.pem of its state folder to each
    other one: what the database holds is sealed with it, and the database never sees it. The
    password goes into a pgpass file (?passfile=FILE, or ~/.pgpass), never into the URL. Over a
    network the server's certificate is verified.

    Exit codes: 0 it is used from now on; 1 the database or what is in it is not good; 2 bad command
    line or URL.
    """
    from securetrain.attest.session import use_database
    from securetrain.launch import this_node
    from securetrain.report import fleet

    with closing(use_database(this_node(os.environ).fleet, url, key)) as state:
        return fleet.moved(state.place)
