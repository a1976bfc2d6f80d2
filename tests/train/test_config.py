# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest

from securetrain.core.errors import UsageError
from securetrain.train.composition import check_world
from securetrain.train.config import load_job, override, parse_job
from tests.tables import each
from tests.train.jobs import JOB
from tests.vocabulary import refused

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_job_without_extras_has_the_documented_defaults():
    job = parse_job(
        "apiVersion: securetrain.dev/job/v1\nkind: TrainJob\nname: a\nsteps: 100\n", "job.yaml"
    )
    assert (job.model.dim, job.model.layers, job.model.heads, job.model.ffn) == (192, 4, 6, 512)
    assert job.data.dataset is None
    assert job.checkpoint.resume == "auto"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_valid(path):
    job = load_job(path)
    check_world(job, job.launch.nproc_per_node * job.launch.nnodes, str(path))


BAD = [
    ("steps: 6", "steps: six", "steps", ""),
    ("steps: 6", "steps: 0", "steps", ""),
    ("steps: 6", "", "steps", ""),
    ("steps: 6", "steps: 6\nstep: 7", "step", "steps"),
    ("seq_len: 32", "a.b: 32", "data.a.b", "seq_len"),
    ("steps: 6", "steps: 6\nsteps.x: 7", "steps.x", "steps"),
    ("steps: 6", "steps: 6\n'a` - at `b': 7", "a` - at `b", "steps"),
    ("steps: 6", "steps: 6\n7: 8", "7", "steps"),
    ("seq_len: 32", "seq_length: 32", "data.seq_length", "seq_len"),
    ("seq_len: 32", "seq_len: 4", "data.seq_len", "seq_len: 128"),
    ("warmup_steps: 2", "lr: -1.0", "optimizer.lr", "lr: 0.003"),
    ("warmup_steps: 2", "betas: [0.9]", "optimizer.betas", "betas"),
    ("warmup_steps: 2", "betas: [0.9, 1.5]", "optimizer.betas[1]", "betas"),
    ("heads: 2", "heads: 3", "model.heads", "heads: 2"),
    ("dim: 32", "dim: 33", "model.heads", "an even dim"),
    ("kind: TrainJob", "kind: Train", "apiVersion", "kind: TrainJob"),
    ("name: tiny", "name: ../tiny", "name", ""),
    ("every: 3}\nmetrics", "every: 3, resume: ''}\nmetrics", "checkpoint.resume", ""),
    ("eval: {every: 3, rows: 4}", "eval: 3", "eval", ""),
    ("eval: {every: 3, rows: 4}", "parallel: {dp_shard: all}", "parallel.dp_shard", "auto"),
    ("eval: {every: 3, rows: 4}", "precision: fp8", "precision", "fp32"),
]


@pytest.mark.parametrize(("old", "new", "field", "fix"), BAD)
def test_a_bad_field_is_named_with_its_file(old, new, field, fix):
    assert old in JOB
    with pytest.raises(UsageError) as caught:
        parse_job(JOB.replace(old, new), "the/job.yaml")
    assert caught.value.code == "ST-USAG-007"
    assert caught.value.where == f"the/job.yaml: {field}"
    assert caught.value.fix
    assert fix in caught.value.fix


@each(
    "text, where",
    ("a: [", "job.yaml:1"),
    ("a: !!python/object/apply:os.system [id]", "job.yaml:1"),
    ("a: 1\na: 2", "job.yaml:2"),
    ("- a", "job.yaml"),
    ("", "job.yaml"),
)
def test_what_is_not_a_safe_mapping_is_refused(text, where):
    refused(UsageError, "ST-USAG-007", parse_job, text, "job.yaml", names=where)


def test_a_large_file_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB + "#" * 70_000)
    refused(UsageError, "ST-USAG-002", load_job, path)


def test_the_command_line_overrides_and_is_checked():
    job = parse_job(JOB, "job.yaml")
    changed = override(job, "job.yaml", steps=9, resume="never")
    assert (changed.steps, changed.checkpoint.resume) == (9, "never")
    assert override(job, "job.yaml") == job
    refused(UsageError, "steps", override, job, "job.yaml", steps=0)


def test_rows_must_divide_among_the_ranks():
    job = parse_job(JOB, "job.yaml")
    assert check_world(job, 4, "job.yaml").dp == 4
    with pytest.raises(UsageError) as caught:
        check_world(job, 3, "job.yaml")
    assert caught.value.where == "job.yaml: data.batch_rows"
    assert caught.value.fix == "batch_rows: 6"


def test_reading_a_job_needs_no_torch():
    code = (
        "import sys, securetrain.train.config, securetrain.parallel.degrees;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
