# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Install the wheel with each of its extras into empty environments, and start it there."""

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from packaging.metadata import Metadata

from tools.release.environment import ReleaseError, make, run

PYTHONS: Final = ("3.11", "3.12", "3.13")
"""What the package says that it supports (pyproject.toml's classifiers)."""
BASE: Final = "base"
"""The name under which an installation without extras is asked for and told."""


_INSIDE: Final = Path(__file__).with_name("inside.py")
_TRAINS: Final = Path(__file__).with_name("two_ranks.py")
_TRAINED: Final = "ranks: 2, equal: True"


class Outcome(StrEnum):
    """What came of one installation."""

    WORKS = "works"
    TRAINS = "works, trains"
    """With torch: two ranks were trained under ``securetrain run`` as well."""
    FAILED = "FAILED"
    NO_PYTHON = "no such Python here"
    LEFT_OUT = "left out"
    """Nobody tried it: whoever made the release said so."""


@dataclass(frozen=True, slots=True)
class Install:
    """One environment."""

    python: str
    extra: str
    outcome: Outcome
    why: str = ""


def extras_of(wheel: Path) -> list[str]:
    """The extras that a wheel's metadata names.

    Raises:
        ReleaseError: it has no metadata.
    """
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            if name.endswith(".dist-info/METADATA"):
                return sorted(Metadata.from_email(opened.read(name)).provides_extra or [])
    raise ReleaseError(f"{wheel} has no METADATA")


def check(
    wheel: Path,
    version: str,
    extras: Sequence[str],
    *,
    pythons: Sequence[str] = PYTHONS,
    say: Callable[[Install], None] = lambda _: None,
    left_out: Iterable[str] = (),
    jobs: int = 1,
) -> list[Install]:
    """Try each extra on each Python; those Pythons that are not here are told, not passed over.

    Args:
        wheel: The wheel's file; its folder is where pip looks first.
        version: What ``securetrain --version`` must print.
        extras: Names of extras, and ``base`` for none; those with commas between them share an
            environment.
        pythons: Versions such as ``3.12``, found on PATH as ``python3.12``.
        say: Told of each as it ends.
        left_out: What is not tried, such as ``train@3.12``; it is told, too.
        jobs: So many environments at a time.
    """
    left = set(left_out)
    found = {python: _interpreter(python) for python in pythons}

    def one(python: str, extra: str) -> Install:
        interpreter = found[python]
        if interpreter is None:
            done = Install(python, extra, Outcome.NO_PYTHON)
        elif f"{extra}@{python}" in left:
            done = Install(python, extra, Outcome.LEFT_OUT)
        else:
            done = _one(wheel, version, interpreter, python, extra)
        say(done)
        return done

    pairs = [(python, extra) for python in pythons for extra in extras]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda pair: one(*pair), pairs))


def _interpreter(python: str) -> str | None:
    """Find a Python that starts; a shim of a version manager may only look like one."""
    found = shutil.which(f"python{python}")
    if found is None:
        return None
    try:
        said = run(found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    except ReleaseError:
        return None
    return found if said.strip() == python else None


def _one(wheel: Path, version: str, interpreter: str, python: str, extra: str) -> Install:
    wanted = f"securetrain=={version}" if extra == BASE else f"securetrain[{extra}]=={version}"
    with tempfile.TemporaryDirectory(prefix="release-install-") as folder:
        try:
            made = make(Path(folder) / "env", [wanted], python=interpreter, links=wheel.parent)
            command = made.with_name("securetrain")
            said = run(command, "--version", cwd=Path(folder))
            if version not in said.split():
                raise ReleaseError(f"securetrain --version says {said.strip()!r}, not {version}")
            # What the wheel must bring along: bundled policies, read by the safe loader.
            run(command, "policy", "lint", "baseline", cwd=Path(folder))
            torch = run(made, _INSIDE, extra, cwd=Path(folder)).strip()
            if torch:
                _train(command, Path(folder))
        except ReleaseError as error:
            return Install(python, extra, Outcome.FAILED, str(error))
    if torch:
        return Install(python, extra, Outcome.TRAINS, f"torch {torch}")
    return Install(python, extra, Outcome.WORKS)


def _train(command: Path, folder: Path) -> None:
    """Train two ranks under the wheel's own launcher."""
    script = Path(shutil.copy(_TRAINS, folder))
    said = run(command, "run", "--standalone", "--nproc-per-node", "2", script, cwd=folder)
    if _TRAINED not in said:
        raise ReleaseError(f"two ranks were started and did not say {_TRAINED!r}:\n{said[-2000:]}")


def matrix(done: Sequence[Install]) -> str:
    """Extras down, Pythons across, and why below: a table in Markdown."""
    pythons = list(dict.fromkeys(one.python for one in done))
    found = {(one.extra, one.python): one for one in done}
    lines = [["extra", *(f"Python {python}" for python in pythons)], ["---"] * (len(pythons) + 1)]
    lines += [
        [extra, *(str(found[extra, python].outcome) for python in pythons)]
        for extra in dict.fromkeys(one.extra for one in done)
    ]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    why = [f"- {one.extra}, Python {one.python}: {one.why}" for one in done if one.why]
    return "\n".join([table, "", *why]).rstrip() + "\n"


def as_values(done: Iterable[Install]) -> list[dict[str, str]]:
    """Plain values for the release's record, by Python and extra."""
    return [{name: str(value) for name, value in asdict(one).items()} for one in done]
