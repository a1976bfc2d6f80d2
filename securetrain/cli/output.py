# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""How ``verify`` and ``scan`` print what they found: for people, scripts, code scanning, tests."""

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from securetrain.artifacts.scan.findings import ScanResult
    from securetrain.report.problems import Outcome


def format_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds ``--format`` and ``--json``, which reach the command as one `output`."""

    @functools.wraps(command)
    def together(*, output: str, as_json: bool, **given: Any) -> int:
        return command(output="json" if as_json else output, **given)

    wrapped: Callable[..., int] = together
    wrapped = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")(
        wrapped
    )
    return click.option(
        "--format",
        "output",
        type=click.Choice(["text", "json", "sarif", "junit"]),
        default="text",
        show_default=True,
        help="What to print on standard output.",
    )(wrapped)


def show(
    output: str, outcome: "Outcome", document: dict[str, Any], text: Callable[[], None]
) -> int:
    """Print an outcome in one format.

    Args:
        output: The format.
        outcome: What was found.
        document: The same as plain data, for ``json``.
        text: Prints it for people.

    Returns:
        The exit code.
    """
    from securetrain.report import junit, sarif

    match output:
        case "json":
            click.echo(json.dumps(document, indent=2, sort_keys=True))
        case "sarif":
            click.echo(json.dumps(sarif.render(outcome), indent=2))
        case "junit":
            click.echo(junit.render(outcome), nl=False)
        case "text":
            text()
        case _:
            raise ValueError(f"unknown format {output!r}")
    return outcome.exit_code


def and_scan(
    outcome: "Outcome", document: dict[str, Any], scanned: "ScanResult | None"
) -> "tuple[Outcome, dict[str, Any]]":
    """An outcome and its plain data, with those of a scan of the same directory."""
    from securetrain.report import problems

    if scanned is None:
        return outcome, document
    outcome = problems.with_scan(outcome, scanned)
    more = {"scan": scanned.to_dict(), "exit": outcome.exit_code, "ok": outcome.exit_code == 0}
    return outcome, document | more
