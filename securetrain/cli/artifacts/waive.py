# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain waive PATH``: operators excuse one checkpoint that is old or was set aside."""

from dataclasses import dataclass
from datetime import timedelta
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
    from securetrain.core.files import write_atomic
    from securetrain.identity import load_trust
    from securetrain.report import signatures

    if (reason is None) == (add is None):
        raise UsageError(
            "ST-USAG-001",
            "a new waiver needs a reason, and one that others signed has one",
            str(path),
            "give --reason TEXT, or --add FILE",
        )
    at, signers = now(), keys.signers()
    trusted = load_trust(trust, at)
    if add is None:
        term = (at, at + timedelta(days=days))
        waiver, data = waivers.waive(path, trusted, signers, term, reason or "")
    else:
        waiver, data = waivers.waive_too(path, trusted, signers, add)
    write_atomic(out, data, replace=False)
    return signatures.waiver(waiver, out)
