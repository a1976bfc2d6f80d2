# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet``: the machines that coordinators know, and what they remember of them."""

from typing import Final

import click

from securetrain.cli.fleet_status import status
from securetrain.cli.fleet_use import use
from securetrain.cli.options import StoryGroup

EPILOG: Final = """\
\b
Examples:
  securetrain fleet status --policy fleet.yaml --run runs/run-7-coordinator
  securetrain fleet use postgresql://coordinator@db.example/fleet
"""


@click.group(name="fleet", cls=StoryGroup, epilog=EPILOG)
def command() -> None:
    """Look after a fleet of machines: who is in it, who is barred, what ends soon."""


for _verb in (status, use):
    command.add_command(_verb)
