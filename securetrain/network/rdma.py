# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The RDMA port that carries this node's address, and NCCL's settings to use no other.

RDMA goes past interfaces, filters and the tunnel. So under a profile that allows it there is one
port, and it is the one behind the address that the node announced (``--rdzv-conf bind=``), which
stands in the signed membership. Rules; what cannot be told is ST-NETW-032:

1. the interface with the address is looked up in the host's namespace;
2. on Ethernet (RoCE) the port is the one with a RoCE v2 GID that is this address on this interface.
   RoCE v1 is no IP: no IPsec policy and no VLAN rule sees it, so its GIDs are never used;
3. on InfiniBand it is the port of the device behind the interface (IPoIB), and the partition is the
   interface's;
4. the port is active. NCCL is pinned to port, GID and partition, by exact match.

Everything is read below ``/sys`` with limits, and from ``ip -json``.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

from securetrain.core.errors import NetworkError
from securetrain.network.system_tools import Run, run_command

RDMA_DEVICES: Final = Path("/dev/infiniband")
"""Where programs open RDMA devices."""

SYS: Final = Path("/sys/class")
_LIMIT: Final = 256
_MAX_ENTRIES: Final = 4096
_ROCE_V2: Final = "RoCE v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The one RDMA port that this node may use."""

    device: str
    port: int
    interface: str
    """The network interface with the announced address."""
    address: IPv4Address | IPv6Address
    gid: int | None = None
    """On Ethernet: the index of the RoCE v2 GID of the address."""
    partition: int | None = None
    """On InfiniBand: the index of the interface's partition key."""
    partition_key: int | None = None
    vlan: int | None = None
    """On Ethernet: the VLAN of the interface, when it is one."""

    @property
    def is_ethernet(self) -> bool:
        """RoCE, not InfiniBand."""
        return self.gid is not None

    @property
    def variables(self) -> dict[str, str]:
        """The variables that keep NCCL on this port."""
        found = {
            "NCCL_NET": "IB",
            "NCCL_IB_DISABLE": "0",
            # '=' asks for exactly this device and port.
            "NCCL_IB_HCA": f"={self.device}:{self.port}",
        }
        if self.gid is not None:
            found["NCCL_IB_GID_INDEX"] = str(self.gid)
        if self.partition is not None:
            found["NCCL_IB_PKEY"] = str(self.partition)
        return found

    def __str__(self) -> str:
        return f"{self.device} port {self.port} ({self.interface}, {self.address})"


def find_place(
    address: IPv4Address | IPv6Address, *, sys: Path = SYS, run: Run = run_command
) -> Place:
    """The RDMA port behind one of this machine's addresses.

    Args:
        address: The address that this node announces to the others.
        sys: Where the kernel shows its classes of devices.
        run: Runs ``ip``.

    Raises:
        NetworkError: ST-NETW-032.
    """
    interface, vlan = _interface(address, run)
    devices = _names(sys / "infiniband")
    if not devices:
        raise _unknown("this machine has no RDMA devices")
    found = [
        place
        for device in devices
        for port in _names(sys / "infiniband" / device / "ports")
        for place in _places(sys, device, port, interface, address)
    ]
    if len(found) != 1:
        how = "no RDMA port has" if not found else f"{len(found)} RDMA ports have"
        raise _unknown(f"{how} {address} on {interface}")
    (place,) = found
    state = _text(sys / "infiniband" / place.device / "ports" / str(place.port) / "state")
    if not state.endswith("ACTIVE"):
        raise _unknown(f"{place} is not active but {state!r}")
    return Place(
        device=place.device,
        port=place.port,
        interface=interface,
        address=address,
        gid=place.gid,
        partition=place.partition,
        partition_key=place.partition_key,
        vlan=vlan,
    )


def is_exclusive(run: Run = run_command) -> bool:
    """Return whether each RDMA device is in one network namespace only (rdma-system(8)).

    Raises:
        NetworkError: ST-NETW-032 when it cannot be told; ST-NETW-010, ST-NETW-011.
    """
    said = _json(run(["rdma", "-j", "system", "show"]), "rdma system")
    match said:
        case [{"netns": str(mode)}] | {"netns": str(mode)}:
            return mode == "exclusive"
        case _:
            raise _unknown("rdma system does not say how RDMA devices are shared")


def _interface(address: IPv4Address | IPv6Address, run: Run) -> tuple[str, int | None]:
    """The interface with an address, and its VLAN when it is one."""
    links = _json(run(["ip", "-json", "-details", "address", "show"]), "ip address")
    try:
        for link in links:
            held = [entry.get("local") for entry in link.get("addr_info", ())]
            if str(address) in held:
                info = link.get("linkinfo", {})
                is_vlan = info.get("info_kind") == "vlan"
                return str(link["ifname"]), int(info["info_data"]["id"]) if is_vlan else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unknown(f"ip address is not understood: {error!r}") from error
    raise _unknown(f"no interface of this machine has the address {address}")


def _places(
    sys: Path, device: str, port: str, interface: str, address: IPv4Address | IPv6Address
) -> Iterator[Place]:
    """The port as the place of the address, if it is that."""
    root = sys / "infiniband" / device / "ports" / port
    here: dict[str, Any] = {
        "device": device,
        "port": int(port),
        "interface": interface,
        "address": address,
    }
    if _text(root / "link_layer") == "Ethernet":
        for index in sorted(map(int, _names(root / "gids"))):
            attributes = root / "gid_attrs"
            if (
                _text(attributes / "types" / str(index)) == _ROCE_V2
                and _text(attributes / "ndevs" / str(index)) == interface
                and _gid_address(_text(root / "gids" / str(index))) == address
            ):
                yield Place(**here, gid=index)
        return
    network = sys / "net" / interface
    same = _real(network / "device") == _real(sys / "infiniband" / device / "device")
    if not same or _number(network / "dev_port") + 1 != int(port):
        return
    key = _number(network / "pkey")
    for index in sorted(map(int, _names(root / "pkeys"))):
        if _number(root / "pkeys" / str(index)) == key:
            yield Place(**here, partition=index, partition_key=key)
            return


def _gid_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address that a GID stands for: IPv4 is mapped into IPv6 (RFC 4291, 2.5.5.2)."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else None


def _names(folder: Path) -> list[str]:
    try:
        found = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
    if len(found) > _MAX_ENTRIES:
        raise _unknown(f"{folder} has {len(found)} entries")
    return found


def _text(path: Path) -> str:
    """A line that the kernel shows; empty where it shows none, as for GIDs that are not set."""
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    try:
        return int(text, 0)
    except ValueError as error:
        raise _unknown(f"{path} does not hold a number but {text!r}") from error


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _json(data: bytes, what: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise _unknown(f"{what} does not speak JSON: {error}") from error


def _unknown(what: str) -> NetworkError:
    return NetworkError("ST-NETW-032", what, "RDMA")
