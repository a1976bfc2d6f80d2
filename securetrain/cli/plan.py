# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain plan job.yaml``: memory, groups and validity of a mesh, without a GPU."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from securetrain.train.planning.job_plan import JobPlan

EPILOG: Final = """\
\b
Examples:
  securetrain plan job.yaml
  securetrain plan job.yaml --nnodes 64 --nproc-per-node 8 --device h200
  securetrain plan job.yaml --memory 40 --json

\b
Nothing is started: the model is laid out over a fake process group, on torch's meta device.

\b
Exit codes: 0 the job is valid, and fits when a device or memory is given; 1 it does not fit;
2 the job file or its mesh is refused.
"""
GB: Final = 10**9
SHORT: Final = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer": "optim",
    "gathered": "whole",
    "activations": "activs",
}
"""Titles that leave room on eighty columns."""


@click.command("plan", epilog=EPILOG)
@click.argument("file", metavar="JOB", type=click.Path(path_type=Path))
@click.option(
    "--nnodes", type=click.IntRange(1, 65536), help="Nodes; else the job's launch.nnodes."
)
@click.option(
    "--nproc-per-node",
    type=click.IntRange(1, 1024),
    help="Processes on each; else the job's launch.nproc_per_node.",
)
@click.option("--device", help="The accelerator: h100, h200, ... Else the job's launch.device.")
@click.option("--memory", type=click.FloatRange(min=1), help="Its memory in GB (10^9 bytes).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    file: Path,
    nnodes: int | None,
    nproc_per_node: int | None,
    device: str | None,
    memory: float | None,
    as_json: bool,
) -> int:
    """Say what the job in the file JOB needs on each rank, and whether it fits."""
    from securetrain.core.codes import ExitCode
    from securetrain.train.config import load_job
    from securetrain.train.planning.devices import Device, device_named
    from securetrain.train.planning.job_plan import make_plan
    from securetrain.train.weights import with_unverified_sizes

    job = with_unverified_sizes(load_job(file), str(file))
    name = device or job.launch.device
    found = None if name is None else device_named(name, f"{file}: launch.device")
    if memory is not None:
        found = Device("a device", int(memory * GB))
    plan = make_plan(
        job,
        str(file),
        per_node=nproc_per_node or job.launch.nproc_per_node,
        nodes=nnodes or job.launch.nnodes,
        device=found,
    )
    if as_json:
        click.echo(json.dumps(plan.document(), indent=2))
    else:
        from rich.console import Console

        _show(plan, Console(highlight=False))
    return int(ExitCode.FAILURE if plan.fits is False else ExitCode.OK)


def _show(plan: "JobPlan", console: "Console") -> None:
    shape = plan.shape
    kind = f"{shape.experts} experts" if shape.experts else "dense"
    console.print(
        f"[bold]{plan.name}[/bold]: {_count(plan.parameters)} parameters ({kind},"
        f" {shape.layers} layers of {shape.dim}), {plan.tokens_per_step:,} tokens a step,"
        f" {plan.flops_per_token:.3g} FLOPs a token"
    )
    world = plan.degrees.world
    nodes = -(-world // plan.per_node)
    ranks = "1 rank" if world == 1 else f"{world} ranks"
    where = "one node" if nodes == 1 else f"{nodes} nodes of {plan.per_node}"
    console.print(f"{ranks} on {where}\n")
    _show_groups(plan, console)
    _show_memory(plan, console)
    if plan.degrees.pp > 1:
        console.print(
            f"pipeline: {plan.microbatches} microbatches, ranks wait {plan.bubble:.1%} of a step"
        )
    for warning in plan.warnings:
        console.print(f"[yellow]warning[/yellow]: {warning}")
    _show_verdict(plan, console)
    console.print(f"[dim]planned in {plan.seconds:.2f} s; nothing was started[/dim]")


def _show_groups(plan: "JobPlan", console: "Console") -> None:
    if not plan.groups:
        return
    table = _table("who talks to whom")
    for title in ("axis", "ranks", "groups", "rank 0's group", "reaches", "sent a step"):
        table.add_column(title, justify="left" if title in {"axis", "rank 0's group"} else "right")
    for group in plan.groups:
        busiest = max(rank.traffic.get(group.axis, 0) for rank in plan.ranks)
        table.add_row(
            group.axis.value,
            str(group.degree),
            str(group.count),
            _some(group.first),
            "one node" if group.nodes == 1 else f"{group.nodes} nodes",
            _bytes(busiest),
        )
    console.print(table)


def _show_memory(plan: "JobPlan", console: "Console") -> None:
    table = _table("memory of a rank, in GB")
    parts = ("parameters", "gradients", "optimizer", "gathered", "activations", "logits")
    table.add_column("pp" if plan.degrees.pp > 1 else "")
    table.add_column("layers")
    for title in (*parts, "total"):
        table.add_column(SHORT.get(title, title), justify="right")
    for rank in plan.ranks:
        memory = rank.memory
        table.add_row(
            str(rank.pipeline_rank) if plan.degrees.pp > 1 else "",
            _runs(rank.layers),
            *(f"{getattr(memory, part) / GB:.2f}" for part in parts),
            f"[bold]{memory.total / GB:.2f}[/bold]",
        )
    console.print(table)


def _table(title: str) -> "Table":
    from rich import box
    from rich.table import Table

    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _show_verdict(plan: "JobPlan", console: "Console") -> None:
    total = plan.fullest.memory.total
    if plan.device is None:
        console.print("valid; name a --device or --memory to see whether it fits")
        return
    budget = f"{_bytes(total)} of {_bytes(plan.device.budget)} that {plan.device.name} has for it"
    if plan.fits:
        console.print(f"[green]fits[/green]: {budget}")
        return
    console.print(f"[red]does not fit[/red]: {budget}")
    if plan.suggestion:
        console.print("this would fit:")
        for line in plan.suggestion:
            console.print(f"  {line}")
    else:
        console.print("no mesh of this many ranks would: use more ranks or shorter rows")


def _some(numbers: tuple[int, ...]) -> str:
    """A few numbers of many."""
    if len(numbers) <= 4:
        return ", ".join(map(str, numbers))
    if numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return f"{numbers[0]}, {numbers[1]}, ..., {numbers[-1]}"


def _runs(numbers: tuple[int, ...]) -> str:
    """Numbers that rise, as runs: 0-19, 40-59."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _count(number: int) -> str:
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,}"


def _bytes(number: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
