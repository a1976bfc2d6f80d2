# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of job files says what the loader says, with its words."""

from pathlib import Path

import jsonschema
import pytest

from securetrain.core.errors import UsageError
from securetrain.policy.load import parse_yaml
from securetrain.train import job_schema
from securetrain.train.config import parse_job
from tests.tables import each

ROOT = Path(__file__).parents[2]
SCHEMA = job_schema()
JUDGE = jsonschema.Draft202012Validator(SCHEMA)
JOBS = sorted((ROOT / "examples").glob("*.yaml"))
JOB = "apiVersion: securetrain.dev/job/v1\nkind: TrainJob\nname: my-model\nsteps: 4\n"


def test_it_is_a_schema():
    JUDGE.check_schema(SCHEMA)
    assert SCHEMA["required"] == ["apiVersion", "kind", "name", "steps"]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_example_is_valid(path):
    text = path.read_text()
    parse_job(text, str(path))
    JUDGE.validate(parse_yaml(text, str(path)))


def test_there_are_examples():
    assert len(JOBS) >= 5


@each(
    "body",
    "modes: {dim: 64}",
    "model: {dims: 64}",
    "model: {dim: 4}",
    "precision: fp7",
    "parallel: {tp: many}",
    "data: {format: words}",
    "steps: 0",
    "name: My Model",
)
def test_what_the_loader_refuses_is_refused(body):
    key = body.partition(":")[0]
    kept = [line for line in JOB.splitlines() if not line.startswith(f"{key}:")]
    text = "\n".join([*kept, body]) + "\n"
    with pytest.raises(UsageError):
        parse_job(text, "job.yaml")
    assert not JUDGE.is_valid(parse_yaml(text, "x"))


def test_fields_have_the_words_below_them():
    model = SCHEMA["$defs"]["ModelJob"]["properties"]
    assert model["layers"]["description"] == "Blocks of attention and feed-forward network."
    assert SCHEMA["properties"]["steps"]["description"] == "Optimizer steps of the whole run."
