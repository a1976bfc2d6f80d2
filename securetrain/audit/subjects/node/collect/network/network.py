# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the network: interfaces, and the sockets that hear from anybody, with their owners.

The interfaces and tables are those of the namespace that the collector runs in. A table that is
empty down to its header is not the kernel's own.
"""

import ipaddress
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from securetrain.audit.subjects.node.collect import programs
from securetrain.audit.subjects.node.collect.host import Host, TooMuchError
from securetrain.audit.subjects.node.collect.rtnetlink import Link, parse_links
from securetrain.audit.subjects.node.collect.surroundings import (
    first_pid_namespace,
    is_any_process_hidden,
)
from securetrain.audit.subjects.node.facts.node import Interface, Listener, Process, Scope

_TABLES: Final = ("tcp", "tcp6", "udp", "udp6")
_OPEN: Final = {"tcp": "0A", "udp": "07"}
"""States of net/tcp_states.h: LISTEN, and CLOSE, which a UDP socket without a peer has."""
_TABLE_LIMIT: Final = 32 << 20
_MAPS_LIMIT: Final = 4 << 20
_MAX_LISTENERS: Final = 1024
_MAX_PROCESSES: Final = 65536
_MAX_FDS: Final = 65536
_TORCH: Final = re.compile(r"/libtorch(_cpu|_cuda|_python)?\.so")
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


def interfaces(host: Host) -> tuple[Interface, ...]:
    """Every interface with its own settings."""
    return tuple(
        Interface(
            name=link.name,
            kind=link.kind,
            up=link.up,
            loopback=link.loopback,
            rp_filter=link.rp_filter,
            forwarding=link.forwarding,
            accept_redirects=link.accept_redirects,
            ipv6=_ipv6(link),
            accept_ra=link.accept_ra,
            forwarding6=link.forwarding6,
        )
        for link in sorted(parse_links(host.kernel.links()), key=lambda link: link.name)
    )


def _ipv6(link: Link) -> bool | None:
    if link.has_ipv6 is False:
        return False
    return None if link.disable_ipv6 is None else not link.disable_ipv6


def listeners(host: Host) -> tuple[Listener, ...]:
    """Sockets of this network namespace that hear from anybody, with the process when it shows."""
    rows = [row for table in _TABLES for row in _rows(host, table)]
    if len(rows) > _MAX_LISTENERS:
        raise TooMuchError(f"more than {_MAX_LISTENERS} listeners")
    owners = _owners(host, {row.inode for row in rows})
    found = {
        (row.address, row.port, row.uid, row.protocol): Listener(
            protocol=row.protocol,
            address=row.address,
            port=row.port,
            scope=_scope(row.address),
            uid=row.uid,
            process=owners.of.get(row.inode),
            kernel=_is_kernels(row, owners),
        )
        for row in rows
    }
    return tuple(found[key] for key in sorted(found))


@dataclass(frozen=True, slots=True)
class _Row:
    protocol: Literal["tcp", "udp"]
    address: str
    port: int
    uid: int
    inode: int


@dataclass(frozen=True, slots=True)
class _Owners:
    of: dict[int, Process]
    all_seen: bool
    """Whether every process of the machine showed its descriptors."""


def _is_kernels(row: _Row, owners: _Owners) -> bool | None:
    if row.uid != 0 or row.inode in owners.of:
        return False
    return True if owners.all_seen else None


def _rows(host: Host, table: str) -> list[_Row]:
    """The open sockets of one table (proc(5), net/tcp and net/udp)."""
    protocol: Literal["tcp", "udp"] = "tcp" if table.startswith("tcp") else "udp"
    try:
        header, *lines = host.text(f"/proc/self/net/{table}", _TABLE_LIMIT).splitlines() or [""]
    except FileNotFoundError:
        links = parse_links(host.kernel.links()) if table.endswith("6") else ()
        if links and all(link.has_ipv6 is False for link in links):
            return []  # a kernel without IPv6
        raise
    if not header.split()[:2] == ["sl", "local_address"]:
        raise ValueError(f"/proc/self/net/{table} has no header: it is not the kernel's")
    rows = []
    for line in lines:
        columns = line.split()
        peerless = columns[2].strip("0") == ":"
        if columns[3] != _OPEN[protocol] or not peerless:
            continue
        raw, _, port = columns[1].partition(":")
        rows.append(_Row(protocol, _address(raw), int(port, 16), int(columns[7]), int(columns[9])))
    return rows


def _address(raw: str) -> str:
    """An address from the kernel's 32-bit words, which are in the machine's byte order."""
    step = -1 if sys.byteorder == "little" else 1
    words = [bytes.fromhex(raw[i : i + 8])[::step] for i in range(0, len(raw), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _scope(address: str) -> Scope:
    parsed = ipaddress.ip_address(address)
    if parsed.is_unspecified:
        return Scope.ANY
    return Scope.LOOPBACK if parsed.is_loopback else Scope.ADDRESS


def _owners(host: Host, inodes: set[int]) -> _Owners:
    """Map sockets to the processes that hold them; without root, other users' stay unseen."""
    found: dict[int, Process] = {}
    if not inodes:
        return _Owners(found, all_seen=True)
    pids = [entry.name for entry in host.at("/proc").iterdir() if entry.name.isdigit()]
    if len(pids) > _MAX_PROCESSES:
        raise TooMuchError(f"more than {_MAX_PROCESSES} processes")
    # the first process shows to whom every user's processes do (proc(5), hidepid)
    all_seen = "1" in pids and first_pid_namespace(host) and not is_any_process_hidden(host)
    for pid in sorted(pids, key=int):
        sockets, complete = _sockets(host, pid)
        all_seen = all_seen and complete
        held = sockets & inodes
        if not held:
            continue
        process = _process(host, pid)
        for inode in held:
            found.setdefault(inode, process)
        if len(found) == len(inodes):
            break
    return _Owners(found, all_seen)


def _sockets(host: Host, pid: str) -> tuple[set[int], bool]:
    """The sockets that a process holds, and whether these are all."""
    found: set[int] = set()
    try:
        with os.scandir(host.at(f"/proc/{pid}/fd")) as entries:
            for count, entry in enumerate(entries):
                if count == _MAX_FDS:
                    return found, False
                try:
                    match = _SOCKET.fullmatch(str(Path(entry.path).readlink()))
                except OSError:
                    continue  # closed while we looked
                if match:
                    found.add(int(match[1]))
    except (FileNotFoundError, ProcessLookupError):
        return found, True  # it has ended
    except OSError:
        return found, False  # another user's
    return found, True


def _process(host: Host, pid: str) -> Process:
    program, guarded = programs.program_of(host, pid)
    torch = _loads_torch(host, pid)
    return Process(
        pid=int(pid),
        name=_name(host, pid),
        loads_torch=torch,
        program=program,
        guarded=guarded,
        tensorpipe=False if torch is False else programs.runs_tensorpipe(host, pid),
    )


def _name(host: Host, pid: str) -> str:
    try:
        return host.text(f"/proc/{pid}/comm", 64).strip()
    except OSError:
        return ""


def _loads_torch(host: Host, pid: str) -> bool | None:
    try:
        return _TORCH.search(host.text(f"/proc/{pid}/maps", _MAPS_LIMIT)) is not None
    except (OSError, TooMuchError):
        return None
