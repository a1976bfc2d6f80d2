# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest
import torch

from securetrain.core.errors import UsageError
from securetrain.train.config import parse_job, shape_of
from securetrain.train.models import hf
from securetrain.train.weights import open_weights, with_unverified_sizes
from tests.train.models.hf_files import make
from tests.train.models.test_hf import NOW, TRUST, sign_ours

HEAD = "apiVersion: securetrain.dev/job/v1\nkind: TrainJob\nname: t\nsteps: 1\n"


def job(model: str):
    return parse_job(f"{HEAD}model: {model}\n", "job.yaml")


def test_the_sizes_are_those_of_the_weights(tmp_path):
    root = make(tmp_path / "m")
    sign_ours(root)
    sized, model = open_weights(
        job(f"{{weights: {root}}}"), "job.yaml", trust=TRUST, policy=None, now=NOW
    )
    assert model is not None
    assert shape_of(sized) == hf.shape_of(model.document(hf.CONFIG), "")
    assert with_unverified_sizes(job(f"{{weights: {root}}}"), "job.yaml") == sized
    assert sized.model.weights == str(root)


def test_a_job_without_weights_stays_as_it_is(tmp_path):
    plain = job("{dim: 32, heads: 4}")
    assert open_weights(plain, "", trust=TRUST, policy=None, now=NOW) == (plain, None)
    assert with_unverified_sizes(plain, "") is plain


def test_sizes_that_are_given_must_be_the_same(tmp_path):
    root = make(tmp_path / "m")
    with_unverified_sizes(job(f"{{weights: {root}, dim: 32, layers: 2, heads: 4}}"), "job.yaml")
    with pytest.raises(UsageError) as caught:
        with_unverified_sizes(job(f"{{weights: {root}, vocab: 299}}"), "job.yaml")
    assert caught.value.code == "ST-USAG-007"
    assert caught.value.where == "job.yaml: model.vocab"


def test_planning_names_what_is_missing(tmp_path):
    with pytest.raises(UsageError, match="ST-USAG-002"):
        with_unverified_sizes(job(f"{{weights: {tmp_path}}}"), "job.yaml")
    (tmp_path / "config.json").write_bytes(b"x" * (hf.CONFIG_LIMIT + 1))
    with pytest.raises(UsageError, match="larger than the limit"):
        with_unverified_sizes(job(f"{{weights: {tmp_path}}}"), "job.yaml")


def test_a_plan_need_not_wait_for_torch_to_know_the_sizes():
    assert torch.__name__ in sys.modules
    code = "import sys, securetrain.train.weights; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
