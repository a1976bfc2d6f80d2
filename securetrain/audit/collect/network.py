# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the network: interfaces and listening TCP sockets with their owners.

The tables are those of the namespace that the collector runs in (/proc/self/net).
"""

import ipaddress
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from securetrain.audit.collect.host import Host, TooMuchError
from securetrain.audit.facts import Interface, Listener, Process, Scope

_LISTEN: Final = "0A"
_IFF_UP: Final = 0x1
_IFF_LOOPBACK: Final = 0x8
_TABLE_LIMIT: Final = 32 << 20
_MAPS_LIMIT: Final = 4 << 20
_MAX_LISTENERS: Final = 1024
_MAX_PROCESSES: Final = 65536
_MAX_FDS: Final = 65536
_TORCH: Final = re.compile(r"/libtorch(_cpu|_cuda|_python)?\.so")
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


def interfaces(host: Host) -> tuple[Interface, ...]:
    """Every interface with its own settings."""
    has_ipv6 = host.at("/proc/sys/net/ipv6").is_dir()
    return tuple(_interface(host, name, has_ipv6) for name in host.names("/sys/class/net")
                 if host.at(f"/sys/class/net/{name}").is_dir())  # fmt: skip


def _interface(host: Host, name: str, has_ipv6: bool) -> Interface:  # noqa: FBT001 - a fact
    flags: int | None
    try:
        flags = int(host.text(f"/sys/class/net/{name}/flags", 64), 16)
    except (OSError, ValueError):
        flags = None
    six = f"/proc/sys/net/ipv6/conf/{name}"
    disabled = _int(host, f"{six}/disable_ipv6")
    return Interface(
        name=name,
        up=None if flags is None else bool(flags & _IFF_UP),
        loopback=None if flags is None else bool(flags & _IFF_LOOPBACK),
        rp_filter=_int(host, f"/proc/sys/net/ipv4/conf/{name}/rp_filter"),
        ipv6=False if not has_ipv6 else (None if disabled is None else not disabled),
        accept_ra=_int(host, f"{six}/accept_ra"),
        forwarding6=_int(host, f"{six}/forwarding"),
    )


def _int(host: Host, path: str) -> int | None:
    try:
        return int(host.text(path, 64))
    except (OSError, ValueError):
        return None


def listeners(host: Host) -> tuple[Listener, ...]:
    """Listening TCP sockets of this network namespace, with the process when it can be seen."""
    rows = _rows(host, "/proc/self/net/tcp")
    with suppress(FileNotFoundError):  # a kernel without IPv6
        rows += _rows(host, "/proc/self/net/tcp6")
    if len(rows) > _MAX_LISTENERS:
        raise TooMuchError(f"more than {_MAX_LISTENERS} listeners")
    owners = _owners(host, {inode for *_, inode in rows}) if rows else {}
    found = {
        (address, port, uid): Listener(
            address=address,
            port=port,
            scope=_scope(address),
            uid=uid,
            process=owners.get(inode),
        )
        for address, port, uid, inode in rows
    }
    return tuple(found[key] for key in sorted(found))


def _rows(host: Host, path: str) -> list[tuple[str, int, int, int]]:
    """Address, port, uid and inode of each listening socket (proc(5), net/tcp)."""
    rows = []
    for line in host.text(path, _TABLE_LIMIT).splitlines()[1:]:
        columns = line.split()
        if columns[3] != _LISTEN:
            continue
        raw, _, port = columns[1].partition(":")
        rows.append((_address(raw), int(port, 16), int(columns[7]), int(columns[9])))
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


def _owners(host: Host, inodes: set[int]) -> dict[int, Process]:
    """Map sockets to the processes that hold them; without root, other users' stay unseen."""
    owners: dict[int, Process] = {}
    pids = [entry.name for entry in host.at("/proc").iterdir() if entry.name.isdigit()]
    if len(pids) > _MAX_PROCESSES:
        raise TooMuchError(f"more than {_MAX_PROCESSES} processes")
    for pid in sorted(pids, key=int):
        held = _sockets(host, pid) & inodes
        if not held:
            continue
        process = Process(pid=int(pid), name=_name(host, pid), loads_torch=_loads_torch(host, pid))
        for inode in held:
            owners.setdefault(inode, process)
        if len(owners) == len(inodes):
            break
    return owners


def _sockets(host: Host, pid: str) -> set[int]:
    found: set[int] = set()
    try:
        with os.scandir(host.at(f"/proc/{pid}/fd")) as entries:
            for count, entry in enumerate(entries):
                if count == _MAX_FDS:
                    break
                try:
                    match = _SOCKET.fullmatch(str(Path(entry.path).readlink()))
                except OSError:
                    continue  # closed while we looked
                if match:
                    found.add(int(match[1]))
    except OSError:
        return found  # another user's process, or one that has ended
    return found


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
