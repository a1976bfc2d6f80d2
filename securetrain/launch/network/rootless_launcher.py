# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The launcher of an ordinary user, who gets a job network inside a user namespace.

Rules:

1. it goes inside only when the policy's first profile that can be given is ``overlay-rootless``
   (`network.profile.achieve`), and never as root. Everything else stays as it was started, and is
   judged, and refused, where a ledger records it (`run`);
2. nothing but the policy is read before: the launcher inside starts from the beginning, under the
   same command line, with the same rights over files. Which of them belong to the machine's root,
   this one says, because nobody inside could see it (`audit.subjects.node.collect.host`);
3. the way in is rehearsed, so that what does not work has its reason and not just an exit code;
4. this process stays, hands signals on to the launcher inside, and ends as it does; one that cannot
   be handed on is said. When it is killed, the kernel ends what is inside (`network.rootless`).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from securetrain.core import ExitCode, read_stat
from securetrain.core.errors import SecureTrainError
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch.agent.elastic_agent import node_range
from securetrain.launch.network.address import announced_address
from securetrain.launch.network.jobnetwork import prober
from securetrain.launch.options import SANDBOX, Scan
from securetrain.launch.process.descendants import handled
from securetrain.network import Namespace, achieve, rootless
from securetrain.network.overlay import underlay_mtu
from securetrain.policy.schema import Network

_READY_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.01
_PROC: Final = Path("/proc")


def needs_user_namespace(network: Network, scanned: Scan) -> bool:
    """Return whether this launcher has to start again in a user namespace (rule 1)."""
    if os.geteuid() == 0:
        return False
    try:
        _, high = node_range(scanned.nnodes)
        profile = achieve(
            network,
            high,
            require=[NetworkProfile(name) for name in scanned.require if name != SANDBOX],
            probe=prober(max_nodes=high, joins=bool(scanned.endpoint)),
        )
    except (SecureTrainError, ValueError):
        return False
    return profile is NetworkProfile.OVERLAY_ROOTLESS


def run_inside(argv: Sequence[str], scanned: Scan, environ: Mapping[str, str]) -> int:
    """Run the launcher in a user namespace; returns its exit code.

    Args:
        argv: The arguments after ``securetrain run``.
        scanned: The options among them.
        environ: This process's environment.

    Raises:
        SecureTrainError: ST-NETW-010, 011 or 018 when there is no way in, and what
            `announced_address` refuses.
    """
    from securetrain.audit import root_files_variable  # noqa: PLC0415 - few launchers go inside

    udp, device, mtu = None, "", 0
    if scanned.endpoint:
        udp = rootless.new_forwarded_endpoint(announced_address(scanned.endpoint, scanned.bind))
        device = rootless.device_of(udp.address)
        mtu = underlay_mtu(Namespace(), udp.address)
    rootless.rehearse(udp=udp, device=device)
    program = [sys.executable, "-P", "-m", "securetrain", "run", *argv]
    sys.stderr.write("securetrain: entering a user namespace with a network of its own\n")
    sys.stderr.flush()
    # A session of its own: what a terminal sends reaches the launcher inside once, through us.
    with subprocess.Popen(
        rootless.command(program, udp=udp, device=device, mtu=mtu),
        env=rootless.inner_environment(environ, udp) | root_files_variable(environ),
        start_new_session=True,
    ) as process:

        def hand_on(number: int, _frame: FrameType | None) -> None:
            hand_on_signal(process.pid, number)

        with handled(hand_on):
            code = process.wait()
    return code if code >= 0 else int(ExitCode.FAILURE)


def hand_on_signal(pid: int, number: int) -> None:
    """`signal_inside`; a signal that nobody got is said, for whoever sent it waits."""
    if signal_inside(pid, number) or _has_ended(pid, _PROC):
        return
    said = (
        f"securetrain: {signal.Signals(number).name} was not delivered: the launcher in its user"
        f" namespace did not take signals for {_READY_SECONDS:g} s. Send it again; SIGKILL of"
        f" process {os.getpid()} ends everything inside\n"
    )
    with suppress(OSError):
        os.write(2, said.encode())  # not sys.stderr: a signal may have interrupted it


def signal_inside(pid: int, number: int, proc: Path = _PROC) -> bool:
    """Send a signal to the launcher inside, once it can take it.

    It is the first process of its pid namespace, which the kernel protects from signals for which
    it has no handler yet (pid_namespaces(7)).

    Args:
        pid: The process that `rootless.command` was started as.
        number: The signal.
        proc: Where processes are.

    Returns:
        Whether there was somebody to send it to.
    """
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and not _has_ended(pid, proc):
        found = first_inside(pid, proc)
        if found is not None and _handles(found, number, proc):
            with suppress(ProcessLookupError):
                os.kill(found, number)
                return True
        time.sleep(_PAUSE_SECONDS)
    return False


def first_inside(pid: int, proc: Path = Path("/proc")) -> int | None:
    """The launcher inside: pasta starts unshare, and unshare starts it (`rootless.command`).

    It is no deeper process: the sandbox of its workers has a pid namespace and a first process too.
    """
    for found in _children(_children([pid], proc), proc):
        if _status(found, proc).get("NSpid", "").split()[-1:] == ["1"]:
            return found
    return None


def _has_ended(pid: int, proc: Path) -> bool:
    found = read_stat(pid, proc)
    return found is None or found.has_ended


def _children(parents: Sequence[int], proc: Path) -> list[int]:
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]
    wanted = {str(parent) for parent in parents}
    return [pid for pid in pids if _status(pid, proc).get("PPid", "") in wanted]


def _handles(pid: int, number: int, proc: Path) -> bool:
    caught = _status(pid, proc).get("SigCgt", "0")
    return bool(int(caught, 16) >> (signal.Signals(number) - 1) & 1)


def _status(pid: int, proc: Path) -> dict[str, str]:
    """/proc/PID/status (proc_pid_status(5)); empty for a process that has ended."""
    try:
        lines = (proc / str(pid) / "status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
