# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Holds the sandbox of one job on one node, and starts its workers.

``python -I -S start.py < orders.json``

The launcher sends orders (`sandbox.orders`), this program carries them out, in this order:

1. it dies with the launcher, and takes its limits: those of a process, and of the workers' group;
2. what will be shown is copied as detached mounts (open_tree(2)), read-only or writable, with the
   owner's id mapped to the job's user (mount_setattr(2)); nothing of the disk changes by that;
3. it enters the job's network namespace, or makes one with nothing but loopback, and makes mount,
   pid, ipc and uts namespaces (in a user namespace of its own when it is told to);
4. the whole tree becomes read-only, hidden folders become empty, what was copied gets its place;
5. it becomes the job's user, without capabilities and with no way to get any, puts itself under
   Landlock and seccomp, and only then accepts work: each request is a program with its arguments,
   environment and standard files (`enter`), and gets one process;
6. it is the first process of its pid namespace: however it ends, everything in it ends.

What could not be done is reported and never passed over: ``error`` when nothing was started,
``missing`` for a part that the launcher may do without. The standard library only: it starts in
milliseconds, and code that a worker could touch is not in it.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from securetrain.launch.sandbox.kernel import (
    CLONE_NEWNET,
    CLONE_NEWUSER,
    SetupError,
    call,
    enter_domain,
    last_error,
    libc,
    prctl,
    write,
)
from securetrain.launch.sandbox.server import Server
from securetrain.launch.sandbox.tree import id_map, make_tree

"""The same numbers on x86-64 and aarch64."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_CAPBSET_DROP, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 36, 38, 47
_LAST_CAPABILITY: Final = 63
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def main() -> int:
    """Set up, serve, end with the launcher."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with os.fdopen(os.dup(0), "rb") as source:
        orders = json.load(source)
    nothing = os.open("/dev/null", os.O_RDWR)  # so that a worker's files get other numbers
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    status = int(orders["status"])
    for name in ("socket", "status", "lifeline"):  # inherited here, and by no worker
        os.set_inheritable(int(orders[name]), False)
    try:
        return _isolated(orders, status)
    except SetupError as error:
        _say(status, {"error": error.why, "stage": error.stage})
    except (OSError, ValueError, KeyError) as error:
        _say(status, {"error": str(error), "stage": "orders"})
    return 1


def _isolated(orders: Mapping[str, Any], status: int) -> int:
    """Steps 2 and 3; the rest is done by the first process of the new pid namespace."""
    missing: list[str] = []
    limit(orders)
    maps = {tuple(one): id_map(one, orders["user"]) for one in orders["maps"]}
    _enter_namespaces(orders)
    if not orders["namespaces"]:
        prctl(_PR_SET_SUBREAPER, 1)
        return _inside(orders, status, maps, missing)
    first = os.fork()
    if first == 0:
        code = 1
        try:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            code = _inside(orders, status, maps, missing)
        except SetupError as error:
            _say(status, {"error": error.why, "stage": error.stage})
        except (OSError, ValueError, KeyError) as error:
            _say(status, {"error": str(error), "stage": "mounts"})
        finally:
            os._exit(code)
    os.close(status)
    os.close(int(orders["socket"]))
    _, ended = os.waitpid(first, 0)
    return os.waitstatus_to_exitcode(ended) & 0xFF


def limit(orders: Mapping[str, Any]) -> None:
    """Take the limits of a process, and enter the workers' group.

    Raises:
        SetupError: At the stage ``limits``.
    """
    for name, soft, hard in orders["limits"]:
        _, most = resource.getrlimit(name)
        high = hard if most == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(name, (min(soft, high), high))
    for name in orders["raised"]:
        _, most = resource.getrlimit(name)
        try:
            resource.setrlimit(name, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (OSError, ValueError):  # not root: as far as it goes
            resource.setrlimit(name, (most, most))
    if orders["cgroup"]:
        try:
            write(orders["cgroup"], str(os.getpid()))
        except OSError as error:
            raise SetupError("limits", f"{orders['cgroup']}: {error.strerror}") from error


def _inside(
    orders: Mapping[str, Any], status: int, maps: Mapping[Any, int], missing: list[str]
) -> int:
    if orders["namespaces"]:
        make_tree(orders, maps, missing)
    become(orders)
    restrict(orders, missing)
    _say(status, {"missing": missing})
    os.close(status)
    listener = socket.socket(fileno=int(orders["socket"]))
    try:
        return Server(listener, int(orders["lifeline"]), orders).serve()
    except Exception as error:  # noqa: BLE001 - the launcher is not asked any more
        sys.stderr.write(f"securetrain: the sandbox ends, and every worker in it: {error!r}\n")
        return 1


def _enter_namespaces(orders: Mapping[str, Any]) -> None:
    try:
        if orders["netns"]:
            inside = os.open(orders["netns"], os.O_RDONLY | os.O_CLOEXEC)
            call("setns", inside, CLONE_NEWNET)
            os.close(inside)
        if orders["namespaces"]:
            uid, gid = os.getuid(), os.getgid()
            call("unshare", int(orders["namespaces"]))
            if orders["namespaces"] & CLONE_NEWUSER:
                write("/proc/self/setgroups", "deny")
                write("/proc/self/uid_map", f"{uid} {uid} 1")
                write("/proc/self/gid_map", f"{gid} {gid} 1")
    except OSError as error:
        raise SetupError("namespaces", str(error)) from error
    if orders["network"]:
        try:
            call("unshare", CLONE_NEWNET)
            _start_loopback()
        except OSError as error:
            raise SetupError("network", str(error)) from error


def _start_loopback() -> None:
    """The one device of a new network namespace; netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_one:
        fcntl.ioctl(any_one, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


# The user, Landlock, seccomp.


def become(orders: Mapping[str, Any]) -> None:
    """Become the job's user, for ever and without capabilities.

    Raises:
        SetupError: At the stage ``user``.
    """
    try:
        for capability in range(_LAST_CAPABILITY + 1):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                if ctypes.get_errno() == errno.EINVAL:
                    break  # past the last one that this kernel knows
                if os.geteuid() == 0:
                    raise last_error("prctl")
        libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
        if user := orders["user"]:
            os.setgroups(user["groups"])
            os.setresgid(user["gid"], user["gid"], user["gid"])
            os.setresuid(user["uid"], user["uid"], user["uid"])
        header = struct.pack("Ii", 0x20080522, 0)
        call("capset", header, struct.pack("IIIIII", 0, 0, 0, 0, 0, 0))
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        prctl(_PR_SET_DUMPABLE, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user has cleared it
    except OSError as error:
        raise SetupError("user", str(error)) from error


def restrict(orders: Mapping[str, Any], missing: list[str]) -> None:
    """Put this process, and so every worker, under Landlock and seccomp.

    Raises:
        SetupError: At the stage ``landlock`` or ``seccomp``.
    """
    if rules := orders["landlock"]:
        try:
            missing += enter_domain(rules)
        except OSError as error:
            raise SetupError("landlock", str(error)) from error
    if code := bytes.fromhex(orders["seccomp"]):
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
        try:
            prctl(_PR_SET_SECCOMP, 2, program)
        except OSError as error:
            raise SetupError("seccomp", str(error)) from error


def _say(status: int, what: Mapping[str, Any]) -> None:
    with suppress(OSError):
        os.write(status, json.dumps(what).encode() + b"\n")
