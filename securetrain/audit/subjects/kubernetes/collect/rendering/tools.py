# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A tool of PATH, run behind walls over what strangers wrote.

Rules:

1. a tool comes from an absolute folder of PATH that not everybody can write to, and never from
   below what is audited;
2. it is started as an argument list, with an environment of ours and a folder of its own, which is
   removed with all that is in it;
3. it ends in time, its output and memory are bounded, and it has no network (`confined`);
4. where the walls cannot be built it does not run. What it says on failure is not repeated, for it
   may quote a secret of the values: its exit code and the place that it names are.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Final

from securetrain.audit.subjects.kubernetes.collect.rendering import confined
from securetrain.network import path_problem

MAX_OUTPUT: Final = 16 << 20
SECONDS: Final = 20.0
"""Of one run."""
_LIMITS: Final[Mapping[str, int]] = {
    "RLIMIT_CPU": 20,
    "RLIMIT_DATA": 1 << 30,
    "RLIMIT_FSIZE": 1 << 20,
    "RLIMIT_NOFILE": 256,
    "RLIMIT_CORE": 0,
}
_SYSTEM: Final = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/urandom")
_PLACE: Final = re.compile(rb"\(?([\w.-]{1,100}(?:/[\w.-]{1,100}){1,9}):([0-9]{1,6})")
_CHUNK: Final = 1 << 16


class NotRenderedError(Exception):
    """Nothing was put together; its text says why, and quotes no value."""


def find_tool(names: Sequence[str], path: str, audited: Sequence[Path]) -> str:
    """The full path of the first of these programs.

    Raises:
        NotRenderedError: when there is none, or none that may be trusted.
    """
    refused = ""
    for name in names:
        for folder in path.split(os.pathsep):
            place = Path(folder, name)
            if not place.is_absolute() or not os.access(place, os.X_OK) or place.is_dir():
                continue
            real = place.resolve()
            if any(real.is_relative_to(one) for one in audited):
                refused = f"{name} stands below what is audited, and is not run"
            elif problem := path_problem(str(real)):
                refused = f"{name} is not run: {problem}"
            else:
                return str(place)
    raise NotRenderedError(refused or f"{' or '.join(names)} is not on PATH")


def run_tool(argv: Sequence[str], readable: Sequence[Path], scratch: Path) -> str:
    """Run a tool to its end behind walls.

    Args:
        argv: The full path of the program, and its arguments.
        readable: What it may read besides the system's own programs.
        scratch: A folder of its own.

    Returns:
        What it wrote.

    Raises:
        NotRenderedError: when it was not run, failed, or wrote or took too much.
    """
    name = Path(argv[0]).name
    real = os.path.realpath(argv[0])
    orders = {
        "readable": [*_SYSTEM, argv[0], real, *map(str, readable)],
        "writable": [str(scratch), "/dev/null"],
        "limits": _LIMITS,
    }
    command = [sys.executable, "-I", "-S", confined.__file__, json.dumps(orders), "--", *argv]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env=_environment(scratch),
            cwd=scratch,
            start_new_session=True,
        )
        try:
            output = _output(process, name)
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired as error:
            raise NotRenderedError(f"{name} did not end in {SECONDS:.0f} s") from error
        finally:
            _end(process)
        said.seek(0)
        if code != 0:
            raise NotRenderedError(_failure(name, code, said.read(4096)))
    try:
        return output.decode()
    except UnicodeDecodeError as error:
        raise NotRenderedError(f"{name} wrote what is not UTF-8") from error


def _environment(scratch: Path) -> dict[str, str]:
    """Nothing of the user's: no credentials, plugins, repositories or clusters."""
    home = str(scratch)
    helm = ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "PLUGINS")
    return {
        **{f"HELM_{key}": f"{home}/helm" for key in helm},
        "PATH": f"{home}/no-programs",
        "HOME": home,
        "TMPDIR": home,
        "KUBECONFIG": "/dev/null",
        "LC_ALL": "C",
        "GOMAXPROCS": "2",
        "GOMEMLIMIT": "400MiB",
    }


def _output(process: "subprocess.Popen[bytes]", name: str) -> bytes:
    """Everything that it writes, within bounds."""
    assert process.stdout is not None
    pieces: list[bytes] = []
    size = 0
    until = time.monotonic() + SECONDS
    with DefaultSelector() as selector:
        selector.register(process.stdout, EVENT_READ)
        while True:
            left = until - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise NotRenderedError(f"{name} did not end in {SECONDS:.0f} s")
            piece = os.read(process.stdout.fileno(), _CHUNK)
            if not piece:
                return b"".join(pieces)
            size += len(piece)
            if size > MAX_OUTPUT:
                raise NotRenderedError(f"{name} wrote more than {MAX_OUTPUT >> 20} MiB")
            pieces.append(piece)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End it, and all that it started: the kernel takes what is in its namespace."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _failure(name: str, code: int, said: bytes) -> str:
    if code == confined.FAILED and said.startswith(b"confined: "):
        what = said[10:].split(b"\n")[0].decode("ascii", "replace")[:120]
        return f"{name} is not run, for it cannot be kept from the network here ({what})"
    place = _PLACE.search(said)
    where = f" at {place[1].decode()}:{place[2].decode()}" if place else ""
    missing = " (a dependency is missing in charts/)" if b"missing in charts/" in said else ""
    return f"{name} ended with exit code {code}{where}{missing}"
