# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Look at signed reference values, compare editions, and make the next one.

Examples:
  securetrain attest values show fleet.json --signed-by MCowBQYDK2VwAyEA...
  securetrain attest values diff fleet.json --signed-by MCowBQYDK2VwAyEA...
  securetrain attest values set fleet.json --key operator.pem \
      snp.min_tcb.Genoa.snp=22 'boot.unjudged+=1' tokens=@tokens.json
  securetrain attest values set fleet.json --key operator.pem --node node-17 group=gpu-b
  securetrain attest values retire fleet.json --key operator.pem DIGEST
  securetrain attest values retire fleet.json --key operator.pem DIGEST \
      --accept-until 2026-12-01
  securetrain attest values remove fleet.json --key operator.pem node-17
  securetrain attest values revoke fleet.json --key operator.pem ek:000b7e90f8e7...
  securetrain attest values sign fleet.json --key operator.pem --days 90

What is written is read back first: the last good edition stands until the next one is whole, and is
kept beside it (FILE.last). A coordinator that runs takes the new edition within a second, and asks
every node for full evidence at its next renewal. More than 1,000 nodes stand in pages beside the
file (FILE.nodes-...): copy both.

Exit codes: 0 written, or shown; 1 the file is not signed by these keys, went back, or could not be
read by a verifier; 2 bad command line, or a value or node that is not in it; 3 written or shown,
and it ends within 14 days.
"""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import click

from securetrain.cli.attest.signing import NextVersion
from securetrain.cli.clock import now
from securetrain.cli.command import Argument, Option, VerbGroup, verb
from securetrain.cli.fleet.memory import fleet_memory
from securetrain.cli.options import GROUP, SIGNERS, Signers
from securetrain.report import Document

values = VerbGroup(
    __name__,
    __doc__,
    {"": ("show", "diff", "set", "retire", "remove", "revoke", "sign")},
    name="values",
)
Words: TypeAlias = tuple[str, ...]


@verb()
def show(*, file: Path, signed_by: Signers) -> Document:
    """Show what FILE says, its signature verified."""
    from securetrain.attest.session import read_reference_values
    from securetrain.report import values

    with closing(fleet_memory()) as state:
        found = read_reference_values(file, signed_by, state).values
    return values.values_page(found, file, now())


@verb()
def diff(
    *,
    file: Path,
    other: Path | None,
    signed_by: Annotated[Words, SIGNERS.told("A key that may have signed them; repeatable.")],
) -> Document:
    """Show what changed from FILE to OTHER; with FILE alone, from the edition before it to it."""
    from securetrain.attest.fleet import compare_files
    from securetrain.report import values

    old, new = (None, file) if other is None else (file, other)
    return values.differences(list(compare_files(old, new, signed_by)), new)


@verb()
def retire(
    *,
    file: Path,
    entries: Annotated[Words, Argument(metavar="VALUE...", required=True)],
    edition: NextVersion,
    accept_until: Annotated[
        datetime | None,
        Option(
            "--accept-until",
            "Accept it until then (UTC), and no longer.",
            click.DateTime(("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")),
        ),
    ],
) -> Document:
    """Take each VALUE out of FILE: a digest, a boot command or a kernel command line.

    With --accept-until it is taken out at that time, without anybody signing again: put the new
    kernel in first, and both are accepted until then.
    """
    from securetrain.attest.fleet import retire as without

    end = accept_until.replace(tzinfo=UTC) if accept_until is not None else None
    if end is not None and end <= now():
        raise click.UsageError("--accept-until is over: leave it out to take the values out now")
    return edition.make(file, lambda old: without(old, entries, until=end))


@verb()
def remove(
    *,
    file: Path,
    nodes: Annotated[Words, Argument(metavar="NODE...", required=True)],
    edition: NextVersion,
) -> Document:
    """Take each NODE out of FILE. To bar a machine everywhere, use 'attest revoke' as well."""
    from securetrain.attest.fleet import remove as without

    return edition.make(file, lambda old: without(old, nodes))


@verb()
def revoke(
    *,
    file: Path,
    eks: Annotated[Words, Argument(metavar="EK...", required=True)],
    edition: NextVersion,
) -> Document:
    """Refuse each endorsement key EK (ek:HEX) wherever FILE is used, whoever presents it."""
    from securetrain.attest.fleet import revoke_eks

    return edition.make(file, lambda old: revoke_eks(old, eks))


@verb()
def set_(
    *,
    file: Path,
    assignments: Annotated[Words, Argument(metavar="FIELD=VALUE...", required=True)],
    group: Annotated[str, GROUP.told("Set fields of this image group: boot, tdx_boot.")] = "",
    node: Annotated[
        str, Option("--node", "Set fields of this node: group, chips, devices, own.")
    ] = "",
    edition: NextVersion,
) -> Document:
    """Set each FIELD of FILE: of tpm, boot, tdx_boot, ima, snp, tdx, gpu or tokens.

    VALUE is JSON, or plain text, or @FILE with JSON in it. FIELD+=VALUE adds to a list or an
    object, FIELD-=VALUE takes out of it. A field that there is not is refused, and nothing written.
    """
    from securetrain.attest.fleet import set_fields

    if group and node:
        raise click.UsageError("--group and --node: name one of them")
    at = now()
    return edition.make(file, lambda old: set_fields(old, assignments, at, group=group, node=node))


@verb()
def sign(*, file: Path, edition: NextVersion) -> Document:
    """Sign FILE again as the next edition: with --days a later end, or with another key.

    With another key, name the one that has signed it in --signed-by, and put the new one into the
    policy's signed_by before.
    """
    return edition.make(file, lambda old: old)
