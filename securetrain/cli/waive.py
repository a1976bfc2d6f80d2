# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain waive PATH``: operators excuse one checkpoint that is old or was set aside."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from securetrain.cli.options import (
    KEY_FORMS,
    days_option,
    file_argument,
    file_option,
    secret_option,
)
from securetrain.cli.passphrase import asker
from securetrain.report import emit

MAX_DAYS: Final = 90

EPILOG: Final = """\
\b
Examples:
  securetrain waive runs/r1/checkpoints/step-00000050 --trust trust.json --key operator-1.key \\
      --reason 'the last two diverged' --out waiver.json
  securetrain waive runs/r1/checkpoints/step-00000050 --trust trust.json --key operator-2.key \\
      --add waiver.json --out waiver-2.json
  securetrain verify runs/r1/checkpoints/step-00000050 --trust trust.json --waiver waiver-2.json

\b
A waiver counts when as many operators as the trust root asks for have signed it. It names this one
checkpoint, and excuses that it is not the newest or was set aside: never a signature, never a byte.
"""


@click.command(name="waive", epilog=EPILOG)
@file_argument("path")
@file_option(
    "--trust",
    "trust_file",
    required=True,
    help="The trust root, a file or a folder of 'trust update'.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    help=f"Operator's private key: {KEY_FORMS}. May be given several times.",
)
@secret_option
@click.option("--reason", help="The reason, for later readers.")
@days_option(7, "Days that it counts.", most=MAX_DAYS)
@file_option("--add", help="A waiver that other operators signed: looked at, and signed too.")
@file_option("--out", required=True, help="The waiver's file.")
def command(
    *,
    path: Path,
    trust_file: Path,
    keys: tuple[str, ...],
    passphrase_file: Path | None,
    reason: str | None,
    days: int,
    add: Path | None,
    out: Path,
) -> int:
    """Sign a waiver for the checkpoint in the directory PATH."""
    from securetrain.artifacts.lineage import waivers
    from securetrain.core.errors import UsageError
    from securetrain.core.files import read_file, write_atomic
    from securetrain.identity import dsse, open_signer
    from securetrain.report import signatures

    if (reason is None) == (add is None):
        raise UsageError(
            "ST-USAG-001",
            "a new waiver needs a reason, and one that others signed has one",
            str(path),
            "give --reason TEXT, or --add FILE",
        )
    now = datetime.now(UTC)
    run_id, digest = _named(path, trust_file, now)
    ask = asker(passphrase_file)
    signers = [open_signer(name, ask) for name in keys]
    if add is None:
        waiver = waivers.Waiver(
            run_id=run_id,
            digest=digest,
            reason=reason or "",
            issued=now.replace(microsecond=0),
            expires=now.replace(microsecond=0) + timedelta(days=days),
        )
        data = waivers.sign_waiver(waiver, signers)
    else:
        before = read_file(add, waivers.LIMIT)
        waiver = waivers.read_unverified(before)
        if (waiver.run_id, waiver.digest) != (run_id, digest):
            raise UsageError(
                "ST-USAG-001",
                f"the waiver is about {waiver.digest[:16]} of run {waiver.run_id}",
                str(add),
                "name the checkpoint that it is about",
            )
        data = dsse.add_signatures(before, waivers.PAYLOAD_TYPE, signers)
    write_atomic(out, data, replace=False)
    return emit(signatures.waiver(waiver, out), "text")


def _named(path: Path, trust_file: Path, now: datetime) -> tuple[str, str]:
    """Run and digest of a checkpoint whose statement verifies."""
    from securetrain.artifacts import Kind
    from securetrain.artifacts.statement import CheckpointPredicate, open_statement, read_statement
    from securetrain.identity import load_trust

    kind = Kind.CHECKPOINT
    trust = load_trust(trust_file, now)
    opened = open_statement(read_statement(path, kind), kind, trust, str(path))
    assert isinstance(opened.predicate, CheckpointPredicate)
    return opened.predicate.run_id, opened.digest
