# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain fleet admit`` and ``serve``: tokens for machines, and the desk that takes them."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from securetrain.cli.coordinator import is_any, told_to_stop
from securetrain.cli.fleet_memory import fleet_desk
from securetrain.cli.options import file_option, json_option
from securetrain.core import ExitCode
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.attest.fleet import Desk, Intake, Roots, Rule
    from securetrain.attest.session import SealedState
    from securetrain.rendezvous.coordinator import FleetService
    from securetrain.report import DeskAnnouncer

_F = TypeVar("_F", bound=Callable[..., Any])

ADMIT_EPILOG: Final = """\
\b
Examples:
  securetrain fleet admit --node node-17 --group gpu-h100-2026.11
  securetrain fleet admit --csv nodes.csv --group gpu-h100-2026.11 \\
      --out tokens.csv
  securetrain fleet admit --csv nodes.csv --group gpu-h100-2026.11 \\
      --root infineon.pem --listen 10.0.0.1:29500 --out tokens.csv \\
      --reference-values fleet.json --key operator.pem

The CSV names its columns in the first line: node, and where they are wanted group and ek, the name
of the TPM's endorsement key that must answer. A token is for one machine, once; it is a secret
until it has been used.

With --listen the command is the desk too, until every machine has come. Then it shows what would be
learned, asks, and signs; --auto-sign signs while they come. Without, 'fleet serve' is the desk.

Exit codes: 0 tokens were made, and with --listen all came and were signed; 1 refused; 2 bad command
line or list; 3 something waits, or was not signed; 130 a signal came: what was proven waits.
"""
SERVE_EPILOG: Final = """\
\b
Examples:
  securetrain fleet serve --listen 10.0.0.1:29500 --root infineon.pem \\
      --reference-values fleet.json --signed-by MCowBQYDK2VwAyEA...
  securetrain fleet serve --listen 10.0.0.1:29500 --reference-values fleet.json \\
      --key operator.pem --auto-sign same

Certificates that were pinned once stay pinned. It ends with a signal.
"""


def desk_options(command: _F) -> _F:
    """The options of a desk that listens, which reach the command as one `desk`."""
    options = (
        file_option("--root", "roots", multiple=True, help="CA of a maker of TPMs (PEM)."),
        file_option("--virtual-root", "virtual", multiple=True, help="CA of virtual TPMs."),
        file_option("--test-root", "test", multiple=True, help="CA of software TPMs."),
        file_option("--intermediate", "between", multiple=True, help="CA in between."),
        click.option("--advertise", default="", help="HOST:PORT in tokens. Default: --listen."),
        click.option("--coordinator", default="", help="HOST:PORT that machines are told."),
        file_option("--reference-values", "values", help="The fleet's signed file."),
        file_option("--key", "key_file", help="The operator's key; made with the first edition."),
        click.option(
            "--signed-by",
            multiple=True,
            metavar="KEY",
            help="A key that may have signed the file; repeatable. Default: --key.",
        ),
        click.option(
            "--auto-sign",
            "rule",
            type=click.Choice(["same", "first"]),
            help="Sign without asking: machines that boot what their image group boots (same), and"
            " the first boot of a new group too (first).",
        ),
    )

    @functools.wraps(command)
    def together(**given: Any) -> Any:
        named = {name: given.pop(name) for name in _DeskOptions.__dataclass_fields__}
        return command(desk=_DeskOptions(**named), **given)

    wrapped: Any = together
    for option in reversed(options):
        wrapped = option(wrapped)
    added: _F = wrapped
    return added


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeskOptions:
    roots: tuple[Path, ...]
    virtual: tuple[Path, ...]
    test: tuple[Path, ...]
    between: tuple[Path, ...]
    advertise: str
    coordinator: str
    values: Path | None
    key_file: Path | None
    signed_by: tuple[str, ...]
    rule: str | None

    def check(self) -> None:
        """Refuse options that need others."""
        if (self.key_file or self.signed_by) and self.values is None:
            raise click.UsageError("--key and --signed-by need --reference-values")
        if self.values is not None and not (self.key_file or self.signed_by):
            raise click.UsageError("--reference-values needs --key, or --signed-by")
        if self.rule and self.key_file is None:
            raise click.UsageError("--auto-sign needs --reference-values and --key")

    def pinned(self) -> "Roots":
        """Certificates to pin."""
        from securetrain.attest.fleet import Roots, read_pem

        return Roots(
            hardware=tuple(map(read_pem, self.roots)),
            virtual=tuple(map(read_pem, self.virtual)),
            test=tuple(map(read_pem, self.test)),
            intermediates=tuple(map(read_pem, self.between)),
        )


