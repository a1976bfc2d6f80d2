# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the workers' sandbox costs: the start of a job, its steps, and its second start.

`sandbox-start` compares a script that does nothing under `securetrain run --require sandbox` with
torchrun, `sandbox-alone` with `securetrain run` under a policy that has no sandbox. `sandbox-step`
times a block of DistributedDataParallel steps inside the workers, with and without it.
`sandbox-compiled` is the second start of a script that builds a C++ extension, against torchrun's,
in CPU seconds of all processes: both find what their first start has built.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.ab import Benchmark, Goal, Side
from securetrain.core import STATE_VARIABLE

_TIMEOUT: Final = 600.0
_RANKS: Final = 2
_STEP_GOAL: Final = Goal(ratio=1.02)
_COMPILED_GOAL: Final = Goal(ratio=1.1)

_OPEN: Final = """\
apiVersion: securetrain.dev/policy/v1
kind: Policy
extends: dev
metadata: {id: open, version: 1.0.0, title: Workers with the launcher's rights}
host: {sandbox: "off"}
"""

_STEPS: Final = """\
import sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
layers = [layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
rows = torch.randn(64, 1024, generator=torch.Generator().manual_seed(dist.get_rank()))
for step in range(25):
    if step == 5:
        dist.barrier()
        started = time.perf_counter()
    model(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        file.write(str(time.perf_counter() - started))
dist.destroy_process_group()
"""

_EXTENSION: Final = """\
import torch
from torch.utils.cpp_extension import load_inline
source = "torch::Tensor twice(torch::Tensor x) { return x + x; }"
twice = load_inline("twice", source, functions=["twice"]).twice
assert twice(torch.ones(2)).sum() == 4
"""


@dataclass(frozen=True, slots=True)
class Launcher:
    """One way to start a script."""

    folder: Path

    def torchrun(self, *words: str) -> None:
        """As stock torch starts it."""
        self._run(["torch.distributed.run", "--standalone", *words])

    def ours(self, *words: str, sandbox: bool) -> None:
        """As we do, in the sandbox or without one."""
        policy = self.folder / "open.yaml"
        policy.write_text(_OPEN)
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            chosen = ("--policy", "dev", "--require", "sandbox")
            places = ("--run-dir", f"{place}/run", "--output", str(self.folder))
            options = chosen if sandbox else ("--policy", str(policy))
            self._run(["securetrain", "run", "--standalone", *options, *places, *words])

    def _run(self, words: Sequence[str]) -> None:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        own = {"HOME": str(home), STATE_VARIABLE: str(self.folder / "state")}
        subprocess.run(
            [sys.executable, "-m", *words],
            env={**os.environ, **own, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            cwd=self.folder,
            check=True,
            timeout=_TIMEOUT,
            capture_output=True,
        )


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from typing the command to its end, of a script that does nothing."""

    name: str
    against_torchrun: bool
    goal: Goal
    pairs: int = 7

    @property
    def title(self) -> str:
        """What is compared."""
        other = "torchrun" if self.against_torchrun else "securetrain run without one"
        return f"securetrain run in the sandbox against {other}, a script that does nothing"

    def run(self, order: Sequence[Side]) -> list[float]:
        """Start it once for each entry."""
        with tempfile.TemporaryDirectory(prefix="sandbox-") as place:
            launcher = Launcher(Path(place))
            script = Path(place) / "noop.py"
            script.touch()
            seconds = []
            for side in order:
                started = time.perf_counter()
                if side is Side.PLAIN and self.against_torchrun:
                    launcher.torchrun(str(script))
                else:
                    launcher.ours(str(script), sandbox=side is Side.OURS)
                seconds.append(time.perf_counter() - started)
            return seconds


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds for twenty steps of two workers, as rank 0 sees them."""

    name: str = "sandbox-step"
    title: str = "20 steps of DistributedDataParallel in the sandbox against without, 2 ranks"
    goal: Goal = _STEP_GOAL
    pairs: int = 7

    def run(self, order: Sequence[Side]) -> list[float]:
        """Start the job once for each entry."""
        with tempfile.TemporaryDirectory(prefix="sandbox-") as place:
            launcher = Launcher(Path(place))
            script, found = Path(place) / "steps.py", Path(place) / "seconds"
            script.write_text(_STEPS)
            words = ("--nproc-per-node", str(_RANKS), str(script), str(found))
            seconds = []
            for side in order:
                launcher.ours(*words, sandbox=side is Side.OURS)
                seconds.append(float(found.read_text()))
            return seconds


@dataclass(frozen=True, slots=True)
class Compiled:
    """CPU seconds of the second start of a script that builds an extension."""

    name: str = "sandbox-compiled"
    title: str = "second start of a script with a C++ extension against torchrun's, CPU seconds"
    goal: Goal = _COMPILED_GOAL
    pairs: int = 4

    def run(self, order: Sequence[Side]) -> list[float]:
        """Start it once for each entry; the first of each side compiles, and does not count."""
        with tempfile.TemporaryDirectory(prefix="sandbox-") as place:
            launcher = Launcher(Path(place))
            script = Path(place) / "extension.py"
            script.write_text(_EXTENSION)
            seconds = []
            for side in order:
                before = _children()
                if side is Side.PLAIN:
                    launcher.torchrun(str(script))
                else:
                    launcher.ours(str(script), sandbox=True)
                seconds.append(_children() - before)
            return seconds


def _children() -> float:
    """CPU seconds of all processes that ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Start("sandbox-start", against_torchrun=True, goal=Goal(difference=0.15)),
    Start("sandbox-alone", against_torchrun=False, goal=Goal(difference=0.15)),
    Steps(),
    Compiled(),
)
