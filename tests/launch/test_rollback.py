# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A whole run of the built-in trainer that goes back to before a rank's offence."""

import json
from pathlib import Path

import pytest

from securetrain.core.codes import CODES
from tests.launch.worlds import run_with_documents, write_policy
from tests.train.jobs import JOB

pytestmark = [pytest.mark.dist, pytest.mark.slow]
POISONED = Path(__file__).parents[1] / "guard" / "poisoned"
FROM, STEPS = 12, 40
POLICY = {"gradients": {"response": "rollback"}}


def trained(launch, tmp_path, *, poison=""):
    policy = write_policy(tmp_path / "policy.yaml", **POLICY)
    made = run_with_documents(tmp_path / "run", policy)
    job = tmp_path / "job.yaml"
    text = JOB.replace("steps: 6", f"steps: {STEPS}").replace("batch_rows: 4", "batch_rows: 32")
    job.write_text(text.replace("every: 3}", "every: 4}") + "parallel: {dp_replicate: 4}\n")
    return launch(
        made.run.root,
        *("--standalone", "--policy", policy, "--nproc-per-node", "4"),
        *("--pass-env", "POISON", "-m", "securetrain.train", str(job)),
        PYTHONPATH=str(POISONED),
        POISON=poison,
    )


def test_a_run_goes_back_to_before_the_offence_and_on_without_the_rank(launch, tmp_path):
    done = trained(launch, tmp_path, poison=f"2:{FROM}")
    assert done.code == 0, done.err
    [back] = done.events("rolled-back")
    assert back.details["ranks"] == "2"
    named = int(back.subject.split()[1])
    assert FROM < named < STEPS
    assert back.details["to"] < FROM, "a checkpoint that the rank is not in"
    assert back.details["to"] % 4 == 0
    aside = done.events("checkpoint-quarantined")
    assert {e.details["step"] for e in aside} == set(range(back.details["to"] + 4, named, 4))
    [point] = done.events("restart-point")
    assert point.details["step"] == back.details["to"]
    assert [e.details["rank"] for e in done.events("rank-excluded")] == [2]
    lines = [json.loads(line) for line in done.run.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all(line["verdict"] in {"clean", "observed"} for line in lines)
    folders = {path.name for path in done.run.checkpoints.iterdir()}
    assert {f"step-{step:08}" for step in range(4, STEPS + 1, 4)} <= folders
    assert sum("quarantined" in name for name in folders) == len(aside)


def test_a_script_with_checkpoints_of_its_own_is_refused_before_its_first_step(launch, tmp_path):
    policy = tmp_path / "policy.yaml"
    write_policy(policy, **POLICY)
    script = Path(__file__).parent / "unmodified" / "scripts" / "plain_ddp.py"
    done = launch(
        tmp_path / "run",
        *("--standalone", "--policy", str(policy), "--nproc-per-node", "2"),
        *(str(script), "5", "-1", "1", "0"),
    )
    assert done.code == CODES["ST-GRAD-021"].exit
    assert "rollback goes back to checkpoints of the built-in trainer" in done.err, "at the start"
    assert "held-out" not in done.out
    assert "ST-GRAD-021" in done.codes
