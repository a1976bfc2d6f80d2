# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the kernel and the machine: settings, mounts, shared memory, devices.

What a container merely does not show (securityfs, devices, settings of modules) is an error there,
never absent.
"""

import stat
from collections.abc import Iterator
from typing import Final, get_args

from securetrain.audit.collect.host import HiddenError, Host, TooMuchError, reading
from securetrain.audit.collect.surroundings import NOT_IN_A_CONTAINER, container
from securetrain.audit.facts import (
    Hardware,
    Kernel,
    Mount,
    Reading,
    SharedSegment,
    SysctlName,
)

NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "cifs", "smb3", "beegfs", "wekafs", "ceph", "glusterfs",
     "fuse.sshfs", "fuse.s3fs", "fuse.juicefs", "9p", "afs", "panfs"}
)  # fmt: skip
_MOUNT_POINTS: Final = ("/", "/tmp", "/dev/shm")  # noqa: S108
_SEGMENT_PREFIXES: Final = (
    "nccl-", "torch_", "cuda.shm", "sem.nccl", "pym-", "psm_", "pymp-", "sem.mp-",
)  # fmt: skip
"""NCCL, torch and CUDA; psm_ is multiprocessing.shared_memory, pymp- and sem.mp- its kin."""
_CMDLINE_WORDS: Final = frozenset(
    {"mitigations", "iommu", "intel_iommu", "amd_iommu", "nokaslr", "nopti", "pti", "nospectre_v1",
     "nospectre_v2", "spectre_v2", "spectre_v2_user", "spec_store_bypass_disable",
     "nospec_store_bypass_disable", "l1tf", "mds", "tsx_async_abort", "mmio_stale_data", "retbleed",
     "srbds", "spec_rstack_overflow", "gather_data_sampling", "reg_file_data_sampling",
     "indirect_target_selection", "tsa", "spectre_bhi", "nosmep", "nosmap", "kvm.nx_huge_pages"}
)  # fmt: skip
"""What switches protections of the kernel (Documentation/admin-guide/kernel-parameters.txt)."""
_NOT_HERE: Final = "not there, seen from inside a container: the machine may have it"


def sysctls(host: Host) -> dict[SysctlName, Reading[int]]:
    """The settings that checks ask about, each with its own outcome."""
    host.names("/proc/sys")  # without it nothing below says anything
    names: tuple[SysctlName, ...] = get_args(SysctlName)
    return {name: reading(lambda name=name: _sysctl(host, name)) for name in names}  # type: ignore[misc]


def _sysctl(host: Host, name: str) -> int:
    try:
        return int(host.text(f"/proc/sys/{name.replace('.', '/')}", 64).split()[0])
    except FileNotFoundError:
        if _in_container(host):
            raise HiddenError(f"{name}: {_NOT_HERE}") from None
        raise


def _in_container(host: Host) -> bool:
    """Return whether this may be a container: when nothing says, it may."""
    try:
        return container(host) != NOT_IN_A_CONTAINER
    except (OSError, ValueError, TooMuchError, HiddenError):
        return True


def mounts(host: Host) -> tuple[Mount, ...]:
    """The mounts that checks ask about; the topmost of each."""
    found: dict[str, Mount] = {}
    for mount in host.mounts():
        found.pop(mount.target, None)
        if mount.target in _MOUNT_POINTS:
            found[mount.target] = Mount(
                target=mount.target,
                fstype=mount.fstype,
                options=tuple(sorted(set(_flags(mount.options)))),
            )
    return tuple(found[target] for target in sorted(found))


def _flags(options: str) -> list[str]:
    """Mount options without their values, which may name hosts and keys."""
    return [option.partition("=")[0] for option in options.split(",")]


def filesystem_of(host: Host, path: str) -> str:
    """The type of the filesystem that holds `path` (the longest mount point before it)."""
    best, kind = "", ""
    for mount in host.mounts():
        inside = path == mount.target or path.startswith(mount.target.rstrip("/") + "/")
        if inside and len(mount.target) >= len(best):
            best, kind = mount.target, mount.fstype
    return kind


def shm(host: Host) -> tuple[SharedSegment, ...]:
    """Shared-memory files that NCCL, CUDA and torch leave in /dev/shm."""
    found = []
    for name in host.names("/dev/shm"):  # noqa: S108 - where they are
        if not name.startswith(_SEGMENT_PREFIXES):
            continue
        try:
            info = host.at(f"/dev/shm/{name}").lstat()  # noqa: S108
        except FileNotFoundError:
            continue  # it went away while we looked
        found.append(SharedSegment(name=name, uid=info.st_uid, mode=octal(info.st_mode)))
    return tuple(found)


def kernel(host: Host) -> Kernel:
    """The security words of the command line, lockdown and security modules."""
    return Kernel(
        cmdline=reading(lambda: tuple(_cmdline(host))),
        lockdown=reading(lambda: _chosen(_security(host, "lockdown"))),
        lsm=reading(
            lambda: tuple(name for name in _security(host, "lsm").strip().split(",") if name)
        ),
    )


def _cmdline(host: Host) -> Iterator[str]:
    """``name=value`` for each of the values that stand between commas."""
    words = host.text("/proc/cmdline", 16384).split()
    if not words:
        raise ValueError("/proc/cmdline is empty")
    for word in words:
        name, equals, value = word.strip('"').partition("=")
        if name.replace("-", "_") in _CMDLINE_WORDS:
            yield from (f"{name}{equals}{part}" for part in value.split(","))


def _security(host: Host, name: str) -> str:
    """A file of securityfs.

    Raises:
        HiddenError: when that is not mounted, as in most containers: then nothing is known.
    """
    folder = "/sys/kernel/security"
    top = [mount.fstype for mount in host.mounts() if mount.target == folder][-1:]
    if top != ["securityfs"]:
        raise HiddenError(f"securityfs is not mounted on {folder}")
    return host.text(f"{folder}/{name}", 1024)


def _chosen(text: str) -> str:
    """The word in brackets: ``none [integrity] confidentiality``."""
    return next((w.strip("[]") for w in text.split() if w.startswith("[")), text.strip())


def hardware(host: Host) -> Hardware:
    """The NVIDIA driver, InfiniBand adapters, the TPM and the confidential-guest device."""
    return Hardware(
        nvidia_driver=reading(lambda: _first_line(host, "/proc/driver/nvidia/version")),
        infiniband=reading(lambda: tuple(host.names("/sys/class/infiniband"))),
        tpm=reading(lambda: _first_device(host, ("/dev/tpmrm0",))),
        tee=reading(lambda: _first_device(host, ("/dev/sev-guest", "/dev/tdx_guest"))),
    )


def _first_line(host: Host, path: str) -> str:
    return host.text(path, 4096).splitlines()[0].strip()


def _first_device(host: Host, paths: tuple[str, ...]) -> str:
    """The first that exists, whether or not this user may open it.

    Raises:
        HiddenError: when there is none and /dev is not the kernel's own, as in a container.
        FileNotFoundError: when there is none.
    """
    for path in paths:
        try:
            if stat.S_ISCHR(host.at(path).stat().st_mode):
                return path
        except FileNotFoundError:
            continue
    if [mount.fstype for mount in host.mounts() if mount.target == "/dev"][-1:] != ["devtmpfs"]:
        raise HiddenError(f"{paths[-1]}: {_NOT_HERE}")
    host.at(paths[-1]).stat()
    raise ValueError(f"{paths[-1]} is no device")


def octal(mode: int) -> str:
    """Permission bits as four octal digits."""
    return f"{stat.S_IMODE(mode):04o}"
