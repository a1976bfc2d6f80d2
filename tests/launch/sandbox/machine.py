# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What tests of the sandbox need of a machine."""

import os

from securetrain.launch.sandbox import landlock
from securetrain.network import rootless

_SCOPES = 6


def lacking() -> list[str]:
    """Root, namespaces, and a kernel that has all that the sandbox uses."""
    found = []
    if os.geteuid() != 0 or rootless.is_inside():
        found.append("root")
    if landlock.version() < _SCOPES:
        found.append("Landlock 6")
    return found
