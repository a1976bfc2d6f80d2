# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Removing a job network: the same way at its end, after a failure, and for an owner that died.

Rules:

1. `remove` is the only thing that removes, and each of its steps does nothing when there is nothing
   to do: it can be interrupted anywhere, and be run again;
2. the engine goes first, because with it the tunnel is cut, and is looked for again at the end; the
   record goes last, and stays when anything else stayed;
3. `collect` removes only what a record stands for whose owner is dead: its pid is free or belongs
   to another process now, or the machine was started again since. What it cannot judge or read, it
   leaves and names;
4. device and filter are removed in the network namespace in which the owner made them, wherever
   `collect` is called. One that has neither a name nor a process any more took them with it.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from securetrain.core.errors import NetworkError, SecureTrainError, UsageError, os_error
from securetrain.network import record
from securetrain.network.addresses import Names
from securetrain.network.firewall import delete_table, load
from securetrain.network.namespace import Namespace
from securetrain.network.process_identity import Machine, kill, running
from securetrain.network.system_tools import Run, run_command
from securetrain.network.wireguard_go import PROGRAM


class Collected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of `collect`."""

    removed: tuple[str, ...] = ()
    """Job networks of which nothing is left."""
    alive: tuple[str, ...] = ()
    """Job networks whose owner runs, or is in a container that cannot be judged from here."""
    problems: Mapping[str, str] = {}
    """Folders that could not be read or cleaned up, and why."""


def collect(
    state: Path = record.STATE, *, machine: Machine | None = None, run: Run = run_command
) -> Collected:
    """Remove what owners that died left behind (``securetrain network gc``).

    Args:
        state: Where job networks are recorded.
        machine: The machine that owners are compared with; this one when not given.
        run: Runs system tools.

    Raises:
        NetworkError: ST-NETW-022 when the state folder is not only ours.
        UsageError: ST-USAG-002 when it cannot be used at all.
    """
    try:
        owner = state.lstat().st_uid
    except FileNotFoundError:
        return Collected()
    except OSError as error:
        raise os_error(error, str(state)) from error
    if os.geteuid() not in {0, owner}:
        raise UsageError(
            "ST-USAG-002",
            f"job networks are recorded in a folder that only user {owner} may look into, and it"
            " was not searched",
            str(state),
            "run it as that user, or as root: sudo securetrain network gc",
        )
    with record.locked(state):
        return collect_locked(state, machine or Machine.current(), run)


def collect_locked(state: Path, machine: Machine, run: Run, *, only: str = "") -> Collected:
    """`collect` for whoever holds the lock, of one job network or of all."""
    removed: list[str] = []
    alive: list[str] = []
    problems: dict[str, str] = {}
    for entry in record.entries(state):
        name = entry.folder.name
        if only and name.partition(record.STAGED)[0] != only:
            continue
        if entry.is_unfinished:
            record.release(entry.folder)
        elif entry.record is None:
            problems[name] = entry.problem
        elif not machine.can_judge(entry.record.owner) or machine.is_alive(entry.record.owner):
            alive.append(name)
        else:
            try:
                host = _host_of(entry.record, machine, run)
                remove(entry.record.names, host, entry.folder, run=run)
            except SecureTrainError as error:
                problems[name] = error.what
            else:
                removed.append(name)
    return Collected(removed=tuple(removed), alive=tuple(alive), problems=problems)


def _host_of(found: record.Record, machine: Machine, run: Run) -> Namespace | None:
    """The namespace of its device and filter, as seen from here; None when it is gone with them."""
    there = found.owner.net_namespace
    is_here = there in {"", machine.net_namespace} or found.owner.boot != machine.boot
    if found.host or is_here:
        return Namespace(found.host, run)
    path = machine.find_net_namespace(there)
    return None if path is None else Namespace("", within(path, run))


def within(path: Path, run: Run) -> Run:
    """Run commands in the network namespace that a path leads to."""

    def run_there(argv: Sequence[str], *, data: bytes = b"") -> bytes:
        return run(["nsenter", f"--net={path}", "--", *argv], data=data)

    return run_there


def remove(names: Names, host: Namespace | None, folder: Path, *, run: Run = run_command) -> None:
    """Remove everything that a job network is made of.

    Args:
        names: Of the kernel objects.
        host: The namespace of the tunnel's UDP socket; None when it is gone.
        folder: The record's.
        run: Runs system tools when there is no host.

    Raises:
        NetworkError: ST-NETW-021 with everything that could not be removed.
    """
    steps: tuple[Callable[[], None], ...] = (
        lambda: _end_engine(names),
        lambda: _delete_device(host, names.device),
        Namespace(names.namespace, run if host is None else host.run).remove,
        lambda: _delete_filter(host, names.table),
        # Again: an engine that was just being started may not have been one yet.
        lambda: _end_engine(names),
        lambda: _delete_device(host, names.device),
    )
    problems = []
    for step in steps:
        try:
            step()
        except SecureTrainError as error:
            problems.append(error.what)
    if problems:
        raise NetworkError("ST-NETW-021", "; ".join(dict.fromkeys(problems)), names.namespace)
    record.release(folder)


def devices(namespace: Namespace) -> dict[str, bool]:
    """The names of the devices in a namespace, and whether they are up."""
    links = json.loads(namespace.ip("-json", "link", "show"))
    return {str(link["ifname"]): "UP" in link.get("flags", ()) for link in links}


def _end_engine(names: Names) -> None:
    if left := kill(running(PROGRAM, names.device)):
        raise NetworkError("ST-NETW-021", f"the engine, process {left[0]}, does not end")


def _delete_device(host: Namespace | None, name: str) -> None:
    """The device, when it was never moved. One that was goes with its namespace.

    An engine's device goes with its last thread, which may end after the process counts as ended:
    that it is gone by itself is no problem.
    """
    if host is not None and host.exists and name in devices(host):
        try:
            host.ip("link", "delete", "dev", name)
        except NetworkError:
            if name in devices(host):
                raise


def _delete_filter(host: Namespace | None, table: str) -> None:
    if host is not None and host.exists:
        load(host, delete_table(table))
