# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The engine wireguard-go: WireGuard in a process of its own, with a TUN device.

Rules:

1. it must be 0.0.20231211 or newer: older ones move one packet a time, at a quarter of the speed.
   That release still prints 0.0.20230223, so that from there on the device decides: newer ones ask
   the kernel for offloads (``vnet_hdr``), older ones do not (ST-NETW-012);
2. it runs with CAP_NET_ADMIN and no other capability, with no way to get one, in a session of its
   own, with an empty environment;
3. its configuration socket would be a file that whoever is root can open. It is made in mounts of
   the engine's own instead; we reach it through /proc/PID/root, which takes the right to trace the
   engine (ptrace_access_vfs is how proc(5) guards it), and a worker without capabilities has not.
   The file goes with the process;
4. keys go through that socket only;
5. Go's runtime is told what was measured to cost least (`_RUNTIME`);
6. it is scheduled before what it serves, where that is allowed: every rank waits for the slowest
   tunnel, and a worker that computes must not hold up the packets of the others.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from securetrain.core import Retry, printable
from securetrain.core.errors import NetworkError, os_error
from securetrain.network import uapi
from securetrain.network.namespace import Namespace, start_privately
from securetrain.network.record import ENGINE_LOG
from securetrain.network.system_tools import ENVIRONMENT, missing_programs, program, run_command
from securetrain.network.wireguard import DeviceState, Peer, WireGuardKey

PROGRAM: Final = "wireguard-go"
MINIMUM: Final = 20231211
LAST_WITHOUT_OFFLOADS: Final = 20230223
"""The version that both the last release without offloads and the first with them print."""

