# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A sandbox for nobody: made as a run's is, and ended, to see what this machine gives of one."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from securetrain.launch.sandbox import landlock
from securetrain.launch.sandbox.cgroup import Limits, NoLimitsError, Place, find_place
from securetrain.launch.sandbox.sandbox import PARTS, Sandbox
from securetrain.launch.sandbox.user import reserve
from securetrain.launch.sandbox.view import OWN_NETWORK, Scene
from securetrain.network import rootless

_ANY: Final = Limits(memory_mib=1, tasks=1)


def lacking_here(
    start: Callable[[Scene], Sandbox] = Sandbox.start, find: Callable[[Limits], Place] = find_place
) -> Mapping[str, str]:
    """The parts that a job in the working directory would not get, and why.

    Args:
        start: Makes the sandbox.
        find: Finds where limits can be had; none are made, since that may move the launcher.
    """
    lacking: dict[str, str] = {}
    user = reserve() if is_machines_root() else None
    with TemporaryDirectory(prefix="securetrain-") as folder:
        scene = Scene(
            run=Path(folder),
            keys=Path(folder, "keys"),
            writable=(),
            cwd=Path.cwd(),
            code=(Path(sys.prefix), Path(sys.base_prefix)),
            homes=(Path("/root"), Path("/home")),
            user=user,
            own_user_namespace=os.geteuid() != 0,
            netns=OWN_NETWORK,
            landlock_version=landlock.version(),
        )
        try:
            sandbox = start(scene)
        except OSError as error:
            lacking = dict.fromkeys(PARTS, str(error))
            if user is not None:
                user.release()
        else:
            lacking = {**sandbox.lacking, **({"gaps": "; ".join(g)} if (g := sandbox.gaps) else {})}
            sandbox.close()
    try:
        find(_ANY)
    except NoLimitsError as error:
        lacking["limits"] = str(error)
    return lacking


def is_machines_root() -> bool:
    """Tell whether this is root, and not only of a user namespace of ours."""
    return os.geteuid() == 0 and not rootless.is_inside()
