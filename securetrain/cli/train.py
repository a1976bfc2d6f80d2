# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain train job.yaml``: the built-in trainer, which is ``run -m securetrain.train``.

The job file's ``launch`` section gives the number of processes and nodes; flags before or after
the job file go to the launcher and win over it.
"""

import click


@click.command(
    "train",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Train the built-in model from a job file.

    securetrain train job.yaml [run flags]
    """
    from pathlib import Path

    from securetrain.core.errors import UsageError
    from securetrain.launch.run import main
    from securetrain.train.config import load_job

    if not arguments or arguments[0] in {"-h", "--help"}:
        click.echo("usage: securetrain train job.yaml [flags of securetrain run]\n")
        click.echo("The flags are those of 'securetrain run'; see securetrain run --help.")
        return 0 if arguments else 2
    file, *flags = arguments
    if file.startswith("-"):
        raise UsageError(
            "ST-USAG-001", f"{file} before the job file", "securetrain train", "name job.yaml first"
        )
    launch = load_job(Path(file)).launch
    processes = [f"--nproc-per-node={launch.nproc_per_node}", f"--nnodes={launch.nnodes}"]
    alone = ["--standalone"] if launch.nnodes == 1 else []
    return main([*alone, *processes, *flags, "-m", "securetrain.train", file])
