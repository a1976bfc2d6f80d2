# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""72 things that a worker must not do, as a training script: what each came to, as JSON.

``worker_probes.py TARGETS``: a file that names what was prepared for them. Each probe undoes what
it does. What succeeds comes to ``done``, what fails to the name of its errno. The script takes
nothing of this project. At its end it makes a file of cron's; whoever refuses that ends it.
"""

import ctypes
import errno
import fcntl
import json
import os
import pty
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

PARENT = os.getppid()
LIBC = ctypes.CDLL(None, use_errno=True)
Targets: TypeAlias = dict[str, Any]
PROBES: Final[dict[str, Callable[[Targets], object]]] = {}
"""By name."""


def probe(function: Callable[[Targets], object]) -> Callable[[Targets], object]:
    PROBES[function.__name__] = function
    return function


def call(number: int, *arguments: Any) -> int:
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    found = LIBC.syscall(ctypes.c_long(number), *given)
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


def in_child(action: Callable[[], object]) -> None:
    """Do something in a process that nobody needs: each probe has one."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            action()
        except OSError as error:
            code = error.errno or 255
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def creating(name: str, path: str) -> None:
    def create(_targets: Targets) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.close(file)
        Path(path).unlink()

    PROBES[name] = create


def opening(name: str, path: str, flags: int = os.O_RDONLY) -> None:
    """Open a file, whose path may name targets; what is read must hold something."""

    def look(targets: Targets) -> None:
        file = os.open(path.format(**targets), flags)
        found = flags != os.O_RDONLY or os.read(file, 64)
        os.close(file)
        if not found:
            raise OSError(errno.ENODATA, "it is empty")

    PROBES[name] = look


# The machine's files.
for number, folder in enumerate(
    ["/etc/cron.d", "/etc/profile.d", "/usr/local/bin", "/usr/lib", "/var/lib", "/var/log", "/opt"]
):
    creating(f"create_{number}_in{folder.replace('/', '_')}", f"{folder}/st-probe")
creating("preload_a_library_everywhere", "/etc/ld.so.preload")
opening("append_to_passwd", "/etc/passwd", os.O_WRONLY | os.O_APPEND)
opening("read_shadow", "/etc/shadow")
opening("change_the_kernels_settings", "/proc/sys/kernel/core_pattern", os.O_WRONLY)
opening("change_sysfs", "/sys/kernel/mm/transparent_hugepage/enabled", os.O_WRONLY)
opening("read_a_home", "{home_secret}")
opening("read_tmp", "{tmp_secret}")
opening("read_shared_memory", "{shm_secret}")

# Code.
opening("change_our_code", "{our_code}", os.O_WRONLY)
opening("change_the_interpreter", "{interpreter}", os.O_WRONLY)
opening("change_a_package", "{package}", os.O_WRONLY)
opening("change_the_script", "{script}", os.O_WRONLY)

# Keys, and what is signed with them.
for which in ("node", "agent", "root", "dataset"):
    opening(f"read_the_runs_{which}_key", f"{{run}}/keys/{which}.pem")
opening("read_the_nodes_state", "{state_secret}")
opening("read_a_ca_key", "{ca_key}")
opening("read_another_runs_key", "{other_run}/keys/agent.pem")
opening("append_to_another_runs_ledger", "{other_run}/ledger.jsonl", os.O_WRONLY)
opening("change_the_runs_policy", "{run}/policy.json", os.O_WRONLY)
opening("change_the_runs_trust_root", "{run}/trust.json", os.O_WRONLY)


@probe
def plant_a_file_in_the_run(targets: Targets) -> None:
    path = Path(targets["run"], "report.html")
    path.symlink_to("/etc/passwd")
    path.unlink()


@probe
def remove_another_runs_checkpoint(targets: Targets) -> None:
    path = Path(targets["other_run"], "checkpoints", "step-1")
    path.rmdir()
    path.mkdir()


# Processes.
@probe
def signal_a_process_of_the_machine(targets: Targets) -> None:
    os.kill(targets["process"], 0)


opening("read_a_processs_environment", "/proc/{process}/environ")


@probe
def trace_a_process(_targets: Targets) -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        call(101, 16, child, 0, 0)  # PTRACE_ATTACH
        os.waitpid(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


@probe
def read_the_parents_memory(_targets: Targets) -> None:
    text = ctypes.create_string_buffer(8)
    local = struct.pack("QQ", ctypes.addressof(text), 8)
    # Our own address: the parent runs the same interpreter, and EFAULT would say that it was read.
    remote = struct.pack("QQ", 0x1000, 8)
    try:
        call(310, PARENT, local, 1, remote, 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise


PROBES["go_before_others"] = lambda _: os.setpriority(os.PRIO_PROCESS, 0, -5)
PROBES["run_in_real_time"] = lambda _: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@probe
def dump_core(_targets: Targets) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))
    except ValueError as error:
        raise OSError(errno.EPERM, str(error)) from error


