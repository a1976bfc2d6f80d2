# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a job cannot be trained with is one error with a code, a place and a fix."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.core.errors import SecureTrainError
from securetrain.core.rundir import RunDir
from securetrain.testing.runs import SmallRun
from securetrain.train.config import parse_job
from securetrain.train.run import run_job
from securetrain.train.setup import Worker
from tests.tables import items
from tests.train.conftest import now
from tests.train.jobs import JOB
from tests.vocabulary import refused

pytestmark = pytest.mark.usefixtures("one_rank")


class Never:
    requested = False


def train(run: RunDir, text: str = JOB, stop_after: int | None = None) -> None:
    worker = Worker(run=run, device=torch.device("cpu"), clock=now, stop=Never(), console=None)
    run_job(parse_job(text, "job.yaml"), "job.yaml", worker, stop_after=stop_after)


MODEL = "model: {dim: 32, layers: 2, heads: 2, ffn: 48}"


@items(
    "other",
    "model: {dim: 32, layers: 2, heads: 2, ffn: 64}",
    "model: {dim: 32, layers: 3, heads: 2, ffn: 48}",
    "model: {dim: 32, layers: 1, heads: 2, ffn: 48}",
    "model: {dim: 32, layers: 2, heads: 2, ffn: 48, experts: 2}",
    "model: {dim: 32, layers: 2, heads: 2, ffn: 48, tied: true}",
)
def test_a_checkpoint_of_another_model_is_one_error(new_run: Callable[..., SmallRun], other):
    run = new_run()
    train(run.run_dir, stop_after=3)
    before = sorted(p.name for p in run.run_dir.checkpoints.iterdir())
    with pytest.raises(SecureTrainError) as refused:
        train(run.run_dir, JOB.replace(MODEL, other))
    assert refused.value.code == "ST-USAG-012"
    assert "another model" in refused.value.what
    assert refused.value.where.endswith("step-00000003")
    assert "model:" in refused.value.fix
    assert sorted(p.name for p in run.run_dir.checkpoints.iterdir()) == before
    train(run.run_dir)  # with its own it goes on


HELD_OUT = ("validation", "v", b"held out, and long enough for a row of 32 bytes and one more")


@pytest.mark.parametrize("text", [b"", b"x" * 10])
def test_a_dataset_without_a_row_of_text_is_one_error(new_run: Callable[..., SmallRun], text):
    run = new_run()
    folder, key = run.run_dir.dataset, run.keys["dataset"]
    shutil.rmtree(folder)
    sign_documents([("train", "a", text), HELD_OUT], folder, name="prose", key=key, now=now())
    error = refused(SecureTrainError, "ST-USAG-007", train, run.run_dir)
    assert "train" in error.what + error.where
    assert error.fix


def test_no_documents_are_not_signed(new_run: Callable[..., SmallRun], tmp_path: Path):
    key = new_run().keys["dataset"]
    with pytest.raises(SecureTrainError) as refused:
        sign_documents([], tmp_path / "none", name="prose", key=key, now=now())
    assert refused.value.code == "ST-USAG-001"


@pytest.mark.parametrize("field", ["lr", "clip", "weight_decay", "floor"])
@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_numbers_that_are_none_are_refused_by_field(field, value):
    text = JOB.replace("{warmup_steps: 2}", f"{{warmup_steps: 2, {field}: {value}}}")
    error = refused(SecureTrainError, "ST-USAG-007", parse_job, text, "job.yaml")
    assert f"optimizer.{field}" in error.where
