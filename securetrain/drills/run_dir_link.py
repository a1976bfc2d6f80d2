# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""D-RUN-LINK.

Somebody who may write to the working directory plants ``runs``, a link. Plain: torchrun's logs go
where it leads. Hardened: the run is refused with ST-USAG-018 before a key is made; as root, so is a
directory of another user; nothing that was there has changed.
"""

import os
from pathlib import Path
from typing import Final

from securetrain.core import RunDir
from securetrain.drills import jobs
from securetrain.drills.registry import DRILLS, Outcome

CODE: Final = DRILLS["D-RUN-LINK"].expected_code
_STRANGER: Final = 4242
_COMMON: Final = ("--nproc-per-node", "1")
_SCRIPT: Final = "job.py"


def plant(workdir: Path) -> Path:
    """Make a directory of the victim's, and ``runs`` in the work directory, which leads there."""
    victim = workdir / "victim"
    victim.mkdir(mode=0o700)
    (workdir / "runs").symlink_to(victim)
    (workdir / _SCRIPT).touch()
    return victim


def plain(workdir: Path) -> Outcome:
    """Keep a stock job's logs below the link."""
    victim = plant(workdir)
    places = ["--log-dir", "runs/logs", "--redirects", "3"]
    exit_code, _ = jobs.run(*jobs.TORCHRUN, *_COMMON, *places, _SCRIPT, cwd=workdir)
    found = sorted(str(path.relative_to(victim)) for path in victim.rglob("*"))
    return Outcome.of_plain(
        bool(found) and exit_code == 0,
        f"torchrun followed the link and wrote {len(found)} entries into the directory that it"
        f" leads to. The job ended with exit code {exit_code}.",
    )


def hardened(workdir: Path) -> Outcome:
    """Give ours the link, and another user's directory."""
    victim = plant(workdir)
    wanted = ["runs/one"]
    if os.geteuid() == 0:
        theirs = workdir / "theirs"
        theirs.mkdir(mode=0o700)
        os.chown(theirs, _STRANGER, _STRANGER)
        wanted.append("theirs")
    codes, written = [], []
    for place in wanted:
        ours = jobs.ours(RunDir(Path(place)), "--policy", "dev", *_COMMON, _SCRIPT)
        exit_code, said = jobs.run(*ours, cwd=workdir)
        codes.append(CODE if exit_code == 2 and CODE in said else f"exit code {exit_code}")
    for folder in (victim, workdir / "theirs"):
        written += sorted(folder.rglob("*"))
    return Outcome.of_hardened(
        bool(written),
        set(codes) == {CODE} and not written,
        codes[0] if codes[0] == CODE else "",
        f"The link{' and a directory of another user' if wanted[1:] else ''}: "
        f"{', '.join(codes)}. Entries written there: {len(written) or 'none'}.",
    )
