# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Options of ``securetrain audit --node`` that say which artifacts a job reads and goes on from."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from securetrain.cli.options import FILE

if TYPE_CHECKING:
    from securetrain.audit import Named

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Final = {
    "checkpoints": "--checkpoint",
    "datasets": "--dataset",
    "requirements": "--requirements",
    "trust": "--trust",
    "job": "--job",
}


def named_options(command: F) -> F:
    """Add the options."""
    for option in (
        click.option(
            "--job",
            type=FILE,
            metavar="FILE",
            help="With --node: a job file, whose data, weights and trust root are looked at.",
        ),
        click.option(
            "--requirements",
            "requirements",
            type=FILE,
            multiple=True,
            metavar="FILE",
            help="With --node: a list of packages that the job installs.",
        ),
        click.option(
            "--trust",
            type=FILE,
            metavar="FILE",
            help="With --node or --run: the trust root for artifacts, and for the ledger.",
        ),
        click.option(
            "--dataset",
            "datasets",
            type=FILE,
            multiple=True,
            metavar="DIR",
            help="With --node: a dataset that the job reads.",
        ),
        click.option(
            "--checkpoint",
            "checkpoints",
            type=FILE,
            multiple=True,
            metavar="DIR",
            help="With --node: a checkpoint that the job goes on from, or a folder of them.",
        ),
    ):
        command = option(command)
    return command


def named_by(given: Mapping[str, Any], *, node: bool) -> "Named":
    """Everything that the options, the job file and the environment name.

    Raises:
        UsageError: of click, naming the option, when no node is looked at.
    """
    from securetrain.audit import named

    for name, option in _OPTIONS.items():
        if given[name] and not node:
            raise click.UsageError(f"{option} needs --node")
    return named(os.environ, **given)
