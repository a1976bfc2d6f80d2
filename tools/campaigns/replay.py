# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Runs, half of them forged, whose steps are done again: forged segments are found, and no others.

A case trains a small model for some segments of three steps, on one rank. It is honest, or every
learning rate is 0.1 % off, or one row of one step is another one, or one weight of one checkpoint
is moved by 1e-4. All of it is signed. Each segment is done again and compared bit by bit: exactly
the forged ones are broken, with the step or the tensor.
"""

import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.testing.runs import make_run
from tests.train.conftest import now
from tests.train.jobs import documents
from tests.train.recorded import another_rate, another_row, changed_at, job_of, record_run
from tools.campaigns import Campaign, Missed

_LENGTH: Final = 3
_HONEST: Final = 0.5
_MOVED: Final = 1e-4
_FORGERIES: Final = ("rate", "row", "weight")


def _case(rng: random.Random, folder: Path) -> str:
    torch.set_num_threads(1)
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    segments = rng.randrange(2, 5)
    job = job_of(rng.choice(["fp32", "bf16"]), rng.randrange(1 << 16), segments * _LENGTH)
    run = make_run(folder / "run", clock=now)
    rows = [
        (split, f"{split}-{n}", text)
        for split, texts in documents().items()
        for n, text in enumerate(texts)
    ]
    key = run.keys["dataset"]
    sign_documents(rows, run.run_dir.dataset, name="prose", key=key, now=now())
    kind = "honest" if rng.random() < _HONEST else rng.choice(_FORGERIES)
    forge, bad, step, tensor = _forged(kind, rng, segments)
    made = record_run(folder, run, job, forge=forge)
    places = [(n * _LENGTH, (n + 1) * _LENGTH) for n in range(segments)]
    for number, one in enumerate(made.outcomes(*places)):
        wanted = bad is None or bad == number
        _check(kind, number, one, wanted=kind != "honest" and wanted, step=step, tensor=tensor)
    return kind


def _forged(
    kind: str, rng: random.Random, segments: int
) -> tuple[AbstractContextManager[None] | None, int | None, int | None, str]:
    """What is done to a run; the segment in which it shows (None: in all), its step and tensor."""
    match kind:
        case "rate":
            return another_rate(rng.choice([1.001, 0.999])), None, None, ""
        case "row":
            step = rng.randrange(1, segments * _LENGTH + 1)
            place, source = rng.sample(range(4), 2)
            return another_row(step, place, source), (step - 1) // _LENGTH, step, ""
        case "weight":
            number, draw, sign = rng.randrange(segments), rng.random(), rng.choice([-1, 1])
            found: list[str] = []

            def move(trainer: Any) -> None:
                named = list(trainer.model.named_parameters())
                name, weight = named[int(draw * len(named))]
                found.append(name)
                weight.view(-1)[int(draw * weight.numel())] += sign * _MOVED

            return changed_at((number + 1) * _LENGTH, move), number, None, "model."
        case _:
            return None, None, None, ""


def _check(
    kind: str, number: int, one: Any, *, wanted: bool, step: int | None, tensor: str
) -> None:
    where = f"segment {number} of a run ({kind})"
    if not wanted and one.problems:
        raise Missed(f"{where}: a false alarm: {one.problems[0]}")
    if wanted and not one.problems:
        raise Missed(f"{where}: it was not found")
    if wanted and step is not None and one.step != step:
        raise Missed(f"{where}: step {one.step} is named, not {step}")
    if wanted and not one.tensor.startswith(tensor):
        raise Missed(f"{where}: tensor {one.tensor!r} is named")
    if wanted and kind == "rate" and one.step is None:
        raise Missed(f"{where}: no step is named")


CAMPAIGN: Final = Campaign(
    title="steps that are done again, half of them of forged runs", count=100, case=_case
)
