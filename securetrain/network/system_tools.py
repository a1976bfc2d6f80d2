# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The system's network tools, run by root without trusting root's environment.

Rules:

1. a program is looked for in the system's own folders, never along ``PATH``, and one that somebody
   else could have written is not used;
2. commands are argument lists; nothing secret stands in them. Secrets go through a pipe;
3. the environment of a command is ours: ``PATH`` of those folders and ``LC_ALL=C``;
4. a command that fails, hangs or cannot start is ST-NETW-011 with what it said.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from securetrain.core.errors import NetworkError
from securetrain.network.search_paths import path_problem

FOLDERS: Final = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")
ENVIRONMENT: Final[Mapping[str, str]] = {"PATH": ":".join(FOLDERS), "LC_ALL": "C"}

PACKAGES: Final[Mapping[str, str]] = {
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "wg": "wireguard-tools",
    "wireguard-go": "wireguard-go",
    "pasta": "passt",
}
"""Debian's name for what brings a program; only for the text of a refusal."""

_TIMEOUT_SECONDS: Final = 15.0
_SHOWN: Final = 500


class Run(Protocol):
    """Runs one command to its end; `run_command` is the real one."""

    def __call__(self, argv: Sequence[str], *, data: bytes = b"") -> bytes:
        """Standard output of `argv` with `data` as its input."""
        ...


def find_program(name: str, folders: Sequence[str] = FOLDERS) -> Path | None:
    """Find a program in a place that only root can write to; None when there is none."""
    for folder in folders:
        path = Path(folder, name)
        if path.is_file() and not path_problem(str(path)):
            return path
    return None


def missing_programs(names: Sequence[str], folders: Sequence[str] = FOLDERS) -> list[str]:
    """Those of `names` that are not there, with the packages that bring them."""
    return [
        f"the program {name} (package {PACKAGES.get(name, name)})"
        for name in names
        if find_program(name, folders) is None
    ]


def program(name: str) -> str:
    """The full path of a program.

    Raises:
        NetworkError: ST-NETW-010.
    """
    path = find_program(name)
    if path is None:
        raise NetworkError(
            "ST-NETW-010",
            f"the program {name} is not installed, or others may write to it",
            ", ".join(FOLDERS),
            f"install the package {PACKAGES.get(name, name)}",
        )
    return str(path)


def run_command(argv: Sequence[str], *, data: bytes = b"") -> bytes:
    """Run a command whose first word is a program's name; returns its standard output.

    Raises:
        NetworkError: ST-NETW-010 when the program is missing, ST-NETW-011 when it fails.
    """
    command = [program(argv[0]), *argv[1:]]
    shown = " ".join(argv)
    try:
        done = subprocess.run(
            command,
            input=data,
            env=ENVIRONMENT,
            cwd="/",
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise command_failed(shown, str(error)) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise command_failed(shown, said or f"exit code {done.returncode}")
    return done.stdout


def command_failed(command: str, said: str) -> NetworkError:
    """The refusal for a command that did not do what it was for."""
    return NetworkError("ST-NETW-011", said[-_SHOWN:], command[:_SHOWN])
