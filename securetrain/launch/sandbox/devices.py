# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The devices that workers see, by name."""

import os
import resource
import stat
from collections.abc import Iterable
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
"""Of NVIDIA's and AMD's drivers. MIG's own rights are modes of the files in ``nvidia-caps``."""
RDMA_DEVICES: Final = ("infiniband/uverbs[0-9]*", "infiniband/rdma_cm")
"""Under a profile for RDMA only; ``umad`` and ``issm``, which manage the fabric, never."""
NCCL_TOPOLOGY: Final = "/run/nvidia-topologyd"
"""NCCL reads the wiring of a virtual machine there, from what the cloud's image has put there."""
NVIDIA_DRIVER: Final = "/proc/driver/nvidia/version"
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
    return _devices([*DEVICES, *GPU_DEVICES, *(RDMA_DEVICES if rdma else ())], dev)


def gpu_devices(dev: Path = Path("/dev")) -> list[str]:
    """The names of the GPU devices that workers see."""
    return [path.name for path in _devices(GPU_DEVICES, dev)]


def _devices(patterns: Iterable[str], dev: Path) -> list[Path]:
    return sorted(path for pattern in patterns for path in dev.glob(pattern))


def lacking_devices(dev: Path = Path("/dev"), driver: Path = Path(NVIDIA_DRIVER)) -> str:
    """Name devices that CUDA makes at its first call, with rights that no worker has.

    Its helper, ``nvidia-modprobe``, is setuid root: in a sandbox it is a program like any other.
    """
    names = ("nvidiactl", "nvidia-uvm")
    gone = [str(dev / name) for name in names if driver.exists() and not (dev / name).exists()]
    if not gone:
        return ""
    return f"workers cannot make {' and '.join(gone)} for CUDA: run nvidia-modprobe -u -c=0 first"


def memory_to_lock() -> str:
    """Say how little memory RDMA may lock; empty where there is no limit.

    Tried, because being root says little in a container.
    """
    kind = resource.RLIMIT_MEMLOCK
    soft, most = resource.getrlimit(kind)
    if most == resource.RLIM_INFINITY:
        return ""
    try:
        resource.setrlimit(kind, (soft, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return f"RDMA may lock {most // 1024} KiB of memory only: raise the limit (ulimit -H -l)"
    resource.setrlimit(kind, (soft, most))
    return ""


def shared_memory_size(place: str = SHARED_MEMORY) -> str:
    """As much as the machine gives, for tmpfs(5); where it has none, what tmpfs takes by itself."""
    try:
        found = os.statvfs(place)
    except FileNotFoundError:  # a container without it
        return ""
    return str(found.f_frsize * found.f_blocks // _SPAN * _SPAN or _SPAN)
