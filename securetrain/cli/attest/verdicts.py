# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest verify`` and ``explain``: what evidence proves, and why it is refused."""

from contextlib import closing, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.fleet.memory import fleet_memory
from securetrain.cli.options import AT, POLICY
from securetrain.report import Document


@verb()
def verify(
    *,
    bundle: Path,
    policy: Annotated[str, POLICY],
    secret: Annotated[
        Path | None, Option("--secret", "The secret of the question that this answers.")
    ],
    at: Annotated[str | None, AT.told("Judge as of a past time (RFC 3339). Default: now.")],
    ear: Annotated[
        Path | None, Option("--ear", "Write the result as a signed EAR (JWT), if proven.")
    ],
    sign_key: Annotated[Path | None, Option("--sign-key", "The verifier's P-256 key, for --ear.")],
) -> Document:
    r"""Judge BUNDLE under a policy, as 'run' judges a node that joins.

    Examples:
      securetrain attest verify answer.json --policy fleet.yaml \
          --secret question.secret
      securetrain attest verify node-17.json --policy fleet.yaml
      securetrain attest verify answer.json --policy fleet.yaml \
          --secret question.secret --ear answer.jwt --sign-key verifier.pem

    Exit codes: 0 everything that the policy asks for was proven; 1 refused, naming the rule, and
    the register or log entry; 2 bad command line, policy or file; 3 nothing is wrong, but something
    stays open: freshness without --secret, or a node with nothing but its own word or a software
    TPM.
    """
    from securetrain.attest.fleet import judge, read_bundle, read_secret, write_ear
    from securetrain.attest.session import MemoryState
    from securetrain.identity.keys import PrivateKey
    from securetrain.policy import load_policy
    from securetrain.report import evidence

    if (ear is None) != (sign_key is None):
        raise click.UsageError("--ear and --sign-key go together")
    if ear is not None and at is not None:
        raise click.UsageError("an EAR is signed for now: leave out --at")
    with nullcontext(MemoryState()) if at else closing(fleet_memory()) as state:
        judgement = judge(
            read_bundle(bundle),
            load_policy(policy),
            secret=read_secret(secret) if secret else None,
            now=_moment(at) if at else now(),
            state=state,
        )
    written = ""
    if ear is not None and sign_key is not None:
        done = write_ear(ear, judgement, PrivateKey.load(sign_key))
        written = f"{ear}: the signed result" if done else f"{ear}: not written, not proven"
    return evidence.judgement(judgement, written)


@verb()
def explain(*, result: str) -> Document:
    """Say in words why evidence was refused: which rule RESULT broke, and what to do.

    It names the register and the entry.

    Examples:
      securetrain attest verify answer.json --policy fleet.yaml --json > result.json
      securetrain attest explain result.json
      securetrain attest explain runs/run-7-coordinator
      securetrain attest explain ST-ATTS-213

    RESULT is the JSON of 'attest verify' or of a 'coordinator --json', the directory of a run,
    whose ledger is verified, or a code.

    Exit codes: 0 explained, or there is nothing to explain; 2 it is none of these; 4 a ledger is
    not what was signed.
    """
    from securetrain.attest.fleet import explain as explained
    from securetrain.report import evidence

    return evidence.explained(explained(result))


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--at {text}: {error}") from error
    if moment.tzinfo is None:
        raise click.UsageError(f"--at {text}: say which time zone, as in 2026-01-31T12:00:00Z")
    return moment
