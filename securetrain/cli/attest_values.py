# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest values``: look at signed reference values, and take out what is over."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.fleet_memory import fleet_memory
from securetrain.cli.options import file_argument, file_option, json_option
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.attest.fleet import Change

EPILOG: Final = """\
\b
Examples:
  securetrain attest values show fleet.json --signed-by MCowBQYDK2VwAyEA...
  securetrain attest values retire fleet.json --key operator.pem DIGEST
  securetrain attest values remove fleet.json --key operator.pem node-17

What is written is read back first: the last good edition stands until the next one is whole. A
coordinator that runs takes the new edition within a second, and asks every node for full evidence
at its next renewal.

Exit codes: 0 written, or shown; 1 the file is not signed by these keys, went back, or could not be
read by a verifier; 2 bad command line, or a value or node that is not in it; 3 written or shown,
and it ends within 14 days.
"""
_SIGNED_BY = click.option(
    "--signed-by",
    multiple=True,
    metavar="KEY",
    help="A key that may have signed what is there; repeatable. Default: --key.",
)
_KEY = file_option("--key", "key_file", required=True, help="The operator's key.")
_DAYS = click.option(
    "--days", type=click.IntRange(1, 3650), help="Days that it lasts. Default: as before."
)


@click.group(name="values", epilog=EPILOG, short_help="Look at reference values; take some out.")
def values() -> None:
    """Look at signed reference values, and take out what is over."""


@values.command(name="show", epilog=EPILOG)
@file_argument("file")
@click.option(
    "--signed-by",
    multiple=True,
    required=True,
    metavar="KEY",
    help="A key that may have signed it; repeatable.",
)
@json_option
def show(file: Path, signed_by: tuple[str, ...], output: str) -> int:
    """Show what FILE says, its signature verified."""
    from securetrain.attest.session import read_reference_values
    from securetrain.report import evidence

    with closing(fleet_memory()) as state:
        found = read_reference_values(file, signed_by, state).values
    return emit(evidence.values_page(found, file, datetime.now(UTC)), output)


@values.command(name="retire", epilog=EPILOG)
@file_argument("file")
@click.argument("entries", nargs=-1, required=True, metavar="VALUE...")
@_KEY
@_SIGNED_BY
@_DAYS
@json_option
def retire(  # noqa: PLR0917 - click passes every option
    file: Path,
    entries: tuple[str, ...],
    key_file: Path,
    signed_by: tuple[str, ...],
    days: int | None,
    output: str,
) -> int:
    """Take each VALUE out of FILE: a digest, a boot command or a kernel command line."""
    from securetrain.attest.fleet import retire as without

    return _change(file, lambda old: without(old, entries), key_file, signed_by, days, output)


@values.command(name="remove", epilog=EPILOG)
@file_argument("file")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@_KEY
@_SIGNED_BY
@_DAYS
@json_option
def remove(  # noqa: PLR0917 - click passes every option
    file: Path,
    nodes: tuple[str, ...],
    key_file: Path,
    signed_by: tuple[str, ...],
    days: int | None,
    output: str,
) -> int:
    """Take each NODE out of FILE. To bar a machine everywhere, use 'attest revoke' as well."""
    from securetrain.attest.fleet import remove as without

    return _change(file, lambda old: without(old, nodes), key_file, signed_by, days, output)


def _change(  # noqa: PLR0917 - what both commands are given
    file: Path,
    change: "Change",
    key_file: Path,
    signed_by: tuple[str, ...],
    days: int | None,
    output: str,
) -> int:
    from securetrain.attest.fleet import change_values, key_text
    from securetrain.identity.keys import PrivateKey
    from securetrain.report import evidence

    now, key = datetime.now(UTC), PrivateKey.load(key_file)
    with closing(fleet_memory()) as state:
        made = change_values(
            file,
            change,
            key=key,
            signed_by=signed_by or (key_text(key.public),),
            now=now,
            lifetime=timedelta(days=days) if days is not None else None,
            state=state,
        )
    return emit(evidence.values_page(made, file, now), output)
