# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Importing this installs the shim: the first thing that a process started by a worker does.

`multiprocessing` starts its spawned children and its fork server as fresh interpreters, which know
nothing of what their parent patched. `seams.protect_spawned` and `protect_forkserver` make them
import this module first. When it cannot be installed the child does not start.
"""

import contextlib
import os
from multiprocessing import util

from securetrain.core.errors import SecureTrainError
from securetrain.launch.worker.shim import Shim

_SHIM = Shim.from_environment(os.environ, is_child=True)
_SHIM.install()


def _end() -> None:
    """Write what this process did; its own end stands even when that fails."""
    with contextlib.suppress(SecureTrainError, OSError):
        _SHIM.report(is_last=True)


# Children of multiprocessing leave without `atexit`. The fork server's own children are no copies
# of a process that has done anything.
util.Finalize(None, _end, exitpriority=0)
