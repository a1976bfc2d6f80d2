# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What protection costs a script that knows nothing of it, by framework, in CPU seconds.

Ours is `securetrain run` with gradients watched (``gradients.mode: detect``, the default), with
what the script saves signed and what it loads verified, in the workers' sandbox; the reference is
torchrun. Both train the same model of about a million parameters on two ranks and save it twice.
`unmodified-start` is the same with a script that does nothing: the part of it that no longer
training makes larger.

Seconds are those of all processes below, children's children included: this process adopts whom
nobody else waits for.
"""

import ctypes
import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.ab import Benchmark, Goal, Side
from securetrain.core import STATE_VARIABLE

SCRIPT: Final = Path(__file__).with_name("unmodified") / "loop.py"
FRAMEWORKS: Final = {
    "plain": "torch",
    "accelerate": "accelerate",
    "transformers": "transformers",
    "lightning": "lightning",
    "deepspeed": "deepspeed",
}
"""By the package that has to be there."""
PROTECTED: Final = ("--policy", "dev", "--sign-checkpoints", "--verify-checkpoints")
_RANKS: Final = 2
_TIMEOUT: Final = 1800.0
_GOAL: Final = Goal(ratio=1.10)
_START_GOAL: Final = Goal(difference=0.5)
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Unmodified:
    """CPU seconds of one job of a framework, from typing the command to its end."""

    framework: str
    steps: int = 50
    pairs: int = 3
    goal: Goal = _GOAL

    @property
    def name(self) -> str:
        """Short name."""
        return f"unmodified-{self.framework}"

    @property
    def title(self) -> str:
        """What is compared."""
        return (
            f"{self.framework}, {self.steps} steps and two saves on {_RANKS} ranks: securetrain run"
            " (guard on, saves signed) against torchrun, CPU seconds"
        )

    def run(self, order: Sequence[Side]) -> list[float]:
        """Start the job once for each entry.

        Raises:
            ModuleNotFoundError: The framework is not installed.
        """
        package = FRAMEWORKS[self.framework]
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"{package}: pip install -e '.[frameworks]'", name=package)
        return _samples(order, str(SCRIPT), self.framework, steps=self.steps)


@dataclass(frozen=True, slots=True)
class Start:
    """CPU seconds of a job that does nothing."""

    name: str = "unmodified-start"
    title: str = (
        f"a script that does nothing on {_RANKS} ranks: securetrain run (guard on, saves signed)"
        " against torchrun, CPU seconds"
    )
    pairs: int = 3
    goal: Goal = _START_GOAL

    def run(self, order: Sequence[Side]) -> list[float]:
        """Start the job once for each entry."""
        with tempfile.NamedTemporaryFile(suffix=".py", prefix="noop-") as script:
            Path(script.name).chmod(0o644)
            return _samples(order, script.name, "nothing", steps=0)


def _samples(order: Sequence[Side], script: str, name: str, *, steps: int) -> list[float]:
    _adopt()
    with tempfile.TemporaryDirectory(prefix="unmodified-") as place:
        return [
            _once(side, Path(place), (script, name, f"{place}/{number}", str(steps)), number)
            for number, side in enumerate(order)
        ]


def _once(side: Side, place: Path, words: Sequence[str], number: int) -> float:
    common = ("--standalone", "--nproc-per-node", str(_RANKS))
    places = ("--run-dir", f"{place}/run-{number}", "--output", str(place))
    command = {
        Side.PLAIN: ("torch.distributed.run", *common),
        Side.OURS: ("securetrain", "run", *common, *PROTECTED, *places),
    }[side]
    home = place / "home"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), STATE_VARIABLE: str(place / "state")}
    Path(words[2]).mkdir()
    before = _cpu()
    done = subprocess.run(
        [sys.executable, "-m", *command, *words],
        env={**os.environ, **own, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        cwd=place,
        timeout=_TIMEOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-4000:]}")
    _wait_for_adopted()
    return _cpu() - before


def _adopt() -> None:
    """Have processes whose parent has ended become this process's children, on Linux."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _wait_for_adopted() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    Start(),
    *(Unmodified(framework) for framework in FRAMEWORKS),
)
