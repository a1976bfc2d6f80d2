# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about the network: interfaces, routes, RDMA, Gloo, and the sockets that hear from anybody.

Rules:

1. interfaces and tables are those of the namespace that the collector runs in. A table that is
   empty down to its header is not the kernel's own;
2. a port of RDMA that is down is left out. A partition's key has its highest bit set for full
   members; 0x7fff is the one that everybody is in (InfiniBand Architecture, 10.9);
3. only of a job that asks for TLS is torch's Gloo looked at: the library has hundreds of megabytes.
   Nothing is imported or executed: the name of Gloo's TLS transport is looked for in the file. One
   in which its plain TCP transport has no name either was stripped, and says nothing about TLS.
"""

import errno
import ipaddress
import mmap
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from securetrain.audit.subjects.node.collect import programs
from securetrain.audit.subjects.node.collect.host import (
    HiddenError,
    Host,
    TooMuchError,
    at_most,
    known,
    reading,
)
from securetrain.audit.subjects.node.collect.machine import (
    first_pid_namespace,
    is_any_process_hidden,
)
from securetrain.audit.subjects.node.collect.rtnetlink import links
from securetrain.audit.subjects.node.collect.system import octal
from securetrain.audit.subjects.node.facts.network import Gloo, Rdma, RdmaPort, Route, VerbsDevice
from securetrain.audit.subjects.node.facts.node import Interface, Listener, Process, Scope

_TABLES: Final = ("tcp", "tcp6", "udp", "udp6")
_OPEN: Final = {"tcp": "0A", "udp": "07"}
"""States of net/tcp_states.h: LISTEN, and CLOSE, which a UDP socket without a peer has."""
_TABLE_LIMIT: Final = 32 << 20
_MAPS_LIMIT: Final = 4 << 20
_MAX_LISTENERS: Final = 1024
_MAX_FDS: Final = 65536
_MAX_ROUTES: Final = 2048
_UP, _REJECT = 0x1, 0x200
_LOOPBACK: Final = "lo"
_TORCH: Final = re.compile(r"/libtorch(_cpu|_cuda|_python)?\.so")
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


def interfaces(host: Host) -> tuple[Interface, ...]:
    """Every interface with its own settings."""
    return tuple(sorted((link.facts for link in links(host)), key=lambda one: one.name))


def listeners(host: Host) -> tuple[Listener, ...]:
    """Sockets of this network namespace that hear from anybody, with the process when it shows."""
    rows = [row for table in _TABLES for row in _rows(host, table)]
    owners = _owners(host, {row.inode for row in at_most(_MAX_LISTENERS, rows, "listeners")})
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
    rows = []
    lines = _table(host, table, ["sl", "local_address"])
    for line in lines:
        columns = line.split()
        if columns[3] != _OPEN[protocol] or columns[2].strip("0") != ":":
            continue
        raw, _, port = columns[1].partition(":")
        rows.append(_Row(protocol, _address(raw), int(port, 16), int(columns[7]), int(columns[9])))
    return rows


def _lines(host: Host, name: str) -> list[str] | None:
    """The lines of one of the kernel's tables of networks; None without IPv6, of one about it.

    Raises:
        OSError: when it cannot be read.
    """
    try:
        return host.text(f"/proc/self/net/{name}", _TABLE_LIMIT).splitlines()
    except FileNotFoundError:
        there = links(host) if "6" in name else ()
        if there and all(link.has_ipv6 is False for link in there):
            return None
        raise


def _table(host: Host, name: str, header: list[str]) -> list[str]:
    """The lines below such a header.

    Raises:
        OSError: when they cannot be read.
        ValueError: when there is none.
    """
    lines = _lines(host, name)
    if lines is not None and " ".join(lines[:1]).split()[:2] != header:
        raise ValueError(f"/proc/self/net/{name} has no header: it is not the kernel's")
    return (lines or [])[1:]


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
    pids = host.processes()
    # the first process shows to whom every user's processes do (proc(5), hidepid)
    all_seen = "1" in pids and first_pid_namespace(host) and not is_any_process_hidden(host)
    for pid in pids:
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
                    match = _SOCKET.fullmatch(os.readlink(entry.path))  # noqa: PTH115 - thousands
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
    maps = f"/proc/{pid}/maps"
    torch = known(lambda: _TORCH.search(host.text(maps, _MAPS_LIMIT)) is not None)
    return Process(
        pid=int(pid),
        name=known(lambda: host.text(f"/proc/{pid}/comm", 64).strip()) or "",
        loads_torch=torch,
        program=program,
        guarded=guarded,
        tensorpipe=False if torch is False else programs.runs_tensorpipe(host, pid),
    )


def routes(host: Host) -> tuple[Route, ...]:
    """Routes to other machines, IPv4 before IPv6."""
    found = tuple(dict.fromkeys((*_version_4(host), *_version_6(host))))
    return at_most(_MAX_ROUTES, found, "routes")


def _version_4(host: Host) -> Iterator[Route]:
    for line in _table(host, "route", ["Iface", "Destination"]):
        interface, to, _, flags, _, _, _, mask, *_ = line.split()
        yield _route(f"{_address(to)}/{int(mask, 16).bit_count()}", interface, int(flags, 16))


def _version_6(host: Host) -> Iterator[Route]:
    lines = _lines(host, "ipv6_route") or []
    if not lines and any(link.has_ipv6 for link in links(host)):
        raise ValueError("/proc/self/net/ipv6_route is empty: it is not the kernel's")
    for line in lines:
        to, bits, *_, flags, interface = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(to))
        # those of addresses of the machine itself are routes over loopback
        if interface != _LOOPBACK and not address.is_multicast and not address.is_link_local:
            yield _route(f"{address}/{int(bits, 16)}", interface, int(flags, 16))


def _route(network: str, interface: str, flags: int) -> Route:
    blocked = bool(flags & _REJECT) or interface == "*"
    return Route(
        network=network,
        interface="" if blocked or not flags & _UP else interface,
    )


_DEVICES: Final = "/dev/infiniband"
_ADAPTERS: Final = "/sys/class/infiniband"
_DEVICE: Final = re.compile(r"(uverbs|umad|issm)\d+\Z")
_FULL_DEFAULT: Final = 0xFFFF
_SERVER: Final = re.compile(r"(?:^|,)addr=([0-9a-fA-F.:]+)")
_MAX_PORTS: Final = 128


def rdma(host: Host) -> Rdma:
    """Devices, ports, and the file servers that ports may be shared with."""
    return Rdma(
        devices=reading(lambda: tuple(_devices(host))),
        ports=reading(lambda: _ports(host)),
        storage=reading(lambda: _storage(host)),
    )


def _require(host: Host, folder: str) -> None:
    """Refuse to say that there is none where nothing could be seen."""
    if not host.at(folder).is_dir():
        raise HiddenError(f"there is no {folder}")


def _devices(host: Host) -> Iterator[VerbsDevice]:
    _require(host, "/dev")
    for name in host.names(_DEVICES):
        if _DEVICE.match(name):
            info = host.at(f"{_DEVICES}/{name}").stat()
            path = f"{_DEVICES}/{name}"
            yield VerbsDevice(path=path, uid=host.owner(info), mode=octal(info.st_mode))


def _ports(host: Host) -> tuple[RdmaPort, ...]:
    _require(host, "/sys/class")
    found = tuple(
        port
        for adapter in host.names(_ADAPTERS)
        for number in host.names(f"{_ADAPTERS}/{adapter}/ports")
        if (port := _port(host, adapter, number)) is not None
    )
    return at_most(_MAX_PORTS, found, "ports of RDMA")


def _port(host: Host, adapter: str, number: str) -> RdmaPort | None:
    folder = f"{_ADAPTERS}/{adapter}/ports/{number}"
    if "ACTIVE" not in host.text(f"{folder}/state", 64):
        return None
    layer = host.text(f"{folder}/link_layer", 64).strip()
    if layer not in {"InfiniBand", "Ethernet"}:
        raise ValueError(f"{folder}: {layer} is no link layer of RDMA")
    kind: Literal["InfiniBand", "Ethernet"] = "Ethernet" if layer == "Ethernet" else "InfiniBand"
    return RdmaPort(
        name=f"{adapter}/{number}",
        layer=kind,
        full_default=known(lambda: _full_default(host, folder)),
        interfaces=known(lambda: _interfaces(host, folder)) if kind == "Ethernet" else (),
    )


def _full_default(host: Host, folder: str) -> bool | None:
    names = host.names(f"{folder}/pkeys")
    keys = {int(host.text(f"{folder}/pkeys/{name}", 64).strip(), 16) for name in names}
    return _FULL_DEFAULT in keys if "0" in names else None  # the kernel always has the first


def _interfaces(host: Host, folder: str) -> tuple[str, ...] | None:
    """The network devices of its addresses; those of an index without one are not readable."""
    found = set()
    for index in host.names(f"{folder}/gid_attrs/ndevs"):
        try:
            found.add(host.text(f"{folder}/gid_attrs/ndevs/{index}", 64).strip())
        except OSError as error:
            if error.errno != errno.EINVAL:
                return None
    return tuple(sorted(found)) if found and "" not in found else None


def _storage(host: Host) -> tuple[str, ...]:
    found = {match[1] for mount in host.mounts() if (match := _SERVER.search(mount.options))}
    return tuple(sorted(str(ipaddress.ip_address(one)) for one in found))


VARIABLE: Final = "GLOO_DEVICE_TRANSPORT"
WANTED: Final = "TCP_TLS"
"""The name under which torch registers it; it compares letter for letter."""
LIBRARY: Final = "torch/lib/libtorch_cpu.so"
LIBRARY_LIMIT: Final = 4 << 30
_PLAIN: Final = b"gloo9transport3tcp"
_TLS: Final = b"gloo9transport3tcp3tls"
"""Both as the C++ ABI spells the namespaces in the names of symbols."""


def gloo(host: Host) -> Gloo:
    """Gloo's ability to do the TLS that a job asks for."""
    return Gloo(tls=reading(lambda: _has_tls(host)))


def _has_tls(host: Host) -> bool:
    if host.environ.get(VARIABLE) != WANTED:
        raise FileNotFoundError(errno.ENOENT, "not asked for", f"{VARIABLE}={WANTED}")
    for entry in host.search_path:
        file = Path(entry or ".") / LIBRARY
        if file.parent.parent.is_dir():
            return _names_tls(file)
    raise HiddenError(f"no {LIBRARY} on the module search path")


def _names_tls(file: Path) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as error:  # torch without it: nothing is known of its Gloo
        raise HiddenError(f"torch is there, and {file} is not") from error
    with open(descriptor, "rb"):  # noqa: PTH123 - a descriptor
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or not info.st_size:
            raise HiddenError(f"not a library: {file}")
        if info.st_size > LIBRARY_LIMIT:
            raise TooMuchError(f"{file} is larger than {LIBRARY_LIMIT} bytes")
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
            if data.find(_PLAIN) < 0:
                raise HiddenError(f"{file} has no names of Gloo's transports")
            return data.find(_TLS) >= 0
