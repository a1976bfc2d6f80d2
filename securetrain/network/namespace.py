# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Named network namespaces: making one, running programs in it, removing it with all it holds.

Rules:

1. a namespace is named below /run/netns, as iproute2 does it (ip-netns(8)), so that whoever looks
   for leftovers finds it by its name;
2. a program in a job namespace gets mounts of its own: the job's hosts file, name lookups in that
   file only, an empty /etc/nccl.conf, and an empty /run, so that no service of the host is reached
   through a socket file;
   what else it must not see is empty too (`hidden`: RDMA devices), and what it alone must get, it
   inherits (`inherited_files`);
3. it gets no capabilities and cannot get any (no_new_privs), so that it cannot leave, or change the
   filter;
4. removing a namespace kills what runs in it first: a process would keep it alive, nameless.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, TypeVar

from securetrain.core.errors import NetworkError
from securetrain.core.files import write_atomic, write_in_place
from securetrain.network import exec_private
from securetrain.network.process_identity import kill
from securetrain.network.system_tools import Run, program, run_command

FOLDER: Final = Path("/run/netns")
HOSTS: Final = "hosts"
NSSWITCH: Final = "nsswitch.conf"
RESOLV: Final = "resolv.conf"
NCCL_CONF: Final = "nccl.conf"

_NO_CAPABILITIES: Final = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
_Started = TypeVar("_Started")
_CLONE_NEWNET: Final = 0x40000000
"""linux/sched.h"""
_CLOSING: Final = frozenset({"04", "09", "0B"})
"""FIN_WAIT1, LAST_ACK and CLOSING in proc_pid_net(5): a FIN was sent and not acknowledged."""
_LOOKUPS: Final = "passwd: files\ngroup: files\nhosts: files\n"
_NO_SERVERS: Final = "# a job network has no name servers; see hosts\n"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace by its name; the empty name is the one of this process."""

    name: str = ""
    run: Run = field(default=run_command, repr=False)

    @property
    def path(self) -> Path:
        """The file that stands for it."""
        return FOLDER / self.name

    @property
    def exists(self) -> bool:
        """Return whether there is a namespace of that name."""
        return not self.name or self.path.exists()

    def create(self) -> None:
        """Make it, with nothing in it but a loopback device that is up.

        Raises:
            NetworkError: ST-NETW-011.
        """
        self.run(["ip", "netns", "add", self.name])
        self.ip("link", "set", "lo", "up")

    def remove(self) -> None:
        """Kill what runs in it, and remove it; without effect when it does not exist.

        Raises:
            NetworkError: ST-NETW-011 when it cannot be removed, ST-NETW-021 when a process stays.
        """
        if not self.name or not self.exists:
            return
        left = kill(self.processes())
        self.run(["ip", "netns", "delete", self.name])
        if left:
            raise NetworkError(
                "ST-NETW-021",
                f"processes {', '.join(map(str, left))} do not end, and keep it alive",
                f"network namespace {self.name}",
                "wait until they leave the kernel, then: securetrain network gc",
            )

    def processes(self) -> list[int]:
        """The processes in it."""
        return [int(word) for word in self.run(["ip", "netns", "pids", self.name]).split()]

    def ip(self, *arguments: str) -> bytes:
        """Run ``ip`` in it.

        Raises:
            NetworkError: ST-NETW-011.
        """
        inside = ["-n", self.name] if self.name else []
        return self.run(["ip", *inside, *arguments])

    def ip_batch(self, *commands: str) -> list[Any]:
        """Run commands of ``ip`` in it, one after the other and all in one process.

        The first that fails ends it: those after it were not run.

        Returns:
            What each command that shows something has shown.

        Raises:
            NetworkError: ST-NETW-011.
        """
        data = "\n".join([*commands, ""]).encode()
        inside = ["-n", self.name] if self.name else []
        try:
            text = self.run(["ip", *inside, "-json", "-batch", "-"], data=data).decode()
        except NetworkError as error:
            error.add_note("; ".join(commands))
            raise
        shown = []
        while text := text.lstrip():
            value, end = json.JSONDecoder().raw_decode(text)
            shown.append(value)
            text = text[end:]
        return shown

    def execute(self, *argv: str, data: bytes = b"") -> bytes:
        """Run a system tool in it, with the rights of this process.

        Raises:
            NetworkError: ST-NETW-011.
        """
        return self.run([*self.enter_command(), *argv], data=data)

    def enter_command(self) -> list[str]:
        """The prefix of a command that is to run in it."""
        return ["nsenter", f"--net={self.path}", "--"] if self.name else []

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Put the calling thread into it, and back at the end: sockets made in the block stay in.

        Raises:
            OSError: The namespace is gone, or this process may not enter it.
        """
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            inside = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set_namespace(inside)
            finally:
                os.close(inside)
            try:
                yield
            finally:
                _set_namespace(before)
        finally:
            os.close(before)

    def has_unacknowledged_close(self) -> bool:
        """Return whether a TCP connection in it waits for the other end to acknowledge its close.

        Raises:
            OSError: The namespace is gone, or this process may not enter it.
        """
        with self.entered():
            return is_closing(Path("/proc/thread-self/net/tcp").read_text())

    @staticmethod
    def name_files(folder: Path) -> dict[str, Path]:
        """The files that stand in the place of files of /etc, by their name there."""
        # NCCL reads its own whatever NCCL_CONF_FILE says: what no variable may do, no file does.
        return {name: folder / name for name in (HOSTS, NSSWITCH, RESOLV, NCCL_CONF)}

    @staticmethod
    def name_texts(hosts: Mapping[str, IPv4Address]) -> dict[str, str]:
        """The content of such files, which know these hosts and nobody else."""
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{address} {name}" for name, address in sorted(hosts.items())]
        known = "\n".join([*lines, ""])
        return {HOSTS: known, NSSWITCH: _LOOKUPS, RESOLV: _NO_SERVERS, NCCL_CONF: ""}

    def program_command(
        self,
        argv: Sequence[str],
        folder: Path,
        *,
        keep_capabilities: bool = False,
        hidden: Collection[Path] = (),
        inherited_files: Mapping[str, Path] | None = None,
    ) -> list[str]:
        """The command that runs a program inside, under the rules of this module.

        The program keeps the pid of the process that the command is started as, so that signals
        and exit codes are its own.

        Args:
            argv: The program, with its full path, and its arguments.
            folder: Where `write_names` wrote.
            keep_capabilities: Leave out rule 3, for a program that is part of the launcher.
            hidden: Folders that are empty for the program; those that do not exist are left out.
            inherited_files: Files that it inherits in memory, by the variable that has the number
                of the descriptor.
        """
        options = [
            word
            for place, file in self.name_files(folder).items()
            for word in _bind(file, place)
            if word
        ]
        hide = [Path("/run"), *(path for path in hidden if path.exists())]
        options += [word for path in hide for word in ("--empty", str(path.resolve()))]
        for name, file in (inherited_files or {}).items():
            options += ["--hand", str(file), name]
        limit = [] if keep_capabilities else [program("setpriv"), *_NO_CAPABILITIES, "--"]
        return [
            *_full(self.enter_command()),
            *private_command(options),
            *limit,
            *argv,
        ]


