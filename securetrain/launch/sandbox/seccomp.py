# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The system calls that a worker may not make, each with its reason, as a program for seccomp(2).

A worker without capabilities could make few of them with success. They are refused because they are
where the kernel's own faults have been, and because a user namespace would give capabilities back.
What torch, NCCL, UCX and NUMA libraries use is allowed: ``pidfd_getfd``, ``process_vm_readv``,
``process_vm_writev``, ``mbind``, ``set_mempolicy``, ``migrate_pages``, ``move_pages``.

Refused calls fail with EPERM, as without the right to them; ``clone3`` with ENOSYS, so that the C
library falls back to ``clone``, whose flags can be looked at. Calls of another architecture
(32-bit, x32) are refused all.
"""

import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from errno import ENOSYS, EPERM
from typing import Final


@dataclass(frozen=True, slots=True)
class Refused:
    """A system call that a worker may not make."""

    name: str
    x86_64: int | None
    aarch64: int | None
    reason: str


_MOUNTS: Final = "it changes what the worker sees of the machine"
_NAMES: Final = "a new namespace comes with capabilities, and with code that few users reach"
_KERNEL: Final = "it changes the running kernel"
_CLOCK: Final = "certificates and leases depend on the machine's clock"
_KEYS: Final = "kernel keyrings are shared by processes of one user, sandboxed or not"
_TRACE: Final = "it reads and writes other processes"
_WATCH: Final = "it watches other processes or the kernel"
_RING: Final = "its requests pass by this table"
_RAW: Final = "it goes past the rights to files and devices"

# fmt: off
TABLE: Final = (
    Refused("mount", 165, 40, _MOUNTS),
    Refused("umount2", 166, 39, _MOUNTS),
    Refused("pivot_root", 155, 41, _MOUNTS),
    Refused("chroot", 161, 51, _MOUNTS),
    Refused("open_tree", 428, 428, _MOUNTS),
    Refused("move_mount", 429, 429, _MOUNTS),
    Refused("fsopen", 430, 430, _MOUNTS),
    Refused("fsconfig", 431, 431, _MOUNTS),
    Refused("fsmount", 432, 432, _MOUNTS),
    Refused("fspick", 433, 433, _MOUNTS),
    Refused("mount_setattr", 442, 442, _MOUNTS),
    Refused("open_tree_attr", 467, 467, _MOUNTS),
    Refused("quotactl", 179, 60, _MOUNTS),
    Refused("quotactl_fd", 443, 443, _MOUNTS),
    Refused("swapon", 167, 224, _MOUNTS),
    Refused("swapoff", 168, 225, _MOUNTS),
    Refused("setns", 308, 268, _NAMES),
    Refused("ptrace", 101, 117, _TRACE),
    Refused("bpf", 321, 280, _KERNEL),
    Refused("init_module", 175, 105, _KERNEL),
    Refused("finit_module", 313, 273, _KERNEL),
    Refused("delete_module", 176, 106, _KERNEL),
    Refused("kexec_load", 246, 104, _KERNEL),
    Refused("kexec_file_load", 320, 294, _KERNEL),
    Refused("reboot", 169, 142, _KERNEL),
    Refused("iopl", 172, None, _KERNEL),
    Refused("ioperm", 173, None, _KERNEL),
    Refused("modify_ldt", 154, None, _KERNEL),
    Refused("sethostname", 170, 161, _KERNEL),
    Refused("setdomainname", 171, 162, _KERNEL),
    Refused("acct", 163, 89, _KERNEL),
    Refused("vhangup", 153, 58, _KERNEL),
    Refused("settimeofday", 164, 170, _CLOCK),
    Refused("clock_settime", 227, 112, _CLOCK),
    Refused("clock_adjtime", 305, 266, _CLOCK),
    Refused("adjtimex", 159, 171, _CLOCK),
    Refused("add_key", 248, 217, _KEYS),
    Refused("request_key", 249, 218, _KEYS),
    Refused("keyctl", 250, 219, _KEYS),
    Refused("perf_event_open", 298, 241, _WATCH),
    Refused("syslog", 103, 116, _WATCH),
    Refused("fanotify_init", 300, 262, _WATCH),
    Refused("lookup_dcookie", 212, 18, _WATCH),
    Refused("kcmp", 312, 272, _WATCH),
    Refused("userfaultfd", 323, 282, "it holds the kernel in the middle of a copy, as exploits do"),
    Refused("io_uring_setup", 425, 425, _RING),
    Refused("io_uring_enter", 426, 426, _RING),
    Refused("io_uring_register", 427, 427, _RING),
    Refused("open_by_handle_at", 304, 265, _RAW),
    Refused("uselib", 134, None, _RAW),
    Refused("_sysctl", 156, None, _RAW),
    Refused("ustat", 136, None, _RAW),
    Refused("sysfs", 139, None, _RAW),
    Refused("nfsservctl", 180, 42, _RAW),
)
"""Refused whatever their arguments are."""

NEW_NAMESPACES: Final = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | (
    0x20000000 | 0x40000000 | 0x00000080)
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME."""

