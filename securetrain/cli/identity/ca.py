# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keep the certificate authority of a cluster: it outlives jobs, its certificates do not.

Examples:
  securetrain ca init /etc/securetrain/ca
  securetrain ca issue /etc/securetrain/ca --job run-7 --node node-0 --out node-0-identity
  securetrain ca issue /etc/securetrain/ca --job run-7 --coordinator --out coordinator-ca
  securetrain ca revoke /etc/securetrain/ca --node node-0 --reason "disk was sold"
  securetrain ca revoke /etc/securetrain/ca --job run-7 --reason "its coordinator was broken into"
  securetrain ca list /etc/securetrain/ca

Exit codes: 0 done; 2 no usable CA in the folder, a key that cannot be read, or one exists already;
12 a certificate or revocation list that is not good; 16 the node or job is revoked; 20 a file
cannot be read or written.
"""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, VerbGroup, verb
from securetrain.cli.options import ENCRYPT, JOB, OUT, CaSecret
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.identity import ClusterCA

command = VerbGroup(__name__, __doc__, {"": ("init", "issue", "revoke", "list")})


@verb()
def init(
    *,
    folder: Path,
    trust_domain: Annotated[
        str,
        Option(
            "--trust-domain",
            "SPIFFE trust domain of every certificate; the policy names the same.",
        ),
    ] = "securetrain.local",
    encrypt: Annotated[bool, ENCRYPT],
    secret: CaSecret,
) -> Document:
    """Make a cluster CA in FOLDER: its key (0600), certificate, and empty revocation list."""
    from securetrain.identity import ClusterCA
    from securetrain.report import keys

    given = secret.new(encrypt=encrypt)
    cluster = ClusterCA.create(folder, trust_domain, now(), given)
    return keys.made(cluster, folder, encrypted=given is not None)


@verb(json="")
def issue(
    *,
    folder: Path,
    job: Annotated[str, JOB],
    node: Annotated[str, Option("--node", "Issue a node's identity under this name.")] = "",
    coordinator: Annotated[
        bool,
        Option(
            "--coordinator",
            "Write the folder for a coordinator on another machine: this job's CA, no key of the"
            " cluster.",
        ),
    ],
    out: Annotated[Path | None, OUT.told("The folder to write; must be new.")],
    minutes: Annotated[int, Option("--minutes", "Lifetime.", click.IntRange(5, 1440))] = 1440,
    secret: CaSecret,
) -> Document:
    """Issue a node's identity for one job, or the folder for the job's coordinator."""
    from securetrain.rendezvous.member import issue_identity
    from securetrain.report import keys

    if bool(node) == coordinator:
        raise click.UsageError("give either --node NAME or --coordinator")
    cluster = _open(folder)
    unlock = secret.unlocker(cluster)
    target = out or Path(f"{job}-{node or 'coordinator'}")
    if coordinator:
        cluster.export(job, target, now(), unlock)
        return keys.coordinator(job, target)
    ca = cluster.job(job, now(), unlock)
    at, lifetime = now(), timedelta(minutes=minutes)
    made = issue_identity(cluster, ca, node, target, at, lifetime=lifetime)
    return keys.identity(made.spiffe, target, made.certificate.serial_number, at + lifetime)


@verb()
def revoke(
    *,
    folder: Path,
    node: Annotated[
        str, Option("--node", "Revoke a node: all its certificates, in every job.")
    ] = "",
    serial: Annotated[str, Option("--serial", "Revoke one certificate, by its serial (hex).")] = "",
    job: Annotated[str, JOB.told("Revoke a job's CA: every certificate of the job.")] = "",
    reason: Annotated[str, Option("--reason", "The reason, which stands in the signed list.")] = "",
    secret: CaSecret,
) -> Document:
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
    found = cluster.revoke(kind, name, reason, now(), secret.unlocker(cluster)())
    return keys.revoked(kind, name, found.number)


@verb()
def list_(*, folder: Path) -> Document:
    """List what was issued and what is revoked."""
    from securetrain.report import keys

    return keys.listed(_open(folder), now())


def _open(folder: Path) -> "ClusterCA":
    from securetrain.identity import ClusterCA

    return ClusterCA.load(folder, now())
