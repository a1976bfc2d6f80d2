# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest ima-list`` and ``ima-set``: which files may be measured on live nodes."""

from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from securetrain.cli.attest.signing import FileSigning
from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.options import DAYS, KEY, OUT, POLICY
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.attest.fleet import ImaChange
    from securetrain.identity.keys import PublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The packages and images whose files are listed."""

    dpkg: Annotated[tuple[Path, ...], Option("--dpkg", metavar="ROOT|DEB")]
    """Packages of Debian."""
    rpm: Annotated[tuple[Path, ...], Option("--rpm", metavar="ROOT|RPM")]
    """Packages of RPM."""
    images: Annotated[tuple[Path, ...], Option("--image", metavar="LAYOUT")]
    """A container image."""
    platform: Annotated[str, Option("--platform", metavar="OS/ARCH")] = ""
    """Of an image with several."""


@verb()
def ima_list(
    *,
    sources: Sources,
    excludes: Annotated[
        tuple[str, ...], Option("--exclude", "Any file is good.", metavar="PATTERN")
    ],
    beside: Annotated[tuple[Path, ...], Option("--beside", "A policy whose digests are good too.")],
    key: Annotated[Path | None, KEY.told("Sign it; as a DSSE envelope, which Keylime reads.")],
    out: Annotated[Path, OUT.told("The policy's file.")],
) -> Document:
    r"""List the files that may be measured, with their digests, as a runtime policy.

    They are those of packages and images.

    Examples:
      securetrain attest ima-list --dpkg / --out after.json
      securetrain attest ima-list --rpm /mnt/image --exclude '/tmp/.*' --out policy.json
      securetrain attest ima-list --image ./layout --rpm driver.rpm \
          --beside site.json --key operator.pem --out policy.json

    --dpkg and --rpm take the root of an installed system, or a package's file; --image takes an OCI
    layout (folder or tar) or what 'docker save' writes. Several sources make one list. Which
    packages it was made of is written beside it, as OUT.packages.json. You vouch for what is
    listed: check the packages' signatures first (apt, rpmkeys --checksig, cosign).

    Exit codes: 0 written; 1 a policy given with --beside is not signed by --key; 2 bad command
    line, or a source that cannot be read; 3 written, and something was left out: read the lines
    with '!'.
    """
    from securetrain.attest.fleet import ImaSources, list_files, read_list, write_list
    from securetrain.identity.keys import PrivateKey
    from securetrain.report import evidence

    if not (sources.dpkg or sources.rpm or sources.images):
        raise click.UsageError("name --dpkg, --rpm or --image")
    private = PrivateKey.load(key) if key is not None else None
    others = [read_list(path, [private.public] if private else [])[1] for path in beside]
    listing = list_files(ImaSources(**asdict(sources)))
    data = write_list(out, listing, now(), excludes=excludes, beside=others, key=private)
    return evidence.ima_list_page(listing, out, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Files that are judged otherwise."""

    policy: Annotated[Path | None, POLICY]
    """The next runtime policy; an envelope must be signed by --key."""
    policy_sha256: Annotated[str, Option("--policy-sha256", metavar="SHA256")] = ""
    """One that is in the cache."""
    former_until: Annotated[str | None, Option("--former-until", metavar="DATE")]
    """Accept the last one too, until this day (UTC)."""
    no_former: Annotated[bool, Option("--no-former")]
    """End the last one's time now."""
    ima_keys: Annotated[tuple[Path, ...], Option("--ima-key")]
    """A key that signs files (PEM)."""
    keyring: Annotated[str, Option("--keyring")] = ".ima"
    """The kernel's, of --ima-key."""
    paths: Annotated[tuple[str, ...], Option("--paths", metavar="PATTERN")]
    """What --ima-key vouches for."""
    drop_ima_key: Annotated[tuple[str, ...], Option("--drop-ima-key", metavar="KEYID")]
    """Take a key out."""
    violations: Annotated[tuple[str, ...], Option("--violations", metavar="PATTERN=MODE")]
    """log, warn or refuse, by path."""
    no_violations: Annotated[bool, Option("--no-violations")]
    """Take all of these rules out."""

    def check(self) -> None:
        """Refuse options that exclude each other."""
        for one, other, names in (
            (self.former_until, self.no_former, "--former-until and --no-former"),
            (self.policy is not None, self.policy_sha256, "--policy and --policy-sha256"),
            (self.violations, self.no_violations, "--violations and --no-violations"),
        ):
            if one and other:
                raise click.UsageError(f"{names} exclude each other")

    def read(self, key: "PublicKey") -> "ImaChange":
        """As the library calls it."""
        from securetrain.attest.fleet import (
            ImaChange,
            ima_key,
            ima_reference,
            read_list,
            violation_rule,
        )

        reference = ima_reference(None, self.policy_sha256)
        if self.policy is not None:
            reference = read_list(self.policy, [key])[0]
        rules = tuple(map(violation_rule, self.violations))
        return ImaChange(
            policy=reference,
            former_until=_day(self.former_until) if self.former_until else None,
            no_former=self.no_former,
            keys=tuple(ima_key(path, self.keyring, self.paths) for path in self.ima_keys),
            without_keys=self.drop_ima_key,
            violations=rules if rules or self.no_violations else None,
        )


@verb()
def ima_set(
    *,
    file: Path,
    signing: FileSigning,
    asked: Change,
    days: Annotated[int | None, DAYS.told("Days that it lasts. Default: as before.")],
) -> Document:
    r"""Change what may be measured, and sign it: the policy, keys that sign files, violations.

    Examples:
      securetrain attest ima-set fleet.json --key operator.pem --policy after.json \
          --former-until 2026-12-01
      securetrain attest ima-set fleet.json --key operator.pem --ima-key vendor.pem \
          --keyring .ima --paths '/opt/vendor/.*'
      securetrain attest ima-set fleet.json --key operator.pem --drop-ima-key a88501cf
      securetrain attest ima-set fleet.json --key operator.pem \
          --violations '/var/log/.*=log' --violations '/usr/.*=refuse'

    What is not named stays. Coordinators that run take the new edition within a second. Sign the
    list of an upgrade before the upgrade: what a node measures and no list knows bars the node.

    Exit codes: 0 signed; 1 the file is not signed by these keys, or a policy or key that no
    verifier could read; 2 bad command line.
    """
    from securetrain.attest.fleet import set_ima
    from securetrain.report import evidence

    asked.check()
    at, change = now(), asked.read(signing.signer().public)
    made = signing.change(file, lambda old: set_ima(old, change, at), days)
    return evidence.ima_values_page(made, file, at)


def _day(text: str) -> datetime:
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        raise click.UsageError(f"--former-until {text}: it is YYYY-MM-DD") from None
