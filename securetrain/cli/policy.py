# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain policy lint`` and ``securetrain policy explain``."""

from datetime import UTC, datetime

import click

from securetrain.cli.options import json_option
from securetrain.report import emit

EPILOG = """\
\b
Examples:
  securetrain policy explain baseline
  securetrain policy explain my-policy.yaml --section checkpoint
  securetrain policy lint my-policy.yaml
"""


@click.group(name="policy", epilog=EPILOG)
def command() -> None:
    """Lint and explain policies."""


@command.command(name="lint")
@click.argument("file")
@json_option
def lint(file: str, output: str) -> int:
    """Report errors in a policy (exit code 2) and what is worth a second look (exit code 0).

    FILE is a policy file or the name of a shipped one.
    """
    from securetrain.audit import load_checks
    from securetrain.policy import lint_policy
    from securetrain.report import policy_fields

    known = {check.id for check in load_checks()}
    remarks = lint_policy(file, today=datetime.now(UTC).date(), known_checks=known)
    return emit(policy_fields.remarks(file, remarks), output)


@command.command(name="explain")
@click.argument("name_or_file")
@click.option("--section", help="One section, such as checkpoint or supply-chain.")
@json_option
def explain(name_or_file: str, section: str | None, output: str) -> int:
    """Show every field of a policy: its value, source, enforcer and meaning."""
    from securetrain.policy import explain as rows_of
    from securetrain.policy import load_policy
    from securetrain.report import policy_fields

    loaded = load_policy(name_or_file)
    return emit(policy_fields.fields(loaded, rows_of(loaded, section)), output)
