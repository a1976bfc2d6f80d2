# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make an environment for every framework that hooks were tested with, and run its tests in it.

``make test-compat`` runs this. Rules:

1. tests/integrations/environments/NAME.txt is one environment, ``.compat/NAME``: what is asked for,
   then, below a mark, the exact version of everything that it brings. Nothing else is installed;
2. torch and the tools of the tests are not installed again: an environment finds what it lacks in
   the one that runs this (``make`` gives ``.venv``), behind its own packages. So it has the
   frameworks of ``make test-slow`` behind it where that has run before;
3. an environment is used again while its stamp says that it was made whole, of the same file and
   beside the same packages. One that was cut short has none, and is made anew;
4. what an earlier run has shown of a framework is forgotten before its tests start: a framework
   that cannot be installed, or whose tests fail, has no old result in the table.

``--only NAME ...`` leaves the others, and what was shown of them, as they are. ``--lock`` installs
what is asked for at the versions that the index has today, and writes what it brought below the
mark.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securetrain.core.files import write_atomic
from tools.compatibility import RESULTS, ROOT, section_of

FILES: Final = ROOT / "tests" / "integrations" / "environments"
PLACE: Final = ROOT / ".compat"
TESTS: Final = ("tests/integrations", "tests/launch/test_telemetry.py")
"""Where tests are marked ``compat``, with the names of their environments."""
MARK: Final = "# What it brings (python -m tools.frameworks --lock):"
HERE: Final = sysconfig.get_path("purelib")
"""The packages of the environment that runs this."""
ABSENT: Final = "could not be installed"
PASSED: Final = "passed"
LOCKED: Final = "locked"
BEHIND: Final = "import site; site.addsitedir({!r})\n"
"""A line of a ``.pth`` file: packages that are found behind an environment's own."""
INSTALL_LIMIT: Final = 3600.0


class NotMadeError(Exception):
    """An environment could not be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One file of requirements, and the folder that is made of it."""

    name: str

    @property
    def file(self) -> Path:
        """Its requirements."""
        return FILES / f"{self.name}.txt"

    @property
    def folder(self) -> Path:
        """Where it is made."""
        return PLACE / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def stamp(self) -> Path:
        """Written last: what the environment was made of (rule 3)."""
        return self.folder / "made-of"

    def asked(self) -> list[str]:
        """What is asked for."""
        return _lines(self.file.read_text("utf-8").partition(MARK)[0])

    def pins(self) -> dict[str, str]:
        """The exact version of everything that is installed, by normalized name."""
        pairs = (line.split("==") for line in _lines(self.file.read_text("utf-8")))
        return {normalized(name): version for name, version in pairs}


def names() -> list[str]:
    """The environments, by name."""
    return sorted(path.stem for path in FILES.glob("*.txt"))


def normalized(name: str) -> str:
    """A distribution's name as an index compares it (PEP 503)."""
    return name.lower().replace("_", "-").replace(".", "-")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def made_of(environment: Environment) -> str:
    """What the stamp of a whole environment says (rule 3)."""
    beside = sorted(f"{d.name}=={d.version}" for d in importlib.metadata.distributions(path=[HERE]))
    parts = [environment.file.read_text("utf-8"), sys.version, HERE, *beside]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def make(environment: Environment) -> bool:
    """Make an environment, unless it is there; whether it was made.

    Raises:
        NotMadeError: something cannot be installed, or is not what the file says.
    """
    if environment.stamp.is_file() and environment.stamp.read_text("utf-8") == made_of(environment):
        return False
    _fresh(environment)
    _pip(environment, "--ignore-installed", "--no-deps", "-r", str(environment.file))
    # Everything is there now, so without an index: whatever does not fit together is refused.
    _pip(environment, "--no-index", *environment.asked())
    found, pins = installed(environment), environment.pins()
    if found != pins:
        differ = ", ".join(sorted(name for name, _ in found.items() ^ pins.items()))
        raise NotMadeError(f"its packages are not those of {environment.file.name}: {differ}")
    environment.stamp.write_text(made_of(environment), "utf-8")
    return True


