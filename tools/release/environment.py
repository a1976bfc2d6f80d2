# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fresh environments, in which nothing is installed but what a caller names."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CONSTRAINTS: Final = (ROOT / "constraints.txt", ROOT / "tools" / "release" / "constraints.txt")
_TIMEOUT: Final = 1800.0
# The user's own settings of Python and of compilers must reach neither a build nor an environment.
_KEPT: Final = ("PATH", "HOME", "LANG", "TMPDIR", "HTTPS_PROXY", "SSL_CERT_FILE")


class ReleaseError(Exception):
    """The release cannot be made; the text says why."""


def run(
    *command: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """Run a command and give what it printed.

    Raises:
        ReleaseError: it failed; its last lines are in the text.
    """
    words = [str(word) for word in command]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # pip reads where packages come from in its variables; a release is bound to versions, not to
    # an index.
    kept |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**kept, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(f"{words[0]} did not run: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ReleaseError(f"{' '.join(words)} failed with {done.returncode}:\n{said}")
    return done.stdout


def make(
    folder: Path, requirements: Sequence[str], *, python: str = "", links: Path | None = None
) -> Path:
    """Make a virtual environment with `requirements`, at the exact versions that we test with.

    Args:
        folder: Where it is made.
        requirements: As pip takes them.
        python: The interpreter; the one that runs this by default.
        links: A folder of distributions that are taken before any index is asked.

    Returns:
        The environment's interpreter.

    Raises:
        ReleaseError: something cannot be installed, or does not fit together.
    """
    run(python or sys.executable, "-m", "venv", folder)
    made = folder / "bin" / "python"
    pip: tuple[str | Path, ...] = (made, "-m", "pip", "--disable-pip-version-check", "--quiet")
    pinned: list[str | Path] = [word for file in CONSTRAINTS for word in ("-c", file)]
    found: list[str | Path] = [] if links is None else ["--find-links", links]
    # Modules are compiled when they are imported: of most, nobody imports any here.
    run(*pip, "install", "--no-compile", *pinned, *found, *requirements)
    run(*pip, "check")
    return made
