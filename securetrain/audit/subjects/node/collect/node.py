# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collect the facts of this node: standard library only, no root needed, no process started."""

import getpass
import os
import pwd
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from securetrain import __version__
from securetrain.audit.facts import Collected, End, Entry, Location, Section
from securetrain.audit.ledger import Ledger, entry_of
from securetrain.audit.subjects.node.collect import (
    accounts,
    artifacts,
    firewall,
    machine,
    network,
    paths,
    software,
    ssh,
    sudo,
    system,
)
from securetrain.audit.subjects.node.collect.host import (
    NOTHING,
    Host,
    Named,
    decode_root_files,
    encode_root_files,
    known,
    section,
)
from securetrain.audit.subjects.node.facts.artifacts import Artifacts
from securetrain.audit.subjects.node.facts.network import Firewall
from securetrain.audit.subjects.node.facts.node import Job, Listener, Node, NodeFacts


def collect_node(
    environ: Mapping[str, str],
    *,
    now: datetime,
    search_path: Sequence[str] | None = None,
    root: Path = Path("/"),
    seconds: float = 5.0,
    job: Named = NOTHING,
) -> NodeFacts:
    """Collect the facts of this node for a job of this user.

    Args:
        environ: The environment that the job would be started with.
        now: The time of collection, with its zone.
        search_path: Where the job's Python finds modules; this process's own by default.
        root: Where the machine's tree begins.
        seconds: The time limit of each collector.
        job: What the job names, and who may have signed it.
    """
    host = replace(host_of(environ, search_path, root), named=job)
    return collect_from(host, now=now, seconds=seconds)


def collect_from(host: Host, *, now: datetime, seconds: float = 5.0) -> NodeFacts:
    """Collect the facts that a `Host` shows."""
    found = {one.__name__: section(one, host, seconds) for one in COLLECTORS}
    return NodeFacts(
        collected=Collected(
            at=now,
            hostname=socket.gethostname(),
            collector=f"securetrain {__version__}",
            boot_id=known(lambda: machine.boot_id(host)) or "",
        ),
        ledger=(
            *_ledger(found["artifacts"]),
            *_of_kernel(found["firewall"], found["listeners"]),
        ),
        job=Job(uid=host.uid, gid=host.gid, user=host.user, home=str(host.home)),
        node=Node(**found),
    )


COLLECTORS: Final[tuple[Callable[[Host], Any], ...]] = (
    system.sysctls, system.mounts, system.shm, system.kernel, system.hardware,
    system.network_mounts, network.interfaces, network.routes, network.listeners, network.gloo,
    network.rdma, firewall.firewall, machine.machine, machine.rendezvous, machine.context,
    accounts.env, accounts.secrets, accounts.identities, ssh.ssh, ssh.sshd, sudo.sudo,
    paths.paths, paths.nccl_conf, artifacts.artifacts, software.packages, software.entry_points,
    software.python, software.indexes, software.requirements, software.records, software.versions,
)  # fmt: skip
"""What collects each section of a node, under the section's name."""


def _ledger(named: Section[Artifacts]) -> Iterator[Entry]:
    """The entries of what the job names; every other section says itself how it was read."""
    if named.value is None:
        yield entry_of("section", "node.artifacts", named, "node.artifacts")
        return
    for kind in ("checkpoints", "datasets"):
        for one in getattr(named.value, kind):
            yield entry_of("artifact", one.path, one, f"node.artifacts.{kind}")


def _of_kernel(
    filters: Section[Firewall], listening: Section[tuple[Listener, ...]]
) -> tuple[Entry, ...]:
    """The entries of rules and listeners: checks ask each of them what it could answer."""
    ledger = Ledger()
    ruleset = filters.value.ruleset.value if filters.value is not None else None
    for chain in ruleset.chains if ruleset is not None else ():
        for rule in chain.rules:
            why = rule.opaque
            end = End.NOT_UNDERSTOOD if why else End.READ
            at = Location(path=f"nftables/{chain.label}, rule {rule.handle}")
            bears_on = ("node.firewall.ruleset",)
            ledger.add(Entry(unit="rule", at=at, end=end, why=why, bears_on=bears_on))
    for listener in listening.value or ():
        why = "its process is out of sight" * listener.is_out_of_sight
        end = End.NOT_UNDERSTOOD if why else End.READ
        at = Location(path=f"listeners/{listener.label.replace('/', ' ')}")
        help_ = "audit as root" * bool(why)
        bears_on = ("node.listeners.process",)
        ledger.add(Entry(unit="listener", at=at, end=end, why=why, help=help_, bears_on=bears_on))
    return ledger.entries()


def root_files_variable(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable by which a launcher that goes into a user namespace says what root owns."""
    return encode_root_files(paths.seen(host_of(environ, None, Path("/"))))


def host_of(environ: Mapping[str, str], search_path: Sequence[str] | None, root: Path) -> Host:
    """This machine, with the variables and search path of a process."""
    return Host(
        environ=environ,
        search_path=tuple(sys.path if search_path is None else search_path),
        uid=os.geteuid(),
        gid=os.getegid(),
        user=_user(),
        home=Path(environ.get("HOME") or _home() or "/"),
        account_home=_home(),
        root=root,
        root_owned=decode_root_files(os.environ, inside=_is_inside()),
    )


def _is_inside() -> bool:
    from securetrain.network.rootless import is_inside  # noqa: PLC0415 - an audit needs no network

    return known(is_inside) is True  # without /proc nothing that was told before is believed


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
