# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts that decide how much a failure weighs: container, other accounts, whose /tmp it is.

They lighten a finding and never settle one, so each errs to the heavy side: what cannot be read is
not known, an account that may be able to log in counts.
"""

import os
import re
from typing import Final

from securetrain.audit.subjects.node.collect.host import (
    HiddenError,
    Host,
    MountPoint,
    TooMuchError,
    reading,
)
from securetrain.audit.subjects.node.facts.node import Context

_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""PROC_PID_INIT_INO of linux/proc_ns.h."""
_PROCESS: Final = re.compile(r"/proc/\d")
_MARKERS: Final = (
    ("/.dockerenv", "docker"),
    ("/run/.containerenv", "podman"),
    ("/run/systemd/container", "systemd"),
)
_CGROUPS: Final = re.compile(r"/(kubepods|docker|containerd|crio|libpod|lxc|machine\.slice)\b")
_IMAGES: Final = frozenset({"overlay", "aufs", "fuse-overlayfs", "btrfs", "zfs"})
"""Filesystems that container engines make root directories of."""
_LAYERED: Final = frozenset({"overlay", "aufs", "fuse-overlayfs"})
"""Those of them that are nobody's root directory but a container's."""
_OWN: Final = frozenset({"tmpfs", "overlay", "ramfs"})
_NO_SHELL: Final = re.compile(r"(/nologin|/false|/sync|/halt|/shutdown)$")
_LOCAL: Final = frozenset({"files", "compat", "systemd", "mymachines", "altfiles"})
"""Sources of accounts that are this machine's own (nsswitch.conf(5))."""
_MAX_SHOWN: Final = 20
_MAX_PROCESSES: Final = 65536
NOT_IN_A_CONTAINER: Final = "none"


def context(host: Host) -> Context:
    """The surroundings of the job on this machine."""
    return Context(
        container=reading(lambda: container(host)),
        private_tmp=reading(lambda: _private_tmp(host)),
        logins=reading(lambda: _logins(host)),
        services=reading(lambda: _services(host)),
    )


def first_pid_namespace(host: Host) -> bool:
    """Return whether this process sees the processes of the whole machine."""
    try:
        return str(host.at("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def is_any_process_hidden(host: Host) -> bool:
    """Return whether something is mounted over a process, or that cannot be told."""
    try:
        return any(_PROCESS.match(mount.target) for mount in host.mounts())
    except (OSError, TooMuchError, HiddenError):
        return True


def container(host: Host) -> str:
    """The kind of container that this runs in, or `NOT_IN_A_CONTAINER`.

    A mark in the root directory alone says little: a machine that boots a container's image has it.

    Raises:
        OSError: when nothing says.
    """
    namespace = str(host.at("/proc/self/ns/pid").readlink())
    marked = next((kind for path, kind in _MARKERS if host.at(path).exists()), "")
    if "KUBERNETES_SERVICE_HOST" in host.environ:
        marked = "kubernetes"
    if found := _CGROUPS.search(host.text("/proc/self/cgroup", 65536)):
        return marked or found[1]
    if namespace != _FIRST_PID_NAMESPACE:
        return marked or "a pid namespace"
    root = [mount.fstype for mount in host.mounts() if mount.target == "/"]
    return marked if marked and root and root[-1] in _IMAGES else NOT_IN_A_CONTAINER


def _private_tmp(host: Host) -> bool:
    """Return whether nobody outside the job's own container, session or service sees /tmp."""
    mounts = host.mounts()
    own = next((mount for mount in reversed(mounts) if mount.target == "/tmp"), None)  # noqa: S108
    if container(host) != NOT_IN_A_CONTAINER:
        # A namespace of processes alone has the machine's own root directory, and its /tmp.
        root = next((mount.fstype for mount in reversed(mounts) if mount.target == "/"), "")
        return root in _LAYERED and (own is None or own.fstype in _OWN)
    if own is None:
        return False
    if own.root != "/" and re.search(r"/systemd-private-|\.inst/|/slurm|/job_container", own.root):
        return True
    return _is_only_ours(host, own)


def _is_only_ours(host: Host, own: MountPoint) -> bool:
    """Return whether the first process has another /tmp than this one; only root may look."""
    try:
        first = host.at("/proc/1/ns/mnt").readlink()
        if first == host.at("/proc/self/ns/mnt").readlink():
            return False
        table = host.text("/proc/1/mountinfo", 4 << 20)
    except PermissionError:
        return False
    return own.fstype in _OWN and f" {own.device} / /tmp " not in table


def _logins(host: Host) -> tuple[str, ...]:
    sources = host.text("/etc/nsswitch.conf") if host.at("/etc/nsswitch.conf").exists() else ""
    for line in sources.splitlines():
        name, _, rest = line.partition("#")[0].partition(":")
        strange = set(re.sub(r"\[.*?\]", " ", rest).split()) - _LOCAL
        if name.strip() == "passwd" and strange:
            raise ValueError(f"accounts also come from {', '.join(sorted(strange))}")
    locked = _locked(host)
    found = []
    rows = host.text("/etc/passwd").splitlines()
    for row in (row.split(":") for row in rows if row and not row.startswith("#")):
        if len(row) != 7:
            raise ValueError("/etc/passwd has a line that is no account")
        name, uid, home, shell = row[0], int(row[2]), row[5], row[6]
        if uid in (0, host.uid) or _NO_SHELL.search(shell):
            continue
        if name in locked and not host.at(f"{home}/.ssh/authorized_keys").exists():
            continue
        found.append(name)
    if not rows:
        raise ValueError("/etc/passwd is empty")
    return tuple(sorted(found)[:_MAX_SHOWN])


def _locked(host: Host) -> set[str]:
    """Accounts without a password; none where the passwords are out of reach."""
    try:
        rows = [row.split(":") for row in host.text("/etc/shadow").splitlines()]
    except (OSError, TooMuchError):
        return set()
    return {row[0] for row in rows if len(row) > 1 and row[1].startswith(("!", "*"))}


def _services(host: Host) -> tuple[str, ...]:
    """Owners of processes; raises when another user's processes are out of sight."""
    entries = [name for name in os.listdir(host.at("/proc")) if name.isdigit()]  # noqa: PTH208
    if len(entries) > _MAX_PROCESSES:
        raise TooMuchError(f"more than {_MAX_PROCESSES} processes")
    uids = set()
    for pid in entries:
        try:
            uids.add(host.at(f"/proc/{pid}").stat().st_uid)
        except FileNotFoundError:
            continue  # it has ended
    if host.uid != 0 and "1" not in entries:
        raise ValueError("other users' processes are hidden")
    return tuple(str(uid) for uid in sorted(uids - {0, host.uid})[:_MAX_SHOWN])
