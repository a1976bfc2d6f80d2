# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collect the facts of this node: standard library only, no root needed, no process started."""

import getpass
import os
import pwd
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from securetrain import __version__
from securetrain.audit.collect import (
    accounts,
    nccl,
    network,
    owners,
    paths,
    software,
    ssh,
    surroundings,
    system,
)
from securetrain.audit.collect.host import HiddenError, Host, TooMuchError, section
from securetrain.audit.facts import Collected, Job, Node, NodeFacts


def collect_node(
    environ: Mapping[str, str],
    *,
    now: datetime,
    search_path: Sequence[str] | None = None,
    root: Path = Path("/"),
    seconds: float = 5.0,
) -> NodeFacts:
    """Collect the facts of this node for a job of this user.

    Args:
        environ: The environment that the job would be started with.
        now: The time of collection, with its zone.
        search_path: Where the job's Python finds modules; this process's own by default.
        root: Where the machine's tree begins.
        seconds: The time limit of each collector.
    """
    return collect_from(_host(environ, search_path, root), now=now, seconds=seconds)


def collect_from(host: Host, *, now: datetime, seconds: float = 5.0) -> NodeFacts:
    """Collect the facts that a `Host` shows."""
    return NodeFacts(
        collected=Collected(
            at=now,
            hostname=socket.gethostname(),
            collector=f"securetrain {__version__}",
            boot_id=_boot_id(host),
        ),
        job=Job(uid=host.uid, gid=host.gid, user=host.user, home=str(host.home)),
        node=Node(
            sysctls=section(system.sysctls, host, seconds),
            interfaces=section(network.interfaces, host, seconds),
            mounts=section(system.mounts, host, seconds),
            listeners=section(network.listeners, host, seconds),
            env=section(accounts.env, host, seconds),
            nccl_conf=section(nccl.nccl_conf, host, seconds),
            paths=section(paths.paths, host, seconds),
            shm=section(system.shm, host, seconds),
            packages=section(software.packages, host, seconds),
            entry_points=section(software.entry_points, host, seconds),
            secrets=section(accounts.secrets, host, seconds),
            ssh=section(ssh.ssh, host, seconds),
            sshd=section(ssh.sshd, host, seconds),
            kernel=section(system.kernel, host, seconds),
            python=section(software.python, host, seconds),
            hardware=section(system.hardware, host, seconds),
            context=section(surroundings.context, host, seconds),
        ),
    )


def root_files_variable(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable by which a launcher that goes into a user namespace says what root owns."""
    return owners.encode_root_files(paths.seen(_host(environ, None, Path("/"))))


def _host(environ: Mapping[str, str], search_path: Sequence[str] | None, root: Path) -> Host:
    return Host(
        environ=environ,
        search_path=tuple(sys.path if search_path is None else search_path),
        uid=os.geteuid(),
        gid=os.getegid(),
        user=_user(),
        home=Path(environ.get("HOME") or _home() or "/"),
        account_home=_home(),
        root=root,
        root_owned=owners.decode_root_files(os.environ, inside=_is_inside()),
    )


def _is_inside() -> bool:
    from securetrain.network.rootless import is_inside  # noqa: PLC0415 - an audit needs no network

    try:
        return is_inside()
    except OSError:
        return False  # without /proc nothing that was told before is believed


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid_{os.geteuid()}"  # a uid without a name, as containers have


def _home() -> Path | None:
    """The home directory of the user database; a uid without a name has none."""
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return None


def _boot_id(host: Host) -> str:
    try:
        return host.text("/proc/sys/kernel/random/boot_id", 64).strip()
    except (OSError, TooMuchError, HiddenError):
        return ""
