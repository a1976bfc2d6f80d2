# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Saving and loading by two ranks: one pair of processes for all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from securetrain.artifacts import SaveContext, load, save, verify_path
from securetrain.core.hashtree import TreeParams
from tests.artifacts.checkpoint.worlds import (
    DCP_GLOBALS,
    DTYPE_GLOBALS,
    ERROR_GLOBALS,
    PLAN_GLOBALS,
)

pytestmark = pytest.mark.dist

WORKER = Path(__file__).with_name("dist_worker.py")
SMALL = TreeParams(leaf_size=1024)


@pytest.fixture(scope="module")
def run(tmp_path_factory, keys, now):
    root = tmp_path_factory.mktemp("dist")
    keys.checkpoint.save(root / "checkpoint.pem")
    (root / "trust.json").write_bytes(keys.trust_file())
    (root / "now").write_text(now.isoformat())
    torch.manual_seed(5)
    plain = {
        "a": torch.randn(9, 50),
        "b": torch.randn(50, 33),
        "c": torch.randn(700),
        "d": torch.randn(3, 4, 5).bfloat16(),
    }
    torch.save(plain, root / "plain.pt")
    context = SaveContext(run_id="one", step=1, created=now)
    for name, content in (
        ("plain", plain),
        ("shifted", {"t": torch.arange(13 * 101.0).reshape(13, 101) + 1}),
    ):
        save(content, root / name, key=keys.checkpoint, context=context, params=SMALL)
    # A rank that dies says where.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    workers = []
    for rank in range(2):
        with (root / f"errors-{rank}").open("wb") as errors:
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-W", "error::FutureWarning", WORKER, str(rank), root],
                    env=environment,
                    stderr=errors,
                )
            )
    try:
        ended = [worker.wait(timeout=150) for worker in workers]
        said = [(root / f"errors-{rank}").read_text()[-4000:] for rank in range(2)]
        assert ended == [0, 0], "\n".join(said)
    finally:
        for worker in workers:
            worker.kill()
    return root, [json.loads((root / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_save_and_load_a_sharded_model_and_its_optimizer(run, trust, now):
    root, reports = run
    for report in reports:
        assert report["fsdp"]
        assert report["values"] == [2, 123, True]
        assert report["world_size"] == 2
    assert reports[0]["digest"] == reports[1]["digest"]
    assert reports[0]["save_id"] == reports[1]["save_id"]
    result = verify_path(root / "fsdp", trust=trust, policy=None, now=now)
    assert result.ok
    assert result.digest == reports[0]["digest"]
    assert sorted(p.name for p in (root / "fsdp").glob("*.bin")) == [
        "rank-00000.bin",
        "rank-00001.bin",
    ]


def test_one_process_loads_what_two_saved(run, trust, now):
    root, _ = run
    reference = torch.load(root / "reference.pt", weights_only=True)
    target = {
        part: {name: _blank(value) for name, value in content.items()}
        for part, content in reference.items()
    }
    load(target, root / "fsdp", trust=trust, policy=None, now=now)
    assert _flat(target) == _flat(reference)


def _blank(value):
    if isinstance(value, dict):
        return {name: _blank(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_blank(item) for item in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


def _flat(value):
    if isinstance(value, dict):
        return {name: _flat(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_flat(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_two_ranks_load_what_one_saved_and_rows_become_columns(run):
    for report in run[1]:
        assert report["one_to_two"]
        assert report["rows_to_columns"]


def test_every_rank_gets_the_error_of_the_rank_that_refused(run):
    _, reports = run
    for report in reports:
        errors = report["errors"]
        damage = errors["damage"]
        assert (damage["type"], damage["code"]) == ("IntegrityError", "ST-CKPT-130")
        assert "rank-00001.bin bytes 1024..2048 (tensor t)" in damage["where"]
        assert errors["exists"]["code"] == "ST-CKPT-201"
        assert errors["one_rank_cannot"]["code"] == "ST-USAG-013"
        assert errors["one_rank_cannot"]["where"] == "v"
        assert errors["two_checkpoints"]["code"] == "ST-CKPT-130"
        assert "rank 1 opened another checkpoint" in errors["two_checkpoints"]["what"]
        assert errors["does_not_fit"]["code"] == "ST-USAG-012"
        assert report["left"] == []
    assert reports[1]["zeroed"] is True


def test_the_list_of_globals_is_exactly_what_travels(run):
    _, reports = run
    good = {name for report in reports for name in report["globals"]["good"]}
    failed = {name for report in reports for name in report["globals"]["failed"]}
    dtypes = good & set(DTYPE_GLOBALS)
    assert "torch.float32" in dtypes
    assert good - dtypes == set(PLAN_GLOBALS)
    assert failed - good == set(ERROR_GLOBALS)
    assert good | failed <= set(DCP_GLOBALS)