@click.command(name="admit", epilog=ADMIT_EPILOG, short_help="Make one-time tokens for machines.")
@click.option("--node", help="One node's name.")
@file_option("--csv", "list_file", help="A list of nodes.")
@click.option("--group", default="", help="Their image group, where the list names none.")
@click.option("--ek", default="", help="Name of the endorsement key that must answer for --node.")
@click.option(
    "--hours",
    type=click.IntRange(1, 720),
    default=24,
    show_default=True,
    help="Hours that the tokens are good.",
)
@click.option("--replace", is_flag=True, help="Let the nodes have new hardware, or another group.")
@file_option("--out", help="Write the tokens to this new file (0600), not to the terminal.")
@click.option("--listen", default="", help="HOST:PORT: be the desk too, until all have come.")
@desk_options
@json_option
def admit(
    *,
    node: str | None,
    list_file: Path | None,
    group: str,
    ek: str,
    hours: int,
    replace: bool,
    out: Path | None,
    listen: str,
    desk: _DeskOptions,
    output: str,
) -> int:
    """Make a one-time token for each machine that may come."""
    from securetrain.attest.fleet import Guest, check_guests, make_fleet_tokens, read_guests
    from securetrain.core.errors import UsageError
    from securetrain.core.files import PRIVATE_FILE, write_atomic
    from securetrain.report import DeskAnnouncer, fleet

    if (node is None) == (list_file is None):
        raise click.UsageError("name --node or --csv")
    if list_file is not None and ek:
        raise click.UsageError("--ek is for --node; a list has a column of that name")
    if out is not None and out.exists():
        raise UsageError("ST-USAG-005", "the file is there already", str(out))
    desk.check()
    now = datetime.now(UTC)
    if list_file is not None:
        guests = read_guests(list_file, group)
    else:
        guests = [Guest(node=node or "", group=group, ek=ek.lower())]
        check_guests(guests, lambda _: "--node, --group and --ek")
    ends = now + timedelta(hours=hours)
    with ExitStack() as stack:
        kept, state = stack.enter_context(fleet_desk())
        kept.configure(now, roots=desk.pinned())
        voice = DeskAnnouncer(as_json=output == "json")
        running = (
            stack.enter_context(_listening(kept, state, desk, listen, voice)) if listen else None
        )
        listens = running.address if running is not None else ""
        address = _address(kept, desk.advertise or listens)
        kept.configure(now, address=address)
        if running is not None:
            voice.ready(running.address, kept.key.key_id)
        tokens = make_fleet_tokens(
            kept, guests, _endpoint(address), ends=ends, now=datetime.now(UTC), replace=replace
        )
        if out is not None:
            write_atomic(out, fleet.tokens_file(tokens), mode=PRIVATE_FILE, replace=False)
        emit(fleet.tokens_page(tokens, out, ends), output)
        if running is None:
            return int(ExitCode.OK)
        with told_to_stop() as stop:
            if not running.service.serve(stop, [guest.node for guest in guests]):
                return int(ExitCode.INTERRUPTED)
        return _finish(kept, running, [guest.node for guest in guests], output)