def lock(environment: Environment) -> None:
    """Write down what the wanted packages bring today.

    Raises:
        NotMadeError: they cannot be installed.
    """
    asked = environment.asked()
    torch = importlib.metadata.version("torch").partition("+")[0]
    _fresh(environment)
    _pip(environment, *asked, f"torch=={torch}")  # which is there: rule 2
    own = {normalized(one.partition("==")[0]) for one in asked}
    brought = [f"{n}=={v}" for n, v in sorted(installed(environment).items()) if n not in own]
    text = "\n".join([*asked, MARK, *brought])
    environment.file.write_text(text + "\n", "utf-8")


def installed(environment: Environment) -> dict[str, str]:
    """Every package that is in an environment itself."""
    (site,) = environment.folder.glob("lib/python*/site-packages")
    found = importlib.metadata.distributions(path=[str(site)])
    return {normalized(one.name): one.version for one in found}


def _fresh(environment: Environment) -> None:
    """Make an empty environment with this one's packages behind its own (rule 2)."""
    venv.create(environment.folder, clear=True)
    (site,) = environment.folder.glob("lib/python*/site-packages")
    (site / "behind.pth").write_text(BEHIND.format(HERE), "utf-8")


def _pip(environment: Environment, *words: str) -> None:
    """Let the pip that is behind install something; what is imported later is compiled then."""
    line = [sys.executable, "-m", "pip", "--python", str(environment.python)]
    line += ["--disable-pip-version-check", "--quiet", "install", "--no-compile", *words]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT
        )
    except subprocess.TimeoutExpired as error:
        raise NotMadeError(f"pip did not end within {INSTALL_LIMIT:.0f} s") from error
    if done.returncode:
        said = [one for one in done.stderr.splitlines() if one.startswith("ERROR")]
        raise NotMadeError("\n".join(said) or done.stderr[-2000:])


def forget(environment: Environment, why: str = "") -> None:
    """Remove from what is kept whatever was shown of a framework; say why there is nothing."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
    one: dict[str, Any] = {"version": environment.pins()[environment.name], "checks": {}}
    if why:
        one["absent"] = why
    kept.setdefault(section_of(environment.name), {})[environment.name] = one
    write_atomic(RESULTS, (json.dumps(kept, indent=2, sort_keys=True) + "\n").encode())


def tested(environment: Environment) -> int:
    """Run the tests of an environment in it, with everything that they print; pytest's status."""
    command = [str(environment.python), "-m", "pytest", "-q", "-m", "compat"]
    command += ["--environment", environment.name, "--keep-compatibility", *TESTS]
    return subprocess.run(command, cwd=ROOT, check=False, env=_surroundings(environment)).returncode


def _surroundings(environment: Environment) -> dict[str, str]:
    """What this process has, with the programs of the environment (ninja, for DeepSpeed) first."""
    path = os.pathsep.join([str(environment.python.parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path}


def main(arguments: list[str] | None = None) -> int:
    """Make and test every environment; 1 when one could not be made, or a test did not pass."""
    parser = argparse.ArgumentParser(prog="make test-compat", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names(), default=names(), metavar="NAME")
    parser.add_argument("--lock", action="store_true", help="write down what they bring today")
    options = parser.parse_args(arguments)
    outcomes: dict[str, str] = {}
    for number, name in enumerate(options.only, 1):
        _say(f"[{number}/{len(options.only)}] {name}: its environment ...")
        outcomes[name] = _locked(name) if options.lock else _shown(name)
        _say(f"[{number}/{len(options.only)}] {name}: {outcomes[name]}")
    for name, outcome in outcomes.items():
        _say(f"{name:20} {outcome}")
    return 0 if all(one.startswith((PASSED, LOCKED)) for one in outcomes.values()) else 1


def _locked(name: str) -> str:
    try:
        lock(Environment(name))
    except NotMadeError as error:
        return f"{ABSENT}: {error}"
    return LOCKED


def _shown(name: str) -> str:
    """Make an environment and run its tests; what came of it."""
    environment, begin = Environment(name), time.monotonic()
    forget(environment)
    try:
        how = "made" if make(environment) else "used again"
    except NotMadeError as error:
        forget(environment, ABSENT)
        return f"{ABSENT}: {error}"
    ready = time.monotonic()
    _say(f"its environment was {how} ({ready - begin:.0f} s); its tests ...")
    status = tested(environment)
    came = PASSED if status == 0 else f"FAILED (pytest ended with {status})"
    return f"{came}, {time.monotonic() - ready:.0f} s"


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
