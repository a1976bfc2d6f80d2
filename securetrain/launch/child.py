# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Importing this installs the shim: the first thing that a process started by a worker does.

`multiprocessing` starts its spawned children and its fork server as fresh interpreters, which know
nothing of what their parent patched. `seams.protect_spawned` and `protect_forkserver` make them
import this module first. When it cannot be installed the child does not start.
"""

import os

from securetrain.launch.shim import Shim

Shim.from_environment(os.environ, is_child=True).install()
