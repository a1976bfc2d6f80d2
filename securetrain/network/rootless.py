# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Job networks without root: the whole launcher in a user namespace, with pasta as its way out.

In a user namespace of its own a process is root over new network namespaces, so that everything
else of this room works there unchanged. What it lacks is the machine's network: pasta (passt(1))
translates between a device in the namespace and ordinary sockets of the user. Two more hops
through processes make it slow: it is for trying things out, and for tests.

Rules:

1. ``--no-map-gw``: else the gateway's address would be this machine's loopback, with all that
   listens there;
2. nothing is forwarded but the ports that are asked for: the tunnel's, at the one address that the
   node announces (`Endpoint`, told to the launcher inside by a variable);
3. the address inside is one of our own (RFC 7335), not the machine's, so that a coordinator on this
   very machine is reached like any other;
4. a pid namespace around it all: when its first process dies, however it dies, the kernel kills
   every other one, and with them go engines, namespaces, filters and mounts. There is nothing to
   clean up. It dies with pasta, and pasta with whoever started it (PR_SET_PDEATHSIG);
5. what this takes is tried and not guessed, and what is missing is named (`missing`, `rehearse`).
"""

import json
import socket
import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from securetrain.core import printable
from securetrain.core.errors import NetworkError
from securetrain.network.namespace import Namespace, private_command
from securetrain.network.system_tools import (
    ENVIRONMENT,
    find_program,
    missing_programs,
    program,
    run_command,
)
from securetrain.network.wireguard import Endpoint

VARIABLE: Final = "SECURETRAIN_ENTRANCE"
"""Tells the launcher inside which address and port of the machine lead to it."""

INNER_ADDRESS: Final = IPv4Address("192.0.0.2")
"""Its address inside."""

_GATEWAY: Final = IPv4Address("192.0.0.1")
_PREFIX: Final = 29
_WHOLE_MACHINE: Final = ["0", "0", "4294967295"]
_ETHERNET: Final = 1500
_PROBE_SECONDS: Final = 10.0
_SHOWN: Final = 200

_WITH_PARENT: Final = ("--pdeathsig", "KILL", "--")
_OWN_PIDS: Final = ("--pid", "--fork", "--kill-child", "--mount-proc", "--")
_SETTINGS: Final[Mapping[str, str]] = {
    "kernel/unprivileged_userns_clone": "0",
    "user/max_user_namespaces": "0",
    "kernel/apparmor_restrict_unprivileged_userns": "1",
}
"""Settings of kernels and distributions, and the value with which ordinary users get none."""


def is_inside(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Return whether this process is in a user namespace that is not the machine's own."""
    return uid_map.read_text().split() != _WHOLE_MACHINE


def forwarded_endpoint(environ: Mapping[str, str]) -> Endpoint | None:
    """Inside: what of the machine leads here; None outside, and where nothing does.

    Raises:
        NetworkError: ST-NETW-017 when somebody else has set the variable.
    """
    text = environ.get(VARIABLE, "")
    return Endpoint.parse(text, VARIABLE) if text and is_inside() else None


def missing() -> list[str]:
    """List what is lacking for a launcher without root; empty when it can be started."""
    reasons = missing_programs(["pasta", "unshare", "mount", "ip", "nft", "nsenter", "setpriv"])
    if find_program("unshare") is not None and (problem := _unshare_problem()):
        reasons.append(problem)
    return reasons


def new_forwarded_endpoint(address: IPv4Address | IPv6Address) -> Endpoint:
    """A UDP port of this machine that is free now, at one of its addresses.

    Raises:
        NetworkError: ST-NETW-018 for an address that is not this machine's, or not IPv4.
    """
    if not isinstance(address, IPv4Address):
        raise _no_address(address, "without root the tunnel's end must be an IPv4 address")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((str(address), 0))
            return Endpoint(address, int(sock.getsockname()[1]))
    except OSError as error:
        raise _no_address(address, f"this machine cannot use it: {error.strerror}") from error


