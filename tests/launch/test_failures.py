# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from traceback import StackSummary

from securetrain.core.errors import IntegrityError, RuntimeRefusal
from securetrain.launch.elastic_agent import Failure
from securetrain.launch.failures import as_error, log_file, root_cause
from securetrain.launch.workerlog import WorkerError, WorkerReport, describe


def failure(rank, exit_code, timestamp=100):
    ending = f"exit code {exit_code}" if exit_code > 0 else "signal SIGTERM"
    return Failure(
        rank=rank,
        local_rank=rank,
        pid=1000 + rank,
        exit_code=exit_code,
        ending=ending,
        timestamp=timestamp,
    )


def report(rank, kind="ValueError", message="boom", code="", attempt=0):
    error = WorkerError(kind=kind, message=message, code=code)
    return WorkerReport(rank=rank, attempt=attempt, error=error)


def test_the_error_names_rank_exit_code_and_exception(tmp_path):
    error = as_error([failure(1, 3)], [report(1)], tmp_path)
    assert isinstance(error, RuntimeRefusal)
    assert error.code == "ST-RUNT-004"
    assert "rank 1 (pid 1001) ended with exit code 3: ValueError: boom" in error.what
    assert "--tee 3" in error.where


def test_a_signal_and_a_log_file(tmp_path):
    log = tmp_path / "job_x" / "attempt_1" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("bad")
    error = as_error([failure(0, -15)], [], tmp_path)
    assert "signal SIGTERM" in error.what
    assert error.where == str(log)
    assert log_file(tmp_path, failure(1, 1)) is None


def test_our_own_code_becomes_the_runs(tmp_path):
    failures = [failure(0, 1, timestamp=99), failure(1, 1), failure(2, -15, timestamp=50)]
    reports = [report(0, "RuntimeError", "peer gone"), report(1, code="ST-CKPT-130")]
    error = as_error(failures, reports, tmp_path)
    assert isinstance(error, IntegrityError)
    assert error.code == "ST-CKPT-130"
    assert error.exit_code == 13
    assert "2 other ranks" in error.what


def test_a_code_that_does_not_exist_is_not_believed(tmp_path):
    error = as_error([failure(0, 1)], [report(0, code="ST-FAKE-001")], tmp_path)
    assert error.code == "ST-RUNT-004"


def test_the_latest_attempt_counts(tmp_path):
    reports = [report(0, message="second", attempt=1), report(0, message="first", attempt=0)]
    assert "second" in as_error([failure(0, 1)], reports, tmp_path).what


def test_workers_that_the_agent_ended_come_last():
    assert root_cause([failure(0, -15, 1), failure(1, 2, 5)]).rank == 1
    assert root_cause([failure(1, 2, 5), failure(0, 2, 5)]).rank == 0


def test_our_error_inside_torchs_checkpoint_exception_is_found():
    from torch.distributed.checkpoint.api import CheckpointException

    inner = IntegrityError("ST-CKPT-130", "changed", "rank-00000.bin", "get it again")
    found = describe(CheckpointException("load", {1: (inner, StackSummary())}))
    assert (found.code, found.message, found.where) == ("ST-CKPT-130", "changed", "rank-00000.bin")
    assert describe(ValueError("x")).kind == "ValueError"
