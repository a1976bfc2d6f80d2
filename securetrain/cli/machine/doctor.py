# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain doctor``: what works on this machine, and what to install."""

import os
from typing import Annotated

from securetrain.cli.clock import now
from securetrain.cli.command import verb
from securetrain.cli.options import POLICY
from securetrain.report import Document


@verb("doctor")
def command(
    *,
    policy: Annotated[
        str, POLICY.told("The policy by name or file that decides the exit code.")
    ] = "dev",
) -> Document:
    """Say which network profiles, sandbox, attesters and policies work on this machine.

    A sandbox is tried and ended; nothing is changed. What does not work says why, and what to
    install.

    Examples:
      securetrain doctor
      securetrain doctor --policy baseline
      securetrain doctor --json

    Exit codes: 0 the policy works on this machine; 1 it does not; 2 there is no such policy.
    """
    from securetrain.launch import diagnose
    from securetrain.report import machine

    return machine.diagnosis(diagnose(policy, os.environ, now()))
