# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import ctypes
import errno
import os
import platform
import socket
import struct

import pytest

from securetrain.launch.sandbox import seccomp
from securetrain.launch.sandbox.kernel import prctl

MACHINE = platform.machine()
known = pytest.mark.skipif(not seccomp.is_known(), reason="a processor without a table")
ALLOWED = {
    "pidfd_getfd": (438, 438),
    "process_vm_readv": (310, 270),
    "mbind": (237, 235),
    "move_pages": (279, 239),
    "set_mempolicy": (238, 237),
    "landlock_create_ruleset": (444, 444),
}
"""With the numbers of x86-64 and aarch64."""
LIBC = ctypes.CDLL(None, use_errno=True)


def column(pair):
    return pair[0 if MACHINE == "x86_64" else 1]


def call(number, *arguments):
    """The errno of a system call; 0 when it succeeds."""
    given = [ctypes.c_long(one) for one in arguments]
    return 0 if LIBC.syscall(ctypes.c_long(number), *given) >= 0 else ctypes.get_errno()


def filtered(*asked):
    """What calls come to under the filter, in a process of its own."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = seccomp.program()
        buffer = ctypes.create_string_buffer(code)
        prctl(38, 1)
        prctl(22, 2, struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)))
        said = [call(*one) for one in asked]
        os.write(theirs, struct.pack(f"{len(said)}i", *said))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        data = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return struct.unpack(f"{len(asked)}i", data)


def numbers():
    rows = [(row.name, row.x86_64 if MACHINE == "x86_64" else row.aarch64) for row in seccomp.TABLE]
    return {name: number for name, number in rows if number is not None}


@known
def test_every_named_call_is_refused_and_nothing_else_of_it():
    named = numbers()
    assert set(filtered(*((number, -1, 0, 0, 0, 0, 0) for number in named.values()))) == {
        errno.EPERM
    }
    # The control: without the filter, hardly one of them says so for these arguments.
    others = [(column(pair), -1, 0, 0, 0, 0, 0) for pair in ALLOWED.values()]
    assert errno.EPERM not in filtered(*others)


@known
def test_namespaces_by_their_flags():
    clone, unshare, clone3 = (column(seccomp._CALLS[n]) for n in ("clone", "unshare", "clone3"))
    flags = [1 << bit for bit in range(32) if seccomp.NEW_NAMESPACES >> bit & 1]
    assert len(flags) == 8
    assert set(filtered(*((unshare, flag) for flag in flags))) == {errno.EPERM}
    namespaces = [flag for flag in flags if flag != 0x80]
    assert set(filtered(*((clone, flag, 0, 0, 0, 0) for flag in namespaces))) == {errno.EPERM}
    assert filtered((clone3, 0, 0), (unshare, 0x400)) == (errno.ENOSYS, 0)  # CLONE_FILES


@known
def test_sockets_by_their_family():
    number = column(seccomp._CALLS["socket"])
    good = [(1, 1, 0), (2, 1, 0), (2, 2, 0), (10, 1, 0), *((16, 3, n) for n in (0, 15))]
    assert set(filtered(*((number, *one) for one in good))) <= {0, errno.EAFNOSUPPORT}
    others = [family for family in range(47) if family not in {1, 2, 10, 16}]
    assert set(filtered(*((number, family, 1, 0) for family in others))) == {errno.EPERM}
    kinds = [kind for kind in range(23) if kind not in seccomp.NETLINK_KINDS]
    assert set(filtered(*((number, 16, 3, kind) for kind in kinds))) == {errno.EPERM}
    with socket.socket(socket.AF_UNIX) as sock:
        assert sock.fileno() >= 0


@known
def test_terminals_and_personalities():
    ioctl, personality = column(seccomp._CALLS["ioctl"]), column(seccomp._CALLS["personality"])
    refused = [(ioctl, 0, request, 0) for request in seccomp.TERMINAL_REQUESTS]
    # The upper half of an argument is nothing that the kernel looks at.
    refused += [(ioctl, 0, request | 1 << 40, 0) for request in seccomp.TERMINAL_REQUESTS]
    assert set(filtered(*refused)) == {errno.EPERM}
    assert errno.EPERM not in filtered((ioctl, 0, 0x5413, 0), (personality, 0xFFFFFFFF))
    assert filtered((personality, 0x0040000)) == (errno.EPERM,)


@pytest.mark.skipif(MACHINE != "x86_64", reason="x32 is of x86-64")
def test_calls_of_x32_are_refused_all():
    assert filtered((0x40000000 | 39,)) == (errno.EPERM,)


def test_each_row_has_a_reason_and_each_number_one_name():
    for machine in ("x86_64", "aarch64"):
        rows = [getattr(row, machine) for row in seccomp.TABLE if getattr(row, machine)]
        assert len(rows) == len(set(rows))
        program = seccomp.program(machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4096  # BPF_MAXINSNS
    assert all(row.reason for row in seccomp.TABLE)
    assert not {row.name for row in seccomp.TABLE} & ALLOWED.keys()
    assert not seccomp.is_known("riscv64")
