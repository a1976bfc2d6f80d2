# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The recipes for a laptop train; and a checkpoint of one is resumed as the other."""

import json
from pathlib import Path

import pytest
import torch

from securetrain.core.codes import ExitCode
from securetrain.core.rundir import RunDir
from securetrain.testing.processes import run_ranks
from securetrain.train.config import load_job
from securetrain.train.run import run_job
from securetrain.train.setup import Worker
from tests.train.conftest import now

EXAMPLES = Path(__file__).parents[2] / "examples"


class Never:
    requested = False


def train(recipe: str, root: Path, stop_after: int) -> ExitCode:
    """On every rank: some steps of a recipe in a run directory that is there."""
    file = EXAMPLES / recipe
    worker = Worker(
        run=RunDir(root), device=torch.device("cpu"), clock=now, stop=Never(), console=None
    )
    return run_job(load_job(file), str(file), worker, stop_after=stop_after)


@pytest.mark.dist
def test_the_recipes_of_a_laptop_train_and_go_on_as_each_other(new_run):
    run = new_run()
    root = run.run_dir.root
    for recipe, steps in (("ddp.yaml", 2), ("fsdp.yaml", 4)):
        ranks = load_job(EXAMPLES / recipe).launch.nproc_per_node
        assert run_ranks(train, ranks, recipe, root, steps, timeout=120) == [ExitCode.OK] * ranks
    lines = [json.loads(line) for line in run.run_dir.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["loss"] < lines[0]["loss"]
