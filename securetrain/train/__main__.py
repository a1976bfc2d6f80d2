# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``python -m securetrain.train job.yaml``: an ordinary training script.

Runs under `securetrain run` (which sets RANK, WORLD_SIZE and the rest, and makes the run
directory), under torchrun, or alone as a single process. Exit codes are those of every securetrain
command.
"""

import argparse
import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from securetrain.core import (
    RUN_DIR_VARIABLE,
    SIGNER_VARIABLE,
    STATE_VARIABLE,
    ExitCode,
    NodeState,
    RunDir,
)
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.train.config import JobConfig, load_job, override


@dataclass(slots=True)
class StopFlag:
    """Set by the first SIGTERM or SIGINT; the second one acts as usual."""

    requested: bool = False

    def install(self) -> None:
        """Listen to the two signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, signal.SIG_DFL)


def main(argv: Sequence[str], environment: Mapping[str, str]) -> ExitCode:
    """Run one rank.

    Raises:
        SecureTrainError: a refusal, for the caller to show.
    """
    options = _parser().parse_args(argv)
    job, where = load_job(options.job), str(options.job)
    job = override(job, where, steps=options.steps, resume=options.resume)
    run, stop = run_dir_of(environment), StopFlag()
    stop.install()
    return _train(job, where, run, stop, options.stop_after)


def run_dir_of(environment: Mapping[str, str]) -> RunDir:
    """The run directory that the launcher made.

    Raises:
        UsageError: ST-USAG-001 when there is none.
    """
    name = environment.get(RUN_DIR_VARIABLE, "")
    if not name:
        raise UsageError(
            "ST-USAG-001",
            "the trainer needs a run directory with its keys, trust root and policy",
            RUN_DIR_VARIABLE,
            "start it with 'securetrain train job.yaml', or with"
            " 'securetrain run -m securetrain.train job.yaml'",
        )
    run = RunDir(Path(name))
    if not run.trust.is_file() or not run.resolved_policy.is_file():
        raise UsageError(
            "ST-USAG-001",
            "not a run directory: it has no trust root or no policy",
            f"{RUN_DIR_VARIABLE}={name}",
            "start the trainer with 'securetrain train job.yaml'",
        )
    return run


def _train(
    job: JobConfig, where: str, run: RunDir, stop: StopFlag, stop_after: int | None
) -> ExitCode:
    # Job file and run directory are checked before this import, which takes seconds: none of them
    # is spent on looking for garbage in what stays.
    gc.disable()
    import torch.distributed as dist  # noqa: PLC0415

    from securetrain.train.process import record_collectives, start_group  # noqa: PLC0415
    from securetrain.train.run import FIRST_TIMEOUT, run_job  # noqa: PLC0415
    from securetrain.train.setup import Worker  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    record_collectives(run.flight_recorder)
    device = start_group(os.environ, FIRST_TIMEOUT)
    try:
        worker = Worker(
            run=run,
            device=device,
            clock=lambda: datetime.now(UTC),
            stop=stop,
            console=sys.stdout,
            is_node_leader=os.environ.get("LOCAL_RANK") == "0",
            state=NodeState(Path(kept)) if (kept := os.environ.get(STATE_VARIABLE)) else None,
            signer=os.environ.get(SIGNER_VARIABLE, ""),
        )
        return run_job(job, where, worker, stop_after=stop_after)
    finally:
        dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="securetrain.train", description="Train the byte-level model of a job file."
    )
    parser.add_argument("job", type=Path, help="job.yaml (apiVersion securetrain.dev/job/v1)")
    parser.add_argument("--steps", type=int, help="train this many steps instead of the job's")
    parser.add_argument("--resume", help="auto, never, or a checkpoint's directory")
    parser.add_argument(
        "--stop-after", type=int, metavar="STEP", help="save and end after this step"
    )
    return parser


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:], os.environ)
    except SecureTrainError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(int(error.exit_code)) from error  # the launcher then knows its code
    sys.exit(int(code))
