# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Install the system packages that tests use: ``python tools/system_packages.py``.

As root on Debian or Ubuntu, what is missing is installed with apt-get. What is already there costs
no network. Anywhere else, and when the packages cannot be fetched, the tests that need them are
named: they skip themselves, loudly. The exit code is always 0, since nothing else depends on them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TIMEOUT: Final = 300.0


@dataclass(frozen=True, slots=True)
class Package:
    """One Debian package, and why it is wanted."""

    name: str
    shown_by: str
    """A command, or the absolute path of a file, that is there when the package is."""
    reason: str
    tests: str
    """The tests that are skipped without it."""


_PYTSS: Final = "builds tpm2-pytss, an independent reading of TPM structures"
_DIFFERENTIAL: Final = "those that compare our TPM structures with tpm2-pytss"

PACKAGES: Final = (
    Package(
        "iproute2",
        "ip",
        "makes the network namespaces and virtual links of the job network",
        "those marked netns",
    ),
    Package(
        "swtpm",
        "swtpm",
        "is a TPM in software: nodes attest by it in tests and in the tour",
        "those marked tpm",
    ),
    Package(
        "swtpm-tools",
        "swtpm_setup",
        "makes such TPMs, with endorsement keys and certificates of a local CA",
        "those marked tpm",
    ),
    Package("libtss2-dev", "/usr/include/tss2/tss2_esys.h", _PYTSS, _DIFFERENTIAL),
    Package("pkg-config", "pkg-config", _PYTSS, _DIFFERENTIAL),
    Package("gcc", "gcc", _PYTSS, _DIFFERENTIAL),
)

Run = Callable[[Sequence[str]], bool]


def missing(
    packages: Sequence[Package], find: Callable[[str], str | None] = shutil.which
) -> list[Package]:
    """The packages whose command or file cannot be found (nor in the sbin directories)."""
    return [
        package
        for package in packages
        if find(package.shown_by) is None
        # A file has an absolute path, which no folder in front of it changes.
        and not any(Path(folder, package.shown_by).exists() for folder in ("/usr/sbin", "/sbin"))
    ]


def install(
    packages: Sequence[Package],
    *,
    is_root: bool,
    apt: str | None,
    run: Run,
    say: Callable[[str], None],
) -> bool:
    """Install `packages` if that can be done here; whether it was."""
    names = [package.name for package in packages]
    if not apt:
        say("no apt-get here: install them with this system's own package manager")
        return False
    if not is_root:
        say(f"not root: run 'sudo apt-get install {' '.join(names)}' to have them")
        return False
    say(f"installing {', '.join(names)} ...")
    fetch = [apt, "install", "-y", "-q", "--no-install-recommends", *names]
    # The package lists may be there already; only when they are not is an update needed.
    if run(fetch) or (run([apt, "update", "-q"]) and run(fetch)):
        return True
    say("apt-get could not install them (no network?)")
    return False


def main() -> int:
    """Install what is missing, and say what will be skipped without it."""
    wanted = missing(PACKAGES)
    if not wanted:
        return 0
    for package in wanted:
        _say(f"{package.name} is missing: it {package.reason}")
    done = install(
        wanted,
        is_root=os.geteuid() == 0,
        apt=shutil.which("apt-get"),
        run=_run,
        say=_say,
    )
    if not done:
        for package in wanted:
            _say(f"without {package.name} these tests are skipped: {package.tests}")
    return 0


def _say(text: str) -> None:
    print(f"system packages: {text}")


def _run(command: Sequence[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        result = subprocess.run(
            command, env=environment, timeout=_TIMEOUT, capture_output=True, text=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(str(error))
        return False
    if result.returncode != 0:
        _say((result.stderr or result.stdout).strip()[-500:])
    return result.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
