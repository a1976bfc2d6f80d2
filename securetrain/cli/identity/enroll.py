# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Turn a machine into a node of a job with a one-time token.

Examples:
  securetrain enroll token --ca /etc/securetrain/ca --job run-7 --node node-1
  securetrain enroll join st1_eyJ... --out /etc/securetrain/run-7

Exit codes: 0 enrolled; 1 refused: another server than the token's, a token that is used, expired or
not known; 2 bad usage, or a token that was not copied whole; 16 the node is revoked; 20 a file
cannot be read or written.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Argument, Option, VerbGroup, verb
from securetrain.cli.options import BUNDLE, CA, JOB, OUT, CaSecret
from securetrain.cli.passphrase import read_token
from securetrain.report import Document

command = VerbGroup(__name__, __doc__, {"": ("token", "join")})


@verb()
def token(
    *,
    ca: Annotated[Path, CA],
    job: Annotated[str, JOB],
    node: Annotated[str, Option("--node", "The node's name.")],
    minutes: Annotated[
        int, Option("--minutes", "Minutes that the token is good.", click.IntRange(1, 1440))
    ] = 15,
    address: Annotated[
        str,
        Option(
            "--address",
            "HOST:PORT of the enrollment server, as the machine sees it. Default: where the job's"
            " running coordinator says it is.",
        ),
    ] = "",
    secret: CaSecret,
) -> Document:
    """Print a token for one machine. It is a secret until it has been used."""
    from securetrain.core.errors import UsageError
    from securetrain.identity import ClusterCA
    from securetrain.rendezvous.coordinator import make_token
    from securetrain.rendezvous.member import parse_endpoint
    from securetrain.report import keys

    at = now()
    cluster = ClusterCA.load(ca, at)
    issuer = cluster.job(job, at, secret.unlocker(cluster))
    where = address or cluster.register.endpoint(job)
    if not where:
        raise UsageError(
            "ST-USAG-001",
            f"no coordinator of {job} takes enrollments",
            "--address",
            "start 'securetrain coordinator --enroll-port PORT' first, or give --address",
        )
    ends = at + timedelta(minutes=minutes)
    made = make_token(cluster, issuer, node, parse_endpoint(where, "--address"), ends)
    return keys.token(made, node, job, ends)


@verb()
def join(
    *,
    text: Annotated[str, Argument(metavar="TOKEN")],
    out: Annotated[Path, OUT.told("The identity's folder.")],
    bundle: Annotated[
        Path | None,
        BUNDLE.told("An attestation bundle to file in the coordinator's inventory."),
    ],
) -> Document:
    """Make a key here, prove TOKEN ('-' reads it from standard input), and get a certificate."""
    from securetrain.core.files import read_file
    from securetrain.identity import parse_token
    from securetrain.rendezvous.member import enroll
    from securetrain.rendezvous.wire import REPORT_LIMIT
    from securetrain.report import keys

    line = read_token(text)
    report = read_file(bundle, REPORT_LIMIT) if bundle is not None else b""
    identity = enroll(parse_token(line), out, clock=now, report=report)
    ends = identity.certificate.not_valid_after_utc
    return keys.joined(identity.spiffe, out, ends)
