# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest ima-list`` and ``ima-set``: which files may be measured on live nodes."""

from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Final

import click

from securetrain.cli.fleet_memory import fleet_memory
from securetrain.cli.options import file_argument, file_option, json_option
from securetrain.report import emit

LIST_EPILOG: Final = """\
\b
Examples:
  securetrain attest ima-list --dpkg / --out after.json
  securetrain attest ima-list --rpm /mnt/image --exclude '/tmp/.*' --out policy.json
  securetrain attest ima-list --image ./layout --rpm driver.rpm \\
      --beside site.json --key operator.pem --out policy.json

--dpkg and --rpm take the root of an installed system, or a package's file; --image takes an OCI
layout (folder or tar) or what 'docker save' writes. Several sources make one list. Which packages
it was made of is written beside it, as OUT.packages.json. You vouch for what is listed: check the
packages' signatures first (apt, rpmkeys --checksig, cosign).

Exit codes: 0 written; 1 a policy given with --beside is not signed by --key; 2 bad command line, or
a source that cannot be read; 3 written, and something was left out: read the lines with '!'.
"""


@click.command(
    name="ima-list", epilog=LIST_EPILOG, short_help="List the files that may be measured."
)
@file_option("--dpkg", "dpkg", multiple=True, metavar="ROOT|DEB", help="Packages of Debian.")
@file_option("--rpm", "rpm", multiple=True, metavar="ROOT|RPM", help="Packages of RPM.")
@file_option("--image", "images", multiple=True, metavar="LAYOUT", help="A container image.")
@click.option("--platform", default="", metavar="OS/ARCH", help="Of an image with several.")
@click.option("--exclude", "excludes", multiple=True, metavar="PATTERN", help="Any file is good.")
@file_option("--beside", multiple=True, help="A policy whose digests are good too.")
@file_option("--key", "key_file", help="Sign it; as a DSSE envelope, which Keylime reads.")
@file_option("--out", required=True, help="The policy's file.")
@json_option
def ima_list(  # noqa: PLR0917 - click passes every option
    dpkg: tuple[Path, ...],
    rpm: tuple[Path, ...],
    images: tuple[Path, ...],
    platform: str,
    excludes: tuple[str, ...],
    beside: tuple[Path, ...],
    key_file: Path | None,
    out: Path,
    output: str,
) -> int:
    """List the files of packages and images, with their digests, as a runtime policy."""
    from securetrain.attest.fleet import ImaSources, list_files, read_list, write_list
    from securetrain.identity.keys import PrivateKey
    from securetrain.report import evidence

    if not (dpkg or rpm or images):
        raise click.UsageError("name --dpkg, --rpm or --image")
    key = PrivateKey.load(key_file) if key_file is not None else None
    keys = [key.public] if key is not None else []
    others = [read_list(path, keys)[1] for path in beside]
    listing = list_files(ImaSources(dpkg=dpkg, rpm=rpm, images=images, platform=platform))
    data = write_list(out, listing, datetime.now(UTC), excludes=excludes, beside=others, key=key)
    return emit(evidence.ima_list_page(listing, out, data), output)


SET_EPILOG: Final = """\
\b
Examples:
  securetrain attest ima-set fleet.json --key operator.pem --policy after.json \\
      --former-until 2026-12-01
  securetrain attest ima-set fleet.json --key operator.pem --ima-key vendor.pem \\
      --keyring .ima --paths '/opt/vendor/.*'
  securetrain attest ima-set fleet.json --key operator.pem --drop-ima-key a88501cf
  securetrain attest ima-set fleet.json --key operator.pem \\
      --violations '/var/log/.*=log' --violations '/usr/.*=refuse'

What is not named stays. Coordinators that run take the new edition within a second. Sign the list
of an upgrade before the upgrade: what a node measures and no list knows bars the node.

Exit codes: 0 signed; 1 the file is not signed by these keys, or a policy or key that no verifier
could read; 2 bad command line.
"""


@click.command(
    name="ima-set", epilog=SET_EPILOG, short_help="Change what may be measured, and sign it."
)
@file_argument("file")
@file_option("--key", "key_file", required=True, help="The operator's key.")
@click.option("--signed-by", multiple=True, metavar="KEY", help="Default: --key.")
@file_option("--policy", help="The next runtime policy; an envelope must be signed by --key.")
@click.option("--policy-sha256", default="", metavar="SHA256", help="One that is in the cache.")
@click.option(
    "--former-until", metavar="DATE", help="Accept the last one too, until this day (UTC)."
)
@click.option("--no-former", is_flag=True, help="End the last one's time now.")
@file_option("--ima-key", "ima_keys", multiple=True, help="A key that signs files (PEM).")
@click.option("--keyring", default=".ima", show_default=True, help="The kernel's, of --ima-key.")
@click.option("--paths", multiple=True, metavar="PATTERN", help="What --ima-key vouches for.")
@click.option("--drop-ima-key", multiple=True, metavar="KEYID", help="Take a key out.")
@click.option(
    "--violations", multiple=True, metavar="PATTERN=MODE", help="log, warn or refuse, by path."
)
@click.option("--no-violations", is_flag=True, help="Take all of these rules out.")
@click.option(
    "--days", type=click.IntRange(1, 3650), help="Days that it lasts. Default: as before."
)
@json_option
def ima_set(  # noqa: PLR0917 - click passes every option
    file: Path,
    key_file: Path,
    signed_by: tuple[str, ...],
    policy: Path | None,
    policy_sha256: str,
    former_until: str | None,
    no_former: bool,
    ima_keys: tuple[Path, ...],
    keyring: str,
    paths: tuple[str, ...],
    drop_ima_key: tuple[str, ...],
    violations: tuple[str, ...],
    no_violations: bool,
    days: int | None,
    output: str,
) -> int:
    """Change what FILE says of measured files: the policy, keys that sign files, violations."""
    from securetrain.attest.fleet import (
        ImaChange,
        change_values,
        ima_key,
        ima_reference,
        key_text,
        read_list,
        set_ima,
        violation_rule,
    )
    from securetrain.identity.keys import PrivateKey
    from securetrain.report import evidence

    if former_until and no_former:
        raise click.UsageError("--former-until and --no-former exclude each other")
    if policy is not None and policy_sha256:
        raise click.UsageError("--policy and --policy-sha256 exclude each other")
    if violations and no_violations:
        raise click.UsageError("--violations and --no-violations exclude each other")
    now, key = datetime.now(UTC), PrivateKey.load(key_file)
    reference = ima_reference(None, policy_sha256)
    if policy is not None:
        reference = read_list(policy, [key.public])[0]
    rules = tuple(map(violation_rule, violations))
    change = ImaChange(
        policy=reference,
        former_until=_day(former_until) if former_until else None,
        no_former=no_former,
        keys=tuple(ima_key(path, keyring, paths) for path in ima_keys),
        without_keys=drop_ima_key,
        violations=rules if rules or no_violations else None,
    )
    with closing(fleet_memory()) as state:
        made = change_values(
            file,
            lambda old: set_ima(old, change, now),
            key=key,
            signed_by=signed_by or (key_text(key.public),),
            now=now,
            lifetime=None if days is None else timedelta(days=days),
            state=state,
        )
    return emit(evidence.ima_values_page(made, file, now), output)


def _day(text: str) -> datetime:
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        raise click.UsageError(f"--former-until {text}: it is YYYY-MM-DD") from None