CLONE_NAMESPACES: Final = NEW_NAMESPACES & ~0x80
"""In clone(2) the lowest byte is the signal at the child's end; it has no CLONE_NEWTIME."""
# fmt: on

FAMILIES: Final[Mapping[int, str]] = {1: "AF_UNIX", 2: "AF_INET", 10: "AF_INET6"}
"""Families of sockets that a worker may use; netlink besides, of these kinds:"""
NETLINK: Final = 16
NETLINK_KINDS: Final[Mapping[int, str]] = {
    0: "NETLINK_ROUTE: lists devices and addresses",
    15: "NETLINK_KOBJECT_UEVENT: hwloc hears of devices",
    16: "NETLINK_GENERIC: finds families",
    20: "NETLINK_RDMA: lists RDMA devices",
}
TERMINAL_REQUESTS: Final[Mapping[int, str]] = {
    0x5412: "TIOCSTI: types into the terminal of whoever started the job",
    0x541C: "TIOCLINUX: pastes into a console",
}
PERSONALITIES: Final = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, with old version numbers for old programs; the last one only asks."""

_ARCHITECTURES: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS: Final[Mapping[str, tuple[int, int]]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "socket": (41, 198),
    "ioctl": (16, 29),
    "personality": (135, 92),
}
_X32: Final = 0x40000000
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND, _THIRD = 0, 4, 16, 24, 32
"""Offsets in struct seccomp_data; of an argument, the lower half."""


class _Program:
    def __init__(self) -> None:
        self.code: list[tuple[int, int, int, int]] = []

    def add(self, code: int, value: int, then: int = 0, otherwise: int = 0) -> None:
        self.code.append((code, then, otherwise, value))

    def load(self, offset: int) -> None:
        self.add(_LOAD, offset)

    def end(self, action: int) -> None:
        self.add(_RETURN, action)

    def when(self, test: int, value: int, action: int) -> None:
        self.add(test, value, 0, 1)
        self.end(action)

    def unless(self, test: int, value: int, action: int) -> None:
        self.add(test, value, 1, 0)
        self.end(action)

    def call(self, number: int, inner: "_Program") -> None:
        """Have one call looked at; every way through `inner` ends."""
        self.add(_EQUAL, number, 0, len(inner.code))
        self.code += inner.code

    def encode(self) -> bytes:
        return b"".join(struct.pack("HBBI", *one) for one in self.code)


def is_known(machine: str = "") -> bool:
    """Return whether there is a table for this machine's processor."""
    return (machine or platform.machine()) in _ARCHITECTURES


def program(machine: str = "") -> bytes:
    """The filter as an array of struct sock_filter.

    Raises:
        KeyError: For a processor that the table does not know.
    """
    machine = machine or platform.machine()
    at = 0 if machine == "x86_64" else 1
    refuse = _ERRNO | EPERM
    made = _Program()
    made.load(_ARCHITECTURE)
    made.unless(_EQUAL, _ARCHITECTURES[machine], refuse)
    made.load(_NUMBER)
    if machine == "x86_64":
        made.when(_AT_LEAST, _X32, refuse)
    for one in TABLE:
        number = one.x86_64 if machine == "x86_64" else one.aarch64
        if number is not None:
            made.when(_EQUAL, number, refuse)
    for name, inner in _by_argument(refuse).items():
        made.call(_CALLS[name][at], inner)
    made.end(_ALLOW)
    return made.encode()


def _by_argument(refuse: int) -> dict[str, _Program]:
    """The calls that depend on an argument."""
    clone, unshare, clone3 = _Program(), _Program(), _Program()
    clone.load(_FIRST)
    clone.when(_ANY_BIT, CLONE_NAMESPACES, refuse)
    clone.end(_ALLOW)
    unshare.load(_FIRST)
    unshare.when(_ANY_BIT, NEW_NAMESPACES, refuse)
    unshare.end(_ALLOW)
    clone3.end(_ERRNO | ENOSYS)
    opened = _Program()
    opened.load(_FIRST)
    for family in FAMILIES:
        opened.when(_EQUAL, family, _ALLOW)
    opened.unless(_EQUAL, NETLINK, refuse)
    opened.load(_THIRD)
    for kind in NETLINK_KINDS:
        opened.when(_EQUAL, kind, _ALLOW)
    opened.end(refuse)
    terminal = _Program()
    terminal.load(_SECOND)
    for request in TERMINAL_REQUESTS:
        terminal.when(_EQUAL, request, refuse)
    terminal.end(_ALLOW)
    person = _Program()
    person.load(_FIRST)
    for value in PERSONALITIES:
        person.when(_EQUAL, value, _ALLOW)
    person.end(refuse)
    return {
        "clone": clone,
        "clone3": clone3,
        "unshare": unshare,
        "socket": opened,
        "ioctl": terminal,
        "personality": person,
    }
