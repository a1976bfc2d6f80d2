# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The jobs that drills attack: one script under stock torchrun, and under `securetrain run`."""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securetrain.core import RunDir
from securetrain.drills.process_tree import end_of, started

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractContextManager

TORCHRUN: Final = ("torch.distributed.run", "--standalone")
PATIENCE: Final = 90.0


def ours(run: RunDir, *words: str) -> tuple[str, ...]:
    """`securetrain run` on this machine alone, with that run directory."""
    return ("securetrain", "run", "--standalone", "--run-dir", str(run.root), *words)


@dataclass(frozen=True, slots=True)
class Script:
    """A script of some ranks in a folder of its own, which holds no run and can be written to."""

    workdir: Path
    text: str
    ranks: int = 1

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.path.write_text(self.text)

    @property
    def folder(self) -> Path:
        """Its folder, which is its only argument."""
        return self.workdir / "work"

    @property
    def path(self) -> Path:
        """The script itself."""
        return self.folder / "job.py"

    @property
    def run_dir(self) -> RunDir:
        """The run directory under `securetrain run`."""
        return RunDir(self.workdir / "run")

    def plain(self, *words: str) -> tuple[str, ...]:
        """The command of stock torchrun; `words` are its options."""
        return (*words, "--nproc-per-node", str(self.ranks), str(self.path), str(self.folder))

    def hardened(self, *words: str, policy: str = "dev") -> tuple[str, ...]:
        """The command of `securetrain run`."""
        given = ("--policy", policy, "--output", str(self.folder), *words)
        return ours(self.run_dir, *self.plain(*given))

    def run(self, *command: str, patience: float = PATIENCE) -> tuple[int | None, str]:
        """Run a command of it; see `run`."""
        return run(*command, cwd=self.workdir, patience=patience)


def launch(*words: str, **settings: Any) -> "AbstractContextManager[subprocess.Popen[bytes]]":
    """Start ``python -m``; killed at the end of the block, with all that it started."""
    # `securetrain run` pins this by itself; stock gloo would take the machine's address.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    return started([sys.executable, "-m", *words], env=environment, **settings)


def run(*words: str, cwd: Path, patience: float = PATIENCE) -> tuple[int | None, str]:
    """Run ``python -m``; the exit code, None when it ran out of time, and all that it said."""
    with tempfile.TemporaryFile() as out:
        with launch(*words, cwd=cwd, stdout=out) as process:
            code = end_of(process, patience)
        out.seek(0)
        said = out.read().decode("utf-8", "replace")
    sys.stderr.write(said)
    return code, said
