# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about RDMA: device files, and the ports of adapters as the kernel's sysfs shows them.

A port that is down is left out. A partition's key has its highest bit set for full members; 0x7fff
is the one that everybody is in (InfiniBand Architecture, 10.9).
"""

import errno
import ipaddress
import re
from collections.abc import Iterator
from typing import Final, Literal

from securetrain.audit.subjects.node.collect.host import HiddenError, Host, TooMuchError, reading
from securetrain.audit.subjects.node.collect.system import octal
from securetrain.audit.subjects.node.facts.rdma import Rdma, RdmaPort, VerbsDevice

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
    found = [
        port
        for adapter in host.names(_ADAPTERS)
        for number in host.names(f"{_ADAPTERS}/{adapter}/ports")
        if (port := _port(host, adapter, number)) is not None
    ]
    if len(found) > _MAX_PORTS:
        raise TooMuchError(f"more than {_MAX_PORTS} ports of RDMA")
    return tuple(found)


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
        full_default=_full_default(host, folder),
        interfaces=_interfaces(host, folder) if kind == "Ethernet" else (),
    )


def _full_default(host: Host, folder: str) -> bool | None:
    try:
        names = host.names(f"{folder}/pkeys")
        keys = {int(host.text(f"{folder}/pkeys/{name}", 64).strip(), 16) for name in names}
    except (OSError, ValueError, TooMuchError, HiddenError):
        return None
    return _FULL_DEFAULT in keys if "0" in names else None  # the kernel always has the first


def _interfaces(host: Host, folder: str) -> tuple[str, ...] | None:
    """The network devices of its addresses; those of an index without one are not readable."""
    found = set()
    try:
        for index in host.names(f"{folder}/gid_attrs/ndevs"):
            try:
                found.add(host.text(f"{folder}/gid_attrs/ndevs/{index}", 64).strip())
            except OSError as error:
                if error.errno != errno.EINVAL:
                    return None
    except (OSError, TooMuchError, HiddenError):
        return None
    return tuple(sorted(found)) if found and "" not in found else None


def _storage(host: Host) -> tuple[str, ...]:
    found = {match[1] for mount in host.mounts() if (match := _SERVER.search(mount.options))}
    return tuple(sorted(str(ipaddress.ip_address(one)) for one in found))