@click.command(name="serve", epilog=SERVE_EPILOG, short_help="Take in machines with tokens.")
@click.option("--listen", required=True, help="HOST:PORT.")
@desk_options
@json_option
def serve(*, listen: str, desk: _DeskOptions, output: str) -> int:
    """Be the desk at which machines prove themselves, until a signal comes."""
    from securetrain.report import DeskAnnouncer

    desk.check()
    now = datetime.now(UTC)
    with fleet_desk() as (kept, state):
        kept.configure(now, roots=desk.pinned())
        voice = DeskAnnouncer(as_json=output == "json")
        with _listening(kept, state, desk, listen, voice) as running:
            kept.configure(now, address=_address(kept, desk.advertise or running.address))
            voice.ready(running.address, kept.key.key_id)
            with told_to_stop() as stop:
                running.service.serve(stop)
    return int(ExitCode.INTERRUPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    service: "FleetService"
    address: str
    intake: "Intake | None"
    rule: "Rule | None"


@contextmanager
def _listening(
    kept: "Desk",
    state: "SealedState",
    options: _DeskOptions,
    listen: str,
    voice: "DeskAnnouncer",
) -> Iterator[_Running]:
    """The desk, for as long as the context lasts."""
    from securetrain.attest.fleet import CurrentValues, Rule, key_text
    from securetrain.rendezvous.coordinator import FleetService

    host, port = _endpoint(listen, "--listen")
    intake = None
    signed_by: tuple[str, ...] = options.signed_by
    if options.key_file is not None and options.values is not None:
        intake = open_intake(options.values, options.key_file, options.signed_by, state)
        signed_by = (*intake.signed_by,)
        own = key_text(intake.key.public)
        signed_by = signed_by if own in signed_by else (*signed_by, own)
    values = (
        CurrentValues(options.values, signed_by, state)
        if options.values is not None
        else lambda: None
    )
    service = FleetService(
        desk=kept,
        state=state,
        values=values,
        clock=lambda: datetime.now(UTC),
        seen=voice.seen,
        taken=voice.taken,
        intake=intake,
        rule=Rule(options.rule) if options.rule else None,
        signed_by=signed_by,
        coordinator=options.coordinator,
    )
    with service.listening(host, port) as address:
        here = f"[{address[0]}]" if ":" in address[0] else address[0]
        here = f"{here}:{address[1]}"
        yield _Running(service=service, address=here, intake=intake, rule=service.rule)


def open_intake(
    values: Path, key_file: Path, signed_by: Sequence[str], state: Any, days: int = 90
) -> "Intake":
    """Make ready to sign; the operator's key is made when there is neither key nor file yet."""
    from securetrain.attest.fleet import Intake, key_text
    from securetrain.identity.keys import PrivateKey

    if not key_file.exists() and not values.exists():
        key = PrivateKey.create(key_file)
        click.echo(f"securetrain: {key_file} is a new key: keep it private", err=True)
    else:
        key = PrivateKey.load(key_file)
    return Intake(
        path=values,
        key=key,
        signed_by=tuple(signed_by) or (key_text(key.public),),
        state=state,
        clock=lambda: datetime.now(UTC),
        lifetime=timedelta(days=days),
    )


def _finish(kept: "Desk", running: _Running, nodes: list[str], output: str) -> int:
    """All have come: show what waits, ask, and sign."""
    from securetrain.attest.fleet import key_text, lesson
    from securetrain.report import fleet

    waiting = kept.waiting(nodes)
    intake = running.intake
    if not waiting:
        return int(ExitCode.OK)
    values = intake.current() if intake is not None else None
    lessons = [lesson(values, one, kept.roots, datetime.now(UTC)) for one in waiting]
    page = fleet.waiting_page(lessons, [], full=False)
    if intake is None or running.rule is not None or output == "json":
        emit(page, output)
        return int(ExitCode.INCOMPLETE)
    emit(page, output)
    if not click.confirm(f"Sign these {len(waiting)} into {intake.path}?", err=True):
        return int(ExitCode.INCOMPLETE)
    taken = intake.sign(kept, waiting)
    return emit(fleet.taken_page(taken, intake.path, key_text(intake.key.public)), output)


def _address(kept: "Desk", given: str) -> str:
    """The address in tokens."""
    address = given or kept.address
    if not address:
        raise click.UsageError(
            "no desk has listened here yet: start 'fleet serve' first, or give --listen or"
            " --advertise HOST:PORT"
        )
    if is_any(_endpoint(address)[0]):
        raise click.UsageError(f"{address}: say with --advertise which host tokens name")
    return address


def _endpoint(text: str, where: str = "--advertise") -> tuple[str, int]:
    from securetrain.rendezvous.member import parse_endpoint

    if text.endswith(":0"):  # any port: of a listener alone
        return parse_endpoint(f"{text[:-1]}1", where)[0], 0
    return parse_endpoint(text, where)