TUN: Final = Path("/dev/net/tun")
_RUN: Final = Path("/var/run")
_LIMITS: Final = ("--no-new-privs", "--bounding-set=-all,+net_admin", "--inh-caps=-all")
_NICENESS: Final = "-10"
"""Without the right to it, nice(1) says so in the log and goes on."""
_RUNTIME: Final = {"GOMAXPROCS": "1", "GOGC": "off", "GOMEMLIMIT": "96MiB"}
"""Of Go: one thread that works, and no collection of garbage below the limit. An all-reduce of 16
MB took 148 ms of the engine's CPU instead of 171 to 191, at a rate up to 3.5 Gb/s."""
_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.002
_LOG_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class WireGuardGo:
    """The engine."""

    name: str = PROGRAM

    def missing(self) -> list[str]:
        """List what it lacks: the program, a version that is new enough, TUN devices."""
        reasons = missing_programs([PROGRAM])
        if not reasons:
            reasons = version_problem(run_command([PROGRAM, "--version"]))
        try:
            os.close(os.open(TUN, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            reasons.append(f"TUN devices ({TUN}: {error.strerror})")
        return reasons

    def start(self, host: Namespace, name: str, folder: Path) -> "GoDevice":
        """Start it in the host's namespace; `GoDevice.wait_ready` says when it can be configured.

        Raises:
            NetworkError: ST-NETW-010 when a program is missing, ST-NETW-013 when it cannot run.
            UsageError: ST-USAG-002 or ST-USAG-006 when its log cannot be made.
        """
        log = folder / ENGINE_LOG
        command = [
            *(program("nice"), "-n", _NICENESS),
            *(program("setpriv"), *_LIMITS, "--", program(PROGRAM), "-f", name),
        ]
        return GoDevice(_start(host, command, log), name, log, host)


@dataclass(slots=True)
class GoDevice:
    """A TUN device and the process behind it."""

    child: subprocess.Popen[bytes]
    name: str
    """The device's name when it was born: the socket's name for ever."""
    log: Path
    host: Namespace
    """Where it was born."""

    @property
    def socket(self) -> str:
        """The socket through which the engine is configured; see rule 3."""
        return f"/proc/{self.child.pid}/root{_RUN.resolve()}/wireguard/{self.name}.sock"

    def set_key(self, key: WireGuardKey, port: int) -> None:
        """Set the private key and the UDP port (0: any).

        Raises:
            NetworkError: ST-NETW-013, ST-NETW-015.
        """
        uapi.write_device(self.socket, uapi.encode_device(key, port))

    def set_peers(self, peers: Collection[Peer]) -> None:
        """Make these its only peers; those that leave go first.

        Raises:
            NetworkError: ST-NETW-013, ST-NETW-015.
        """
        uapi.write_device(self.socket, uapi.encode_peers(self.read(), peers))

    def read(self) -> DeviceState:
        """Read the state of the device.

        Raises:
            NetworkError: ST-NETW-013, ST-NETW-015.
        """
        return uapi.read_device(self.socket)

    def moved(self, place: Namespace, name: str) -> None:
        """The engine holds the device by a descriptor, wherever it is."""

    def wait_port(self) -> int:
        """Wait until its UDP port is open in its namespace.

        The engine looks once a second whether a device that was moved away is up.

        Raises:
            NetworkError: ST-NETW-013 when it does not open.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and not self.failure_reason():
            port = self.read().port
            if port in open_ports(Path(f"/proc/{self.child.pid}/net/udp").read_text()):
                return port
            time.sleep(_PAUSE_SECONDS)
        raise self._failed(
            self.failure_reason() or "it did not open its UDP port; is the port in use?"
        )

    def wait_ready(self) -> None:
        """Wait until it can be configured; once, before it is moved.

        Raises:
            NetworkError: ST-NETW-013 when it does not start, ST-NETW-012 when it is too old.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and not self.failure_reason():
            try:
                self.read()
            except NetworkError as error:
                if error.definition.retry is not Retry.LATER:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                _require_offloads(self.host, self.name)
                return
        raise self._failed(self.failure_reason() or "it does not answer on its socket")

    def failure_reason(self) -> str:
        """Say how the process ended; empty while it runs."""
        code = self.child.poll()
        if code is None:
            return ""
        return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"

    def process(self) -> int | None:
        """The engine's pid."""
        return self.child.pid

    def close(self) -> None:
        """Kill it; the kernel removes the device with its last descriptor."""
        self.child.kill()
        self.child.wait()

    def _failed(self, what: str) -> NetworkError:
        said = self.log.read_bytes()[-_LOG_SHOWN:].decode("utf-8", "replace").strip()
        return NetworkError(
            "ST-NETW-013",
            f"{PROGRAM}: {what}" + (f": {printable(said)}" if said else ""),
            str(self.log),
            "run wireguard-go -f by hand to see why",
        )


def _start(host: Namespace, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        output = os.open(log, flags, 0o600)
    except OSError as error:
        raise os_error(error, str(log)) from error

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**ENVIRONMENT, **_RUNTIME, "LOG_LEVEL": "error"},
            cwd="/",
            start_new_session=True,
        )

    try:
        return start_privately(host, ["--empty", str(_RUN.resolve())], start)
    except OSError as error:
        raise NetworkError(
            "ST-NETW-013",
            f"{PROGRAM} cannot be started with mounts of its own: {error}",
            command[0],
            "a job network needs CAP_SYS_ADMIN",
        ) from error
    finally:
        os.close(output)


def version_problem(printed: bytes) -> list[str]:
    """Explain why a version (from ``--version``) cannot be used; empty when it may be."""
    match = re.search(rb"\bv0\.0\.([0-9]{8})\b", printed)
    if match is None:
        return [f"a {PROGRAM} that says its version"]
    # Whether it is the first or the last of those that say so, the device will show.
    if int(match[1]) < MINIMUM and int(match[1]) != LAST_WITHOUT_OFFLOADS:
        return [f"{PROGRAM} 0.0.{MINIMUM} or newer (this is 0.0.{int(match[1])})"]
    return []


def open_ports(table: str) -> set[int]:
    """Local ports in the kernel's table of UDP sockets (/proc/PID/net/udp, proc_pid_net(5))."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 1}


def _require_offloads(host: Namespace, name: str) -> None:
    links = json.loads(host.ip("-json", "-details", "link", "show", "dev", name))
    if not links[0].get("linkinfo", {}).get("info_data", {}).get("vnet_hdr"):
        raise NetworkError(
            "ST-NETW-012",
            f"{PROGRAM} is older than 0.0.{MINIMUM}: its device has no offloads",
            program(PROGRAM),
        )