def command(
    argv: Sequence[str],
    *,
    udp: Endpoint | None = None,
    device: str = "",
    mtu: int = 0,
) -> list[str]:
    """The command that starts a program where it may build job networks.

    Args:
        argv: The program, with its full path, and its arguments.
        udp: The address and port of this machine that lead to the same port inside.
        device: The device of this machine that pasta looks at; the default route's when not given.
        mtu: Of the device inside; 0 for the smallest of this machine's devices. Pasta's own choice
            is far larger than any network's, and would have every full packet of a tunnel split.

    Raises:
        NetworkError: ST-NETW-010 when pasta, unshare or setpriv is missing.
    """
    with_parent = [program("setpriv"), *_WITH_PARENT]
    pasta = [program("pasta"), "--foreground", "--quiet", "--ipv4-only"]
    pasta += ["--config-net", "--no-map-gw", "--mtu", str(mtu or smallest_mtu())]
    pasta += [
        "--address",
        str(INNER_ADDRESS),
        "--netmask",
        str(_PREFIX),
        "--gateway",
        str(_GATEWAY),
    ]
    pasta += ["--interface", device] if device else []
    pasta += ["-u", f"{udp.address}/{udp.port}" if udp else "none"]
    pasta += ["-t", "none", "-U", "none", "-T", "none", "--"]
    reaper = [program("unshare"), *_OWN_PIDS]
    own_run = private_command(["--empty", str(Path("/run").resolve())])
    return [*with_parent, *pasta, *with_parent, *reaper, *own_run, *argv]


def rehearse(*, udp: Endpoint | None = None, device: str = "") -> None:
    """Go in and come out again, so that what is refused is refused with its reason.

    Raises:
        NetworkError: ST-NETW-010 when a program is missing, ST-NETW-011 with what went wrong.
    """
    words = command([program("true")], udp=udp, device=device)
    run_command(["setpriv", *words[1:]])


def inner_environment(environ: Mapping[str, str], udp: Endpoint | None) -> dict[str, str]:
    """The environment of the launcher inside."""
    env = {name: value for name, value in environ.items() if name != VARIABLE}
    return env | ({VARIABLE: str(udp)} if udp else {})


def device_of(address: IPv4Address | IPv6Address) -> str:
    """The device of this machine that has an address.

    Raises:
        NetworkError: ST-NETW-018 when none has it.
    """
    for link in json.loads(Namespace().ip("-json", "address", "show")):
        if any(held.get("local") == str(address) for held in link.get("addr_info", ())):
            return str(link["ifname"])
    raise _no_address(address, "no device of this machine has it")


def smallest_mtu(devices: Path = Path("/sys/class/net")) -> int:
    """The smallest MTU of a device that is not loopback; Ethernet's when there is none."""
    sizes = [
        int((device / "mtu").read_text()) for device in devices.iterdir() if device.name != "lo"
    ]
    return min([_ETHERNET, *sizes])


def blocking_settings(settings: Path = Path("/proc/sys")) -> list[str]:
    """Settings that keep user namespaces from ordinary users, as sysctl(8) writes them."""
    found = []
    for name, value in _SETTINGS.items():
        path = settings / name
        if path.exists() and path.read_text().strip() == value:
            found.append(f"{name.replace('/', '.')} is {value}")
    return found


def _unshare_problem() -> str:
    """Try the namespaces of `command` and explain why they cannot be had; empty when they can."""
    namespaces = ("--user", "--map-root-user", "--net", "--mount", *_OWN_PIDS)
    try:
        done = subprocess.run(
            [program("unshare"), *namespaces, program("true")],
            env=ENVIRONMENT,
            cwd="/",
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    else:
        if done.returncode == 0:
            return ""
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
    why = "; ".join([*blocking_settings(), printable(said)[:_SHOWN]])
    return f"user namespaces for ordinary users ({why})"


def _no_address(address: IPv4Address | IPv6Address, why: str) -> NetworkError:
    return NetworkError(
        "ST-NETW-018",
        f"{address}: {why}",
        "endpoint of this node",
        "announce an IPv4 address of this machine: --rdzv-conf bind=ADDRESS",
    )
