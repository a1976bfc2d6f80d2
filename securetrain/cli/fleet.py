# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet``: machines prove themselves once, are signed in, and are looked after."""

from typing import Final

import click

from securetrain.cli.fleet_admit import admit, serve
from securetrain.cli.fleet_decisions import decisions
from securetrain.cli.fleet_join import join
from securetrain.cli.fleet_sign import reject, show, sign
from securetrain.cli.fleet_status import status
from securetrain.cli.fleet_use import use
from securetrain.cli.options import StoryGroup

EPILOG: Final = """\
\b
From nothing to a fleet:
  securetrain fleet admit --csv nodes.csv --group gpu-h100-2026.11 \\
      --root infineon.pem --listen 10.0.0.1:29500 --out tokens.csv \\
      --reference-values fleet.json --key operator.pem
  # on each machine, as root, with its own token:
  securetrain fleet join sf1_eyJ...

Afterwards:
  securetrain fleet status --policy fleet.yaml --run runs/run-7-coordinator
  securetrain fleet use postgresql://coordinator@db.example/fleet

'join' runs on the node, all else where the operator is. 'attest values' takes things out again.
"""


@click.group(name="fleet", cls=StoryGroup, epilog=EPILOG)
def command() -> None:
    """Admit machines to a fleet by what they prove, and look after those that are in it."""


for _verb in (admit, serve, join, show, sign, reject, decisions, status, use):
    command.add_command(_verb)
