# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``plan``: what a job needs on each rank, and whether it fits."""

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table

from securetrain.core import ExitCode
from securetrain.report.document import Document

if TYPE_CHECKING:
    from securetrain.train.planning import JobPlan, StepTime

GB: Final = 10**9
SHORT: Final = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer": "optim",
    "gathered": "whole",
    "activations": "activs",
    "traffic": "comms",
}
"""Titles that leave room on eighty columns."""

TIMES: Final = {
    "matrices": "matrix products",
    "attention": "attention",
    "elementwise": "memory traffic",
    "optimizer": "optimizer",
    "data": "fsdp/ddp messages",
    "context": "cp messages",
    "tensor": "tp messages",
    "experts": "ep messages",
    "pipeline": "pp messages",
    "waiting": "pipeline waits",
}
"""What a step spends its time on, as the page says it."""


def plan_page(plan: "JobPlan") -> Document:
    """A plan; its exit code says whether the job fits."""
    code = ExitCode.FAILURE if plan.fits is False else ExitCode.OK
    text = partial(_show, plan, Console(highlight=False))
    return Document(data=json.dumps(plan.document(), indent=2), text=text, exit_code=int(code))


def _show(plan: "JobPlan", console: Console) -> None:
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
    _show_cuts(plan, console)
    _show_memory(plan, console)
    if plan.degrees.pp > 1:
        console.print(
            f"pipeline: {plan.microbatches} microbatches, ranks wait {plan.bubble:.1%} of a step"
        )
    for warning in plan.warnings:
        console.print(f"[yellow]warning[/yellow]: {warning}")
    _show_time(plan, console)
    _show_verdict(plan, console)
    _show_suggestions(plan, console)
    console.print(f"[dim]planned in {plan.seconds:.2f} s, without starting anything[/dim]")


def _show_groups(plan: "JobPlan", console: Console) -> None:
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


def _show_cuts(plan: "JobPlan", console: Console) -> None:
    if not plan.cuts:
        return
    table = _table("what is cut where (* stands for every layer)")
    for title in ("parameter", "whole", "axis and dimension", "on a rank"):
        table.add_column(title, no_wrap=title == "parameter")
    for cut in plan.cuts:
        table.add_row(cut.name, _shape(cut.whole), ", ".join(cut.axes) or "-", _shape(cut.local))
    console.print(table)


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def _show_memory(plan: "JobPlan", console: Console) -> None:
    table = _table("memory of a rank, in GB")
    parts = tuple(plan.fullest.memory.parts)
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


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _show_verdict(plan: "JobPlan", console: Console) -> None:
    total = plan.fullest.memory.total
    if plan.device is None:
        console.print("valid; name a --device or --memory to see whether it fits")
        return
    error = f"{plan.error:.0%}"
    budget = (
        f"{_bytes(total)} (plans are right to {error}) of {_bytes(plan.device.budget)} that"
        f" {plan.device.name} has for it"
    )
    if plan.fits:
        console.print(f"[green]fits[/green]: {budget}")
        return
    if plan.verdict == "uncertain":
        console.print(f"[yellow]may not fit[/yellow]: {budget}")
    else:
        console.print(f"[red]does not fit[/red]: {budget}")
    if not plan.suggestions:
        console.print("no mesh of this many ranks would: use more ranks or shorter rows")


def _show_time(plan: "JobPlan", console: Console) -> None:
    if plan.time is None:
        return
    speed = plan.tokens_per_step / plan.time.total
    console.print(
        f"a step takes about {_seconds(plan.time.total)} (an estimate, right to"
        f" {plan.time_error:.0%}), {_count(round(speed))} tokens/s: {_spent(plan.time)}"
    )
    _show_beyond(plan.beyond, console)


def _show_suggestions(plan: "JobPlan", console: Console) -> None:
    if not plan.suggestions:
        return
    timed = plan.suggestions[0].time is not None
    order = ", by estimated step time" if timed else ", the smallest change first"
    console.print(f"{'faster, and fits' if plan.fits else 'this would fit'}{order}:")
    for number, found in enumerate(plan.suggestions, 1):
        about = "" if found.time is None else f", about {_seconds(found.time.total)} a step"
        why = "" if found.time is None else f" ({_spent(found.time)})"
        console.print(f"  {number}. {_bytes(found.memory)}{about}{why}")
        for line in found.fields:
            console.print(f"     {line}")
        _show_beyond(found.beyond, console)


def _show_beyond(reasons: Sequence[str], console: Console) -> None:
    if reasons:
        console.print(f"     [yellow]measure first[/yellow]: {'; '.join(reasons)}")


def _spent(time: "StepTime") -> str:
    """The largest parts of a step's time; small ones are no reason for anything."""
    parts = sorted(time.parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{TIMES[n]} {s / time.total:.0%}" for n, s in parts if s / time.total >= 0.05)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


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
