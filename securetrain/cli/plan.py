# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain plan job.yaml``: memory, groups and validity of a mesh, without a GPU."""

from pathlib import Path
from typing import Final

import click

from securetrain.cli.options import file_argument, json_as
from securetrain.cli.self_check import check_mesh
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain plan job.yaml
  securetrain plan job.yaml --nnodes 64 --nproc-per-node 8 --device h200
  securetrain plan job.yaml --memory 40 --json
  securetrain plan job.yaml --check
  securetrain plan job.yaml --explain

\b
Nothing is started: the model is laid out over a fake process group, on torch's meta device.
--check starts up to two processes for each axis of the mesh, here and on the CPU, and compares
two steps of a small copy of the model with one process.
With a device, step times are estimated, and the fastest meshes that fit are suggested.

\b
Exit codes: 0 the job is valid, and fits for sure when a device or memory is given; 1 it does
not fit, or may not: a plan states its error; or --check found a difference; 2 the job file or its
mesh is refused.
"""


@click.command("plan", epilog=EPILOG)
@file_argument("file", metavar="JOB")
@click.option(
    "--nnodes", type=click.IntRange(1, 65536), help="Nodes; else the job's launch.nnodes."
)
@click.option(
    "--nproc-per-node",
    type=click.IntRange(1, 1024),
    help="Processes on each node; else the job's launch.nproc_per_node.",
)
@click.option("--device", help="The accelerator: h100, h200, ... Else the job's launch.device.")
@click.option("--memory", type=click.FloatRange(min=1), help="Its memory in GB (10^9 bytes).")
@click.option(
    "--network",
    type=click.FloatRange(min=0.001),
    help="Gb/s of network of each accelerator, for times; else those of the vendor's system.",
)
@click.option(
    "--check", is_flag=True, help="Compare two steps of a small copy with one process, here."
)
@click.option("--explain", is_flag=True, help="Print how each parameter is cut.")
@json_as("Print one JSON object.")
def command(
    *,
    file: Path,
    nnodes: int | None,
    nproc_per_node: int | None,
    device: str | None,
    memory: float | None,
    network: float | None,
    check: bool,
    explain: bool,
    output: str,
) -> int:
    """Say what the job in the file JOB needs on each rank, and whether it fits."""
    from securetrain.report import GB, plan_page
    from securetrain.train import load_job, with_unverified_sizes
    from securetrain.train.planning import Device, device_named, make_plan

    job = with_unverified_sizes(load_job(file), str(file))
    name = device or job.launch.device
    found = None if name is None else device_named(name, f"{file}: launch.device")
    if memory is not None:
        speed = None if found is None else found.speed
        found = Device("a device", int(memory * GB), speed)
    if network is not None and found is not None:
        found = found.with_network(network)
    plan = make_plan(
        job,
        str(file),
        per_node=nproc_per_node or job.launch.nproc_per_node,
        nodes=nnodes or job.launch.nnodes,
        device=found,
        explain=explain,
    )
    if check:
        click.echo(check_mesh(job, plan.degrees), err=True)
    return emit(plan_page(plan), output)
