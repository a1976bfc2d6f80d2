# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Install the system packages that tests use: ``python tools/system_packages.py``.

As root on Debian or Ubuntu, what is missing is installed with apt-get. What is already there costs
no network. Anywhere else, and when the packages cannot be fetched, the tests that need them are
named: they skip themselves, loudly. The exit code is always 0, since nothing else depends on them.

On Debian 12, wireguard-go comes from the release's backports: its own is too old. Their list is
fetched into a temporary directory, so that the machine's own sources stay as they are.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
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
    too_old: str = ""
    """A pattern: what its ``--version`` prints when it is too old."""


BACKPORTS: Final = {"bookworm": "deb http://deb.debian.org/debian bookworm-backports main"}
"""Where a release's newer packages come from, by its code name."""

_PYTSS: Final = (
    "builds tpm2-pytss: protected TPM sessions, and an independent reading of structures"
)
_DIFFERENTIAL: Final = "those of protected TPM sessions, and those that compare our TPM structures"

PACKAGES: Final = (
    Package(
        "iproute2",
        "ip",
        "makes the network namespaces and virtual links of the job network",
        "those marked netns",
    ),
    Package(
        "postgresql",
        "/usr/share/postgresql-common/pg_wrapper",
        "is the database of the tests in which coordinators of several machines share a state",
        "tests/attest/session/test_fleet_database.py",
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
    Package(
        "softhsm2",
        "softhsm2-util",
        "is a PKCS#11 token in software: tests sign with keys in it",
        "those that sign with a key in a token",
    ),
    Package("nftables", "nft", "filters the packets of a job network", "those marked netns"),
    Package(
        "wireguard-go",
        "wireguard-go",
        "encrypts a job network where the kernel has no WireGuard",
        "those marked netns",
        too_old=r"v0\.0\.(20[01]|202[0-2])",
    ),
    Package(
        "wireguard-tools",
        "wg",
        "configures WireGuard in the kernel",
        "those marked netns, for the kernel's engine",
    ),
    Package(
        "passt",
        "pasta",
        "connects the job network of an ordinary user",
        "those marked netns, for job networks without root",
    ),
)

Run = Callable[[Sequence[str]], bool]


def missing(
    packages: Sequence[Package], find: Callable[[str], str | None] = shutil.which
) -> list[Package]:
    """The packages whose command or file cannot be found (nor in sbin directories), or is old."""
    return [
        package
        for package in packages
        if (
            find(package.shown_by) is None
            # A file has an absolute path, which no folder in front of it changes.
            and not any(Path(dir_, package.shown_by).exists() for dir_ in ("/usr/sbin", "/sbin"))
        )
        or is_old(package)
    ]


def is_old(package: Package) -> bool:
    """Whether a package that is there is older than what is needed."""
    if not package.too_old:
        return False
    command = [package.shown_by, "--version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except OSError:
        return True
    return re.search(package.too_old, done.stdout + done.stderr) is not None


def from_backports(names: Sequence[str], *, apt: str, source: str, run: Run) -> bool:
    """Install packages from another source, which is not made known to the machine."""
    with tempfile.TemporaryDirectory(prefix="backports-") as folder:
        Path(folder, "lists", "partial").mkdir(parents=True)
        Path(folder, "sources.list").write_text(f"{source}\n")
        options = {
            "Dir::Etc::SourceList": f"{folder}/sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": f"{folder}/lists",
            "APT::Sandbox::User": "root",  # whom the folder belongs to
        }
        command = [apt, *(word for pair in options.items() for word in ("-o", "=".join(pair)))]
        fetch = [*command, "install", "-y", "-q", "--no-install-recommends", *names]
        return run([*command, "update", "-q"]) and run(fetch)


def install(
    packages: Sequence[Package],
    *,
    is_root: bool,
    apt: str | None,
    run: Run,
    say: Callable[[str], None],
    backports: str = "",
) -> bool:
    """Install `packages` if that can be done here; whether it was.

    Args:
        packages: What is missing.
        is_root: Whether packages may be installed.
        apt: The path of apt-get; None where there is none.
        run: Runs a command; whether it succeeded.
        say: Tells a person.
        backports: Where those that must be newer come from; empty where the release has them.
    """
    names = [package.name for package in packages]
    if not apt:
        say("no apt-get here: install them with this system's own package manager")
        return False
    if not is_root:
        say(f"not root: run 'sudo apt-get install {' '.join(names)}' to have them")
        return False
    say(f"installing {', '.join(names)} ...")
    newer = [package.name for package in packages if backports and package.too_old]
    usual = [name for name in names if name not in newer]
    fetch = [apt, "install", "-y", "-q", "--no-install-recommends", *usual]
    # The package lists may be there already; only when they are not is an update needed.
    done = not usual or run(fetch) or (run([apt, "update", "-q"]) and run(fetch))
    if newer and not from_backports(newer, apt=apt, source=backports, run=run):
        done = False
    if not done:
        say("apt-get could not install them (no network?)")
    return done


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
        backports=BACKPORTS.get(code_name(), ""),
    )
    if not done:
        for package in wanted:
            _say(f"without {package.name} these tests are skipped: {package.tests}")
    return 0


def code_name() -> str:
    """The release's code name; empty when it does not say one."""
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


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
