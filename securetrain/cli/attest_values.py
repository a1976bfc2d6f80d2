# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest values``: look at signed reference values, and take out what is over."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.fleet_memory import fleet_memory
from securetrain.cli.options import file_argument, json_option
from securetrain.cli.passphrase import asker
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.attest.fleet import Change, Difference
    from securetrain.evidence import ReferenceValues

EPILOG: Final = """\
\b
Examples:
  securetrain attest values show fleet.json --signed-by MCowBQYDK2VwAyEA...
  securetrain attest values diff fleet.json --signed-by MCowBQYDK2VwAyEA...
  securetrain attest values set fleet.json --key operator.pem \\
      snp.min_tcb.Genoa.snp=22 'boot.unjudged+=1' tokens=@tokens.json
  securetrain attest values set fleet.json --key operator.pem --node node-17 group=gpu-b
  securetrain attest values retire fleet.json --key operator.pem DIGEST
  securetrain attest values retire fleet.json --key operator.pem DIGEST \\
      --accept-until 2026-12-01
  securetrain attest values remove fleet.json --key operator.pem node-17
  securetrain attest values revoke fleet.json --key operator.pem ek:000b7e90f8e7...
  securetrain attest values sign fleet.json --key operator.pem --days 90

What is written is read back first: the last good edition stands until the next one is whole, and
is kept beside it (FILE.last). A coordinator that runs takes the new edition within a second, and
asks every node for full evidence at its next renewal. More than 1,000 nodes stand in pages beside
the file (FILE.nodes-...): copy both.

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
_KEY = click.option(
    "--key",
    "key_name",
    required=True,
    help="The operator's key: a file, a pkcs11: URI, or one of awskms:, gcpkms: and azurekms:.",
)
_DAYS = click.option(
    "--days", type=click.IntRange(1, 3650), help="Days that it lasts. Default: as before."
)


@click.group(name="values", epilog=EPILOG, short_help="Look at reference values, and change them.")
def values() -> None:
    """Look at signed reference values, compare editions, and make the next one."""


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
    from securetrain.report import values

    with closing(fleet_memory()) as state:
        found = read_reference_values(file, signed_by, state).values
    return emit(values.values_page(found, file, datetime.now(UTC)), output)


@values.command(name="retire", epilog=EPILOG)
@file_argument("file")
@click.argument("entries", nargs=-1, required=True, metavar="VALUE...")
@_KEY
@_SIGNED_BY
@_DAYS
@click.option(
    "--accept-until",
    type=click.DateTime(("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")),
    help="Accept it until then (UTC), and no longer.",
)
@json_option
def retire(  # noqa: PLR0917 - click passes every option
    file: Path,
    entries: tuple[str, ...],
    key_name: str,
    signed_by: tuple[str, ...],
    days: int | None,
    accept_until: datetime | None,
    output: str,
) -> int:
    """Take each VALUE out of FILE: a digest, a boot command or a kernel command line.

    With --accept-until it is taken out at that time, without anybody signing again: put the new
    kernel in first, and both are accepted until then.
    """
    from securetrain.attest.fleet import retire as without

    end = accept_until.replace(tzinfo=UTC) if accept_until is not None else None
    if end is not None and end <= datetime.now(UTC):
        raise click.UsageError("--accept-until is over: leave it out to take the values out now")
    return _change(
        file, lambda old: without(old, entries, until=end), key_name, signed_by, days, output
    )


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
    key_name: str,
    signed_by: tuple[str, ...],
    days: int | None,
    output: str,
) -> int:
    """Take each NODE out of FILE. To bar a machine everywhere, use 'attest revoke' as well."""
    from securetrain.attest.fleet import remove as without

    return _change(file, lambda old: without(old, nodes), key_name, signed_by, days, output)


@values.command(name="revoke", epilog=EPILOG)
@file_argument("file")
@click.argument("eks", nargs=-1, required=True, metavar="EK...")
@_KEY
@_SIGNED_BY
@_DAYS
@json_option
def revoke(  # noqa: PLR0917 - click passes every option
    file: Path,
    eks: tuple[str, ...],
    key_name: str,
    signed_by: tuple[str, ...],
    days: int | None,
    output: str,
) -> int:
    """Refuse each endorsement key EK (ek:HEX) wherever FILE is used, whoever presents it."""
    from securetrain.attest.fleet import revoke_eks

    return _change(file, lambda old: revoke_eks(old, eks), key_name, signed_by, days, output)


@values.command(name="set", epilog=EPILOG)
@file_argument("file")
@click.argument("assignments", nargs=-1, required=True, metavar="FIELD=VALUE...")
@click.option("--group", default="", help="Set fields of this image group: boot, tdx_boot.")
@click.option("--node", default="", help="Set fields of this node: group, chips, devices, own.")
@_KEY
@_SIGNED_BY
@_DAYS
@json_option
def set_(  # noqa: PLR0917 - click passes every option
    file: Path,
    assignments: tuple[str, ...],
    group: str,
    node: str,
    key_name: str,
    signed_by: tuple[str, ...],
    days: int | None,
    output: str,
) -> int:
    """Set each FIELD of FILE: of tpm, boot, tdx_boot, ima, snp, tdx, gpu or tokens.

    VALUE is JSON, or plain text, or @FILE with JSON in it. FIELD+=VALUE adds to a list or an
    object, FIELD-=VALUE takes out of it. A field that there is not is refused, and nothing written.
    """
    from securetrain.attest.fleet import set_fields

    if group and node:
        raise click.UsageError("--group and --node: name one of them")
    now = datetime.now(UTC)

    def change(old: "ReferenceValues") -> "ReferenceValues":
        return set_fields(old, assignments, now, group=group, node=node)

    return _change(file, change, key_name, signed_by, days, output)


@values.command(name="sign", epilog=EPILOG)
@file_argument("file")
@_KEY
@_SIGNED_BY
@_DAYS
@json_option
def sign(
    file: Path, key_name: str, signed_by: tuple[str, ...], days: int | None, output: str
) -> int:
    """Sign FILE again as the next edition: with --days a later end, or with another key.

    With another key, name the one that has signed it in --signed-by, and put the new one into the
    policy's signed_by before.
    """
    return _change(file, lambda old: old, key_name, signed_by, days, output)


@values.command(name="diff", epilog=EPILOG)
@file_argument("file")
@file_argument("other", required=False)
@click.option(
    "--signed-by",
    multiple=True,
    required=True,
    metavar="KEY",
    help="A key that may have signed them; repeatable.",
)
@json_option
def diff(file: Path, other: Path | None, signed_by: tuple[str, ...], output: str) -> int:
    """Show what changed from FILE to OTHER; with FILE alone, from the edition before it to it."""
    from securetrain.attest.fleet import compare_files
    from securetrain.report import values

    old, new = (None, file) if other is None else (file, other)
    return emit(values.differences(list(compare_files(old, new, signed_by)), new), output)


def _change(  # noqa: PLR0917 - what both commands are given
    file: Path,
    change: "Change",
    key_name: str,
    signed_by: tuple[str, ...],
    days: int | None,
    output: str,
) -> int:
    from securetrain.attest.fleet import change_values, compare, key_text
    from securetrain.identity import open_signer
    from securetrain.report import values

    now, key = datetime.now(UTC), open_signer(key_name, asker(None))
    found: list[Difference] = []

    def noted(old: "ReferenceValues") -> "ReferenceValues":
        new = change(old)
        found[:] = compare(old, new)
        return new

    with closing(fleet_memory()) as state:
        made = change_values(
            file,
            noted,
            key=key,
            signed_by=signed_by or (key_text(key.public),),
            now=now,
            lifetime=timedelta(days=days) if days is not None else None,
            state=state,
        )
    return emit(values.changed_page(found, made, file, now), output)
