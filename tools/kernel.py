# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Compile the guard's kernel: ``python tools/kernel.py``, in place, as an editable install does.

hatch_build.py calls it whenever a wheel is built or the package is installed. Standard library
only, and nothing of securetrain: it runs in the environment of a build.
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SOURCE: Final = "securetrain/guard/sketch_kernel.c"
LIBRARY: Final = "securetrain/guard/libsketch.so"
COMPILERS: Final = ("cc", "gcc", "clang")

# CFLAGS are not taken over: -ffast-math would lose what is not a number, -march=native would make
# a library that other machines cannot run. CC is.
FLAGS: Final = (
    *("-std=c11", "-O3", "-Wall", "-Wextra", "-Wno-psabi"),  # no vector leaves a function
    *("-ffp-contract=off", "-fvisibility=hidden", "-fstack-protector-strong"),
    *("-fPIC", "-shared", "-g0"),
    *("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,-z,defs"),
)


class NoKernelError(Exception):
    """No kernel could be made; the text says why."""


_PATIENCE: Final = 1800.0
"""Seconds for the compiler. It needs five of CPU: on two cores with a load of 28, 300 were few."""


def compile_kernel(source: Path, target: Path) -> None:
    """Make the library `target` and load it once.

    Raises:
        NoKernelError: there is no compiler, or what it made cannot be loaded.
    """
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    with tempfile.TemporaryDirectory(prefix=".kernel-", dir=target.parent) as folder:
        made = Path(folder) / target.name
        # The name of the source as given goes into no byte of the library: builds can be compared.
        command = [*_compiler(), *FLAGS, f'-DSECURETRAIN_SOURCE="{digest}"', "-o", str(made)]
        try:
            done = subprocess.run(
                [*command, str(source)],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoKernelError(f"{command[0]} did not run: {error}") from error
        if done.returncode:
            raise NoKernelError(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
        _check(made, digest)
        made.replace(target)


def _compiler() -> list[str]:
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise NoKernelError(f"none of {', '.join(COMPILERS)} was found")


def _check(library: Path, digest: str) -> None:
    try:
        loaded = ctypes.CDLL(str(library.absolute()))
        loaded.securetrain_sketch_source.restype = ctypes.c_char_p
        made_from = loaded.securetrain_sketch_source()
    except (OSError, AttributeError) as error:
        raise NoKernelError(f"what the compiler made cannot be loaded: {error}") from error
    if made_from != digest.encode():
        raise NoKernelError("what the compiler made does not name its source")


def main() -> int:
    """Compile in place."""
    root = Path(__file__).resolve().parent.parent
    try:
        compile_kernel(root / SOURCE, root / LIBRARY)
    except NoKernelError as error:
        print(f"no kernel: {error}", file=sys.stderr)
        return 1
    print(f"{LIBRARY}: compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
