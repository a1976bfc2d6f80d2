# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in the background, and old ones that go."""

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist

from securetrain.artifacts.checkpoint.save import SavedCheckpoint
from securetrain.artifacts.lineage import head, machine
from securetrain.artifacts.lineage.folder import REMOVING, proof_name
from securetrain.core import canonical
from securetrain.core.codes import ExitCode
from securetrain.core.errors import IntegrityError, RuntimeRefusal, UsageError
from securetrain.core.rundir import RunDir
from securetrain.ledger import events, read_ledger
from securetrain.policy.load import load_resolved
from securetrain.testing.processes import run_ranks
from securetrain.testing.runs import SmallRun
from securetrain.train.checkpointing import Checkpoints
from securetrain.train.config import parse_job
from securetrain.train.run import run_job
from securetrain.train.saving import Background
from securetrain.train.setup import run_id_of
from tests.train.jobs import JOB
from tests.train.test_run import NewRun, curve, set_aside, train, weights, worker
from tests.vocabulary import refused

pytestmark = pytest.mark.usefixtures("one_rank")

EVERY = JOB.replace("checkpoint: {every: 3}", "checkpoint: {every: 1, %s}")


def steps(run: SmallRun) -> list[int]:
    return sorted(int(p.name.split("-")[1]) for p in run.run_dir.checkpoints.glob("step-*"))


def past(run: SmallRun) -> machine.History:
    data = run.run_dir.ledger.read_bytes()
    return head.read_history(read_ledger(data, run.trust).recorded)


def test_in_the_background_the_same_is_saved(new_run: NewRun):
    plain, behind = new_run("plain"), new_run("behind")
    job = parse_job(EVERY % "background: true", "job.yaml")
    assert train(plain.run_dir, parse_job(EVERY % "background: false", "job.yaml")) is ExitCode.OK
    assert train(behind.run_dir, job, stop_after=3) is ExitCode.OK
    assert train(behind.run_dir, job) is ExitCode.OK
    assert curve(plain.run_dir) == curve(behind.run_dir)
    assert steps(plain) == steps(behind) == [1, 2, 3, 4, 5, 6]
    for step in (1, 6):
        one, other = (run.run_dir.checkpoint(step) for run in (plain, behind))
        assert weights(one) == weights(other)
    assert [made.step for made in past(behind).made] == [1, 2, 3, 4, 5, 6]


def test_old_ones_go_and_the_ledger_says_so(new_run: NewRun):
    run = new_run()
    job = parse_job(EVERY % "keep: 2, keep_every: 3", "job.yaml")
    assert train(run.run_dir, job, stop_after=5) is ExitCode.OK
    assert steps(run) == [3, 4, 5]
    # A removal that was cut short is finished by the next one; what is not ours stays.
    left = run.run_dir.checkpoint(3)
    left.rename(left.with_name(left.name + REMOVING))
    foreign = run.run_dir.checkpoint(1)
    foreign.mkdir()
    (foreign / "statement.json").write_text("{}")
    assert train(run.run_dir, job) is ExitCode.OK
    assert foreign.is_dir()
    assert steps(run) == [1, 5, 6]
    entries = [json.loads(line) for line in run.run_dir.ledger.read_text().splitlines()]
    assert sum(events.CheckpointRemoved.NAME in json.dumps(entry) for entry in entries) == 4
    assert [made.step for made in past(run).made] == [5, 6]


def test_what_is_resumed_is_what_the_job_expects(new_run: NewRun):
    """Another run's name is refused, and the run's own goes on; its launcher's is its own."""
    run = new_run()
    assert train(run.run_dir, parse_job(EVERY % "keep: 4", "job.yaml"), stop_after=2) is ExitCode.OK
    path, own = run.run_dir.checkpoint(2), run_id_of(run.trust)
    for wrong, code in (("run: prod", "ST-CKPT-125"), ("name: prod-model", "ST-CKPT-126")):
        job = parse_job(EVERY % f"resume: {path}, expect: {{{wrong}}}", "job.yaml")
        refused(IntegrityError, code, train, run.run_dir, job)
    job = parse_job(EVERY % f"resume: {path}, expect: {{run: {own}, name: {own}}}", "job.yaml")
    assert train(run.run_dir, job, stop_after=3) is ExitCode.OK


def test_an_expectation_of_what_the_ledger_decides_is_an_error():
    with pytest.raises(UsageError) as error:
        parse_job(EVERY % "expect: {run: prod}", "job.yaml")
    assert error.value.code == "ST-USAG-007"
    assert "checkpoint.expect" in error.value.where