# Users.
PROBES["become_root"] = lambda _: os.setresuid(0, 0, 0)
PROBES["join_roots_group"] = lambda _: os.setgroups([0])


@probe
def give_a_file_away(_targets: Targets) -> None:
    path = Path("given")
    path.touch()
    try:
        os.chown(path, 1, 1)
    finally:
        path.unlink()


@probe
def take_a_capability(_targets: Targets) -> None:
    header = struct.pack("Ii", 0x20080522, 0)
    wanted = struct.pack("IIIIII", 1 << 21, 1 << 21, 0, 0, 0, 0)  # CAP_SYS_ADMIN
    call(126, header, wanted)


# Devices.
@probe
def make_a_device(_targets: Targets) -> None:
    os.mknod("device", 0o600 | 0o020000, os.makedev(1, 3))
    Path("device").unlink()


for device in ("kmsg", "loop-control", "fuse", "net/tun"):
    opening(f"open_{device.replace('/', '_')}", f"/dev/{device}", os.O_RDWR)


@probe
def type_into_a_terminal(_targets: Targets) -> None:
    ours, theirs = pty.openpty()
    os.setsid()
    fcntl.ioctl(theirs, 0x540E, 0)  # TIOCSCTTY
    fcntl.ioctl(theirs, 0x5412, b"x")  # TIOCSTI
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.close(ours)


# Namespaces and mounts.
PROBES["make_a_user_namespace"] = lambda _: call(272, 0x10000000)
PROBES["make_a_mount_namespace"] = lambda _: call(272, 0x20000)
PROBES["make_a_network_namespace"] = lambda _: call(272, 0x40000000)
PROBES["enter_another_namespace"] = lambda _: call(
    308, os.open("/proc/self/ns/uts", os.O_RDONLY), 0
)


@probe
def mount_something(_targets: Targets) -> None:
    call(165, b"none", b"/mnt", b"tmpfs", 0, 0)
    call(166, b"/mnt", 0)


PROBES["open_a_file_system"] = lambda _: os.close(call(430, b"tmpfs", 0))
PROBES["copy_a_tree_of_mounts"] = lambda _: os.close(call(428, -100, b"/", 1))
PROBES["change_the_root"] = lambda _: os.chroot("/mnt")
PROBES["call_the_machine_otherwise"] = lambda _: socket.sethostname(socket.gethostname())


# The kernel.
@probe
def load_a_program_into_the_kernel(_targets: Targets) -> None:
    os.close(call(321, 0, struct.pack("IIIIII", 2, 4, 4, 1, 0, 0) + bytes(64), 88))  # a map


@probe
def measure_the_machine(_targets: Targets) -> None:
    wanted = struct.pack("IIQQQQ", 1, 128, 0, 0, 0, 0) + bytes(88)  # PERF_COUNT_SW_CPU_CLOCK
    os.close(call(298, wanted, -1, 0, -1, 0))


PROBES["add_a_key"] = lambda _: call(248, b"user", b"st-probe", b"x", 1, -1)
PROBES["read_the_kernels_log"] = lambda _: call(103, 10, 0, 0)
PROBES["hold_page_faults"] = lambda _: os.close(call(323, 0o2000000))
PROBES["pass_requests_in_a_ring"] = lambda _: os.close(call(425, 2, bytes(120)))
PROBES["watch_all_files"] = lambda _: os.close(call(300, 0, 0))
PROBES["set_the_clock"] = lambda _: call(305, 0, bytes(208))


@probe
def open_a_file_by_its_number(_targets: Targets) -> None:
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    folder = os.open(".", os.O_RDONLY)
    call(303, -100, b".", handle, ctypes.byref(mount), 0)
    os.close(call(304, folder, handle, os.O_RDONLY))


# Sockets.
PROBES["open_a_packet_socket"] = lambda _: socket.socket(17, 3).close()
PROBES["open_a_vsock_socket"] = lambda _: socket.socket(40, 1).close()
PROBES["open_a_raw_socket"] = lambda _: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()
PROBES["talk_to_the_packet_filter"] = lambda _: socket.socket(16, 3, 12).close()


def connecting(name: str, place: str) -> None:
    def connect(targets: Targets) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(place.format(**targets))

    PROBES[name] = connect


connecting("connect_to_a_service_in_run", "{run_socket}")
connecting("connect_to_an_abstract_service", "\0{abstract_socket}")


def main() -> None:
    targets = json.loads(Path(sys.argv[1]).read_text()) | {"interpreter": os.__file__}
    came_to = {}
    for name, function in PROBES.items():
        try:
            in_child(partial(function, targets))
            came_to[name] = "done"
        except OSError as error:
            came_to[name] = errno.errorcode.get(error.errno or 0, str(error.errno))
    Path("probed.json").write_text(json.dumps(came_to))
    last = Path("/etc/cron.d/st-probe")
    last.touch()
    last.unlink()


if __name__ == "__main__":
    main()
