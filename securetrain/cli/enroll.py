# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain enroll``: one-time tokens, and joining with one."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from securetrain.cli.options import file_option, json_option, passphrase_option
from securetrain.cli.passphrase import unlocker
from securetrain.report import emit

EPILOG = """\
\b
Examples:
  securetrain enroll token --ca /etc/securetrain/ca --job run-7 --node node-1
  securetrain enroll join st1_eyJ... --out /etc/securetrain/run-7

\b
Exit codes: 0 enrolled; 1 refused: another server than the token's, a token that is used, expired or
not known; 2 bad usage, or a token that was not copied whole; 16 the node is revoked; 20 a file
cannot be read or written.
"""


@click.group(name="enroll", epilog=EPILOG)
def command() -> None:
    """Turn a machine into a node of a job with a one-time token."""


@command.command(name="token", epilog=EPILOG)
@file_option("--ca", "folder", required=True, help="The cluster CA's folder.")
@click.option("--job", required=True, help="The job's id.")
@click.option("--node", required=True, help="The node's name.")
@click.option(
    "--minutes",
    type=click.IntRange(1, 1440),
    default=15,
    show_default=True,
    help="Minutes that the token is good.",
)
@click.option(
    "--address",
    default="",
    help="HOST:PORT of the enrollment server, as the machine sees it. Default: where the job's"
    " running coordinator says it is.",
)
@passphrase_option
@json_option
def token(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    job: str,
    node: str,
    minutes: int,
    address: str,
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Print a token for one machine. It is a secret until it has been used."""
    from securetrain.core.errors import UsageError
    from securetrain.identity import ClusterCA
    from securetrain.rendezvous.coordinator import make_token
    from securetrain.rendezvous.member import parse_endpoint
    from securetrain.report import keys

    now = datetime.now(UTC)
    cluster = ClusterCA.load(folder, now)
    ca = cluster.job(job, now, unlocker(cluster, passphrase_file))
    where = address or cluster.register.endpoint(job)
    if not where:
        raise UsageError(
            "ST-USAG-001",
            f"no coordinator of {job} takes enrollments",
            "--address",
            "start 'securetrain coordinator --enroll-port PORT' first, or give --address",
        )
    ends = now + timedelta(minutes=minutes)
    made = make_token(cluster, ca, node, parse_endpoint(where, "--address"), ends)
    return emit(keys.token(made, node, job, ends), output)


@command.command(name="join", epilog=EPILOG)
@click.argument("text", metavar="TOKEN")
@file_option("--out", required=True, help="The identity's folder.")
@file_option("--bundle", help="An attestation bundle to file in the coordinator's inventory.")
@json_option
def join(text: str, out: Path, bundle: Path | None, output: str) -> int:
    """Make a key here, prove TOKEN ('-' reads it from standard input), and get a certificate."""
    from securetrain.core.files import read_file
    from securetrain.identity import TEXT_LIMIT, parse_token
    from securetrain.rendezvous.member import enroll
    from securetrain.rendezvous.wire import REPORT_LIMIT
    from securetrain.report import keys

    line = sys.stdin.read(TEXT_LIMIT + 1) if text == "-" else text
    report = read_file(bundle, REPORT_LIMIT) if bundle is not None else b""
    identity = enroll(parse_token(line), out, clock=lambda: datetime.now(UTC), report=report)
    ends = identity.certificate.not_valid_after_utc
    return emit(keys.joined(identity.spiffe, out, ends), output)
