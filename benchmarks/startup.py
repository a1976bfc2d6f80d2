# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What `securetrain run` adds to the start of a job: both launch a script that does nothing.

Ours makes keys, issues certificates, admits the node over TLS with its evidence, signs the
membership, runs the preflight audit and writes the ledger. The promise is at most half a second
more than torchrun.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.ab import Benchmark, Goal, Side

_TIMEOUT: Final = 300.0


@dataclass(frozen=True, slots=True)
class Startup:
    """Seconds from typing the command to its end."""

    workers: int
    pairs: int = 5

    @property
    def goal(self) -> Goal:
        """At most half a second."""
        return Goal(difference=0.5)

    @property
    def name(self) -> str:
        """Short name."""
        return f"startup-{self.workers}"

    @property
    def title(self) -> str:
        """What is compared."""
        return f"securetrain run against torchrun, a script that does nothing, {self.workers} ranks"

    def run(self, order: Sequence[Side]) -> list[float]:
        """Start the job once for each entry."""
        with tempfile.TemporaryDirectory(prefix="startup-") as folder:
            script = Path(folder) / "noop.py"
            script.write_text("")
            return [
                self._once(side, script, Path(folder) / f"run-{number}")
                for number, side in enumerate(order)
            ]

    def _once(self, side: Side, script: Path, run_dir: Path) -> float:
        common = ["--standalone", "--nproc-per-node", str(self.workers)]
        match side:
            case Side.PLAIN:
                command = ["-m", "torch.distributed.run", *common, str(script)]
            case Side.OURS:
                ours = ["--policy", "dev", "--run-dir", str(run_dir)]
                command = ["-m", "securetrain", "run", *common, *ours, str(script)]
            case _:
                raise ValueError(f"unknown side {side!r}")
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, *command], check=True, timeout=_TIMEOUT, capture_output=True
        )
        return time.perf_counter() - started


BENCHMARKS: Final[tuple[Benchmark, ...]] = (Startup(1), Startup(2))
