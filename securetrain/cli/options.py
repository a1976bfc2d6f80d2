# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options and arguments that several verbs have, each defined once."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])

FILE: Final = click.Path(path_type=Path)
TRUST_VARIABLE: Final = "SECURETRAIN_TRUST"

file_argument = functools.partial(click.argument, type=FILE)
file_option = functools.partial(click.option, type=FILE)

passphrase_option = file_option(
    "--passphrase-file",
    help="File with the passphrase of the cluster CA's key; without it, it is asked for.",
)
secret_option = file_option(
    "--passphrase-file",
    help="File with the keys' passphrase (or a token's PIN); without it, it is asked for.",
)


class StoryGroup(click.Group):
    """A group that lists its commands in the order in which they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order of their definition."""
        return list(self.commands)


class Place(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A directory of this machine, or the URL of one in an object store."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        """A URL as it stands; anything else, and what is local in any case, is a path."""
        del param, ctx
        if isinstance(value, Path):
            return value
        from securetrain.artifacts import local_path

        return local_path(value) or value


def json_as(text: str) -> Callable[[_F], _F]:
    """``--json``, which reaches the command as `output`."""
    return click.option(
        "--json",
        "output",
        is_flag=True,
        help=text,
        callback=lambda _ctx, _param, given: "json" if given else "text",
    )


json_option = json_as("Print JSON.")


def days_option(default: int, text: str, most: int = 3650) -> Callable[[_F], _F]:
    """``--days``."""
    days = click.IntRange(1, most)
    return click.option("--days", type=days, default=default, show_default=True, help=text)


def format_options(*formats: str, text: str | None = None) -> Callable[[_F], _F]:
    """``--format`` and ``--json``, which reach the command as one `output`."""

    def add(command: _F) -> _F:
        @functools.wraps(command)
        def together(*, output: str, as_json: bool, **given: Any) -> Any:
            return command(output="json" if as_json else output, **given)

        wrapped: Any = click.option(
            "--json", "as_json", is_flag=True, help="The same as --format json."
        )(together)
        kinds = click.Choice(["text", "json", *formats])
        added: _F = click.option(
            "--format", "output", type=kinds, default="text", show_default=True, help=text
        )(wrapped)
        return added

    return add
