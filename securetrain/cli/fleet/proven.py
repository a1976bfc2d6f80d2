# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""``securetrain fleet show``, ``sign`` and ``reject``: what machines have proven.

Examples:
  securetrain fleet show --reference-values fleet.json --signed-by MCowBQYD...
  securetrain fleet show node-17
  securetrain fleet sign --all --reference-values fleet.json --key operator.pem
  securetrain fleet sign node-17 --reference-values fleet.json \
      --key operator.pem
  securetrain fleet reject node-17

--all signs machines that boot what their image group boots, and the boot of a group that has
none, if its machines all boot the same. What would add to a group must be named: look at it
first.

Exit codes: 0 shown, or all of it signed; 1 refused; 2 bad command line; 3 something was not
signed.
"""

from pathlib import Path
from typing import Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Argument, Option, verb
from securetrain.cli.fleet.memory import fleet_desk
from securetrain.cli.fleet.options import open_intake
from securetrain.cli.options import DAYS, OPERATOR_FILE, SIGNED_BY, VALUES, SignedBy
from securetrain.report import Document


@verb()
def show(
    *,
    nodes: tuple[str, ...],
    values: Annotated[Path | None, VALUES.told("The fleet's signed file, to compare with.")],
    signed_by: Annotated[tuple[str, ...], SIGNED_BY.told("A key that may have signed it.")],
) -> Document:
    """Show what machines have proven, and what signing it would add; NODES or all."""
    from securetrain.attest.fleet import CurrentValues, lesson
    from securetrain.report import fleet

    if (values is None) != (not signed_by):
        raise click.UsageError("name --reference-values and --signed-by, or neither")
    with fleet_desk() as (desk, state):
        known = CurrentValues(values, signed_by, state)() if values is not None else None
        to_come = [one.node for one in desk.tokens() if not one.used]
        at, roots = now(), desk.roots
        lessons = [lesson(known, one, roots, at) for one in desk.waiting(nodes)]
    return fleet.waiting_page(lessons, to_come, full=bool(nodes))


@verb()
def sign(
    *,
    nodes: tuple[str, ...],
    everything: Annotated[bool, Option("--all", "All that add nothing to their group.")],
    values: Annotated[Path, VALUES.told("The file; made when missing.")],
    key: Annotated[Path, OPERATOR_FILE],
    signed_by: SignedBy,
    days: Annotated[int, DAYS.told("Days that the edition lasts.")] = 90,
) -> Document:
    """Sign what NODES have proven into the reference values."""
    from securetrain.attest.fleet import Rule, key_text
    from securetrain.report import fleet

    if everything == bool(nodes):
        raise click.UsageError("name nodes, or --all")
    with fleet_desk() as (desk, state):
        intake = open_intake(values, key, signed_by, state, days)
        if everything:
            taken = intake.sign_by_rule(desk, Rule.FIRST)
        else:
            waiting = desk.waiting(nodes)
            if missing := sorted(set(nodes) - {one.node for one in waiting}):
                raise click.UsageError(f"{missing[0]}: nothing of it waits")
            taken = intake.sign(desk, waiting)
    return fleet.taken_page(taken, values, key_text(intake.key.public))


@verb(json="")
def reject(*, nodes: Annotated[tuple[str, ...], Argument(required=True)]) -> None:
    """Throw away what NODES have proven, and their unused tokens."""
    with fleet_desk() as (desk, _):
        found = desk.cancel(nodes, now())
    if not found:
        raise click.UsageError("none of them has a token or a proof that waits")
    click.echo(f"thrown away: tokens and proofs of {found} of {len(nodes)}")
