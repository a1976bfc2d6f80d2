# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The devices that workers see, by name."""

import os
import stat
from pathlib import Path
from typing import Final

from securetrain.launch.sandbox.user import JobUser

DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
GPU_DEVICES: Final = (
    "nvidia[0-9]*",
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
    "nvidia-caps",
    "nvidia-caps-imex-channels",
    "gdrdrv",
    "kfd",
    "dri/renderD*",
)
"""Of NVIDIA's and AMD's drivers. ``/dev/infiniband`` is shown under a profile for RDMA only."""
RDMA_DEVICES: Final = "infiniband"
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a private one stands there

LINKS: Final = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
)
_SPAN: Final = 1 << 20


def device_groups(user: JobUser, *, rdma: bool, dev: Path = Path("/dev")) -> list[int]:
    """Groups without which the user could not open the devices that are shown."""
    groups = set()
    for path in shown_devices(rdma=rdma, dev=dev):
        found = path.stat()
        if stat.S_ISCHR(found.st_mode) and found.st_gid and not found.st_mode & 0o006:
            groups.add(found.st_gid)
    return sorted(groups - {user.gid})


def shown_devices(*, rdma: bool, dev: Path = Path("/dev")) -> list[Path]:
    """The devices that workers see: the usual ones, GPUs, and for RDMA its own."""
    patterns = [*DEVICES, *GPU_DEVICES, *([RDMA_DEVICES] if rdma else [])]
    return sorted(path for pattern in patterns for path in dev.glob(pattern))


def shared_memory_size(place: str = SHARED_MEMORY) -> str:
    """As much as the machine gives, for tmpfs(5)."""
    found = os.statvfs(place)
    return str(found.f_frsize * found.f_blocks // _SPAN * _SPAN or _SPAN)
