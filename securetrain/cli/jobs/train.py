# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain train job.yaml``: the built-in trainer, which is ``run -m securetrain.train``.

The job file's ``launch`` section gives the number of processes and nodes. What follows the job file
is the trainer's (``--steps``, ``--resume``, ``--stop-after``) or else the launcher's, and wins over
the job file.
"""

from collections.abc import Sequence
from typing import Final

import click

TRAINER_FLAGS: Final = ("--steps", "--resume", "--stop-after")
"""Those of ``python -m securetrain.train``; each takes a value."""
HELP: Final = """\
usage: securetrain train JOB.YAML [trainer flags] [flags of securetrain run]

Train a model as a job file describes it, hardened.

trainer flags:
  --steps N            train N steps instead of the job's
  --resume WHAT        auto, never, or a checkpoint's directory
  --stop-after STEP    save and end after this step; the same command goes on from there

Everything else goes to the launcher: securetrain run --help.

examples:
  securetrain train job.yaml --run-dir runs/first
  securetrain train job.yaml --run-dir runs/first --steps 2000
  securetrain train job.yaml --run-dir runs/second --resume runs/first/checkpoints/step-00000400
  securetrain train job.yaml --nproc-per-node 8 --max-restarts 3 --require overlay
  securetrain train job.yaml --nnodes 2 --rdzv-endpoint node-a:29400
"""


@click.command(
    "train",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Train the built-in model from a job file.

    securetrain train job.yaml [trainer flags] [run flags]
    """
    from pathlib import Path

    from securetrain.core.errors import UsageError
    from securetrain.launch import main
    from securetrain.train import load_job

    if not arguments or {"-h", "--help"} & set(arguments):
        click.echo(HELP, nl=False)
        return 0 if arguments else 2
    file, *flags = arguments
    if file.startswith("-"):
        raise UsageError(
            "ST-USAG-001", f"{file} before the job file", "securetrain train", "name job.yaml first"
        )
    trainer, launcher = split_flags(flags)
    launch = load_job(Path(file)).launch
    processes = [f"--nproc-per-node={launch.nproc_per_node}", f"--nnodes={launch.nnodes}"]
    alone = ["--standalone"] if launch.nnodes == 1 else []
    return main([*alone, *processes, *launcher, "-m", "securetrain.train", file, *trainer])


def split_flags(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """The trainer's flags with their values, and the rest.

    Raises:
        UsageError: ST-USAG-001, one of the trainer's has no value.
    """
    from securetrain.core.errors import UsageError

    trainer: list[str] = []
    launcher: list[str] = []
    left = iter(flags)
    for flag in left:
        name, equals, _ = flag.partition("=")
        if name not in TRAINER_FLAGS:
            launcher.append(flag)
        elif equals:
            trainer.append(flag)
        elif (value := next(left, None)) is not None:
            trainer += [flag, value]
        else:
            raise UsageError(
                "ST-USAG-001", f"{flag} has no value", "securetrain train", f"{flag} VALUE"
            )
    return trainer, launcher
