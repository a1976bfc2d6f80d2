# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain ca``: the certificate authority of a cluster."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securetrain.cli.passphrase import new_passphrase, passphrase_option, unlocker
from securetrain.core.text import printable

if TYPE_CHECKING:
    from securetrain.identity.cluster_ca import ClusterCA
    from securetrain.identity.job_ca import JobCA
    from securetrain.identity.register import Issued

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

_FOLDER = click.argument("folder", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


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
@_JSON
def init(
    folder: Path, trust_domain: str, encrypt: bool, passphrase_file: Path | None, as_json: bool
) -> None:
    """Make a cluster CA in FOLDER: its key (0600), certificate, and empty revocation list."""
    from securetrain.identity.cluster_ca import ClusterCA
    from securetrain.identity.token import fingerprint

    secret = new_passphrase(passphrase_file) if encrypt or passphrase_file else None
    cluster = ClusterCA.create(folder, trust_domain, datetime.now(UTC), secret)
    facts = {
        "folder": str(folder),
        "trust_domain": cluster.trust_domain,
        "fingerprint": fingerprint(cluster.certificate),
        "ends": f"{cluster.certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
        "encrypted": secret is not None,
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2, sort_keys=True))
        return
    click.echo(f"cluster CA of {cluster.trust_domain} in {printable(str(folder))}")
    click.echo(f"SHA-256 {facts['fingerprint']}, until {facts['ends']}")
    if secret is None:
        click.echo("its key is not encrypted (--encrypt); only this user can read it")


@command.command(name="issue", epilog=EPILOG)
@_FOLDER
@click.option("--job", required=True, help="The job's id.")
@click.option("--node", default="", help="Issue a node's identity under this name.")
@click.option(
    "--coordinator",
    is_flag=True,
    help="Write what a coordinator on another machine needs: this job's CA, no key of the cluster.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write; must be new.")
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
) -> None:
    """Issue a node's identity for one job, or the folder for the job's coordinator."""
    if bool(node) == coordinator:
        raise click.UsageError("give either --node NAME or --coordinator")
    cluster = _open(folder)
    unlock = unlocker(cluster, passphrase_file)
    target = out or Path(f"{job}-{node or 'coordinator'}")
    if coordinator:
        cluster.export(job, target, datetime.now(UTC), unlock)
        click.echo(f"for the coordinator of {job}: {printable(str(target))}")
        click.echo("start it with: securetrain coordinator --ca DIR --job " + job)
        return
    ca = cluster.job(job, datetime.now(UTC), unlock)
    _issue_node(cluster, ca, node, target, timedelta(minutes=minutes))


def _issue_node(
    cluster: "ClusterCA", ca: "JobCA", node: str, out: Path, lifetime: timedelta
) -> None:
    from securetrain.identity.keys import KeyKind, PrivateKey
    from securetrain.identity.register import How
    from securetrain.identity.spiffe import Role
    from securetrain.rendezvous.member.identity_dir import new_folder, store_identity

    now = datetime.now(UTC)
    with new_folder(out):
        key = PrivateKey.generate(KeyKind.P256)
        certificate = cluster.issue(
            ca, Role.NODE, key.public, now, node=node, lifetime=lifetime, how=How.COMMAND
        )
        identity = store_identity(out, key, certificate, ca.certificate, now)
    click.echo(f"{identity.spiffe} in {printable(str(out))}")
    click.echo(f"serial {certificate.serial_number:x}, until {_time(now + lifetime)}")


@command.command(name="revoke", epilog=EPILOG)
@_FOLDER
@click.option("--node", default="", help="Revoke a node: all its certificates, in every job.")
@click.option("--serial", default="", help="Revoke one certificate, by its serial (hex).")
@click.option("--job", default="", help="Revoke a job's CA: every certificate of the job.")
@click.option("--reason", default="", help="Why; stands in the signed list.")
@passphrase_option
@_JSON
def revoke(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    node: str,
    serial: str,
    job: str,
    reason: str,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Revoke a node, a certificate or a whole job, for good, and sign the new list.

    Coordinators that use this folder evict it within seconds. Others need the new revoked.json.
    """
    from securetrain.identity.register import Kind

    if sum(map(bool, (node, serial, job))) != 1:
        raise click.UsageError("give one of --node NAME, --serial HEX and --job ID")
    cluster = _open(folder)
    named = {Kind.NODE: node, Kind.JOB: job, Kind.SERIAL: serial.lower().lstrip("0")}
    kind, name = next((kind, name) for kind, name in named.items() if name or kind is Kind.SERIAL)
    key = unlocker(cluster, passphrase_file)()
    found = cluster.revoke(kind, name, reason, datetime.now(UTC), key)
    if as_json:
        click.echo(json.dumps({"kind": kind, "name": name, "number": found.number}, indent=2))
        return
    click.echo(f"revoked {kind} {name}; list number {found.number}")


@command.command(name="list", epilog=EPILOG)
@_FOLDER
@_JSON
def show(folder: Path, as_json: bool) -> None:
    """List what was issued and what is revoked."""
    cluster = _open(folder)
    revocations = cluster.revocations()

    def state(entry: "Issued") -> str:
        found = revocations.find(entry.node, entry.serial, entry.job)
        return _state(found is not None, entry.ends)

    rows = [
        {
            "serial": entry.serial,
            "spiffe": entry.spiffe,
            "how": entry.how.value,
            "ends": _time(entry.ends),
            "state": state(entry),
        }
        for entry in cluster.register.issued()
    ]
    revoked = [
        {"kind": e.kind.value, "name": e.name, "reason": e.reason, "since": _time(e.since)}
        for e in revocations.entries
    ]
    if as_json:
        document = {"number": revocations.number, "issued": rows, "revoked": revoked}
        click.echo(json.dumps(document, indent=2, sort_keys=True))
        return
    for row in rows:
        click.echo(
            f"{row['state']:8} {row['spiffe']}  until {row['ends']}  {row['how']}  {row['serial']}"
        )
    for item in revoked:
        click.echo(
            f"revoked  {item['kind']} {item['name']} since {item['since']}:"
            f" {printable(item['reason']) or 'no reason given'}"
        )
    if not (rows or revoked):
        click.echo("nothing was issued yet")


def _open(folder: Path) -> "ClusterCA":
    from securetrain.identity.cluster_ca import ClusterCA

    return ClusterCA.load(folder, datetime.now(UTC))


def _state(is_revoked: bool, ends: datetime) -> str:
    if is_revoked:
        return "revoked"
    return "good" if datetime.now(UTC) <= ends else "expired"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
