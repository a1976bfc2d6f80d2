# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The answer of ``plan``: what a job needs on each rank, and whether it fits."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from securetrain.core import ExitCode
from securetrain.report.document import Document, Row, Section, facts, notes, runs, said, table

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
    word, about = _verdict(plan)
    suggested = plan.suggestions or plan.fits is not False or plan.verdict == "uncertain"
    none = "no mesh of this many ranks would: use more ranks or shorter rows"
    return Document(
        verb="plan",
        word=word,
        about=f"{plan.name}: {about}",
        sections=[
            said("" if suggested else none),
            facts(_facts(plan)),
            notes(plan.warnings, state="warning"),
            _groups(plan),
            _cuts(plan),
            _memory(plan),
            _suggestions(plan),
            said(f"planned in {plan.seconds:.2f} s, without starting anything"),
        ],
        data=json.dumps(plan.document(), indent=2),
        code=ExitCode.FAILURE if plan.fits is False else ExitCode.OK,
    )


def _verdict(plan: "JobPlan") -> tuple[str, str]:
    if plan.device is None:
        return "VALID", "name a --device or --memory to see whether it fits"
    budget = (
        f"{_bytes(plan.fullest.memory.total)} (plans are right to {plan.error:.0%}) of"
        f" {_bytes(plan.device.budget)} that {plan.device.name} has for it"
    )
    if plan.fits:
        return "FITS", budget
    return ("MAY NOT FIT" if plan.verdict == "uncertain" else "DOES NOT FIT"), budget


def _facts(plan: "JobPlan") -> Iterator[tuple[str, str]]:
    shape = plan.shape
    kind = f"{shape.experts} experts" if shape.experts else "dense"
    size = f"{_count(plan.parameters)} parameters ({kind}, {shape.layers} layers of {shape.dim})"
    work = f"{plan.tokens_per_step:,} tokens a step, {plan.flops_per_token:.3g} FLOPs a token"
    yield "model", f"{size}, {work}"
    world = plan.degrees.world
    nodes = -(-world // plan.per_node)
    where = "one node" if nodes == 1 else f"{nodes} nodes of {plan.per_node}"
    yield "ranks", f"{'1 rank' if world == 1 else f'{world} ranks'} on {where}"
    if plan.degrees.pp > 1:
        waits = f"{plan.microbatches} microbatches, ranks wait {plan.bubble:.1%} of a step"
        yield "pipeline", waits
    if plan.time is not None:
        speed = _count(round(plan.tokens_per_step / plan.time.total))
        about = f"about {_seconds(plan.time.total)} (an estimate, right to {plan.time_error:.0%})"
        yield "step", f"{about}, {speed} tokens/s: {_spent(plan.time)}"
        yield "measure first", "; ".join(plan.beyond)


def _groups(plan: "JobPlan") -> Section:
    rows = []
    for one in plan.groups:
        reaches = "one node" if one.nodes == 1 else f"{one.nodes} nodes"
        sent = _bytes(max(rank.traffic.get(one.axis, 0) for rank in plan.ranks))
        rows.append((one.axis.value, one.degree, one.count, _some(one.first), reaches, sent))
    columns = ("axis", "ranks", "groups", "rank 0's group", "reaches", "sent a step")
    return table(columns, rows, title="who talks to whom" if rows else "")


def _cuts(plan: "JobPlan") -> Section:
    rows = [
        (cut.name, _shape(cut.whole), ", ".join(cut.axes) or "-", _shape(cut.local))
        for cut in plan.cuts
    ]
    columns = ("parameter", "whole", "axis and dimension", "on a rank")
    title = "what is cut where (* stands for every layer)" if rows else ""
    return table(columns, rows, title=title)


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def _memory(plan: "JobPlan") -> Section:
    parts = (*plan.fullest.memory.parts, "total")
    first = 0 if plan.degrees.pp > 1 else 1
    rows = []
    for rank in plan.ranks:
        sizes = (f"{getattr(rank.memory, part) / GB:.2f}" for part in parts)
        rows.append((rank.pipeline_rank, ", ".join(runs(rank.layers)), *sizes)[first:])
    columns = ("pp", "layers", *(SHORT.get(part, part) for part in parts))[first:]
    return table(columns, rows, title="memory of a rank, in GB")


def _suggestions(plan: "JobPlan") -> Section:
    if not plan.suggestions:
        return Section()
    timed = plan.suggestions[0].time is not None
    order = ", by estimated step time" if timed else ", the smallest change first"
    rows = []
    for number, found in enumerate(plan.suggestions, 1):
        text = _bytes(found.memory)
        if found.time is not None:
            text += f", about {_seconds(found.time.total)} a step ({_spent(found.time)})"
        first = f"measure first: {'; '.join(found.beyond)}" if found.beyond else ""
        lines = tuple(filter(None, (*found.fields, first)))
        rows.append(Row(name=f"{number}.", text=text, detail=lines, most=len(lines)))
    return Section(title=("faster, and fits" if plan.fits else "this would fit") + order, rows=rows)


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


def _count(number: int) -> str:
    return _scaled(number, {"T": 10**12, "B": 10**9, "M": 10**6}, ".2f") or f"{number:,}"


def _bytes(number: int) -> str:
    units = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3}
    return _scaled(number, units, ".1f") or f"{number} B"


def _scaled(number: int, units: Mapping[str, int], form: str) -> str:
    """A number in the largest unit that it reaches; empty below all of them."""
    fits = ((unit, size) for unit, size in units.items() if number >= size)
    return next((f"{number / size:{form}} {unit}" for unit, size in fits), "")
