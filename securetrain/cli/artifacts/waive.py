# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain waive PATH``: operators excuse one checkpoint that is old or was set aside."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.options import DAYS, KEY, KEY_FORMS, OUT, TRUST, Keys
from securetrain.report import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKeys(Keys):
    """The keys of operators."""

    keys: Annotated[
        tuple[str, ...],
        KEY.told(
            f"Operator's private key: {KEY_FORMS}. May be given several times.", required=True
        ),
    ]


@verb("waive", json="")
def command(
    *,
    path: Path,
    trust: Annotated[Path, TRUST.told(TRUST.help, env=None)],
    keys: OperatorKeys,
    reason: Annotated[str | None, Option("--reason", "The reason, for later readers.")],
    days: Annotated[int, DAYS.told("Days that it counts.", type=click.IntRange(1, 90))] = 7,
    add: Annotated[
        Path | None,
        Option("--add", "A waiver that other operators signed: looked at, and signed too."),
    ],
    out: Annotated[Path, OUT.told("The waiver's file.")],
) -> Document:
    r"""Sign a waiver for the checkpoint in the directory PATH.

    Examples:
      securetrain waive runs/r1/checkpoints/step-00000050 --trust trust.json --key operator-1.key \
          --reason 'the last two diverged' --out waiver.json
      securetrain waive runs/r1/checkpoints/step-00000050 --trust trust.json --key operator-2.key \
          --add waiver.json --out waiver-2.json
      securetrain verify runs/r1/checkpoints/step-00000050 --trust trust.json --waiver waiver-2.json

    A waiver counts when as many operators as the trust root asks for have signed it. It names this
    one checkpoint, and excuses that it is not the newest or was set aside: never a signature, never
    a byte.
    """
    from securetrain.artifacts.lineage import waivers
    from securetrain.core.errors import UsageError
    from securetrain.core.files import read_file, write_atomic
    from securetrain.identity import dsse
    from securetrain.report import signatures

    if (reason is None) == (add is None):
        raise UsageError(
            "ST-USAG-001",
            "a new waiver needs a reason, and one that others signed has one",
            str(path),
            "give --reason TEXT, or --add FILE",
        )
    at = now()
    run_id, digest = _named(path, trust, at)
    signers = keys.signers()
    if add is None:
        issued = at.replace(microsecond=0)
        waiver = waivers.Waiver(
            run_id=run_id,
            digest=digest,
            reason=reason or "",
            issued=issued,
            expires=issued + timedelta(days=days),
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
    return signatures.waiver(waiver, out)


def _named(path: Path, trust_file: Path, at: datetime) -> tuple[str, str]:
    """Run and digest of a checkpoint whose statement verifies."""
    from securetrain.artifacts import Kind
    from securetrain.artifacts.statement import CheckpointPredicate, open_statement, read_statement
    from securetrain.identity import load_trust

    kind = Kind.CHECKPOINT
    trust = load_trust(trust_file, at)
    opened = open_statement(read_statement(path, kind), kind, trust, str(path))
    assert isinstance(opened.predicate, CheckpointPredicate)
    return opened.predicate.run_id, opened.digest
