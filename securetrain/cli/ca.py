# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain ca``: the certificate authority of a cluster."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securetrain.cli.options import file_argument, file_option, json_option, passphrase_option
from securetrain.cli.passphrase import new_passphrase, unlocker
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.identity import ClusterCA

EPILOG = """\
\b
Examples:
  securetrain ca init /etc/securetrain/ca
  securetrain ca issue /etc/securetrain/ca --job run-7 --node node-0 --out node-0-identity
  securetrain ca issue /etc/securetrain/ca --job run-7 --coordinator --out coordinator-ca
  securetrain ca revoke /etc/securetrain/ca --node node-0 --reason "disk was sold"
  securetrain ca revoke /etc/securetrain/ca --job run-7 --reason "its coordinator was broken into"
  securetrain ca list /etc/securetrain/ca

\b
Exit codes: 0 done; 2 no usable CA in the folder, a key that cannot be read, or one exists already;
12 a certificate or revocation list that is not good; 16 the node or job is revoked; 20 a file
cannot be read or written.
"""

_FOLDER = file_argument("folder")


@click.group(name="ca", epilog=EPILOG)
def command() -> None:
    """Keep the certificate authority of a cluster: it outlives jobs, its certificates do not."""


@command.command(name="init", epilog=EPILOG)
@_FOLDER
@click.option(
    "--trust-domain",
    default="securetrain.local",
    show_default=True,
    help="SPIFFE trust domain of every certificate; the policy names the same.",
)
@click.option("--encrypt", is_flag=True, help="Encrypt the key with a passphrase.")
@passphrase_option
@json_option
def init(
    folder: Path, trust_domain: str, encrypt: bool, passphrase_file: Path | None, output: str
) -> int:
    """Make a cluster CA in FOLDER: its key (0600), certificate, and empty revocation list."""
    from securetrain.identity import ClusterCA
    from securetrain.report import keys

    secret = new_passphrase(passphrase_file) if encrypt or passphrase_file else None
    cluster = ClusterCA.create(folder, trust_domain, datetime.now(UTC), secret)
    return emit(keys.made(cluster, folder, encrypted=secret is not None), output)


@command.command(name="issue", epilog=EPILOG)
@_FOLDER
@click.option("--job", required=True, help="The job's id.")
@click.option("--node", default="", help="Issue a node's identity under this name.")
@click.option(
    "--coordinator",
    is_flag=True,
    help="Write the folder for a coordinator on another machine: this job's CA, no key of the"
    " cluster.",
)
@file_option("--out", help="The folder to write; must be new.")
@click.option(
    "--minutes", type=click.IntRange(5, 1440), default=1440, show_default=True, help="Lifetime."
)
@passphrase_option
def issue(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    job: str,
    node: str,
    coordinator: bool,
    out: Path | None,
    minutes: int,
    passphrase_file: Path | None,
) -> int:
    """Issue a node's identity for one job, or the folder for the job's coordinator."""
    from securetrain.rendezvous.member import issue_identity
    from securetrain.report import keys

    if bool(node) == coordinator:
        raise click.UsageError("give either --node NAME or --coordinator")
    cluster = _open(folder)
    unlock = unlocker(cluster, passphrase_file)
    target = out or Path(f"{job}-{node or 'coordinator'}")
    if coordinator:
        cluster.export(job, target, datetime.now(UTC), unlock)
        return emit(keys.coordinator(job, target), "text")
    ca = cluster.job(job, datetime.now(UTC), unlock)
    now, lifetime = datetime.now(UTC), timedelta(minutes=minutes)
    made = issue_identity(cluster, ca, node, target, now, lifetime=lifetime)
    serial = made.certificate.serial_number
    return emit(keys.identity(made.spiffe, target, serial, now + lifetime), "text")


@command.command(name="revoke", epilog=EPILOG)
@_FOLDER
@click.option("--node", default="", help="Revoke a node: all its certificates, in every job.")
@click.option("--serial", default="", help="Revoke one certificate, by its serial (hex).")
@click.option("--job", default="", help="Revoke a job's CA: every certificate of the job.")
@click.option("--reason", default="", help="The reason, which stands in the signed list.")
@passphrase_option
@json_option
def revoke(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    node: str,
    serial: str,
    job: str,
    reason: str,
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Revoke a node, a certificate or a whole job, for good, and sign the new list.

    Coordinators that use this folder evict it within seconds. Others need the new revoked.json.
    """
    from securetrain.identity import Kind
    from securetrain.report import keys

    if sum(map(bool, (node, serial, job))) != 1:
        raise click.UsageError("give one of --node NAME, --serial HEX and --job ID")
    cluster = _open(folder)
    named = {Kind.NODE: node, Kind.JOB: job, Kind.SERIAL: serial.lower().lstrip("0")}
    kind, name = next((kind, name) for kind, name in named.items() if name or kind is Kind.SERIAL)
    key = unlocker(cluster, passphrase_file)()
    found = cluster.revoke(kind, name, reason, datetime.now(UTC), key)
    return emit(keys.revoked(kind, name, found.number), output)


@command.command(name="list", epilog=EPILOG)
@_FOLDER
@json_option
def show(folder: Path, output: str) -> int:
    """List what was issued and what is revoked."""
    from securetrain.report import keys

    return emit(keys.listed(_open(folder), datetime.now(UTC)), output)


def _open(folder: Path) -> "ClusterCA":
    from securetrain.identity import ClusterCA

    return ClusterCA.load(folder, datetime.now(UTC))
