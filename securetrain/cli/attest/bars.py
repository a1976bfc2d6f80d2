# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest revocations``, ``revoke`` and ``restore``: who is let in no more."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.fleet.memory import fleet_memory
from securetrain.cli.options import STATE
from securetrain.report import Document


@verb()
def revocations(*, state: Path | None) -> Document:
    """Show who is let in no more by the coordinators of this machine.

    STATE is the directory of a run that an earlier version of securetrain has made.
    """
    from securetrain.attest.fleet import open_state
    from securetrain.attest.session import SealedState
    from securetrain.report import evidence

    with closing(open_state(state) if state is not None else fleet_memory()) as found:
        place = found.place if isinstance(found, SealedState) else str(state)
        return evidence.revocations(found.revocations(), place)


@verb(json="")
def revoke(
    *,
    subject: str,
    reason: Annotated[str, Option("--reason", "Why, for whoever meets the refusal.")],
) -> None:
    """Let SUBJECT in no more: node:DOMAIN/NAME, ek:HEX, chip:HEX or device:SERIAL.

    It holds for every job that a coordinator on this machine admits nodes to, those that run
    included: a node that is in is refused at its next renewal. DOMAIN is the policy's trust domain.
    """
    from securetrain.attest.session import Revocation, check_subject

    check_subject(subject)
    with closing(fleet_memory()) as state:
        state.revoke(Revocation(subject=subject, reason=reason[:1000], since=now().isoformat()))
    click.echo(f"{subject} is let in no more")


@verb(json="")
def restore(
    *,
    subject: str,
    state: Annotated[
        Path | None,
        STATE.told("A run's directory of an earlier version. Default: this machine's memory."),
    ],
) -> None:
    """Let SUBJECT in again: node:DOMAIN/NAME, ek:HEX, chip:HEX or device:SERIAL.

    A node that contradicted itself is revoked under its name and under its hardware: restore every
    subject that 'securetrain attest revocations' shows for it, after finding out why. Restoring
    ek:HEX also forgets the clock of that TPM, for one that its owner has cleared.
    """
    from securetrain.attest.fleet import open_state

    with closing(open_state(state) if state is not None else fleet_memory()) as found:
        if not found.restore(subject):
            where = state or "what this machine remembers"
            raise click.UsageError(f"{subject} is not revoked in {where}")
    click.echo(f"{subject} may join again")
