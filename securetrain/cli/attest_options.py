# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the commands of ``securetrain attest`` have in common: options, and how JSON is printed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])

FILE: Final = click.Path(path_type=Path)


class StoryGroup(click.Group):
    """A group that lists its commands in the order in which they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order of their definition."""
        return list(self.commands)


def json_option(function: _F) -> _F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def policy_option(function: _F) -> _F:
    """``--policy``, which must be given."""
    return click.option("--policy", "policy_name", required=True, help="A policy by name or file.")(
        function
    )


def signed_by_option(function: _F) -> _F:
    """``--signed-by``: the file that is there may be signed by another key than the new one."""
    return click.option(
        "--signed-by",
        multiple=True,
        metavar="KEY",
        help="Who may have signed what is there. Default: --key.",
    )(function)


def print_json(document: object) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(document, indent=2, sort_keys=True, default=str))
