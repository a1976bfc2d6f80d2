# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain enroll``: one-time tokens, and joining with one."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from securetrain.cli.passphrase import passphrase_option, unlocker
from securetrain.core.text import printable

EPILOG = """\
\b
Examples:
  securetrain enroll token --ca /etc/securetrain/ca --job run-7 --node node-1
  securetrain enroll join st1_eyJ... --out /etc/securetrain/run-7

\b
Exit codes: 0 enrolled; 1 refused: another desk than the token's, a token that is used, expired or
not known; 2 bad usage, or a token that was not copied whole; 16 the node is revoked; 20 a file
cannot be read or written.
"""


@click.group(name="enroll", epilog=EPILOG)
def command() -> None:
    """Turn a machine into a node of a job with a one-time token."""


@command.command(name="token", epilog=EPILOG)
@click.option("--ca", "folder", type=click.Path(path_type=Path), required=True, help="The CA.")
@click.option("--job", required=True, help="The job's id.")
@click.option("--node", required=True, help="The node's name.")
@click.option(
    "--minutes",
    type=click.IntRange(1, 1440),
    default=15,
    show_default=True,
    help="How long the token is good.",
)
@click.option(
    "--address",
    default="",
    help="HOST:PORT of the enrolment desk, as the machine sees it. Default: where the job's running"
    " coordinator says it is.",
)
@passphrase_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def token(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    job: str,
    node: str,
    minutes: int,
    address: str,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Print a token for one machine. It is a secret until it has been used."""
    from securetrain.core.errors import UsageError
    from securetrain.identity.cluster_ca import ClusterCA
    from securetrain.rendezvous.coordinator.enrollment_server import make_token
    from securetrain.rendezvous.member.entry import parse_endpoint

    now = datetime.now(UTC)
    cluster = ClusterCA.load(folder, now)
    ca = cluster.job(job, now, unlocker(cluster, passphrase_file))
    where = address or cluster.register.endpoint(job)
    if not where:
        raise UsageError(
            "ST-USAG-001",
            f"no coordinator of {job} takes enrolments",
            "--address",
            "start 'securetrain coordinator --enroll-port PORT' first, or give --address",
        )
    ends = now + timedelta(minutes=minutes)
    made = make_token(cluster, ca, node, parse_endpoint(where, "--address"), ends)
    if as_json:
        document = {"token": made.text(), "node": node, "job": job, "ends": f"{ends:%FT%TZ}"}
        click.echo(json.dumps(document, indent=2, sort_keys=True))
        return
    click.echo(made.text())
    click.echo(f"for {made.spiffe}, once, until {ends:%Y-%m-%d %H:%M} UTC", err=True)


@command.command(name="join", epilog=EPILOG)
@click.argument("text", metavar="TOKEN")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="For the identity.")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="An attestation bundle to file in the coordinator's inventory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def join(text: str, out: Path, bundle: Path | None, as_json: bool) -> None:
    """Make a key here, prove TOKEN ('-' reads it from standard input), and get a certificate."""
    from securetrain.core.files import read_file
    from securetrain.identity.token import TEXT_LIMIT, parse_token
    from securetrain.rendezvous.member.enroll import enrol
    from securetrain.rendezvous.wire.enrollment import REPORT_LIMIT

    line = sys.stdin.read(TEXT_LIMIT + 1) if text == "-" else text
    report = read_file(bundle, REPORT_LIMIT) if bundle is not None else b""
    identity = enrol(parse_token(line), out, clock=lambda: datetime.now(UTC), report=report)
    ends = f"{identity.certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    if as_json:
        facts = {"spiffe": str(identity.spiffe), "folder": str(out), "ends": ends}
        click.echo(json.dumps(facts, indent=2, sort_keys=True))
        return
    click.echo(f"{identity.spiffe} in {printable(str(out))}, until {ends}")
    click.echo(f"join with: --rdzv-id {identity.spiffe.job} --rdzv-conf identity={out}")
