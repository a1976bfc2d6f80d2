# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about what a machine is: its marks, what MASTER_ADDR means on it, and its surroundings.

Rules:

1. marks, and the place of the rendezvous, are judged by a comparison of nodes only. No name service
   is asked: a name that /etc/hosts does not have is not known;
2. surroundings (container, other accounts, whose /tmp it is) lighten a finding and never settle
   one, so each errs to the heavy side: what cannot be read is not known, an account that may be
   able to log in counts.
"""

import base64
import errno
import hashlib
import ipaddress
import re
import socket
from contextlib import suppress
from typing import Final

from securetrain.audit.subjects.node.collect.host import (
    HiddenError,
    Host,
    MountPoint,
    known,
    reading,
)
from securetrain.audit.subjects.node.collect.rtnetlink import links
from securetrain.audit.subjects.node.facts.access import (
    HardwareAddress,
    HostKey,
    Machine,
    Rendezvous,
)
from securetrain.audit.subjects.node.facts.node import Context

_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}\Z")
_HOST_KEY: Final = re.compile(r"ssh_host_\w+_key\.pub\Z")
_SSH: Final = "/etc/ssh"
_VARIABLES: Final = ("PET_MASTER_ADDR", "MASTER_ADDR")


def machine(host: Host) -> Machine:
    """The marks of this machine."""
    return Machine(
        machine_id=reading(lambda: _machine_id(host)),
        host_keys=reading(lambda: _host_keys(host)),
        addresses=reading(lambda: _addresses(host)),
        boot_id=reading(lambda: boot_id(host)),
    )


def boot_id(host: Host) -> str:
    """The number of this boot.

    Raises:
        HiddenError: when the kernel does not say, as every Linux does.
    """
    try:
        return host.text("/proc/sys/kernel/random/boot_id", 64).strip()
    except FileNotFoundError as error:
        raise HiddenError("the kernel's boot_id does not show") from error


def _machine_id(host: Host) -> str:
    text = host.text("/etc/machine-id", 4096).strip()
    if not _MACHINE_ID.match(text):
        raise ValueError("/etc/machine-id is not set")
    return hashlib.sha256(f"securetrain machine {text}".encode()).hexdigest()[:32]


def _host_keys(host: Host) -> tuple[HostKey, ...]:
    found = set()
    for name in host.names(_SSH):
        if _HOST_KEY.match(name):
            words = host.text(f"{_SSH}/{name}", 16384).split()
            if len(words) < 2:
                raise ValueError(f"{_SSH}/{name} is no public key")
            blob = base64.b64decode(words[1], validate=True)
            found.add(base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("="))
    return tuple(HostKey(fingerprint=one) for one in sorted(found))


def _addresses(host: Host) -> tuple[HardwareAddress, ...]:
    """Of hardware: what has no kind, and an address that was not made up for it."""
    cards = (one.address for one in links(host) if not (one.facts.kind or one.facts.loopback))
    return tuple(HardwareAddress(address=one) for one in sorted({one for one in cards if one}))


def rendezvous(host: Host) -> Rendezvous:
    """The place that ranks of a plain launcher would look for."""
    return Rendezvous(
        master=reading(lambda: _master(host)), addresses=reading(lambda: _meaning(host))
    )


def _master(host: Host) -> str:
    for name in _VARIABLES:
        if host.environ.get(name):
            return host.environ[name]
    raise FileNotFoundError(errno.ENOENT, "not set", _VARIABLES[-1])


def _meaning(host: Host) -> str:
    name = _master(host)
    found = set()
    with suppress(ValueError):
        found.add(ipaddress.ip_address(name))
    for line in host.text("/etc/hosts").splitlines() if not found else ():
        address, *names = line.partition("#")[0].split() or [""]
        if name.lower() in (one.lower() for one in names):
            found.add(ipaddress.ip_address(address.partition("%")[0]))
    if not found:
        raise ValueError(f"{name} is left to the name service")
    own = socket.gethostname()
    texts = (f"{one} of {own}" if one.is_loopback else str(one) for one in found)
    return " ".join(sorted(texts))


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
    return known(lambda: str(host.at("/proc/self/ns/pid").readlink())) == _FIRST_PID_NAMESPACE


def is_any_process_hidden(host: Host) -> bool:
    """Return whether something is mounted over a process, or that cannot be told."""
    return known(lambda: any(map(_PROCESS.match, host.mounted()))) is not False


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
    is_image = host.filesystem_at("/") in _IMAGES
    return marked if marked and is_image else NOT_IN_A_CONTAINER


def _private_tmp(host: Host) -> bool:
    """Return whether nobody outside the job's own container, session or service sees /tmp."""
    own = host.mounted().get("/tmp")  # noqa: S108
    if container(host) != NOT_IN_A_CONTAINER:
        # A namespace of processes alone has the machine's own root directory, and its /tmp.
        return host.filesystem_at("/") in _LAYERED and (own is None or own.fstype in _OWN)
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
    if strange := foreign_sources(host, "passwd"):
        raise ValueError(f"accounts also come from {', '.join(sorted(strange))}")
    # without a password; where the passwords are out of reach, none
    shadow = known(lambda: host.rows("/etc/shadow")) or []
    locked = {row[0] for row in shadow if len(row) > 1 and row[1].startswith(("!", "*"))}
    found = []
    rows = host.rows("/etc/passwd")
    for row in (row for row in rows if row != [""] and not row[0].startswith("#")):
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


def foreign_sources(host: Host, table: str) -> set[str]:
    """Sources of accounts or groups that are not this machine's own (nsswitch.conf(5))."""
    try:
        text = host.text("/etc/nsswitch.conf")
    except FileNotFoundError:
        return set()
    for line in text.splitlines():
        name, _, rest = line.partition("#")[0].partition(":")
        if name.strip() == table:
            return set(re.sub(r"\[.*?\]", " ", rest).split()) - _LOCAL
    return set()


def _services(host: Host) -> tuple[str, ...]:
    """Owners of processes; raises when another user's processes are out of sight."""
    entries = host.processes()
    uids = set()
    for pid in entries:
        try:
            uids.add(host.at(f"/proc/{pid}").stat().st_uid)
        except FileNotFoundError:
            continue  # it has ended
    if host.uid != 0 and "1" not in entries:
        raise ValueError("other users' processes are hidden")
    return tuple(str(uid) for uid in sorted(uids - {0, host.uid})[:_MAX_SHOWN])
