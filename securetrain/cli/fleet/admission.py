# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet admit`` and ``serve``: tokens, and the server that takes them."""

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, Output, Printed, verb
from securetrain.cli.fleet.memory import fleet_desk
from securetrain.cli.fleet.options import Listener, Machines, ServerOptions, endpoint
from securetrain.cli.options import OUT, REPLACE
from securetrain.cli.signals import told_to_stop
from securetrain.core import ExitCode

if TYPE_CHECKING:
    from securetrain.attest.fleet import Desk


@verb()
def admit(
    *,
    machines: Machines,
    hours: Annotated[
        int, Option("--hours", "Hours that the tokens are good.", click.IntRange(1, 720))
    ] = 24,
    replace: Annotated[bool, REPLACE.told("Let the nodes have new hardware, or another group.")],
    out: Annotated[
        Path | None, OUT.told("Write the tokens to this new file (0600), not to the terminal.")
    ],
    listen: Annotated[
        str, Option("--listen", "HOST:PORT: be the desk too, until all have come.")
    ] = "",
    server: ServerOptions,
    output: Output,
) -> Printed:
    r"""Make one-time tokens for machines that may come.

    Examples:
      securetrain fleet admit --node node-17 --group gpu-h100-2026.11
      securetrain fleet admit --csv nodes.csv --group gpu-h100-2026.11 \
          --out tokens.csv
      securetrain fleet admit --csv nodes.csv --group gpu-h100-2026.11 \
          --root infineon.pem --listen 10.0.0.1:29500 --out tokens.csv \
          --reference-values fleet.json --key operator.pem

    The CSV names its columns in the first line: node, and where they are wanted group and ek, the
    name of the TPM's endorsement key that must answer. A token is for one machine, once; it is a
    secret until it has been used.

    With --listen the command is the desk too, until every machine has come. Then it shows what
    would be learned, asks, and signs; --auto-sign signs while they come. Without, 'fleet serve' is
    the desk.

    Exit codes: 0 tokens were made, and with --listen all came and were signed; 1 refused; 2 bad
    command line or list; 3 something waits, or was not signed; 130 a signal came: what was proven
    waits.
    """
    from securetrain.attest.fleet import make_fleet_tokens
    from securetrain.core.errors import UsageError
    from securetrain.core.files import PRIVATE_FILE, write_atomic
    from securetrain.report import DeskAnnouncer, fleet

    machines.check()
    if out is not None and out.exists():
        raise UsageError("ST-USAG-005", "the file is there already", str(out))
    server.check()
    at, guests = now(), machines.read()
    ends, nodes = at + timedelta(hours=hours), [guest.node for guest in guests]
    with ExitStack() as stack:
        desk, state = stack.enter_context(fleet_desk())
        desk.configure(at, roots=server.makers.read())
        told = DeskAnnouncer(as_json=output.format == "json")
        running = None
        if listen:
            running = stack.enter_context(server.listening(desk, state, listen, told))
        address = server.address(desk, running.address if running is not None else "")
        desk.configure(at, address=address)
        if running is not None:
            told.ready(running.address, desk.key.key_id)
        tokens = make_fleet_tokens(
            desk, guests, endpoint(address), ends=ends, now=now(), replace=replace
        )
        if out is not None:
            write_atomic(out, fleet.tokens_file(tokens), mode=PRIVATE_FILE, replace=False)
        output.emit(fleet.tokens_page(tokens, out, ends))
        if running is None:
            return Printed(ExitCode.OK)
        with told_to_stop() as stop:
            if not running.service.serve(stop, nodes):
                return Printed(ExitCode.INTERRUPTED)
        return _finish(desk, running, nodes, output)


@verb()
def serve(
    *,
    listen: Annotated[str, Option("--listen", "HOST:PORT.")],
    server: ServerOptions,
    output: Output,
) -> Printed:
    r"""Take in machines with tokens, until a signal comes: they prove themselves here.

    Examples:
      securetrain fleet serve --listen 10.0.0.1:29500 --root infineon.pem \
          --reference-values fleet.json --signed-by MCowBQYDK2VwAyEA...
      securetrain fleet serve --listen 10.0.0.1:29500 --reference-values fleet.json \
          --key operator.pem --auto-sign same

    Certificates that were pinned once stay pinned. It ends with a signal.
    """
    from securetrain.report import DeskAnnouncer

    server.check()
    at = now()
    with fleet_desk() as (desk, state):
        desk.configure(at, roots=server.makers.read())
        told = DeskAnnouncer(as_json=output.format == "json")
        with server.listening(desk, state, listen, told) as running:
            desk.configure(at, address=server.address(desk, running.address))
            told.ready(running.address, desk.key.key_id)
            with told_to_stop() as stop:
                running.service.serve(stop)
    return Printed(ExitCode.INTERRUPTED)


def _finish(desk: "Desk", running: Listener, nodes: list[str], output: Output) -> Printed:
    """All have come: show what waits, ask, and sign."""
    from securetrain.attest.fleet import key_text, lesson
    from securetrain.report import fleet

    waiting, intake = desk.waiting(nodes), running.intake
    if not waiting:
        return Printed(ExitCode.OK)
    values = intake.current() if intake is not None else None
    lessons = [lesson(values, one, desk.roots, now()) for one in waiting]
    output.emit(fleet.waiting_page(lessons, [], full=False))
    asks = intake is not None and running.rule is None and output.format != "json"
    if intake is None or not asks:
        return Printed(ExitCode.INCOMPLETE)
    if not click.confirm(f"Sign these {len(waiting)} into {intake.path}?", err=True):
        return Printed(ExitCode.INCOMPLETE)
    taken = intake.sign(desk, waiting)
    return output.emit(fleet.taken_page(taken, intake.path, key_text(intake.key.public)))
