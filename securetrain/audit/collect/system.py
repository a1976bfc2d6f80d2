# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the kernel and the machine: settings, mounts, shared memory, devices."""

import stat
from typing import Final, get_args

from securetrain.audit.collect.host import Host, TooMuchError, reading
from securetrain.audit.facts import (
    Clock,
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
_MOUNT_POINTS: Final = ("/", "/tmp", "/var/tmp", "/dev/shm", "/proc", "/home", "/run")  # noqa: S108
_MAX_MOUNTS: Final = 4096
_SEGMENT_PREFIXES: Final = ("nccl-", "torch_", "cuda.shm", "sem.nccl", "pym-")
_CMDLINE_WORDS: Final = (
    "mitigations=", "iommu=", "iommu.", "intel_iommu=", "amd_iommu=", "lockdown=", "lsm=",
    "security=", "apparmor=", "selinux=", "enforcing=", "module.sig_enforce", "nokaslr", "nopti",
    "pti=", "spectre_v2=", "nospectre", "kexec_load_disabled",
)  # fmt: skip


def sysctls(host: Host) -> dict[SysctlName, Reading[int]]:
    """The settings that checks ask about, each with its own outcome."""
    host.names("/proc/sys")  # without it nothing below says anything
    names: tuple[SysctlName, ...] = get_args(SysctlName)
    return {name: reading(lambda name=name: _sysctl(host, name)) for name in names}  # type: ignore[misc]


def _sysctl(host: Host, name: str) -> int:
    return int(host.text(f"/proc/sys/{name.replace('.', '/')}", 64).split()[0])


def mounts(host: Host) -> tuple[Mount, ...]:
    """The mounts that checks ask about, and every network filesystem; the topmost of each."""
    lines = host.text("/proc/self/mounts", 4 << 20).splitlines()
    if len(lines) > _MAX_MOUNTS:
        raise TooMuchError(f"more than {_MAX_MOUNTS} mounts")
    found: dict[str, Mount] = {}
    for line in lines:
        _, target, fstype, options = line.split()[:4]
        target = _unescape(target)
        found.pop(target, None)
        if target in _MOUNT_POINTS or fstype in NETWORK_FILESYSTEMS:
            found[target] = Mount(
                target=target, fstype=fstype, options=tuple(sorted(_flags(options)))
            )
    return tuple(found[target] for target in sorted(found))


def _flags(options: str) -> list[str]:
    """Mount options without their values, which may name hosts and keys; ``sec`` keeps its own."""
    return [o if o.startswith("sec=") else o.partition("=")[0] for o in options.split(",")]


def _unescape(field: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def filesystem_of(host: Host, path: str) -> str:
    """The type of the filesystem that holds `path` (the longest mount point before it)."""
    best, kind = "", ""
    for line in host.text("/proc/self/mounts", 4 << 20).splitlines():
        _, target, fstype = line.split()[:3]
        target = _unescape(target)
        inside = path == target or path.startswith(target.rstrip("/") + "/")
        if inside and len(target) >= len(best):
            best, kind = target, fstype
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
    """Release, the security words of the command line, lockdown and security modules."""
    security = "/sys/kernel/security"
    return Kernel(
        release=host.text("/proc/sys/kernel/osrelease", 256).strip(),
        cmdline=reading(
            lambda: tuple(
                word
                for word in host.text("/proc/cmdline", 16384).split()
                if word.startswith(_CMDLINE_WORDS)
            )
        ),
        lockdown=reading(lambda: _chosen(host.text(f"{security}/lockdown", 256))),
        lsm=reading(lambda: tuple(host.text(f"{security}/lsm", 1024).strip().split(","))),
    )


def _chosen(text: str) -> str:
    """The word in brackets: ``none [integrity] confidentiality``."""
    return next((w.strip("[]") for w in text.split() if w.startswith("[")), text.strip())


def clock(host: Host) -> Clock:
    """The clock sources of the kernel."""
    base = "/sys/devices/system/clocksource/clocksource0"
    return Clock(source=reading(lambda: host.text(f"{base}/current_clocksource", 256).strip()))


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
    """The first that exists, whether or not this user may open it."""
    for path in paths[:-1]:
        try:
            host.at(path).stat()
        except FileNotFoundError:
            continue
        return path
    host.at(paths[-1]).stat()
    return paths[-1]


def octal(mode: int) -> str:
    """Permission bits as four octal digits."""
    return f"{stat.S_IMODE(mode):04o}"
