# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from traceback import StackSummary

import pytest

from securetrain.core.errors import IntegrityError, RuntimeRefusal
from securetrain.launch.agent.elastic_agent import Failure
from securetrain.launch.node.failures import as_error, log_file, root_cause
from securetrain.launch.process.workerlog import WorkerError, WorkerReport, describe


def failure(rank, exit_code, timestamp=100, **told):
    ending = f"exit code {exit_code}" if exit_code > 0 else "signal SIGTERM"
    return Failure(
        rank=rank,
        local_rank=rank,
        pid=1000 + rank,
        exit_code=exit_code,
        ending=ending,
        timestamp=timestamp,
        **told,
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


LOST = (
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:41",
    "[/gloo/pair.cc:446] Read error [127.0.0.1]:4: Connection reset by peer",
    "writev [127.0.0.1]:43: Broken pipe",
    "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown",
    "NCCL error: ncclRemoteError: A call failed possibly due to a network error or a lost one",
    "[Rank 0] NCCL communicator was aborted on rank 0.",
    "Timed out waiting 180000ms for recv operation to complete",
    "Application timeout caused pair closure",
    "Connect timeout [127.0.0.1]:1 SO_ERROR: Connection refused",
    "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1",
)


@pytest.mark.parametrize("message", LOST)
def test_a_killed_worker_is_named_and_not_the_one_that_lost_it(tmp_path, message):
    """The survivor's error has the earlier time: the killed one is found when the agent looks."""
    killed, survivor = failure(1, -9, timestamp=101), failure(0, 1, timestamp=100)
    reports = [report(0, "RuntimeError", message)]
    error = as_error([survivor, killed], reports, tmp_path)
    assert error.code == "ST-RUNT-004"
    assert "rank 1 (pid 1001) ended with signal" in error.what
    assert "find out what ended it" in error.fix
    # Its node may be another one: then there is only the survivor, and no script to correct.
    alone = as_error([survivor], reports, tmp_path)
    assert "rank 0" in alone.what
    assert "another rank or node ended before it" in alone.fix


@pytest.mark.parametrize("code", ["ST-RUNT-004", "ST-GRAD-010"])
def test_our_own_words_for_a_lost_rank_are_second_hand_too(tmp_path, code):
    error = as_error(
        [failure(0, 1), failure(1, -9, timestamp=101)], [report(0, code=code)], tmp_path
    )
    assert "rank 1" in error.what
    assert (
        root_cause(
            [failure(0, 1), failure(1, 3, timestamp=101)],
            {0: report(0, code=code).error, 1: report(1).error},
        ).rank
        == 1
    )


def test_a_loss_in_the_middle_of_a_save_is_a_loss(tmp_path):
    """Saving makes a usage error of what torch raises."""
    said = [report(0, "UsageError", f"RuntimeError: {LOST[0]}", code="ST-USAG-010")]
    error = as_error([failure(0, 2), failure(1, -9, timestamp=101)], said, tmp_path)
    assert (error.code, "rank 1 (pid 1001) ended with signal" in error.what) == (
        "ST-RUNT-004",
        True,
    )
    alone = as_error([failure(0, 2)], said, tmp_path)
    assert alone.code == "ST-RUNT-004"
    assert "another rank or node ended before it" in alone.fix
    mistake = [report(0, "UsageError", "no such parameter", code="ST-USAG-010")]
    assert as_error([failure(0, 2), failure(1, -9)], mistake, tmp_path).code == "ST-USAG-010"


def test_what_the_agent_did_is_nobodys_reason():
    # It did not end when it was told to, and was killed.
    stuck = failure(0, -9, 99, was_told=True, was_killed=True)
    assert root_cause([stuck, failure(1, 3, 100)]).rank == 1
    # It was killed by another, and seen late.
    assert root_cause([failure(0, 1, 99), failure(1, -9, 101, was_told=True)]).rank == 1
    # They ended as they were told.
    for code in (130, 143):
        ended = failure(0, code, 99, was_told=True)
        lost = report(1, message=LOST[0]).error
        assert root_cause([ended, failure(1, 1, 99)], {}).rank == 1
        assert (
            root_cause([failure(0, 3, 100, was_told=True), failure(1, 1, 99)], {1: lost}).rank == 0
        )
    assert root_cause([failure(0, 3, 99, was_told=True), failure(1, 3, 100)]).rank == 1
    assert root_cause([failure(0, -11, 101, was_told=True), failure(1, 1, 99)], {1: lost}).rank == 0


def test_what_a_killed_worker_said_in_an_earlier_attempt_is_not_its_end(tmp_path):
    reports = [report(1, "RuntimeError", LOST[0]), report(0, "RuntimeError", LOST[0], attempt=1)]
    error = as_error([failure(0, 1), failure(1, -9, timestamp=101)], reports, tmp_path)
    assert "peer" not in error.what
    assert "rank 1 (pid 1001) ended with signal" in error.what


def test_a_refusal_is_a_cause_even_where_somebody_was_killed(tmp_path):
    error = as_error(
        [failure(0, -9, 99), failure(1, 13)], [report(1, code="ST-CKPT-130")], tmp_path
    )
    assert error.code == "ST-CKPT-130"


def test_a_fault_is_a_cause_and_a_lost_connection_is_not():
    lost = report(0, "RuntimeError", LOST[1]).error
    assert root_cause([failure(0, 1, 99), failure(1, -11)], {0: lost}).rank == 1
    # A script's own mistake, and a fault that came of it.
    assert root_cause([failure(0, 1, 99), failure(1, -11)], {0: report(0).error}).rank == 0


def test_our_error_inside_torchs_checkpoint_exception_is_found():
    from torch.distributed.checkpoint.api import CheckpointException

    inner = IntegrityError("ST-CKPT-130", "changed", "rank-00000.bin", "get it again")
    found = describe(CheckpointException("load", {1: (inner, StackSummary())}))
    assert (found.code, found.message, found.where) == ("ST-CKPT-130", "changed", "rank-00000.bin")
    assert describe(ValueError("x")).kind == "ValueError"