def private_command(options: Sequence[str]) -> list[str]:
    """The prefix that gives a program mounts of its own (see `exec_private`)."""
    unshare = [program("unshare"), "--mount", "--propagation", "private", "--"]
    return [*unshare, sys.executable, "-I", "-S", str(exec_private.__file__), *options, "--"]


def start_privately(
    place: Namespace, options: Sequence[str], start: Callable[[], _Started]
) -> _Started:
    """Start a process in a namespace and with mounts of its own, without a program between.

    Args:
        place: Where it runs.
        options: As `exec_private` takes them.
        start: Starts it. Called in a thread that ends with this, and alone is there.

    Raises:
        OSError: The namespace is gone, or a mount cannot be made.
    """

    def inside() -> _Started:
        # Entered first: its name is in a folder that may be hidden then.
        with place.entered() if place.name else nullcontext():
            exec_private.unshare()
            exec_private.make(exec_private.mounts(options))
            return start()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(inside).result()


def write_names(folder: Path, hosts: Mapping[str, IPv4Address]) -> None:
    """Write what programs inside find in /etc: these hosts, nobody else, and nothing for NCCL.

    Raises:
        UsageError: ST-USAG-002.
    """
    for name, text in Namespace.name_texts(hosts).items():
        _write(folder / name, text.encode())


def _write(path: Path, data: bytes) -> None:
    """Write into the file that is there: a sandbox that shows it would go on showing another."""
    if path.exists():
        write_in_place(path, data)
    else:
        write_atomic(path, data)


def is_closing(table: str) -> bool:
    """Return whether a kernel table of TCP sockets has one whose close is not yet acknowledged."""
    rows = (row.split() for row in table.splitlines()[1:])
    return any(row[3] in _CLOSING for row in rows)


def _set_namespace(descriptor: int) -> None:
    """setns(2) for the calling thread. Python has it from 3.12 on; the C library always."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")


def _bind(source: Path, place: str) -> list[str]:
    target = Path("/etc", place)
    # Without the file there is nothing to hide, and a bind needs something to lie on.
    return ["--bind", str(source), str(target)] if target.exists() else []


def _full(argv: Sequence[str]) -> list[str]:
    return [program(argv[0]), *argv[1:]] if argv else []
