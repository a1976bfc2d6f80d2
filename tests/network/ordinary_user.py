# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An ordinary user, for tests of job networks without root."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import securetrain

USER = 1500
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
SOURCE = Path(securetrain.__file__).parent.parent
LIBRARIES = [path for path in sys.path if path.endswith("site-packages")]
ENVIRONMENT = {"PATH": "/usr/bin:/usr/sbin", "PYTHONPATH": ":".join([str(SOURCE), *LIBRARIES])}


@cache
def interpreter(*modules):
    """A Python that the user may start and that finds what we need; None when there is none."""
    code = "import " + ", ".join(["securetrain", "cryptography", "msgspec", *modules])
    for candidate in (sys.executable, f"/usr/bin/python3.{sys.version_info[1]}"):
        inside = ["unshare", "--user", "--map-root-user", "--"]
        command = [*AS_USER, *inside, candidate, "-c", code]
        done = subprocess.run(command, env=ENVIRONMENT, cwd="/", capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    return None
