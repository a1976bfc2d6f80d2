# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain cache``: look at the compiled code that runs share, and remove it."""

import os

import click

from securetrain.cli.options import json_option
from securetrain.report import emit

EPILOG = """\
\b
Examples:
  securetrain cache list
  securetrain cache clear
  securetrain cache clear 3f2a

\b
Exit codes: 0 done; 1 a cache is in use and stays; 2 there is no such cache; 20 the folder may not
be read.
"""


@click.group(name="cache", epilog=EPILOG)
def command() -> None:
    """Look after the compiled code that runs of this user share.

    There is one cache for each set of versions, policy and user of the workers. Nothing in it is
    needed: what is missing is compiled again.
    """


@command.command(name="list", epilog=EPILOG)
@json_option
def list_command(output: str) -> int:
    """Show every cache, the one that was used last first."""
    from securetrain.launch import list_caches, this_node
    from securetrain.report import machine

    return emit(machine.caches(list_caches(this_node(os.environ))), output)


@command.command(epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
def clear(names: tuple[str, ...], output: str) -> int:
    """Remove the caches whose names begin with NAME; all when none is given."""
    from securetrain.launch import clear_caches, this_node
    from securetrain.report import machine

    return emit(machine.cleared(clear_caches(this_node(os.environ), names)), output)
