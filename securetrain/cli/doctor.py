# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain doctor``: what works on this machine, and what to install."""

import os
from datetime import UTC, datetime

import click

from securetrain.cli.options import json_option
from securetrain.report import emit

EPILOG = """\
\b
Examples:
  securetrain doctor
  securetrain doctor --policy baseline
  securetrain doctor --json

\b
Exit codes: 0 the policy works on this machine; 1 it does not; 2 there is no such policy.
"""


@click.command(name="doctor", epilog=EPILOG)
@click.option(
    "--policy",
    "policy_name",
    default="dev",
    show_default=True,
    help="The policy by name or file that decides the exit code.",
)
@json_option
def command(policy_name: str, output: str) -> int:
    """Say which network profiles, sandbox, attesters and policies work on this machine.

    A sandbox is tried and ended; nothing is changed. What does not work says why, and what to
    install.
    """
    from securetrain.launch import diagnose
    from securetrain.report import machine

    found = diagnose(policy_name, os.environ, datetime.now(UTC))
    return emit(machine.diagnosis(found), output)
