# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Look after the networks of jobs on this machine.

Examples:
  securetrain network gc
  securetrain network gc --json

Exit codes: 0 nothing of a dead owner is left; 1 something could not be removed or read; 20 the
state folder may not be read (it takes root, as job networks do).
"""

from pathlib import Path
from typing import Annotated

from securetrain.cli.command import VerbGroup, verb
from securetrain.cli.kinds import LocalFile
from securetrain.cli.options import STATE
from securetrain.report import Document

command = VerbGroup(__name__, __doc__, {"": ("gc",)})


@verb()
def gc(
    *,
    state: Annotated[
        Path | None,
        STATE.told(
            "The state folder, when it is not the usual one.",
            type=LocalFile(path_type=Path, readable=False),
        ),
    ],
) -> Document:
    """Remove the job networks whose owner is dead.

    A launcher takes its job network down itself, however it ends, unless it is killed with SIGKILL.
    Then its WireGuard engine, network namespace, packet filter and the processes inside are left;
    this ends and removes them, and the groups of cgroup v2 in which workers were limited. What
    belongs to an owner that runs is never touched.
    """
    from securetrain.launch import collect_groups
    from securetrain.network import STATE as USUAL
    from securetrain.network import collect
    from securetrain.report import machine

    return machine.leftovers(collect(state or USUAL), collect_groups())
