# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet status``: the state of a fleet at this moment."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from securetrain.cli.fleet_memory import fleet_memory
from securetrain.cli.options import file_option, json_option
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain fleet status
  securetrain fleet status --policy fleet.yaml --run runs/run-7-coordinator \\
      --ca /etc/securetrain/ca --html fleet.html
  securetrain fleet status --policy fleet.yaml --json

The state of this machine's coordinators, or of the database that they share, is always shown. The
policy adds reference values and what its cache holds, each run its leases, the CA certificates and
tokens. Without a policy it is not known who is enrolled and what ends.

Exit codes: 0 all of it is known and nothing ends within 14 days; 1 the state is not whole or was
changed; 2 bad command line or policy; 3 something ends within 14 days or has ended, or a part could
not be read.
"""


@click.command(name="status", epilog=EPILOG, short_help="Show nodes, leases, bars, what ends.")
@click.option("--policy", "policy_name", help="The fleet's policy, by name or file.")
@file_option("--run", "runs", multiple=True, help="A coordinator's run directory; repeatable.")
@file_option("--ca", "ca_folder", help="The cluster CA's folder.")
@file_option("--html", help="Write the self-contained HTML page there.")
@json_option
def status(
    policy_name: str | None,
    runs: tuple[Path, ...],
    ca_folder: Path | None,
    html: Path | None,
    output: str,
) -> int:
    """Show a fleet: nodes, groups, tiers, leases, last evidence, bars, and what is about to end."""
    from securetrain.attest.fleet import fleet_status
    from securetrain.policy import load_policy
    from securetrain.report import fleet
    from securetrain.report import html as page

    policy = load_policy(policy_name) if policy_name is not None else None
    with closing(fleet_memory()) as state:
        found = fleet_status(state, datetime.now(UTC), policy=policy, runs=runs, ca=ca_folder)
    written = page.write(fleet.status_page(found), html) if html is not None else None
    return emit(fleet.status_page(found, written), output)
