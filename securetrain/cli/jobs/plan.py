# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain plan job.yaml``: memory, groups and validity of a mesh, without a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import click

from securetrain.cli.command import Argument, Option, verb
from securetrain.cli.jobs.options import Accelerator, Mesh
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.parallel import Degrees
    from securetrain.train import JobConfig

SECONDS: Final = 600.0
"""For all of it: thirty-two processes may share two cores."""


@verb("plan", json="Print one JSON object.")
def command(
    *,
    file: Annotated[Path, Argument(metavar="JOB")],
    mesh: Mesh,
    accelerator: Accelerator,
    check: Annotated[
        bool, Option("--check", "Compare two steps of a small copy with one process, here.")
    ],
    explain: Annotated[bool, Option("--explain", "Print how each parameter is cut.")],
) -> Document:
    """Say what the job in the file JOB needs on each rank, and whether it fits.

    Examples:
      securetrain plan job.yaml
      securetrain plan job.yaml --nnodes 64 --nproc-per-node 8 --device h200
      securetrain plan job.yaml --memory 40 --json
      securetrain plan job.yaml --check
      securetrain plan job.yaml --explain

    Nothing is started: the model is laid out over a fake process group, on torch's meta device.
    --check starts up to two processes for each axis of the mesh, here and on the CPU, and compares
    two steps of a small copy of the model with one process. With a device, step times are
    estimated, and the fastest meshes that fit are suggested.

    Exit codes: 0 the job is valid, and fits for sure when a device or memory is given; 1 it does
    not fit, or may not: a plan states its error; or --check found a difference; 2 the job file or
    its mesh is refused.
    """
    from securetrain.report import plan_page
    from securetrain.train import load_job, with_unverified_sizes
    from securetrain.train.planning import make_plan

    job = with_unverified_sizes(load_job(file), str(file))
    plan = make_plan(
        job,
        str(file),
        per_node=mesh.nproc_per_node or job.launch.nproc_per_node,
        nodes=mesh.nnodes or job.launch.nnodes,
        device=accelerator.read(job.launch.device, file),
        explain=explain,
    )
    if check:
        click.echo(check_mesh(job, plan.degrees), err=True)
    return plan_page(plan)


def check_mesh(job: "JobConfig", degrees: "Degrees") -> str:
    """Compare two steps on the mesh, with at most two ranks on each axis, with one process.

    Returns:
        The result in one line.

    Raises:
        RuntimeRefusal: ST-RUNT-013 naming the layer that differs, or another of its family.
        UsageError: the settings do not go together.
    """
    from securetrain.core.errors import RuntimeRefusal, UsageError
    from securetrain.drills import run_ranks
    from securetrain.train import check_rank, small_degrees

    small = small_degrees(degrees)
    found = run_ranks(check_rank, small.world, job, small, timeout=SECONDS)[0]
    if isinstance(found, tuple):
        code, what, where, fix = found
        kind = UsageError if code.startswith("ST-USAG") else RuntimeRefusal
        raise kind(code, what, where, fix)
    text = (
        f"checked: {found.steps} steps of a small copy on {small} equal one process"
        f" (loss {found.loss:.0e}, gradient norm {found.norm:.0e} apart)"
    )
    return f"{text}; not compared: {', '.join(found.left_out)}" if found.left_out else text
