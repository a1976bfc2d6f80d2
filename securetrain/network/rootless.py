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
2. nothing is forwarded but the ports that are asked for;
3. a pid namespace around it all: when its first process dies, however it dies, the kernel kills
   every other one, and with them go engines, namespaces, filters and mounts. There is nothing to
   clean up.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from securetrain.network.commands import ENVIRONMENT, find_program, missing_programs, program
from securetrain.network.namespace import private_command

_WHOLE_MACHINE: Final = ["0", "0", "4294967295"]
_ETHERNET: Final = 1500
_PROBE_SECONDS: Final = 10.0


def is_inside(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether this process is in a user namespace that is not the machine's own."""
    return uid_map.read_text().split() != _WHOLE_MACHINE


def missing() -> list[str]:
    """What is lacking for a launcher without root; empty when it can be started."""
    reasons = missing_programs(["pasta", "unshare", "mount", "ip", "nft", "nsenter", "setpriv"])
    if find_program("unshare") is not None and not _may_unshare():
        reasons.append("user namespaces for ordinary users (kernel setting or AppArmor)")
    return reasons


def command(
    argv: Sequence[str],
    *,
    udp: Sequence[int] = (),
    tcp: Sequence[int] = (),
    mtu: int = 0,
) -> list[str]:
    """The command that starts a program where it may build job networks.

    Args:
        argv: The program, with its full path, and its arguments.
        udp: Ports of this machine that lead to the same port inside: the tunnel's.
        tcp: The same for TCP: the coordinator's.
        mtu: Of the device inside; 0 for the smallest of this machine's devices. Pasta's own choice
            is far larger than any network's, and would have every full packet of a tunnel split.

    Raises:
        NetworkError: ST-NETW-010 when pasta or unshare is missing.
    """
    size = str(mtu or smallest_mtu())
    pasta = [program("pasta"), "--config-net", "--no-map-gw", "--quiet", "--mtu", size]
    forwards = ["-u", _ports(udp), "-t", _ports(tcp), "-U", "none", "-T", "none"]
    reaper = [program("unshare"), "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    own_run = private_command(["--empty", str(Path("/run").resolve())])
    return [*pasta, *forwards, "--", *reaper, *own_run, *argv]


def smallest_mtu(devices: Path = Path("/sys/class/net")) -> int:
    """The smallest MTU of a device that is not loopback; Ethernet's when there is none."""
    sizes = [
        int((device / "mtu").read_text()) for device in devices.iterdir() if device.name != "lo"
    ]
    return min([_ETHERNET, *sizes])


def _ports(ports: Sequence[int]) -> str:
    return ",".join(map(str, ports)) or "none"


def _may_unshare() -> bool:
    try:
        done = subprocess.run(
            [program("unshare"), "--user", "--net", "--map-root-user", "--", program("true")],
            env=ENVIRONMENT,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
