# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of machines that may come, and of the server that they prove themselves to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option
from securetrain.cli.options import (
    ADVERTISE,
    GROUP,
    OPERATOR_FILE,
    SIGNED_BY,
    VALUES,
    TpmAuthorities,
)
from securetrain.cli.signals import is_any

if TYPE_CHECKING:
    from securetrain.attest.fleet import Desk, Guest, Intake, Rule
    from securetrain.attest.session import SealedState
    from securetrain.rendezvous.coordinator import FleetService
    from securetrain.report import DeskAnnouncer


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The machines that may come."""

    node: Annotated[str | None, Option("--node")]
    """One node's name."""
    csv: Annotated[Path | None, Option("--csv")]
    """A list of nodes."""
    group: Annotated[str, GROUP] = ""
    """Their image group, where the list names none."""
    ek: Annotated[str, Option("--ek")] = ""
    """Name of the endorsement key that must answer for --node."""

    def check(self) -> None:
        """Refuse options that exclude each other."""
        if (self.node is None) == (self.csv is None):
            raise click.UsageError("name --node or --csv")
        if self.csv is not None and self.ek:
            raise click.UsageError("--ek is for --node; a list has a column of that name")

    def read(self) -> "list[Guest]":
        """As the library calls them."""
        from securetrain.attest.fleet import Guest, check_guests, read_guests

        if self.csv is not None:
            return list(read_guests(self.csv, self.group))
        named = [Guest(node=self.node or "", group=self.group, ek=self.ek.lower())]
        check_guests(named, lambda _: "--node, --group and --ek")
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server that machines prove themselves to."""

    makers: TpmAuthorities
    advertise: Annotated[str, ADVERTISE] = ""
    """HOST:PORT in tokens. Default: --listen."""
    coordinator: Annotated[str, Option("--coordinator")] = ""
    """HOST:PORT that machines are told."""
    values: Annotated[Path | None, VALUES]
    """The fleet's signed file."""
    key: Annotated[Path | None, OPERATOR_FILE]
    """The operator's key; made with the first edition."""
    signed_by: Annotated[tuple[str, ...], SIGNED_BY]
    """A key that may have signed the file; repeatable. Default: --key."""
    rule: Annotated[Literal["same", "first"] | None, Option("--auto-sign")]
    """Sign without asking: machines that boot what their image group boots (same), and the first
    boot of a new group too (first).
    """

    def check(self) -> None:
        """Refuse options that need others."""
        if (self.key or self.signed_by) and self.values is None:
            raise click.UsageError("--key and --signed-by need --reference-values")
        if self.values is not None and not (self.key or self.signed_by):
            raise click.UsageError("--reference-values needs --key, or --signed-by")
        if self.rule and self.key is None:
            raise click.UsageError("--auto-sign needs --reference-values and --key")

    def address(self, desk: "Desk", listens: str = "") -> str:
        """The address in tokens."""
        address = self.advertise or listens or desk.address
        if not address:
            raise click.UsageError(
                "no desk has listened here yet: start 'fleet serve' first, or give --listen or"
                " --advertise HOST:PORT"
            )
        if is_any(endpoint(address)[0]):
            raise click.UsageError(f"{address}: say with --advertise which host tokens name")
        return address

    @contextmanager
    def listening(
        self, desk: "Desk", state: "SealedState", listen: str, told: "DeskAnnouncer"
    ) -> "Iterator[Listener]":
        """The server, for as long as the context lasts."""
        from securetrain.attest.fleet import CurrentValues, Rule, key_text
        from securetrain.rendezvous.coordinator import FleetService

        host, port = endpoint(listen, "--listen")
        intake, signed_by = None, self.signed_by
        if self.key is not None and self.values is not None:
            intake = open_intake(self.values, self.key, self.signed_by, state)
            own = key_text(intake.key.public)
            signed_by = tuple(dict.fromkeys((*intake.signed_by, own)))
        service = FleetService(
            desk=desk,
            state=state,
            values=CurrentValues(self.values, signed_by, state) if self.values else lambda: None,
            clock=now,
            seen=told.seen,
            taken=told.taken,
            intake=intake,
            rule=Rule(self.rule) if self.rule else None,
            signed_by=signed_by,
            coordinator=self.coordinator,
        )
        with service.listening(host, port) as address:
            here = f"[{address[0]}]" if ":" in address[0] else address[0]
            yield Listener(
                service=service, address=f"{here}:{address[1]}", intake=intake, rule=service.rule
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A server that listens."""

    service: "FleetService"
    address: str
    intake: "Intake | None"
    rule: "Rule | None"


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
        clock=now,
        lifetime=timedelta(days=days),
    )


def endpoint(text: str, where: str = "--advertise") -> tuple[str, int]:
    """``HOST:PORT``; port 0 is any, of a listener alone."""
    from securetrain.rendezvous.member import parse_endpoint

    if text.endswith(":0"):
        return parse_endpoint(f"{text[:-1]}1", where)[0], 0
    return parse_endpoint(text, where)
