# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet use``: keep the fleet's state in a database that coordinators share."""

import os
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from securetrain.cli.options import file_option, json_option
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain fleet use postgresql://coordinator@db.example/fleet
  securetrain fleet use --key fleet-key.pem \\
      'postgresql://coordinator@db.example/fleet?sslrootcert=/etc/db-ca.pem'

The first machine makes the tables. Copy fleet/database/key.pem of its state folder to each other
one: what the database holds is sealed with it, and the database never sees it. The password goes
into a pgpass file (?passfile=FILE, or ~/.pgpass), never into the URL. Over a network the server's
certificate is verified.

Exit codes: 0 it is used from now on; 1 the database or what is in it is not good; 2 bad command
line or URL.
"""


@click.command(name="use", epilog=EPILOG, short_help="Share the state in PostgreSQL.")
@click.argument("url")
@file_option("--key", "key_file", help="The fleet's key, when another machine made the tables.")
@json_option
def use(url: str, key_file: Path | None, output: str) -> int:
    """Keep what this machine's coordinators remember in the PostgreSQL database at URL.

    Bars, TPM clocks and accepted editions that are here are taken along. It holds for every command
    and coordinator on this machine; those that run refuse until they are started again.
    """
    from securetrain.attest.session import use_database
    from securetrain.launch import this_node
    from securetrain.report import fleet

    with closing(use_database(this_node(os.environ).fleet, url, key_file)) as state:
        return emit(fleet.moved(state.place), output)