def test_what_was_removed_is_not_wanted_after_an_eviction(new_run: NewRun):
    """Everything that is left is set aside: the run begins anew, and does not ask for what went."""
    run = new_run()
    job = parse_job(EVERY % "keep: 2", "job.yaml")
    assert train(run.run_dir, job) is ExitCode.OK
    set_aside(run, 5)
    set_aside(run, 6)
    assert train(run.run_dir, job) is ExitCode.OK
    assert past(run).made[-1].step == 6


def written(name: str) -> SavedCheckpoint:
    return SavedCheckpoint(path=name, digest=name, save_id="0")


def failing() -> tuple[str, list[str]]:
    """Rank 1 cannot write; both hear of it at the same step."""
    background, future = Background(torch.device("cpu")), Future[SavedCheckpoint]()
    seen: list[str] = []
    background.begin(future, lambda saved: seen.append(saved.digest))
    background.settle(wait=False)  # nobody is done yet
    if dist.get_rank() == 0:
        future.set_result(written("one"))
    background.settle(wait=False)  # one is
    if dist.get_rank() == 1:
        future.set_exception(IntegrityError("ST-CKPT-200", "no space left", "disk", ""))
    try:
        background.settle(wait=True)
    except (IntegrityError, RuntimeRefusal) as error:
        background.settle(wait=True)  # nothing is under way any more
        return error.code, seen
    return "", seen


@pytest.mark.dist
def test_a_failure_is_everybodys_at_the_same_step():
    assert run_ranks(failing, 2) == [("ST-RUNT-004", []), ("ST-CKPT-200", [])]


def test_a_failure_ends_the_run_at_the_next_step(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_: Any, **__: Any) -> Future[SavedCheckpoint]:
        future = Future[SavedCheckpoint]()
        future.set_exception(IntegrityError("ST-CKPT-200", "no space left", "disk", ""))
        return future

    monkeypatch.setattr("securetrain.train.checkpointing.async_save", failed)
    run = new_run()
    job = parse_job(EVERY % "background: true", "job.yaml")
    refused(IntegrityError, "ST-CKPT-200", run_job, job, "job.yaml", worker(run.run_dir))
    assert [line[0] for line in curve(run.run_dir)] == [1]
    assert "checkpoint-refused" in run.run_dir.ledger.read_text()


def test_a_run_directory_has_what_was_asked_for(new_run: NewRun):
    run = new_run()
    text = JOB.replace("metrics: {", "profile: {start: 2, steps: 2}\nmetrics: {")
    assert train(run.run_dir, parse_job(text, "job.yaml"), stop_after=4) is ExitCode.OK
    folder = run.run_dir
    assert [p.name for p in folder.profile.iterdir()] == ["steps-2-3-rank-0.json.gz"]
    prom = folder.prometheus.read_text()
    assert 'job="tiny"} 4' in prom.split("securetrain_steps_total{")[1].splitlines()[0]
    assert "securetrain_memory_bytes{" in prom


def two_ranks(plain: str, behind: str) -> None:
    for folder, mode in ((plain, "false"), (behind, "true")):
        job = parse_job(EVERY % f"keep: 2, background: {mode}", "job.yaml")
        assert train(RunDir(Path(folder)), job) is ExitCode.OK


@pytest.mark.dist
def test_two_ranks_save_in_the_background(new_run: NewRun):
    plain, behind = new_run("plain"), new_run("behind")
    run_ranks(two_ranks, 2, str(plain.run_dir.root), str(behind.run_dir.root), timeout=120)
    assert curve(plain.run_dir) == curve(behind.run_dir)
    assert steps(plain) == steps(behind) == [5, 6]
    saved = [weights(run.run_dir.checkpoint(6)) for run in (plain, behind)]
    assert saved[0] == saved[1]
    assert len(saved[0]) == 2


def test_what_must_be_logged_stays_until_it_is_proven(new_run: NewRun):
    run = new_run()
    policy = msgspec.json.decode(run.run_dir.resolved_policy.read_bytes())
    policy["checkpoint"]["log"] = {}
    run.run_dir.resolved_policy.write_bytes(canonical.encode(policy))
    job = parse_job(EVERY % "keep: 1", "job.yaml")
    assert train(run.run_dir, job, stop_after=4) is ExitCode.OK
    assert steps(run) == [1, 2, 3, 4]
    for step in (1, 3):
        path = run.run_dir.checkpoint(step)
        path.with_name(proof_name(path.name)).write_bytes(b"a proof")
    now_in_the_log = SimpleNamespace(
        job=job.checkpoint,
        run=run.run_dir,
        run_id=run_id_of(run.trust),
        trust=run.trust,
        policy=load_resolved(run.run_dir.resolved_policy),
        history=machine.History(),
        ledger=run.ledger(),
    )
    Checkpoints._remove_old(now_in_the_log)  # type: ignore[arg-type]
    assert sorted(p.name for p in run.run_dir.checkpoints.glob("step-*") if p.is_dir()) == [
        f"step-{step:08d}" for step in (2, 4)
    ]
